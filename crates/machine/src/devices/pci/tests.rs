//! Tests of the bus as a guest sees it: enumeration, windows that move, lines and messages.

mod hot_plug;

use super::config_space::{BarKind, Command, ConfigSpace, Identity};
use super::function::PciFunction;
use super::host::PciHost;
use super::msix::MsiX;
use super::{ECAM_BASE, interrupt_line};
use crate::bus::testing::Bench;
use crate::bus::{Device, DeviceContext, SavedState, StateError};
use tollgate_exits::blame::DeviceAddress;
use tollgate_x86::PhysicalAddress;

/// A function with ports, memory and messages, which remembers the written bytes.
struct Memory {
    name: String,
    config: ConfigSpace,
    messages: MsiX,
    bytes: [u8; 64],
    asks: bool,
}

impl Memory {
    fn boxed(name: &str) -> Box<dyn PciFunction> {
        Box::new(Self::named(name))
    }

    fn named(name: &str) -> Self {
        let mut config = ConfigSpace::new(&Identity {
            vendor: 0x1234,
            device: 0x5678,
            revision: 0,
            class: 0xff_00_00,
            subsystem_vendor: 0,
            subsystem: 0,
        });
        config.add_interrupt_pin();
        config.add_bar(0, BarKind::Io, 16);
        config.add_bar(1, BarKind::Memory32, 4096);
        let messages = MsiX::add_to(&mut config, 2, 3);
        Self {
            name: name.into(),
            config,
            messages,
            bytes: [0; 64],
            asks: false,
        }
    }
}

impl PciFunction for Memory {
    fn name(&self) -> &str {
        &self.name
    }
    fn config(&self) -> &ConfigSpace {
        &self.config
    }
    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }
    fn config_write(&mut self, offset: usize, data: &[u8], context: &mut DeviceContext<'_>) {
        self.config.write(offset, data);
        self.messages.send_pending(&self.config, context);
    }
    fn bar_read(&mut self, bar: usize, at: u64, data: &mut [u8], _: &mut DeviceContext<'_>) {
        match bar {
            2 => self.messages.read(at, data),
            _ => data.fill(self.bytes[at as usize % 64]),
        }
    }
    /// A byte of ones at offset 63 makes the function request an interrupt, and zero withdraws the
    /// request. A byte at offset 62 sends the message of that number.
    fn bar_write(&mut self, bar: usize, at: u64, data: &[u8], context: &mut DeviceContext<'_>) {
        if bar == 2 {
            return self.messages.write(at, data, &self.config, context);
        }
        self.bytes[at as usize % 64] = data[0];
        match at {
            63 => self.asks = data[0] != 0,
            62 => {
                let vector = data[0].into();
                self.messages.signal(vector, &self.config, context);
            }
            _ => {}
        }
    }
    fn wants_interrupt(&self) -> bool {
        self.asks && !self.messages.is_enabled(&self.config)
    }
    fn save(&self) -> SavedState {
        SavedState::of(1, &(self.asks, &self.messages))
    }
    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        let (asks, messages) = saved.read(1)?;
        self.asks = asks;
        self.messages.restore(messages);
        Ok(())
    }
}

struct Guest {
    bench: Bench,
    host: PciHost,
}

impl Guest {
    fn new() -> Self {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        Self {
            bench: Bench::new(),
            host: PciHost::new(names.map(Memory::boxed).into()),
        }
    }

    fn select(&mut self, device: u32, offset: u32) {
        let address = 1 << 31 | device << 11 | offset & 0xfc;
        let context = &mut self.bench.context(0);
        self.host.port_write(0xcf8, 4, address, context);
    }

    fn config(&mut self, device: u32, offset: u32, size: u8) -> u32 {
        self.select(device, offset);
        let port = 0xcfc + (offset & 3) as u16;
        let value = self.host.port_read(port, size, &mut self.bench.context(0));
        value & u32::MAX >> (32 - 8 * u32::from(size))
    }

    fn set_config(&mut self, device: u32, offset: u32, size: u8, value: u32) {
        self.select(device, offset);
        let port = 0xcfc + (offset & 3) as u16;
        let context = &mut self.bench.context(0);
        self.host.port_write(port, size, value, context);
    }

    fn write(&mut self, address: u64, data: &[u8]) {
        let context = &mut self.bench.context(0);
        self.host
            .memory_write(PhysicalAddress(address), data, context);
    }

    fn read(&mut self, address: u64) -> u32 {
        let mut data = [0; 4];
        let context = &mut self.bench.context(0);
        self.host
            .memory_read(PhysicalAddress(address), &mut data, context);
        u32::from_le_bytes(data)
    }

