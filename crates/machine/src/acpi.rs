//! The ACPI tables, laid out in the firmware area at F0000h.
//!
//! They describe to the guest what cannot be probed: interrupt routing, the fixed power hardware,
//! how to switch off and reset, and the devices on the board. The bytes are the same in every run.
//! They were checked against ACPI 6.5, chapter 5.

mod generation_id;
mod hot_plug;
mod hpet;
pub mod loader;
mod pci;
mod pvpanic;
mod table;
mod virtio;

use acpi_tables::aml::{IO, Name, Package, Path, Scope};
use acpi_tables::facs::FACS;
use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::{Aml, AmlSink};
use table::{HEADER_BYTES, OEM_ID, OEM_REVISION, OEM_TABLE_ID, WORKING, bytes_of, device, table};
use tollgate_memory::layout::HIGH_RAM_START;
use tollgate_memory::{GuestMemory, PhysicalLayout};
use tollgate_x86::PhysicalAddress;
use tollgate_x86::local_apic_msrs::APIC_DEFAULT_ADDRESS;

use crate::board::io_apic;
use crate::config::VmConfig;
use crate::devices::acpi_pm;
use crate::devices::boot_timer;

/// Where the tables start. The RSDP comes first; systems search for it here on 16-byte boundaries.
pub const TABLES_START: u64 = 0xf_0000;
/// The address after the area that is reserved for tables.
pub const TABLES_END: u64 = 0x10_0000;

/// The port of the reset register.
const RESET_PORT: u64 = 0xcf9;
/// The value that resets the machine when it is written to the reset register.
const RESET_VALUE: u8 = 0x06;

/// The size of the root pointer in bytes.
const RSDP_BYTES: u32 = 36;

/// The flags of an interrupt source override: active high, level-triggered (MPS INTI flags).
const ACTIVE_HIGH_LEVEL: u16 = 0b1101;

/// The properties of a machine that its tables depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hardware {
    /// The last device number of a PCI function; functions have the numbers from 1 to this. `None`
    /// means that there is no PCI bus.
    pub pci_functions: Option<u8>,
    /// The slots of the PCI bus whose functions come and go, a bit for each.
    pub hot_plug_slots: u32,
    /// The number of virtio devices that are not on the PCI bus.
    pub virtio_mmio: u8,
    /// Whether there is a high-precision event timer.
    pub hpet: bool,
    /// Whether there is a generation ID.
    pub generation_id: bool,
    /// The number of bytes at the beginning of the devices' memory that do not belong to the PCI bus.
    pub before_pci: u64,
    /// Whether the machine starts from firmware. If so, firmware assigns addresses to the
    /// functions, and the machine has the chip set that firmware expects.
    pub firmware: bool,
    /// The memory that firmware assigns to functions.
    pub windows: Option<Windows>,
}

/// The first addresses of the memory that firmware assigns to functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Windows {
    /// Below 4 GiB. UEFI firmware begins at RAM's end or at 2 GiB, whichever is higher; a BIOS ends
    /// at the I/O APIC.
    pub low: u64,
    /// Above RAM.
    pub high: u64,
}

impl Windows {
    fn of(layout: &PhysicalLayout) -> Self {
        const LOWEST: u64 = 2 << 30;
        let end = layout.span().max(HIGH_RAM_START);
        Self {
            low: layout.low_bytes().max(LOWEST),
            high: end.next_multiple_of(HIGH_WINDOW_BYTES),
        }
    }
}

/// The size of the memory above RAM and its alignment in bytes, in the firmware of QEMU's machines.
const HIGH_WINDOW_BYTES: u64 = 32 << 30;

impl Hardware {
    /// Returns the properties of a machine with this configuration.
    pub fn of(config: &VmConfig) -> Self {
        let virtio = config.virtio_devices() as u8;
        let firmware = config.firmware.is_some();
        Self {
            pci_functions: config.functions_at_start(),
            hot_plug_slots: config.hot_plug_slots(),
            virtio_mmio: if config.pci { 0 } else { virtio },
            hpet: config.hpet,
            generation_id: config.generation_id,
            before_pci: match config.boot_timer {
                Some(_) => boot_timer::BYTES,
                None => 0,
            },
            firmware,
            windows: firmware.then(|| Windows::of(&PhysicalLayout::new(config.memory_bytes))),
        }
    }
}

