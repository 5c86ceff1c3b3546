//! Disk images on the host: they are opened and locked, and read and written in the units of a
//! disk, by a thread for each image.
//!
//! ```text
//!   DriveOptions -- open --> Image -- DiskThread::start --> requests in, outcomes out
//! ```
//!
//! The formats are implemented by the crate imago, which opens no file here: every file, including
//! backing files, is opened and locked by [`open()`] and passed to it. imago trusts what it reads.
//! So headers are checked here first, and an image that will be written is checked for damage that
//! writes could spread ([`check()`]).

pub mod buffers;
mod chain;
pub mod check;
pub mod convert;
pub mod create;
pub mod error;
mod header;
mod host_file;
pub mod image;
mod image_file;
pub mod info;
pub mod new_file;
pub mod open;
pub mod options;
mod support;
pub mod thread;

pub use buffers::{Buffer, Buffers};
pub use check::{CheckReport, Repair, check};
pub use convert::{Copy, convert};
pub use create::{create, create_over};
pub use error::DiskError;
pub use header::Encryption;
pub use image::Image;
pub use info::{ImageInfo, Qcow2Info, info};
pub use new_file::NewFile;
pub use open::open;
pub use options::{Backing, Cache, DriveOptions, Format};
pub use thread::{DiskThread, Elsewhere, Operation, Outcome, Request};
