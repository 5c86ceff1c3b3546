//! Monitors: QMP, which programs speak, and HMP, which people type. Bytes in, bytes out.
//!
//! ```text
//!   client -- Qmp, Hmp -- commands, lines -- Machine
//!              bytes        what is asked      carries it out
//! ```

mod commands;
mod dump;
mod fault;
mod hmp;
mod hotplug;
mod info;
mod jobs;
mod machine;
mod mouse;
mod objects;
mod pages;
mod qmp;
mod queries;
mod spare;
#[cfg(test)]
mod tests;

pub use hmp::Hmp;
pub use hotplug::gone;
pub use machine::{Button, Event, Job, Machine, Motion, Page, PictureForm, RunState, Tag};
pub use qmp::Qmp;
