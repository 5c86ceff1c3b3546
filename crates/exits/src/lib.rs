//! The list of exit kinds: every way in which guest code leaves translated code.
//!
//! An *exit* is a transfer from the code cache to the monitor. Each has one kind,
//! from the list in [`exit_kind`].

pub mod blame;
pub mod counter;
mod disturbance;
mod durations;
pub mod exit_kind;
mod hexadecimal;
pub mod latency;
pub mod ledger;
pub mod prices;
pub mod reading;
pub mod sampler;
pub mod snapshot;
pub mod steps;
pub mod trace;

pub use exit_kind::{ExitCounts, ExitKind};
pub use ledger::Ledger;
