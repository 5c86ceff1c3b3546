//! `tollgate cost --system-calls`: as the study measured. A Linux guest gets two system calls by a kernel module, one that
//! makes the marked hypercall and one that does nothing; a program times both in turns.

mod plot;
mod result;
mod run;
mod table;

pub use plot::write_plot;
pub use result::{Calls, Samples, SystemCalls};
pub use run::run;
pub use table::{samples_csv, summary_csv, table, to_json};
