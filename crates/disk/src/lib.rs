//! Disk images on the host: opened and locked, read and written in the units that a disk has,
//! by a thread of their own.
//!
//! ```text
//!   DriveOptions -- open --> Image -- DiskThread::start --> requests in, outcomes out
//! ```
//!
//! The formats are those of the crate imago. It opens no file here: every file is opened and
//! locked by [`open()`], backing files too, and handed to it. imago trusts what it reads, so
//! headers are checked here before it sees them, and an image that is written is looked through
//! for damage that writes could spread ([`check()`]).

pub mod buffers;
mod chain;
pub mod check;
pub mod convert;
pub mod create;
mod header;
pub mod image;
mod image_file;
pub mod info;
mod new_file;
pub mod open;
pub mod options;
mod support;
pub mod thread;

pub use buffers::{Buffer, Buffers};
pub use check::{CheckReport, Repair, check};
pub use convert::{Copy, convert};
pub use create::{create, create_over};
pub use header::Encryption;
pub use image::Image;
pub use info::{ImageInfo, Qcow2Info, info};
pub use open::{DiskError, open};
pub use options::{Backing, Cache, DriveOptions, Format};
pub use thread::{DiskThread, Elsewhere, Operation, Outcome, Request};
