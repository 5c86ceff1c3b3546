//! `tollgate cost --with`: the same guest, with the same loops, in Tollgate and in other machines.
//!
//! The machines take turns: each round starts every machine once and measures a part of each kind's events. Only one of
//! them exists at a time, so that none disturbs another.

mod export;
mod machines;
mod merge;
mod plot;
mod result;
mod run;
mod table;

pub use export::{samples_csv, summary_csv, to_json};
pub use machines::OtherMachine;
pub use plot::write_plot;
pub use result::{Comparison, Finding, Line, Measured, Participant};
pub use run::{KINDS, Request, run};
pub use table::table;

#[cfg(test)]
pub(crate) use merge::tests::row as example_row;