/// Returns the tables as bytes for [`TABLES_START`], the RSDP first.
pub fn tables(hardware: &Hardware) -> Vec<u8> {
    let start = TABLES_START as u32 + RSDP_BYTES.next_multiple_of(64);
    let layout = layout(hardware, start);
    let mut area = root_pointer(layout.rsdt, layout.xsdt);
    area.resize((start - TABLES_START as u32) as usize, 0);
    area.extend(layout.bytes);
    area
}

/// All tables except the root pointer.
struct Layout {
    bytes: Vec<u8>,
    /// The offset and the size in bytes of each pointer to another table.
    pointers: Vec<(u32, u8)>,
    /// The offset and the size in bytes of each table that has a checksum.
    tables: Vec<(u32, u32)>,
    /// The addresses of the root tables.
    rsdt: u32,
    xsdt: u32,
}

/// Lays out the tables from the physical address `base`, which must be a multiple of 64.
fn layout(hardware: &Hardware, base: u32) -> Layout {
    let mut area = Area {
        base,
        ..Area::default()
    };
    let dsdt = area.place(dsdt(hardware).as_slice());
    area.align(64);
    let facs = area.place(&bytes_of(&FACS::new()));
    // The FACS has no checksum.
    area.tables.pop();
    let fadt = area.place(&fadt(hardware, dsdt, facs));
    for (field, size) in [(36, 4), (40, 4), (140, 8)] {
        area.pointers.push((fadt - base + field, size));
    }
    let mut roots = vec![fadt, area.place(madt().as_slice())];
    if hardware.hpet {
        roots.push(area.place(hpet::table_of_timer().as_slice()));
    }
    if hardware.pci_functions.is_some() && !hardware.firmware {
        roots.push(area.place(&pci::configuration_window()));
    }

    let mut rsdt = table(*b"RSDT", 1);
    let mut xsdt = table(*b"XSDT", 1);
    for address in &roots {
        rsdt.append_slice(&address.to_le_bytes());
        xsdt.append_slice(&u64::from(*address).to_le_bytes());
    }
    let rsdt = area.place(rsdt.as_slice());
    let xsdt = area.place(xsdt.as_slice());
    for index in 0..roots.len() as u32 {
        let header = HEADER_BYTES;
        area.pointers.push((rsdt - base + header + 4 * index, 4));
        area.pointers.push((xsdt - base + header + 8 * index, 8));
    }
    Layout {
        bytes: area.bytes,
        pointers: area.pointers,
        tables: area.tables,
        rsdt,
        xsdt,
    }
}

/// Writes the tables and returns the address of the RSDP, or `None` if RAM does not extend to 1
/// MiB.
pub fn write_tables(hardware: &Hardware, memory: &mut GuestMemory) -> Option<PhysicalAddress> {
    let address = PhysicalAddress(TABLES_START);
    memory.write(address, &tables(hardware)).then_some(address)
}

/// The tables during layout.
#[derive(Default)]
struct Area {
    /// The physical address of the first byte.
    base: u32,
    bytes: Vec<u8>,
    pointers: Vec<(u32, u8)>,
    tables: Vec<(u32, u32)>,
}

impl Area {
    fn align(&mut self, alignment: usize) {
        self.bytes
            .resize(self.bytes.len().next_multiple_of(alignment), 0);
    }

    /// Appends a table and returns its physical address.
    fn place(&mut self, table: &[u8]) -> u32 {
        self.align(16);
        let offset = self.bytes.len() as u32;
        self.bytes.extend(table);
        self.tables.push((offset, table.len() as u32));
        self.base + offset
    }
}

