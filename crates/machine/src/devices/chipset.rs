//! The chip set of a machine that starts from firmware: Intel's 440FX host bridge and the ISA
//! bridge and power management of its PIIX, as far as firmware programs them.
//!
//! ```text
//!   00:00.0  host bridge  C0000h-FFFFFh: ROM, RAM, or one for loads and the other for stores
//!   00:01.0  ISA bridge   which ISA lines the four PCI interrupt lines lead to
//!   00:01.3  power management  where the registers of ACPI's fixed hardware are
//! ```
//!
//! A machine whose kernel is loaded directly has the generic bridge of [`super::pci::host_bridge`]
//! instead, and RAM from C0000h on.

/// The number of device numbers that the chip set uses, including the display adapter's.
pub const CHIPSET_DEVICES: u8 = 3;

pub mod host_bridge;
pub mod isa_bridge;
pub mod power_management;
pub mod rom;
