//! ATA disks and drives for CD-ROMs behind the IDE function of Intel's PIIX3 (82371SB data sheet, 2.2.2 and 2.7;
//! ATA/ATAPI-6): two channels of two devices each.
//!
//! ```text
//!   channel  registers     control  line  bus master
//!   0        1F0h to 1F7h  3F6h     14    BAR 4, bytes 0 to 7
//!   1        170h to 177h  376h     15    BAR 4, bytes 8 to 15
//! ```
//!
//! A command reads or writes an image in pieces: the image's thread brings a piece, which the
//! processor then takes block by block through the data register, or the bus master moves to memory; and
//! the other way round. A piece that was written is the image's before the command ends, on
//! stable storage once the guest flushes, or at once if it has switched the write cache off.
//!
//! A drive for CD-ROMs takes commands of another set, as packets ([`packet`]); its disc may be
//! changed while the machine runs.

mod ata;
mod bus_master;
mod cd_answers;
mod cd_commands;
mod cd_drive;
#[cfg(test)]
mod cd_tests;
mod channel;
mod data;
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

pub use cd_drive::CdDrive;
pub use disk::Disk;
pub use geometry::{Geometry, Translation};
pub use unit::Unit;
