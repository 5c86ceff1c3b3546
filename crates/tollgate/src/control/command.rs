//! The names of the commands that a control socket carries out.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The commands, as they are written in requests and on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// Show what the machine is doing
    Status,
    /// Show exits, their costs, where time goes (see tollgate stats)
    Stats,
    /// Start the statistics again from zero
    ResetStats,
    /// Set or list marks, as `tollgate mark` does.
    #[value(skip)]
    Mark,
    /// Stop the processor; guest time stands still
    Pause,
    /// Continue after a pause
    Resume,
    /// Put the machine back to the snapshot that it was restored from
    Reset,
    /// End the virtual machine immediately
    Quit,
    /// List what the guest could not reach because of its network's rules
    Refused,
    /// Press the power button: the guest may shut down
    PowerButton,
    /// Show or change knobs, as `tollgate set` does.
    #[value(skip)]
    Set,
    /// Change the medium of a drive, as `tollgate medium` does.
    #[value(skip)]
    Medium,
    /// Write a snapshot, as `tollgate snapshot create` does.
    #[value(skip)]
    Snapshot,
    /// Run a command in a guest that is kept, as `tollgate exec --in` does.
    #[value(skip)]
    Exec,
    /// Show the screen, as `tollgate screen` does.
    #[value(skip)]
    Screen,
    /// Type on the keyboard or use the mouse, as `tollgate type` does.
    #[value(skip)]
    Type,
}

/// What a machine does after its snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ThenName {
    /// The machine goes on, or stays paused
    #[default]
    Resume,
    /// The machine ends
    Quit,
}

/// The error of a request that the vCPU thread has not carried out in time.
pub const LATE: &str = "the processor does not answer now";

/// How long a snapshot may take, which writes the guest's memory to a file.
pub const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(600);
