//! PCI: one bus on a host bridge (PCI Local Bus Specification 3.0).
//!
//! ```text
//!   ports CF8h, CFCh --+                    +-- device 0: the host bridge itself
//!   ECAM window -------+--> PciHost (bus 0) +-- device 1: a function, its registers in BARs
//!   what BARs claim ---+                    +-- ...
//! ```
//!
//! [`host::PciHost`] is the only device on the machine's bus. It owns the functions, each a
//! [`function::PciFunction`] at a [`Place`] of its own. It reads and writes their
//! [`config_space::ConfigSpace`], claims the addresses in their base address registers, and drives
//! the interrupt lines. There are no bridges, so bus 0 is the last one, and a scan of all empty
//! slots takes 31 reads. Functions may come and go while the machine runs ([`host::hot_plug`]).
//!
//! Interrupts are INTA, which is connected to lines 16 to 23 by device number, and MSI-X
//! ([`msix::MsiX`]). With firmware's chip set ([`super::chipset`]) INTA is also routed to ISA
//! lines.

pub mod config_space;
pub mod function;
pub mod host;
pub mod host_bridge;
pub mod msix;

#[cfg(test)]
mod tests;

/// The first address of the window for enhanced configuration accesses (PCI Firmware Specification
/// 3.3, 4.1): 4 KiB for each function of bus 0.
pub const ECAM_BASE: u64 = 0xe000_0000;
/// The size of that window in bytes.
pub const ECAM_BYTES: u64 = 1 << 20;

/// The first address of the memory that base address registers may be set to.
pub const MEMORY_WINDOW_START: u64 = 0xc000_0000;
/// The last address of that memory.
pub const MEMORY_WINDOW_LAST: u64 = ECAM_BASE - 1;

/// The number of device numbers on the bus.
pub const MAX_FUNCTIONS: usize = 32;

/// The place of a function on the bus.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The device number, 0 to 31.
    pub device: u8,
    /// The function number, 0 to 7. Every device has a function 0.
    pub function: u8,
}

impl Place {
    /// Returns function 0 of a device.
    pub const fn device(device: u8) -> Self {
        Self {
            device,
            function: 0,
        }
    }

    /// Returns the number by which completions find the function: device and function number in
    /// eight bits, as in an address of configuration space.
    const fn part(self) -> u8 {
        self.device << 3 | self.function
    }
}

/// The first of the lines that lead only to the I/O APIC.
const FIRST_LINE: u8 = 16;
/// The number of these lines.
const LINES: u8 = 8;

/// Returns the interrupt line of a device's INTA, which is also its global system interrupt.
pub const fn interrupt_line(device: u8) -> u8 {
    FIRST_LINE + device % LINES
}
