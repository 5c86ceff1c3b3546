//! The ACPI description of the PCI bus: the host bridge with the ranges that it forwards and the
//! routing of its interrupt pins, and the window for enhanced configuration accesses.

use acpi_tables::Aml;
use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, Device, EISAName, IO, Memory32Fixed, Name, Package,
    PackageBuilder, Path, ResourceTemplate, ZERO,
};
use acpi_tables::mcfg::MCFG;

use crate::board::io_apic;
use tollgate_memory::layout::{DISPLAY_END, DISPLAY_START};

use super::table::{OEM_ID, OEM_REVISION, OEM_TABLE_ID, bytes_of};
use super::{HIGH_WINDOW_BYTES, Hardware, Windows, hot_plug};
use crate::devices::pci::{
    ECAM_BASE, ECAM_BYTES, MEMORY_WINDOW_LAST, MEMORY_WINDOW_START, interrupt_line,
};

/// The MCFG table (PCI Firmware Specification 3.3, 4.1.2) for segment 0, bus 0 alone.
pub fn configuration_window() -> Vec<u8> {
    let mut mcfg = MCFG::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    mcfg.add_ecam(ECAM_BASE, 0, 0, 0);
    bytes_of(&mcfg)
}

/// Returns the bus and the reservation of the window, if there is one, as devices of the board. The
/// devices numbered from 1 to `functions` have an interrupt pin, and those that can be plugged in.
pub fn devices(functions: u8, hardware: &Hardware) -> Vec<u8> {
    let mut devices = host_bridge(functions, hardware);
    if hardware.hot_plug_slots != 0 {
        devices.extend(hot_plug::reservation());
    }
    if !hardware.firmware {
        devices.extend(window_reservation());
    }
    devices
}

/// The host bridge: bus 0 alone, and the ranges that it forwards (ACPI 6.5, 6.4.3.5).
fn host_bridge(functions: u8, hardware: &Hardware) -> Vec<u8> {
    let firmware = hardware.firmware;
    let id = Name::new(Path::new("_HID"), &EISAName::new("PNP0A03"));
    let zero = |name| Name::new(Path::new(name), &ZERO);
    let (unique, segment, bus) = (zero("_UID"), zero("_SEG"), zero("_BBN"));
    // Firmware assigns addresses from the top of the range that it considers this window.
    let last = match firmware {
        true => io_apic::BASE_ADDRESS - 1,
        false => MEMORY_WINDOW_LAST,
    };
    let window = |first: u64, last: u64| {
        AddressSpace::new_memory(
            AddressSpaceCacheable::NotCacheable,
            true,
            first as u32,
            last as u32,
            None,
        )
    };
    let own = MEMORY_WINDOW_START + hardware.before_pci;
    let first = hardware.windows.map_or(own, |it| it.low);
    let memory = window(first, last);
    let display = window(DISPLAY_START, DISPLAY_END - 1);
    let bus_number = AddressSpace::new_bus_number(0u16, 0);
    let configuration = IO::new(0xcf8, 0xcf8, 1, 8);
    let ports_below = AddressSpace::new_io(0u16, 0xcf7, None);
    let ports_above = AddressSpace::new_io(0xd00u16, 0xffff, None);
    // The ports of configuration accesses lie between the two ranges of ports.
    let mut passed_on: Vec<&dyn Aml> = vec![
        &bus_number,
        &configuration,
        &ports_below,
        &ports_above,
        &memory,
    ];
    if firmware {
        passed_on.push(&display);
    }
    let high = hardware.windows.map(|Windows { high: first, .. }| {
        let (cacheable, last) = (
            AddressSpaceCacheable::NotCacheable,
            first + HIGH_WINDOW_BYTES - 1,
        );
        AddressSpace::new_memory(cacheable, true, first, last, None)
    });
    passed_on.extend(high.as_ref().map(|high| high as &dyn Aml));
    let resources = Name::new(Path::new("_CRS"), &ResourceTemplate::new(passed_on));
    let functions = match hardware.hot_plug_slots {
        0 => functions,
        slots => slots.ilog2() as u8,
    };
    let routing = Name::new(Path::new("_PRT"), &interrupt_routing(functions));
    let mut children: Vec<&dyn Aml> = vec![&id, &unique, &segment, &bus, &resources];
    if functions > 0 {
        children.push(&routing);
    }
    let slots = hot_plug::Slots(hardware.hot_plug_slots);
    if hardware.hot_plug_slots != 0 {
        children.push(&slots);
    }
    bytes_of(&Device::new(Path::new("PCI0"), children))
}

/// Maps INTA of each device to a level-triggered global system interrupt (ACPI 6.5, 6.2.13).
fn interrupt_routing(functions: u8) -> PackageBuilder {
    /// The function number in an address that stands for all functions of a device.
    const ALL_FUNCTIONS: u32 = 0xffff;
    let mut routing = PackageBuilder::new();
    for device in 1..=functions {
        let address = u32::from(device) << 16 | ALL_FUNCTIONS;
        let line = interrupt_line(device);
        routing.add_element(&Package::new(vec![&address, &ZERO, &ZERO, &line]));
    }
    routing
}

/// A board resource. Systems trust the window of MCFG only if a device reserves it.
fn window_reservation() -> Vec<u8> {
    let id = Name::new(Path::new("_HID"), &EISAName::new("PNP0C02"));
    let unique = Name::new(Path::new("_UID"), &ZERO);
    let window = Memory32Fixed::new(true, ECAM_BASE as u32, ECAM_BYTES as u32);
    let resources = Name::new(Path::new("_CRS"), &ResourceTemplate::new(vec![&window]));
    bytes_of(&Device::new(
        Path::new("MRES"),
        vec![&id, &unique, &resources],
    ))
}
