//! The registers of one device on a channel, and the settings that the guest has made.

use super::geometry::Geometry;
use serde::{Deserialize, Serialize};

/// The registers of a device, as the host has written them or as the device answers. Count and
/// address also hold the previously written value (ATA/ATAPI-6, 6.19).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Registers {
    pub error: u8,
    pub features: u8,
    pub count: [u8; 2],
    pub low: [u8; 2],
    pub mid: [u8; 2],
    pub high: [u8; 2],
    pub device: u8,
}

/// The settings that the guest has made apart from the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settings {
    /// Heads, and sectors of a track, as INITIALIZE DEVICE PARAMETERS set them. They are 0 for a
    /// device that is no disk.
    pub heads: u8,
    pub sectors: u8,
    /// The number of sectors of a block of READ MULTIPLE, or 0 if it was not set.
    pub multiple: u8,
    pub write_cache: bool,
    /// The DMA mode, encoded as in SET FEATURES.
    pub transfer_mode: u8,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            heads: 0,
            sectors: 0,
            multiple: 0,
            write_cache: true,
            transfer_mode: 0x22,
        }
    }
}

impl Settings {
    /// Returns the initial settings of a disk with this geometry.
    pub(super) fn of_disk(geometry: Geometry) -> Self {
        Self {
            heads: geometry.heads,
            sectors: geometry.sectors,
            ..Self::default()
        }
    }
}
