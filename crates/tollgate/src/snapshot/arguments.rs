//! The arguments of `tollgate snapshot`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::control::command::ThenName;

/// `tollgate snapshot`.
#[derive(Args, Debug)]
#[command(after_help = "\
A snapshot holds the guest's memory, with all its secrets: only you can read the file.
Examples:
  Keep the state of a running machine, and continue there later:
    tollgate snapshot create vm.sock vm.snap --then quit
    tollgate run --restore vm.snap
  Is the file whole, and are its disks as they were?
    tollgate snapshot check vm.snap")]
pub struct SnapshotArguments {
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// What to do with snapshots.
#[derive(Subcommand, Debug)]
pub enum Action {
    /// Write the state of a running or paused machine to a file
    Create(CreateArguments),
    /// Show what a snapshot holds
    Info(InfoArguments),
    /// Read all of a snapshot, and compare its checksums and the state of its disks
    Check(CheckArguments),
}

/// `tollgate snapshot create`.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 the machine could not write it, 2 no machine listens at PATH.")]
pub struct CreateArguments {
    /// The path given to tollgate run --control
    #[arg(value_name = "PATH")]
    pub socket: PathBuf,

    /// The file to write. It appears when it is complete; one that exists is replaced then
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// What the machine does afterwards
    ///
    /// resume: it goes on (or stays paused). Its disks change then, so the snapshot cannot be
    /// restored with them. quit: it ends.
    #[arg(
        long,
        value_name = "WHAT",
        value_enum,
        default_value_t = ThenName::Resume,
        verbatim_doc_comment
    )]
    pub then: ThenName,
}

/// `tollgate snapshot info`.
#[derive(Args, Debug)]
pub struct InfoArguments {
    /// The file of the snapshot
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Print JSON, with the machine's whole configuration
    #[arg(long)]
    pub json: bool,
}

/// `tollgate snapshot check`.
#[derive(Args, Debug)]
#[command(after_help = "Exit codes: 0 the snapshot can be restored, 2 it cannot.")]
pub struct CheckArguments {
    /// The file of the snapshot
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// `tollgate reset`.
#[derive(Args, Debug)]
#[command(after_help = "\
The guest is exactly where the snapshot was taken: memory, processor, devices and clocks, and the
state of its random numbers. Only the pages that it has written since are copied. What it has
written to disks cannot be put back: give it disks that it only reads.
Exit codes: 0 done, 1 the machine cannot be put back, 2 no machine listens at PATH.
Example:
  Try many inputs from one prepared state:
    tollgate run --restore vm.snap --control vm.sock --serial file:log &
    tollgate reset vm.sock")]
pub struct ResetArguments {
    /// The path given to tollgate run --control
    #[arg(value_name = "PATH")]
    pub socket: PathBuf,
}