/// Returns the root pointer with both root tables. The library fills in only the 64-bit address,
/// but old systems read the 32-bit one.
fn root_pointer(rsdt: u32, xsdt: u32) -> Vec<u8> {
    const CHECKSUM: usize = 8;
    const RSDT_ADDRESS: usize = 16;
    const EXTENDED_CHECKSUM: usize = 32;
    /// The number of bytes that the first checksum covers: the structure of ACPI 1.0.
    const OLD_LENGTH: usize = 20;

    let mut bytes = bytes_of(&Rsdp::new(OEM_ID, u64::from(xsdt)));
    bytes[RSDT_ADDRESS..RSDT_ADDRESS + 4].copy_from_slice(&rsdt.to_le_bytes());
    bytes[CHECKSUM] = 0;
    bytes[CHECKSUM] = checksum(&bytes[..OLD_LENGTH]);
    bytes[EXTENDED_CHECKSUM] = 0;
    bytes[EXTENDED_CHECKSUM] = checksum(&bytes);
    bytes
}

/// Returns the byte that makes the sum zero.
fn checksum(bytes: &[u8]) -> u8 {
    bytes
        .iter()
        .fold(0u8, |sum, byte| sum.wrapping_add(*byte))
        .wrapping_neg()
}

/// The fixed ACPI description table (ACPI 6.5, 5.2.9).
fn fadt(hardware: &Hardware, dsdt: u32, facs: u32) -> Vec<u8> {
    /// Boot architecture flags: there are legacy devices and an 8042.
    const BOOT_ARCHITECTURE: u16 = 1 | 1 << 1;
    /// Boot architecture flag: there is no VGA.
    const NO_VGA: u16 = 1 << 2;
    /// Boot architecture flag: no device sends message-signalled interrupts.
    const NO_MESSAGES: u16 = 1 << 3;
    /// Latencies from these values on mean that the processor has no C2 and no C3 state.
    const NO_C2: u16 = 101;
    const NO_C3: u16 = 1001;
    /// The CMOS index of the century.
    const CENTURY_INDEX: u8 = 0x32;

    let io =
        |bits, size, port: u16| GAS::new(AddressSpace::SystemIo, bits, 0, size, u64::from(port));
    let mut fadt = FADTBuilder::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION)
        .preferred_pm_profile(PmProfile::Unspecified)
        .gpe_info(u32::from(acpi_pm::GPE0_PORT), 0, acpi_pm::GPE0_BYTES, 0, 0)
        .flag(Flags::Wbinvd)
        .flag(Flags::ProcC1)
        .flag(Flags::SlpButton)
        .flag(Flags::TmrValExt)
        .flag(Flags::ResetRegSup);
    fadt.dsdt = dsdt.into();
    fadt.x_dsdt = u64::from(dsdt).into();
    fadt.firmware_ctrl = facs.into();
    fadt.sci_int = u16::from(acpi_pm::SCI_IRQ).into();
    fadt.pm1a_evt_blk = u32::from(acpi_pm::PM1_EVENT_PORT).into();
    fadt.pm1a_cnt_blk = u32::from(acpi_pm::PM1_CONTROL_PORT).into();
    fadt.pm_tmr_blk = u32::from(acpi_pm::TIMER_PORT).into();
    fadt.pm1_evt_len = 4;
    fadt.pm1_cnt_len = 2;
    fadt.pm_tmr_len = 4;
    fadt.x_pm1a_evt_blk = io(32, AccessSize::WordAccess, acpi_pm::PM1_EVENT_PORT);
    fadt.x_pm1a_cnt_blk = io(16, AccessSize::WordAccess, acpi_pm::PM1_CONTROL_PORT);
    fadt.x_pm_tmr_blk = io(32, AccessSize::DwordAccess, acpi_pm::TIMER_PORT);
    fadt.x_gpe0_blk = io(
        8 * acpi_pm::GPE0_BYTES,
        AccessSize::ByteAccess,
        acpi_pm::GPE0_PORT,
    );
    fadt.p_lvl2_lat = NO_C2.into();
    fadt.p_lvl3_lat = NO_C3.into();
    fadt.century = CENTURY_INDEX;
    let display = if hardware.firmware { 0 } else { NO_VGA };
    let messages = match hardware.pci_functions {
        Some(_) => 0,
        None => NO_MESSAGES,
    };
    fadt.iapc_boot_arch = (BOOT_ARCHITECTURE | display | messages).into();
    fadt.reset_reg = GAS::new(
        AddressSpace::SystemIo,
        8,
        0,
        AccessSize::ByteAccess,
        RESET_PORT,
    );
    fadt.reset_value = RESET_VALUE;
    bytes_of(&fadt.finalize())
}

