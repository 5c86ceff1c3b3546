//! Device 0: the host bridge as a function on its own bus.

use super::config_space::{ConfigSpace, Identity};
use super::function::PciFunction;

/// A generic PCI host bridge without registers of its own. The numbers are those of QEMU's, which
/// no system treats specially.
const IDENTITY: Identity = Identity {
    vendor: 0x1b36,
    device: 0x0008,
    revision: 0,
    class: 0x06_00_00,
    subsystem_vendor: 0x1af4,
    subsystem: 0x1100,
};

/// The host bridge.
#[derive(Debug)]
pub struct HostBridge(ConfigSpace);

impl Default for HostBridge {
    fn default() -> Self {
        Self(ConfigSpace::new(&IDENTITY))
    }
}

impl PciFunction for HostBridge {
    fn name(&self) -> &str {
        "pci-host-bridge"
    }

    fn config(&self) -> &ConfigSpace {
        &self.0
    }

    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.0
    }
}
