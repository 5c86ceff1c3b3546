//! `tollgate cost`: what an exit costs.
//!
//! A bare-metal guest of our own takes each kind of exit many times in succession (in batches) and
//! as single events, reads the time-stamp counter before and after, and passes the readings on
//! through its memory. The same loop without the event is measured and subtracted. The ledger must
//! have counted exactly the exits that the guest reports; otherwise the experiment fails.
//!
//! What is measured is a call out of translated code inside one process. It does not cross a
//! protection boundary, so its price is never compared with that of a hardware exit.

mod bench;
pub mod comparison;
mod disk;
mod error;
mod export;
mod guest;
mod ide;
mod image;
pub mod kinds;
mod measure;
mod native;
mod options;
mod outcome;
pub mod overhead;
mod pinning;
mod plot;
mod qemu;
mod reading;
mod report;
mod requests;
mod summary;
pub mod system_calls;
mod table;
mod virtio;

pub use error::CostError;
pub use export::{from_json, samples_csv, summary_csv, to_json};
pub use image::{GuestMode, table as guest_table};
pub use measure::run;
pub use options::Options;
pub use plot::write_plot;
pub use report::{BatchContents, BatchResult, CheckedCount, Report, Row};
pub use summary::summary;
pub use table::table;
