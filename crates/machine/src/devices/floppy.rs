//! The floppy disk controller: an Intel 82077AA in its AT mode, ports 3F0h to 3F5h and 3F7h, line
//! 6, DMA channel 2, with up to two drives.
//!
//! A command goes through the phases of the data sheet, and ends by its interrupt:
//!
//! ```text
//!   bytes of the command --> execution --------------------------> bytes of the result
//!                            image's thread reads, then DMA or
//!                            the processor takes the bytes
//!                            DMA or the processor gives bytes,
//!                            then the image's thread writes
//! ```
//!
//! An image has the bytes of its sectors and nothing else ([`format`]): every sector is there with
//! the address that its place says, of 512 bytes, in double density (MFM). So other sizes of sectors, FM
//! and deleted data are not found. What cannot be found takes the two revolutions in which a
//! controller looks for it, also without a disk, where a real one waits for ever. Nothing else takes
//! the time that a drive takes. What is written is on stable storage before the interrupt comes.
//!
//! Not there: the scan commands, which the 82077AA's successors have not either, and the registers
//! of the PS/2 (3F0h, 3F1h).

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
