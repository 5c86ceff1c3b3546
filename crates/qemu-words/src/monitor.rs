//! Monitors: QMP, which programs speak, and HMP, which people type. Bytes in, bytes out.
//!
//! ```text
//!   client -- Qmp, Hmp -- commands, lines -- Machine
//!              bytes        what is asked      carries it out
//! ```

mod commands;
mod hmp;
mod machine;
mod qmp;
mod queries;
#[cfg(test)]
mod tests;

pub use hmp::Hmp;
pub use machine::{Event, Machine, PictureForm, RunState};
pub use qmp::Qmp;
