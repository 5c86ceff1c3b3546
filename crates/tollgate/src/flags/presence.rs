//! The machine's name among this user's machines, and how it is started.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::machines::Name;

/// Flags about the machine's place among others.
#[derive(Args, Debug)]
pub struct PresenceArguments {
    /// The machine's name for tollgate ps, kill and logs, instead of its process's number
    #[arg(long, value_name = "NAME")]
    pub name: Option<Name>,

    /// Run in the background: return when the machine runs, and print its name
    ///
    /// What it writes is shown by tollgate logs NAME. It has no standard input.
    #[arg(short, long, verbatim_doc_comment)]
    pub detach: bool,

    /// The file with the output of a machine in the background.
    #[arg(long, hide = true, value_name = "PATH")]
    pub detached_log: Option<PathBuf>,

    /// Whether the machine starts only if this host's memory is enough for a guest that has booted
    #[arg(long, value_name = "SWITCH", value_enum, default_value_t = Admission::On)]
    pub admission: Admission,
}

/// Whether machines are admitted by memory.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// A machine starts only if there is memory for it
    On,
    /// A machine starts in any case
    Off,
}
