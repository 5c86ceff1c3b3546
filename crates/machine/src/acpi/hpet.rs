//! What the ACPI tables say about the high-precision event timer.

use super::{WORKING, device, table};
use crate::devices::hpet::{BASE_ADDRESS, IDENTIFICATION, REGISTER_BYTES};
use acpi_tables::aml::Memory32Fixed;
use acpi_tables::sdt::Sdt;

/// Fewest counts between two interrupts in periodic mode: 10 microseconds.
const LEAST_PERIOD: u16 = 1000;

/// The table HPET (IA-PC HPET Specification 1.0a, 3.2.4).
pub fn table_of_timer() -> Sdt {
    let mut hpet = table(*b"HPET", 1);
    hpet.append_slice(&IDENTIFICATION.to_le_bytes());
    // Address: in memory, no register width, offset or access size.
    hpet.append_slice(&[0; 4]);
    hpet.append_slice(&BASE_ADDRESS.to_le_bytes());
    // Its number.
    hpet.append_slice(&[0]);
    hpet.append_slice(&LEAST_PERIOD.to_le_bytes());
    // No guarantee for the pages around it.
    hpet.append_slice(&[0]);
    hpet
}

/// The device in the name space.
pub fn device_of_timer() -> Vec<u8> {
    let registers = Memory32Fixed::new(false, BASE_ADDRESS as u32, REGISTER_BYTES as u32);
    device("HPET", "PNP0103", &[&registers], WORKING)
}
