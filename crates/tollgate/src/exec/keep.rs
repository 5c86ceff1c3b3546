//! `tollgate exec --keep`: a machine that stays, and runs the commands that clients bring to its control
//! socket.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use clap::Args;
use tollgate_confine::ThreadKind;

use super::broker::Broker;
use crate::host;
use crate::machines::detach;
use crate::standard_output::print;

/// The flags of machines that stay.
#[derive(Args, Debug)]
pub struct KeepArguments {
    /// Keep the machine instead of running one command, and run commands with exec --in
    ///
    /// The machine prints its name when it is ready. It ends by tollgate kill NAME, or a signal.
    #[arg(long, conflicts_with_all = ["command", "timeout", "no_input", "image"], verbatim_doc_comment)]
    pub keep: bool,

    /// End the machine when its standard input ends
    ///
    /// A program that starts the machine with a pipe never leaves one running, however it ends.
    #[arg(
        long,
        requires = "keep",
        conflicts_with = "detach",
        verbatim_doc_comment
    )]
    pub end_with_input: bool,

    /// Continue from a snapshot of a machine that was kept with the same flags
    ///
    /// tollgate snapshot create SOCKET FILE writes one. Commands that ran then are killed.
    #[arg(long, value_name = "FILE", requires = "keep", verbatim_doc_comment)]
    pub restore: Option<PathBuf>,

    /// Run the command in the machine with this name, which was started with --keep
    #[arg(
        long = "in",
        value_name = "NAME",
        conflicts_with_all = [
            "keep", "root", "image", "rw", "share", "kernel", "modules", "cold", "append", "verbose",
            "memory", "name", "sandbox", "files", "processes", "limit", "detach", "control", "net", "vsock",
        ]
    )]
    pub inside: Option<String>,
}

/// What a machine that stays does, from its command line.
pub struct Keep {
    /// The name for lists of machines.
    pub name: String,
    /// Whether it ends with its standard input.
    pub ends_with_input: bool,
    /// Whether it continues from a snapshot of a machine that was ready.
    pub continues: bool,
}

/// A machine that stays.
pub struct Kept {
    keep: Keep,
    broker: Broker,
    /// Whether standard input has ended.
    input_ended: Arc<AtomicBool>,
}

impl Kept {
    /// Takes the ports of the guest.
    pub fn new(keep: Keep, broker: Broker) -> Self {
        Self {
            keep,
            broker,
            input_ended: Arc::default(),
        }
    }

    /// Whether the guest is ready from its start.
    pub fn continues(&self) -> bool {
        self.keep.continues
    }

    /// The clients' way to the guest.
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// Whether the end of standard input asks for the end.
    pub fn is_over(&self) -> bool {
        self.input_ended.load(Ordering::Acquire)
    }

    /// Says that the machine is ready, and begins to wait for the end of standard input, which raises
    /// `event`.
    ///
    /// # Errors
    /// The host starts no thread.
    pub fn begin(&self, event: &Arc<OwnedFd>) -> io::Result<()> {
        let name = &self.keep.name;
        match detach::log() {
            Some(_) => detach::report_ready(name),
            // A reader that has gone needs no name.
            None => drop(print(&format!("{name}\n"))),
        }
        if !self.keep.ends_with_input {
            return Ok(());
        }
        let (ended, event) = (Arc::clone(&self.input_ended), Arc::clone(event));
        let entry = tollgate_confine::entry_of_child(ThreadKind::Main);
        thread::Builder::new().name("stdin".into()).spawn(move || {
            entry.enter();
            let mut stdin = io::stdin().lock();
            while stdin.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
            ended.store(true, Ordering::Release);
            host::raise(event.as_fd());
        })?;
        Ok(())
    }
}