    /// Makes a guest with the memory of device 1 at this address, and its messages after it.
    fn with_memory_at(address: u32) -> Self {
        let mut guest = Self::new();
        guest.set_config(1, 0x14, 4, address);
        guest.set_config(1, 0x18, 4, address + 0x1000);
        guest.set_config(1, 4, 2, 7);
        guest
    }

    fn line(&self, device: u8) -> bool {
        let line = usize::from(interrupt_line(device));
        self.bench.board.interrupts.io_apic.is_asserted(line)
    }
}

#[test]
fn devices_are_found_and_empty_slots_read_as_ones() {
    let mut guest = Guest::new();
    assert_eq!(guest.config(0, 0, 4), 0x0008_1b36);
    assert_eq!(guest.config(0, 10, 2), 0x0600);
    assert_eq!(guest.config(0, 0x0e, 1), 0);
    assert_eq!(guest.config(9, 2, 2), 0x5678);
    assert_eq!(guest.config(9, 0x3d, 1), 1);
    assert_eq!(guest.config(10, 0, 4), u32::MAX);
    assert_eq!(guest.read(ECAM_BASE), 0x0008_1b36);
    assert_eq!(guest.read(ECAM_BASE + (9 << 15)), 0x5678_1234);
    // Another function, another device, and the extended configuration space.
    for offset in [9 << 15 | 1 << 12, 10 << 15, 9 << 15 | 0x100] {
        assert_eq!(guest.read(ECAM_BASE + offset), u32::MAX);
    }
}

#[test]
fn what_answers_is_named_by_the_function_whose_memory_it_is() {
    let guest = Guest::with_memory_at(0xe000_0000);
    for (address, name) in [
        (DeviceAddress::Memory(0xe000_0fff), "a"),
        (DeviceAddress::Memory(0xe000_2000), "pci"),
        (DeviceAddress::Memory(ECAM_BASE + (1 << 15)), "pci"),
        (DeviceAddress::Port(0xcfc), "pci"),
    ] {
        assert_eq!(guest.host.name_at(address), name, "{address:?}");
    }
}

#[test]
fn only_bus_0_and_function_0_answer_and_only_when_enabled() {
    let mut guest = Guest::new();
    for address in [0x8001_0000, 0x8000_0100, 0x0000_0000, 0x80ff_0000u32] {
        let context = &mut guest.bench.context(0);
        guest.host.port_write(0xcf8, 4, address, context);
        assert_eq!(guest.host.port_read(0xcf8, 4, context), address);
        assert_eq!(guest.host.port_read(0xcfc, 4, context), u32::MAX);
    }
    let context = &mut guest.bench.context(0);
    guest.host.port_write(0xcf8, 4, u32::MAX, context);
    assert_eq!(guest.host.port_read(0xcf8, 4, context), 0x80ff_fffc);
}

#[test]
fn an_access_ends_with_the_data_port() {
    let mut guest = Guest::new();
    guest.select(0, 0);
    let context = &mut guest.bench.context(0);
    assert_eq!(guest.host.port_read(0xcfe, 4, context), 0xffff_0008);
    guest.set_config(1, 0x3c, 4, 0xffff_ff55);
    assert_eq!(guest.config(1, 0x3c, 4), 0x0000_0155);
}

#[test]
fn memory_answers_where_the_guest_puts_it() {
    let mut guest = Guest::with_memory_at(0xc000_0000);
    guest.write(0xc000_0005, &[0x77]);
    assert_eq!(guest.read(0xc000_0005), 0x7777_7777);
    // The size is determined with decoding enabled, as old systems do it.
    guest.set_config(1, 0x14, 4, u32::MAX);
    assert_eq!(guest.config(1, 0x14, 4), 0xffff_f000);
    guest.set_config(1, 0x14, 4, 0xd000_0000);
    assert_eq!(guest.read(0xc000_0005), u32::MAX);
    assert_eq!(guest.read(0xd000_0005), 0x7777_7777);
    let claims = guest.host.claims().memory;
    assert!(claims.iter().any(|claim| claim.start.0 == 0xd000_0000));
    guest.set_config(1, 4, 2, 0);
    assert_eq!(guest.read(0xd000_0005), u32::MAX);
    assert_eq!(guest.host.claims().memory.len(), 1);
}

#[test]
fn ports_answer_where_the_guest_puts_them() {
    let mut guest = Guest::new();
    guest.set_config(2, 0x10, 4, 0xc040);
    guest.set_config(2, 4, 2, 1);
    let context = &mut guest.bench.context(0);
    guest.host.port_write(0xc043, 1, 0x5a, context);
    assert_eq!(guest.host.port_read(0xc043, 1, context) & 0xff, 0x5a);
    assert!(
        guest
            .host
            .claims()
            .ports
            .iter()
            .any(|claim| claim.ports == (0xc040..=0xc04f))
    );
}

