//! The drives of the SCSI controller: whether all can be there.

use super::ConfigError;
pub use crate::devices::virtio::scsi::options::Address as ScsiAddress;
pub use crate::devices::virtio::scsi::options::{ScsiDrive, ScsiKind};

/// Checks that all drives can be at the controller.
///
/// # Errors
/// An address occurs twice or is too large.
pub(super) fn check(drives: &[ScsiDrive]) -> Result<(), ConfigError> {
    let mut known = Vec::new();
    for ScsiDrive { address, .. } in drives {
        if address.lun >= ScsiDrive::LUNS || known.contains(address) {
            return Err(ConfigError::ScsiAddress(*address));
        }
        known.push(*address);
    }
    Ok(())
}
