//! The ACPI description of the high-precision event timer.

use super::table::{WORKING, device, table};
use crate::devices::hpet::{BASE_ADDRESS, IDENTIFICATION, REGISTER_BYTES};
use acpi_tables::aml::Memory32Fixed;
use acpi_tables::sdt::Sdt;

/// The minimum number of counts between two interrupts in periodic mode: 10 microseconds.
const LEAST_PERIOD: u16 = 1000;

/// The HPET table (IA-PC HPET Specification 1.0a, 3.2.4).
pub fn table_of_timer() -> Sdt {
    let mut hpet = table(*b"HPET", 1);
    hpet.append_slice(&IDENTIFICATION.to_le_bytes());
    // The address structure: memory space, and zero for register width, offset and access size.
    hpet.append_slice(&[0; 4]);
    hpet.append_slice(&BASE_ADDRESS.to_le_bytes());
    // The timer's number.
    hpet.append_slice(&[0]);
    hpet.append_slice(&LEAST_PERIOD.to_le_bytes());
    // No guarantee for the pages around the registers.
    hpet.append_slice(&[0]);
    hpet
}

/// The timer's device in the name space.
pub fn device_of_timer() -> Vec<u8> {
    let registers = Memory32Fixed::new(false, BASE_ADDRESS as u32, REGISTER_BYTES as u32);
    device("HPET", "PNP0103", &[&registers], WORKING)
}
