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
//!                 vsock
//! ```
//!
//! A device is written once, as a [`device::VirtioDevice`]; the [`core::Core`] around it has
//! what all devices share, and a transport shows that as registers: a PCI function, or a page
//! of memory where a machine has no PCI.
//!
//! The rings are read by a reader of our own. The crate virtio-queue would read them over our
//! gate too, but takes a chain that loops, leaves its table or memory, or names a bad indirect
//! table for one that ends there; here each of these is an error, after which the device
//! wants a reset.

pub mod balloon;
pub mod block;
mod block_work;
pub mod chain;
pub mod console;
pub mod core;
pub mod device;
pub mod entropy;
pub mod mmio_transport;
pub mod net;
pub mod pci_transport;
pub mod queue;
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
    /// Socket device (5.10).
    pub const VSOCK: u16 = 19;
    /// File system device (5.11).
    pub const FILE_SYSTEM: u16 = 26;
}

/// Features that do not depend on the device's type (chapter 6).
pub mod feature {
    /// Descriptors may refer to tables of descriptors.
    pub const INDIRECT_DESCRIPTORS: u64 = 1 << 28;
    /// Indices say when notifications are wanted.
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// The modern interface; without it a driver is refused.
    pub const VERSION_1: u64 = 1 << 32;
}

/// The device status field (2.1).
pub mod status {
    /// The guest has found the device.
    pub const ACKNOWLEDGE: u8 = 1;
    /// It has a driver.
    pub const DRIVER: u8 = 2;
    /// The driver is ready.
    pub const DRIVER_OK: u8 = 4;
    /// The features are agreed on.
    pub const FEATURES_OK: u8 = 8;
    /// The device cannot go on without a reset.
    pub const NEEDS_RESET: u8 = 64;
    /// The driver gave up.
    pub const FAILED: u8 = 128;
}
