//! Changes of the drives of virtio devices that are made while the machine runs.

use super::scsi::options::{Address, ScsiDrive};
use tollgate_disk::DriveOptions;

/// A change of a drive of a virtio device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DriveChange {
    /// The block device with this number gets another image.
    Image {
        /// The number of the block device.
        disk: usize,
        /// The image that replaces the present one.
        image: DriveOptions,
    },
    /// A disk gets another size.
    Size {
        /// The disk whose image is made longer or shorter.
        drive: SizedDrive,
        /// The size in bytes.
        bytes: u64,
    },
    /// A CD-ROM drive of the SCSI controller gets another disc, or none.
    Disc {
        /// The address of the CD-ROM drive.
        address: Address,
        /// The disc. `None` leaves the drive empty.
        image: Option<DriveOptions>,
        /// Whether to change the disc even if the guest has locked the drive.
        force: bool,
    },
    /// The SCSI controller gets one more drive.
    PlugIn(ScsiDrive),
    /// A drive of the SCSI controller is removed.
    Unplug(Address),
}

/// A disk whose image can get another size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizedDrive {
    /// The block device with this number.
    Disk(usize),
    /// A disk of the SCSI controller.
    Scsi(Address),
}
