//! The functions of the PCI bus that come and go while the machine runs.

use crate::devices::pci::MAX_FUNCTIONS;
use serde::{Deserialize, Serialize};
use tollgate_disk::DriveOptions;
use tollgate_network::NetworkOptions;

/// What comes and goes on the PCI bus.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HotPlug {
    /// The functions that were plugged in, in the order of their slots.
    pub functions: Vec<PluggedFunction>,
}

/// A function that was plugged in while the machine ran.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PluggedFunction {
    /// Its slot: the device number on the bus.
    pub slot: u8,
    /// What it is.
    pub kind: FunctionKind,
}

/// A virtio device that can be plugged in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FunctionKind {
    /// A disk with this image.
    Disk(DriveOptions),
    /// A network adapter with this network.
    Network(NetworkOptions),
    /// A source of random bytes.
    Random,
}

impl PluggedFunction {
    /// Returns the number of the disk or adapter in this slot. Those of the machine's start have
    /// smaller numbers, so that no number occurs twice.
    pub const fn number(slot: u8) -> u8 {
        MAX_FUNCTIONS as u8 + slot
    }

    /// Returns the image if the function is a disk.
    pub const fn image(&self) -> Option<&DriveOptions> {
        match &self.kind {
            FunctionKind::Disk(image) => Some(image),
            FunctionKind::Network(_) | FunctionKind::Random => None,
        }
    }

    /// Returns the image for a change.
    pub const fn image_mut(&mut self) -> Option<&mut DriveOptions> {
        match &mut self.kind {
            FunctionKind::Disk(image) => Some(image),
            FunctionKind::Network(_) | FunctionKind::Random => None,
        }
    }
}
