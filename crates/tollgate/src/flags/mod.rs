//! The flags of `tollgate run` and `tollgate exec`, in groups by subject.
//!
//! Each group is one struct that both commands, or `run` alone, flatten into their arguments. A
//! flag that both commands have is defined here once, so that it takes the same values in both. The
//! modules that understand the values of flags (`net`, `drive`, `port` and so on) know nothing of
//! this folder.
//!
//! ```text
//! run/arguments    exec/arguments
//!       |               |
//!       |    machine, network, developer (with knobs); statistics/arguments
//!       |
//!     boot, disks, devices, consoles, events, debugger
//! ```

mod boot;
mod consoles;
mod debugger;
mod developer;
mod devices;
mod disks;
mod events;
mod knobs;
mod machine;
mod network;
mod presence;

use clap::ValueEnum;

pub use boot::{BootArguments, GuestHooksFor};
pub use consoles::ConsoleArguments;
pub use debugger::DebuggerArguments;
pub use developer::DeveloperArguments;
pub use devices::DeviceArguments;
pub use disks::DiskArguments;
pub use events::EventArguments;
pub use knobs::{
    are_asked_for as knobs_are_asked_for, list as list_of_knobs, set_defaults as set_knobs,
};
pub use machine::MachineArguments;
pub use network::NetworkArguments;
pub use presence::{Admission, PresenceArguments};

/// Whether the machine has a device.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    /// The machine has it
    On,
    /// The machine lacks it
    Off,
}
