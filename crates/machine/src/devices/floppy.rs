//! The floppy disk controller: an Intel 82077AA in its AT mode, at ports 3F0h to 3F5h and 3F7h,
//! with line 6, DMA channel 2 and up to two drives.
//!
//! A command passes through the phases of the data sheet, and ends with its interrupt:
//!
//! ```text
//!   bytes of the command --> execution --------------------------> bytes of the result
//!                            image's thread reads, then DMA or
//!                            the processor takes the bytes
//!                            DMA or the processor gives bytes,
//!                            then the image's thread writes
//! ```
//!
//! An image holds the bytes of its sectors and nothing else ([`mod@format`]). Every sector has 512
//! bytes in double density (MFM) and the address that corresponds to its place, so sectors of other
//! sizes, in FM, or with deleted data are never found. A search that fails takes two revolutions,
//! as in a real controller; it does so even without a disk, where a real controller waits for ever.
//! No other operation takes the time that a drive needs. Written data is on stable storage before
//! the interrupt comes.
//!
//! Not implemented are the scan commands, which the 82077AA's successors lack too, and the
//! registers of the PS/2 (3F0h, 3F1h).

mod bus;
mod command;
mod controller;
pub mod drive;
mod execute;
pub mod format;
mod host;
mod registers;
#[cfg(test)]
mod tests;
mod transfer;

pub use controller::{Floppy, disk_name};
pub use drive::Drive;