/// The multiple APIC description table (ACPI 6.5, 5.2.12). It is written out here because the
/// library's version cannot state that the machine also has the 8259 pair.
fn madt() -> Sdt {
    const PCAT_COMPATIBLE: u32 = 1;
    let mut madt = table(*b"APIC", 5);
    madt.append_slice(&(APIC_DEFAULT_ADDRESS as u32).to_le_bytes());
    madt.append_slice(&PCAT_COMPATIBLE.to_le_bytes());
    // A processor local APIC structure: processor 0, APIC ID 0, enabled.
    madt.append_slice(&[0, 8, 0, 0, 1, 0, 0, 0]);
    // An I/O APIC structure whose global system interrupts begin at 0.
    madt.append_slice(&[1, 12, io_apic::IO_APIC_ID, 0]);
    madt.append_slice(&(io_apic::BASE_ADDRESS as u32).to_le_bytes());
    madt.append_slice(&0u32.to_le_bytes());
    madt.append_slice(&source_override(0, 2, 0));
    madt.append_slice(&source_override(
        acpi_pm::SCI_IRQ,
        u32::from(acpi_pm::SCI_IRQ),
        ACTIVE_HIGH_LEVEL,
    ));
    // A local APIC NMI structure: all processors, conforming flags, LINT1.
    madt.append_slice(&[4, 6, 0xff, 0, 0, 1]);
    madt
}

fn source_override(irq: u8, global_interrupt: u32, flags: u16) -> [u8; 10] {
    let mut bytes = [2, 10, 0, irq, 0, 0, 0, 0, 0, 0];
    bytes[4..8].copy_from_slice(&global_interrupt.to_le_bytes());
    bytes[8..10].copy_from_slice(&flags.to_le_bytes());
    bytes
}

/// The differentiated system description table: the sleep state and the board's devices.
fn dsdt(hardware: &Hardware) -> Sdt {
    let port = |first: u16, count| IO::new(first, first, 1, count);

    let serial = device(
        "COM1",
        "PNP0501",
        &[&port(0x3f8, 8), &IsaInterrupt(4)],
        WORKING,
    );
    let clock = device(
        "RTC_",
        "PNP0B00",
        &[&port(0x70, 2), &IsaInterrupt(8)],
        WORKING,
    );
    let keyboard = device(
        "KBD_",
        "PNP0303",
        &[&port(0x60, 1), &port(0x64, 1), &IsaInterrupt(1)],
        WORKING,
    );
    // The mouse uses the keyboard's ports. Without this device Linux considers the auxiliary port
    // unused.
    let mouse = device("MOU_", "PNP0F13", &[&IsaInterrupt(12)], WORKING);
    let timer = device(
        "TMR_",
        "PNP0100",
        &[&port(0x40, 4), &IsaInterrupt(0)],
        WORKING,
    );
    let speaker = device("SPKR", "PNP0800", &[&port(0x61, 1)], WORKING);

    let mut dsdt = table(*b"DSDT", 2);
    let (s5, zero) = (acpi_pm::SLEEP_TYPE_S5, 0u8);
    let soft_off = Package::new(vec![&s5, &s5, &zero, &zero]);
    dsdt.append_slice(&bytes_of(&Name::new(Path::new("\\_S5_"), &soft_off)));
    let mut devices: Vec<u8> = [serial, clock, keyboard, mouse, timer, speaker].concat();
    if let Some(functions) = hardware.pci_functions {
        devices.extend(pci::devices(functions, hardware));
    }
    if hardware.hpet {
        devices.extend(hpet::device_of_timer());
    }
    devices.extend(pvpanic::device());
    if hardware.generation_id {
        devices.extend(generation_id::device());
    }
    devices.extend(virtio::devices(hardware.virtio_mmio));
    dsdt.append_slice(&Scope::raw(Path::new("\\_SB_"), devices));
    if hardware.generation_id {
        dsdt.append_slice(&generation_id::event());
    }
    if hardware.hot_plug_slots != 0 {
        dsdt.append_slice(&hot_plug::event());
    }
    dsdt
}

