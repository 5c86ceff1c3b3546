//! The second part of the experiment `shadow`: a database in a guest that pages.
//!
//! As in the study, there are the start of a database, five concurrent writers, and both together,
//! in a guest with so little memory that it swaps ([`guest`]), and a variant that only computes;
//! [`kinds`] has guests that do not page or have one address space.
//! [`work`] computes what the tables must hold in the end. [`accounts`] divides the monitor's time
//! as the study does, and [`paper`] has its figures.

mod accounts;
mod answers;
mod bench;
mod guest;
mod kinds;
mod paper;
mod work;
pub mod workloads;

pub use answers::answers;
pub use bench::DatabaseBench;
pub use guest::check_folder;
pub use kinds::{Files, OneSpace};
pub use paper::sections;
