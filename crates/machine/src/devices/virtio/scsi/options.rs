//! What a drive of the controller is: its address, its kind and its image.

use serde::{Deserialize, Serialize};
use tollgate_disk::DriveOptions;

/// The address of a unit: its target, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Address {
    /// The number of the target.
    pub target: u8,
    /// The number of the unit in the target, less than 16384.
    pub lun: u16,
}

/// A disk, or a drive for CD-ROMs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScsiKind {
    /// A disk with its image, which the guest may write.
    Disk(DriveOptions),
    /// A CD-ROM drive with its disc. `None` is an empty drive.
    CdRom(Option<DriveOptions>),
}

/// A drive of the SCSI controller.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScsiDrive {
    /// The target and the number of the unit there.
    pub address: Address,
    /// What the drive is.
    pub kind: ScsiKind,
}

impl ScsiDrive {
    /// The maximum number of a unit in a target, and one more.
    pub const LUNS: u16 = 1 << 14;

    /// Makes the only unit of a target.
    pub const fn target(target: u8, kind: ScsiKind) -> Self {
        Self {
            address: Address { target, lun: 0 },
            kind,
        }
    }

    /// Returns the image of the drive.
    pub const fn image(&self) -> Option<&DriveOptions> {
        match &self.kind {
            ScsiKind::Disk(image) => Some(image),
            ScsiKind::CdRom(disc) => disc.as_ref(),
        }
    }
}