/// An ISA interrupt as a resource: edge-triggered, active high, exclusive (ACPI 6.5, 6.4.2.1). The
/// library's descriptor is for global system interrupts, and the timer's ISA line 0 has another
/// number there.
struct IsaInterrupt(u8);

impl Aml for IsaInterrupt {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        const TWO_BYTE_IRQ: u8 = 0x22;
        sink.byte(TWO_BYTE_IRQ);
        sink.word(1 << self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITH_PCI: Hardware = Hardware {
        pci_functions: Some(3),
        hot_plug_slots: 0,
        virtio_mmio: 0,
        hpet: true,
        generation_id: true,
        before_pci: 0,
        firmware: false,
        windows: None,
    };
    const BARE: Hardware = Hardware {
        pci_functions: None,
        hot_plug_slots: 0,
        virtio_mmio: 0,
        hpet: true,
        generation_id: true,
        before_pci: 0,
        firmware: false,
        windows: None,
    };

    fn sum(bytes: &[u8]) -> u8 {
        bytes
            .iter()
            .fold(0, |sum: u8, byte| sum.wrapping_add(*byte))
    }

    fn u32_at(bytes: &[u8], offset: usize) -> u32 {
        u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap())
    }

    /// Returns the table at a physical address; its length comes from its header.
    fn table_at(area: &[u8], address: u32) -> &[u8] {
        let bytes = &area[(address - TABLES_START as u32) as usize..];
        &bytes[..u32_at(bytes, 4) as usize]
    }

    #[test]
    fn tables_are_the_same_every_time_and_fit() {
        let most = Hardware {
            pci_functions: Some(31),
            hot_plug_slots: !1,
            virtio_mmio: 31,
            hpet: true,
            generation_id: true,
            before_pci: 0,
            firmware: false,
            windows: None,
        };
        for hardware in [BARE, WITH_PCI, most] {
            assert_eq!(tables(&hardware), tables(&hardware));
            assert!((tables(&hardware).len() as u64) < TABLES_END - TABLES_START);
        }
    }

    #[test]
    fn every_checksum_is_right_and_both_roots_agree() {
        let without_hpet = Hardware {
            hpet: false,
            ..BARE
        };
        check_roots(&without_hpet, &[b"FACP", b"APIC"]);
        check_roots(&BARE, &[b"FACP", b"APIC", b"HPET"]);
        check_roots(&WITH_PCI, &[b"FACP", b"APIC", b"HPET", b"MCFG"]);
    }

    fn check_roots(hardware: &Hardware, signatures: &[&[u8; 4]]) {
        let area = tables(hardware);
        assert_eq!(&area[..8], b"RSD PTR ");
        assert_eq!(sum(&area[..20]), 0);
        assert_eq!(sum(&area[..36]), 0);
        let rsdt = table_at(&area, u32_at(&area, 16));
        let xsdt = table_at(&area, u32_at(&area, 24));
        assert_eq!((&rsdt[..4], sum(rsdt)), (&b"RSDT"[..], 0));
        assert_eq!((&xsdt[..4], sum(xsdt)), (&b"XSDT"[..], 0));
        assert_eq!(rsdt.len(), 36 + 4 * signatures.len());
        for (index, signature) in signatures.iter().enumerate() {
            let address = u32_at(rsdt, 36 + 4 * index);
            assert_eq!(u32_at(xsdt, 36 + 8 * index), address);
            assert_eq!(u32_at(xsdt, 40 + 8 * index), 0);
            let table = table_at(&area, address);
            assert_eq!((&table[..4], sum(table)), (&signature[..], 0));
        }
    }

