//! Tests of the transport without PCI, and of the entropy device.

use super::driver::{AVAILABLE, DATA, DESCRIPTORS, NEXT, USED, WRITE};
use crate::bus::Bus;
use crate::bus::testing::Bench;
use crate::devices::virtio::entropy::Entropy;
use crate::devices::virtio::mmio_transport::{VirtioMmio, address, interrupt_line};
use crate::devices::virtio::status;
use tollgate_x86::PhysicalAddress;

/// A driver for the entropy device, which is the second device of the machine.
struct Driver {
    bench: Bench,
    bus: Bus,
}

const INDEX: u8 = 1;

impl Driver {
    fn new() -> Self {
        let mut bench = Bench::new();
        let mut bus = Bus::new();
        let device = VirtioMmio::new(Box::new(Entropy::default()), INDEX);
        let added = bus.add(Box::new(device), &mut bench.board, &bench.clock);
        added.unwrap();
        Self { bench, bus }
    }

    fn read(&mut self, register: u64) -> u32 {
        let mut data = [0; 4];
        let at = PhysicalAddress(address(INDEX) + register);
        let (board, clock) = (&mut self.bench.board, &self.bench.clock);
        self.bus.memory_read(at, &mut data, board, clock);
        u32::from_le_bytes(data)
    }

    fn write(&mut self, register: u64, value: u32) {
        let at = PhysicalAddress(address(INDEX) + register);
        let (board, clock) = (&mut self.bench.board, &self.bench.clock);
        self.bus
            .memory_write(at, &value.to_le_bytes(), board, clock);
    }

    fn start(&mut self) {
        for value in [0, 1, 3] {
            self.write(0x70, value);
        }
        self.write(0x24, 1);
        self.write(0x20, 1);
        self.write(0x70, 11);
        assert_eq!(self.read(0x70), 11);
        self.write(0x30, 0);
        assert_eq!(self.read(0x34), 64);
        self.write(0x38, 8);
        for (register, address) in [(0x80, DESCRIPTORS), (0x90, AVAILABLE), (0xa0, USED)] {
            self.write(register, address as u32);
            self.write(register + 4, 0);
        }
        self.write(0x44, 1);
        assert_eq!(self.read(0x44), 1);
        self.write(0x70, 15);
    }

    /// Offers chain 0 as the chain with number `count`.
    fn offer(&mut self, count: u16) {
        let memory = &mut self.bench.board.memory;
        let place = AVAILABLE + 4 + 2 * u64::from((count - 1) % 8);
        assert!(memory.write(PhysicalAddress(place), &[0; 2]));
        assert!(memory.write(PhysicalAddress(AVAILABLE + 2), &count.to_le_bytes()));
        self.write(0x50, 0);
    }

    fn descriptor(&mut self, index: u64, address: u64, bytes: u32, flags: u16) {
        let mut descriptor = address.to_le_bytes().to_vec();
        descriptor.extend(bytes.to_le_bytes());
        descriptor.extend(flags.to_le_bytes());
        descriptor.extend((index as u16 + 1).to_le_bytes());
        let place = PhysicalAddress(DESCRIPTORS + 16 * index);
        assert!(self.bench.board.memory.write(place, &descriptor));
    }

    fn bytes(&self, address: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let memory = &self.bench.board.memory;
        assert!(memory.read(PhysicalAddress(address), &mut bytes));
        bytes
    }

    fn line(&self) -> bool {
        let line = usize::from(interrupt_line(INDEX));
        self.bench.board.interrupts.io_apic.is_asserted(line)
    }
}

#[test]
fn the_device_is_recognised() {
    let mut driver = Driver::new();
    let found = [0, 4, 8].map(|register| driver.read(register));
    assert_eq!(found, [u32::from_le_bytes(*b"virt"), 2, 4]);
    driver.write(0x14, 1);
    assert_eq!(driver.read(0x10), 1, "the modern interface");
    driver.write(0x30, 1);
    assert_eq!(driver.read(0x34), 0, "there is one queue");
    driver.write(0x30, 0x1_0000);
    assert_eq!(driver.read(0x34), 0, "no number of 16 bits");
}

#[test]
fn requests_get_random_bytes_and_an_interrupt_each() {
    let mut driver = Driver::new();
    driver.start();
    driver.descriptor(0, DATA, 20, WRITE | NEXT);
    driver.descriptor(1, DATA + 0x1000, 12, WRITE);
    driver.offer(1);
    assert_eq!(driver.bytes(USED + 2, 2), [1, 0]);
    assert_eq!(driver.bytes(USED + 4, 8), [0, 0, 0, 0, 32, 0, 0, 0]);
    assert_ne!(driver.bytes(DATA, 20), [0; 20]);
    assert_eq!(driver.bytes(DATA + 20, 4), [0; 4]);
    assert!(driver.line());
    assert_eq!(driver.read(0x60), 1);
    driver.write(0x64, 1);
    assert!(!driver.line());
    // The buffer is larger than the maximum for a request.
    driver.descriptor(0, DATA, 0x8000, WRITE);
    driver.offer(2);
    assert_eq!(driver.bytes(USED + 12, 8), [0, 0, 0, 0, 0, 0x10, 0, 0]);
    // The buffer is outside of memory, so it gets no bytes.
    driver.descriptor(0, 0xd000_0000, 64, WRITE);
    driver.offer(3);
    assert_eq!(driver.bytes(USED + 20, 8), [0; 8]);
}

#[test]
fn there_are_no_regions_of_shared_memory() {
    let mut driver = Driver::new();
    driver.start();
    driver.write(0xac, 1);
    for register in [0xb0, 0xb4, 0xb8, 0xbc] {
        assert_eq!(driver.read(register), 0xffff_ffff);
    }
}

#[test]
fn a_driver_that_breaks_a_rule_must_reset_the_device() {
    let mut driver = Driver::new();
    driver.start();
    driver.descriptor(0, DATA, 16, WRITE | NEXT);
    driver.descriptor(1, DATA, 16, WRITE | NEXT);
    for index in 1..16 {
        driver.descriptor(index, DATA, 16, WRITE | NEXT);
    }
    driver.offer(1);
    assert_ne!(driver.read(0x70) & u32::from(status::NEEDS_RESET), 0);
    assert_eq!(driver.read(0x60), 2);
    driver.write(0x70, 0);
    assert_eq!((driver.read(0x70), driver.read(0x60)), (0, 0));
    assert!(!driver.line());
    let (board, clock) = (&mut driver.bench.board, &driver.bench.clock);
    let saved = driver.bus.save();
    driver.bus.restore(&saved).unwrap();
    driver.bus.reset(board, clock);
}
