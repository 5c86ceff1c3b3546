//! PCI: one bus behind a host bridge (PCI Local Bus Specification 3.0).
//!
//! ```text
//!   ports CF8h, CFCh --+                    +-- device 0: the host bridge itself
//!   ECAM window -------+--> PciHost (bus 0) +-- device 1: a function, its registers in BARs
//!   what BARs claim ---+                    +-- ...
//! ```
//!
//! [`host::PciHost`] is the one device on the machine's bus. It owns the functions, each a
//! [`function::PciFunction`] at a [`Place`] of its own, reads and writes
//! their [`config_space::ConfigSpace`], claims what their base address registers say, and
//! drives the interrupt lines. There are no bridges, so bus 0 is the last one, and a scan of
//! all empty slots is 31 reads.
//!
//! Interrupts are INTA, which leads to lines 16 to 23 by device number, and MSI-X
//! ([`msix::MsiX`]). With firmware's chip set ([`super::chipset`]) INTA leads to ISA lines as well.

pub mod config_space;
pub mod function;
pub mod host;
pub mod host_bridge;
pub mod msix;

#[cfg(test)]
mod tests;

/// First address of the window for enhanced configuration accesses (PCI Firmware
/// Specification 3.3, 4.1): 4 KiB for each function of bus 0.
pub const ECAM_BASE: u64 = 0xe000_0000;
/// Bytes of that window.
pub const ECAM_BYTES: u64 = 1 << 20;

/// First address of the memory that base address registers may be given.
pub const MEMORY_WINDOW_START: u64 = 0xc000_0000;
/// Last address of that memory.
pub const MEMORY_WINDOW_LAST: u64 = ECAM_BASE - 1;

/// Device numbers on the bus.
pub const MAX_FUNCTIONS: usize = 32;

/// Where a function is found on the bus.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// Device number, 0 to 31.
    pub device: u8,
    /// Function number, 0 to 7. A device has a function 0.
    pub function: u8,
}

impl Place {
    /// Function 0 of a device.
    pub const fn device(device: u8) -> Self {
        Self {
            device,
            function: 0,
        }
    }
}

/// First of the lines that lead to the I/O APIC alone.
const FIRST_LINE: u8 = 16;
/// How many there are.
const LINES: u8 = 8;

/// The interrupt line of a device's INTA, which is also its global system interrupt.
pub const fn interrupt_line(device: u8) -> u8 {
    FIRST_LINE + device % LINES
}