    #[test]
    fn messages_are_announced_with_the_bus_that_has_them() {
        let with_display = Hardware {
            before_pci: 0,
            firmware: true,
            ..WITH_PCI
        };
        for (hardware, flags) in [(BARE, 0b1111), (WITH_PCI, 0b0111), (with_display, 0b0011)] {
            let fadt = fadt(&hardware, 0, 0);
            assert_eq!(u16::from_le_bytes([fadt[109], fadt[110]]), flags);
        }
    }

    #[test]
    fn the_fixed_table_points_to_the_other_two() {
        let area = tables(&WITH_PCI);
        let rsdt = table_at(&area, u32_at(&area, 16));
        let fadt = table_at(&area, u32_at(rsdt, 36));
        assert_eq!(fadt.len(), 276);
        let facs = u32_at(fadt, 36);
        assert_eq!(facs % 64, 0);
        assert_eq!(&table_at(&area, facs)[..4], b"FACS");
        assert_eq!(table_at(&area, facs).len(), 64);
        let dsdt = table_at(&area, u32_at(fadt, 40));
        assert_eq!((&dsdt[..4], sum(dsdt)), (&b"DSDT"[..], 0));
        assert_eq!(u32_at(fadt, 48), 0, "no SMI command port");
        assert_eq!(u32_at(fadt, 56), 0x600);
        assert_eq!(u32_at(fadt, 64), 0x604);
        assert_eq!(u32_at(fadt, 76), 0x608);
        assert_eq!(u32_at(fadt, 120), 0xcf9, "reset register");
        assert_eq!(fadt[128], RESET_VALUE);
    }

    #[test]
    fn the_interrupt_table_lists_apics_overrides_and_nmi() {
        let madt = madt();
        let bytes = madt.as_slice();
        assert_eq!(u32_at(bytes, 36), 0xfee0_0000);
        let mut kinds = Vec::new();
        let mut rest = &bytes[44..];
        while let [kind, length, ..] = *rest {
            kinds.push(kind);
            rest = &rest[usize::from(length)..];
        }
        assert_eq!(kinds, [0, 1, 2, 2, 4]);
    }

    #[test]
    fn soft_off_is_named_in_the_definition_block() {
        let dsdt = dsdt(&BARE);
        let wanted = [0x08, b'\\', b'_', b'S', b'5', b'_', 0x12];
        assert!(
            dsdt.as_slice()
                .windows(wanted.len())
                .any(|window| window == wanted)
        );
    }

    #[test]
    fn only_slots_whose_functions_come_and_go_have_methods_that_eject_them() {
        let count = |hardware: &Hardware, wanted: &[u8]| {
            let dsdt = dsdt(hardware);
            let windows = dsdt.as_slice().windows(wanted.len());
            windows.filter(|window| *window == wanted).count()
        };
        let with_slots = Hardware {
            hot_plug_slots: 1 << 4 | 1 << 31,
            ..WITH_PCI
        };
        for (name, slots) in [(b"_EJ0", 2), (b"_E01", 1), (b"SF8_", 3), (b"S18_", 0)] {
            assert_eq!(count(&with_slots, name), slots, "{name:?}");
            assert_eq!(count(&WITH_PCI, name), 0, "{name:?}");
        }
        // Each device number has an interrupt pin as soon as a function can come there.
        let routes = |hardware| count(hardware, &[0xff, 0xff, 31, 0]);
        assert_eq!((routes(&WITH_PCI), routes(&with_slots)), (0, 1));
    }

    #[test]
    fn writing_needs_ram_up_to_one_mebibyte() {
        let mut small = GuestMemory::new(0x8_0000).unwrap();
        assert_eq!(write_tables(&BARE, &mut small), None);
        let mut memory = GuestMemory::new(1 << 20).unwrap();
        assert_eq!(
            write_tables(&BARE, &mut memory),
            Some(PhysicalAddress(TABLES_START))
        );
    }
}