#[test]
fn two_devices_share_a_line_and_intx_can_be_disabled() {
    let mut guest = Guest::with_memory_at(0xc000_0000);
    guest.set_config(9, 0x14, 4, 0xc100_0000);
    guest.set_config(9, 4, 2, 7);
    assert_eq!(interrupt_line(1), interrupt_line(9));
    guest.write(0xc000_003f, &[1]);
    assert!(guest.line(1) && !guest.line(2));
    guest.write(0xc100_003f, &[1]);
    guest.write(0xc000_003f, &[0]);
    assert!(guest.line(1), "device 9 still asks");
    assert_eq!(guest.config(9, 6, 2) & 8, 8);
    guest.set_config(9, 4, 2, 7 | u32::from(Command::INTX_DISABLE.bits()));
    assert!(!guest.line(1));
    assert_eq!(guest.config(9, 6, 2) & 8, 8, "the status still shows it");
    guest.set_config(9, 4, 2, 7);
    assert!(guest.line(1));
    guest.host.reset(&mut guest.bench.context(0));
    assert_eq!(guest.config(9, 4, 2), 0);
}

/// Acknowledges a message and returns its vector, if one has arrived.
fn message_arrived(guest: &mut Guest) -> Option<u8> {
    let interrupts = &mut guest.bench.board.interrupts;
    let vector = interrupts.local_apic.acknowledge();
    if let Some(vector) = vector {
        let clock = &guest.bench.clock;
        interrupts.local_apic.write(0xb0, &[0; 4], clock);
        interrupts.end_of_interrupt(vector);
    }
    vector
}

#[test]
fn messages_wait_while_they_are_masked() {
    const TABLE: u64 = 0xc000_1000;
    let mut guest = Guest::with_memory_at(0xc000_0000);
    let clock = &guest.bench.clock;
    let apic = &mut guest.bench.board.interrupts.local_apic;
    apic.write(0xf0, &0x1ffu32.to_le_bytes(), clock);
    let capability = guest.config(1, 0x34, 1);
    assert_eq!(guest.config(1, capability, 4), 0x0002_0011);
    assert_eq!(guest.config(1, capability + 4, 4), 2);
    assert_eq!(guest.config(1, capability + 8, 4), 0x802);
    guest.write(TABLE + 16, &0xfee0_0000u64.to_le_bytes());
    guest.write(TABLE + 24, &0x45u32.to_le_bytes());
    assert_eq!(guest.read(TABLE + 28), 1, "masked after power-up");
    // While MSI-X is disabled, no message is sent or stored.
    guest.write(0xc000_003e, &[1]);
    assert_eq!(guest.read(TABLE + 0x800), 0);
    guest.set_config(1, capability + 2, 2, 0xc000);
    guest.write(TABLE + 28, &[0; 4]);
    guest.write(0xc000_003e, &[1]);
    assert_eq!(guest.read(TABLE + 0x800), 2, "the function is masked");
    assert_eq!(message_arrived(&mut guest), None);
    guest.set_config(1, capability + 2, 2, 0x8000);
    assert_eq!(message_arrived(&mut guest), Some(0x45));
    assert_eq!(guest.read(TABLE + 0x800), 0);
    // First only the vector is masked, then bus mastering is disabled.
    guest.write(TABLE + 28, &[1, 0, 0, 0]);
    guest.write(0xc000_003e, &[1]);
    assert_eq!(message_arrived(&mut guest), None);
    guest.set_config(1, 4, 2, 3);
    guest.write(TABLE + 28, &[0; 4]);
    assert_eq!(message_arrived(&mut guest), None);
    guest.set_config(1, 4, 2, 7);
    assert_eq!(message_arrived(&mut guest), Some(0x45));
    // This vector does not exist.
    guest.write(0xc000_003e, &[200]);
    assert_eq!(message_arrived(&mut guest), None);
}

#[test]
fn a_saved_bus_comes_back() {
    let mut guest = Guest::with_memory_at(0xc000_0000);
    guest.write(0xc000_003f, &[1]);
    guest.write(0xc000_1010, &0xfee0_0000u64.to_le_bytes());
    let saved = guest.host.save();
    let mut other = Guest::new();
    other.host.restore(&saved).unwrap();
    assert_eq!(other.host.save(), saved);
    assert_eq!(other.config(1, 0x14, 4), 0xc000_0000);
    assert_eq!(other.read(0xc000_1010), 0xfee0_0000);
    assert_eq!(other.host.claims(), guest.host.claims());
    let mut empty = PciHost::new(Vec::new());
    assert!(matches!(
        empty.restore(&saved),
        Err(StateError::Devices { .. })
    ));
}

#[test]
fn more_functions_than_device_numbers_are_left_out() {
    let many = (0..40).map(|index| Memory::boxed(&index.to_string()));
    let host = PciHost::new(many.collect());
    assert_eq!(host.functions().count(), 32);
}
