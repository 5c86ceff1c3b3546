//! The arguments of `tollgate snapshot`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::control::command::ThenName;

/// `tollgate snapshot`.
#[derive(Args, Debug)]
#[command(after_help = "\
A snapshot holds the guest's memory, with all its secrets: only you can read the file. Machines that
are restored from it leave their translated code in FILE.translations, so that later ones start faster.
Nothing breaks if that is removed.
Examples:
  Keep the state of a running machine, and continue there later:
    tollgate snapshot create vm.sock vm.snap --then quit
    tollgate run --restore vm.snap
  Keep another state of the restored machine, without what vm.snap has already:
    tollgate snapshot create vm.sock later.snap --base vm.snap
  Let three machines continue from where this one is, next to it:
    tollgate snapshot fork vm.sock --count 3
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
    /// Start machines that continue from where a running or paused machine is
    Fork(ForkArguments),
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

    /// Write only what differs from this earlier snapshot, usually the one it was restored from
    ///
    /// The new file names BASE, and can be restored while BASE is there and unchanged. BASE may have
    /// a base itself; a snapshot has at most seven bases in all.
    #[arg(long, value_name = "BASE", verbatim_doc_comment)]
    pub base: Option<PathBuf>,

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

/// `tollgate snapshot fork`.
#[derive(Args, Debug)]
#[command(after_help = "\
Each fork is a process of its own that continues from one snapshot, as with tollgate run --restore
FILE --separate PREFIX-N. Forks share the memory that they only read. The files of fork N, from 1,
or from the first number that is free, are:
  PREFIX-N.sock       its control socket, for tollgate control, type, screen, top and others
  PREFIX-N.serial     what its guest writes to the serial port
  PREFIX-N.log        what Tollgate says
  PREFIX-N.port-NAME  what its guest writes to a port
Each fork has a generation ID of its own, on which a guest with its driver (vmgenid) reseeds its
random numbers. Keys, sessions, host name and MAC addresses are the same in all.
Disks that the guest only reads are shared. A machine that writes to a disk can be forked with
--then quit alone: what a fork writes is in an overlay, which ends with it.
Ports of this host are not forwarded to forks. End a fork with tollgate control PREFIX-N.sock quit.
Exit codes: 0 done, 1 the machine refused or a fork failed, and there are no forks, 2 no machine
listens at PATH, or it cannot be forked.
Examples:
  Try three ways from one prepared state, and go on with the first machine:
    tollgate snapshot fork vm.sock --count 3
  Replace a machine with a disk by two, each with an overlay, and read where they are:
    tollgate snapshot fork vm.sock --count 2 --then quit --json")]
pub struct ForkArguments {
    /// The path given to tollgate run --control
    #[arg(value_name = "PATH")]
    pub socket: PathBuf,

    /// The number of forks, 1 to 256
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=256)
    )]
    pub count: u32,

    /// How the names of the forks' files begin; without it like PATH, without .sock
    #[arg(long, value_name = "PREFIX")]
    pub prefix: Option<PathBuf>,

    /// Where the forks' serial ports lead
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = SerialChoice::File)]
    pub serial: SerialChoice,

    /// Keep the snapshot that the forks continue from as this file
    #[arg(long, value_name = "FILE")]
    pub keep: Option<PathBuf>,

    /// Write only what differs from this earlier snapshot, usually the one that the machine was
    /// restored from: less is written, and forks share more memory
    #[arg(long, value_name = "BASE")]
    pub base: Option<PathBuf>,

    /// What the machine does afterwards: it goes on (or stays paused), or it ends
    #[arg(
        long,
        value_name = "WHAT",
        value_enum,
        default_value_t = ThenName::Resume
    )]
    pub then: ThenName,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Where the serial port of a fork leads.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum SerialChoice {
    /// The file PREFIX-N.serial
    File,
    /// A new pseudo-terminal, on which you can type
    Pty,
    /// Nowhere
    Null,
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
#[command(after_help = "\
Translations next to the snapshot that cannot be used are reported, and do not count: without them the
snapshot can be restored.
Exit codes: 0 the snapshot can be restored, 2 it cannot.")]
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
