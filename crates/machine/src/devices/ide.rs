//! ATA disks and CD-ROM drives on the IDE function of Intel's PIIX3 (82371SB data sheet, 2.2.2 and
//! 2.7; ATA/ATAPI-6): two channels of two devices each.
//!
//! ```text
//!   channel  registers     control  line  bus master
//!   0        1F0h to 1F7h  3F6h     14    BAR 4, bytes 0 to 7
//!   1        170h to 177h  376h     15    BAR 4, bytes 8 to 15
//! ```
//!
//! A command reads or writes an image in pieces. For a read the image's thread reads a piece, which
//! the processor then takes block by block through the data register, or which the bus master moves
//! to memory; a write works the other way round. A written piece is in the image before the command
//! ends. It is on stable storage after the guest flushes, or immediately if the guest has disabled
//! the write cache.
//!
//! A CD-ROM drive takes commands of another set, as packets ([`packet`]). Its disc may be changed
//! while the machine runs.

mod ata;
mod bus_master;
mod cd_answers;
mod cd_commands;
mod cd_drive;
#[cfg(test)]
mod cd_tests;
mod channel;
mod command;
mod data;
mod device_registers;
mod disk;
mod geometry;
mod identify;
mod packet;
pub mod pci;
mod registers;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod tests;
mod unit;

pub(crate) use cd_answers::sense as fixed_sense;
pub(crate) use cd_commands::Reply as CdReply;
pub use cd_drive::CdDrive;
pub(crate) use cd_drive::{Condition, Sense};
pub use disk::Disk;
pub use geometry::{DiskGeometry, Geometry, Translation};
pub use unit::Unit;
