//! The drives of the SCSI controller, and the address of each.

use super::{ConfigError, DriveOptions};
pub use crate::devices::virtio::scsi::Address as ScsiAddress;
use serde::{Deserialize, Serialize};

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
    pub address: ScsiAddress,
    /// What the drive is.
    pub kind: ScsiKind,
}

impl ScsiDrive {
    /// The maximum number of a unit in a target, and one more.
    const LUNS: u16 = 1 << 14;

    /// Makes the only unit of a target.
    pub const fn target(target: u8, kind: ScsiKind) -> Self {
        Self {
            address: ScsiAddress { target, lun: 0 },
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

    /// Checks that all drives can be at the controller.
    ///
    /// # Errors
    /// An address occurs twice or is too large.
    pub(super) fn check(drives: &[Self]) -> Result<(), ConfigError> {
        let mut known = Vec::new();
        for ScsiDrive { address, .. } in drives {
            if address.lun >= Self::LUNS || known.contains(address) {
                return Err(ConfigError::ScsiAddress(*address));
            }
            known.push(*address);
        }
        Ok(())
    }
}
