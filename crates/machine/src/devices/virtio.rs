//! Virtio devices (Virtual I/O Device specification 1.2), modern ones only.
//!
//! ```text
//!   driver in the guest
//!     |  registers                 |  rings and buffers in guest memory
//!   pci_transport, mmio_transport  |
//!     |                            |
//!   Core: status, features  ----- Queue, Chain: checked, through the gate
//!     |
//!   VirtioDevice: block, entropy, balloon, net, share, console,
//!                 vsock, scsi
//! ```
//!
//! A device is written once, as a [`device::VirtioDevice`]. The [`core::Core`] around it implements
//! what all devices share, and a transport presents that as registers: as a PCI function, or as a
//! page of memory in a machine without PCI.
//!
//! The rings are read by our own code. The crate virtio-queue could also read them through our
//! gate, but it treats an invalid chain (one that loops, leaves its table or memory, or refers to a
//! bad indirect table) as one that ends there. Here each of these is an error, after which the
//! device needs a reset.

pub mod balloon;
pub mod block;
mod block_work;
pub mod chain;
pub mod console;
pub mod core;
pub mod device;
pub mod drive_change;
pub mod entropy;
pub mod mmio_transport;
pub mod net;
pub mod pci_transport;
pub mod queue;
pub mod scsi;
pub mod share;
pub mod vsock;

#[cfg(test)]
mod tests;

/// Device types (chapter 5).
pub mod device_type {
    /// Network adapter (5.1).
    pub const NET: u16 = 1;
    /// Block device (5.2).
    pub const BLOCK: u16 = 2;
    /// Console device (5.3).
    pub const CONSOLE: u16 = 3;
    /// Entropy device (5.4).
    pub const ENTROPY: u16 = 4;
    /// Memory balloon (5.5).
    pub const BALLOON: u16 = 5;
    /// SCSI host (5.6).
    pub const SCSI: u16 = 8;
    /// 9P transport (chapter 5 reserves the number).
    pub const NINE_P: u16 = 9;
    /// Socket device (5.10).
    pub const VSOCK: u16 = 19;
    /// File system device (5.11).
    pub const FILE_SYSTEM: u16 = 26;
}

/// Features that do not depend on the device's type (chapter 6).
pub mod feature {
    /// Descriptors may refer to tables of descriptors.
    pub const INDIRECT_DESCRIPTORS: u64 = 1 << 28;
    /// Indices decide when notifications are sent.
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// The modern interface. A driver without this feature is refused.
    pub const VERSION_1: u64 = 1 << 32;
}

/// The device status field (2.1).
pub mod status {
    /// The guest has found the device.
    pub const ACKNOWLEDGE: u8 = 1;
    /// The driver is ready.
    pub const DRIVER_OK: u8 = 4;
    /// The driver has accepted a set of features.
    pub const FEATURES_OK: u8 = 8;
    /// The device cannot continue without a reset.
    pub const NEEDS_RESET: u8 = 64;
    /// The driver has given up.
    pub const FAILED: u8 = 128;
}
