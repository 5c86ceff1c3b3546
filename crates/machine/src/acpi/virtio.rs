//! The ACPI description of virtio devices that are not on PCI (virtio 1.2, 4.2.1).

use acpi_tables::aml::{Device, Interrupt, Memory32Fixed, Name, Path, ResourceTemplate};

use super::table::bytes_of;
use crate::devices::virtio::mmio_transport::{DEVICE_BYTES, address, interrupt_line};

/// Returns the first `count` devices as devices of the board.
pub fn devices(count: u8) -> Vec<u8> {
    (0..count).flat_map(device).collect()
}

fn device(index: u8) -> Vec<u8> {
    let id = Name::new(Path::new("_HID"), &"LNRO0005");
    let unique = Name::new(Path::new("_UID"), &index);
    let registers = Memory32Fixed::new(true, address(index) as u32, DEVICE_BYTES as u32);
    // The interrupt is edge-triggered, active high and shared.
    let line = Interrupt::new(true, true, false, true, interrupt_line(index).into());
    let resources = ResourceTemplate::new(vec![&registers, &line]);
    let resources = Name::new(Path::new("_CRS"), &resources);
    let name = format!("VR{index:02X}");
    bytes_of(&Device::new(
        Path::new(&name),
        vec![&id, &unique, &resources],
    ))
}
