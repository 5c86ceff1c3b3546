//! A small driver: it finds the device by its capabilities, sets up queue 0 in guest memory and
//! sends requests, using only the registers.

use crate::board::Interrupts;
use crate::bus::testing::Bench;
use crate::bus::{Bus, Device};
use crate::devices::pci::host::PciHost;
use crate::devices::virtio::block::Block;
use crate::devices::virtio::device::VirtioDevice;
use crate::devices::virtio::pci_transport::VirtioPci;
use crate::devices::virtio::status;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tollgate_disk::DriveOptions;
use tollgate_x86::PhysicalAddress;

/// The address of the function's registers.
pub const BAR: u64 = 0xc000_0000;
/// The address of the MSI-X table.
pub const TABLE: u64 = 0xc001_0000;
/// The addresses of the rings and buffers in guest memory.
pub const DESCRIPTORS: u64 = 0x1_0000;
pub const AVAILABLE: u64 = 0x1_2000;
pub const USED: u64 = 0x1_3000;
pub const HEADER: u64 = 0x1_5000;
pub const STATUS: u64 = 0x1_6000;
pub const DATA: u64 = 0x2_0000;

/// Descriptor flags.
pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

/// A file that is removed at the end.
pub struct TempFile(pub PathBuf);

impl TempFile {
    pub fn new(content: &[u8]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-virtio-{}-{number}.img", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, content).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A bus with one virtio function, and a driver for it.
pub struct Driver {
    pub bench: Bench,
    pub bus: Bus,
    pub queue_size: u16,
    available: u16,
    used: u16,
}

pub fn block_device(path: &Path, change: impl FnOnce(&mut DriveOptions)) -> Box<dyn VirtioDevice> {
    let mut options = DriveOptions::new(path);
    options.format = Some(tollgate_disk::Format::Raw);
    change(&mut options);
    Box::new(Block::open(0, &options).unwrap())
}

impl Driver {
    /// Makes a driver that has found the device and set its BARs, but negotiated nothing.
    pub fn new(device: Box<dyn VirtioDevice>) -> Self {
        let mut bench = Bench::new();
        let host = PciHost::new(vec![Box::new(VirtioPci::new(device))]);
        let mut bus = Bus::new();
        let added: Result<(), _> = bus.add(
            Box::new(host) as Box<dyn Device>,
            &mut bench.board,
            &bench.clock,
        );
        added.unwrap();
        let mut driver = Self {
            bench,
            bus,
            queue_size: 0,
            available: 0,
            used: 0,
        };
        driver.set_config(0x10, 4, BAR as u32);
        driver.set_config(0x14, 4, TABLE as u32);
        driver.set_config(4, 2, 7);
        driver
    }

    pub fn config(&mut self, offset: u32, size: u8) -> u32 {
        let (board, clock) = (&mut self.bench.board, &self.bench.clock);
        let address = 0x8000_0800 | offset & 0xfc;
        self.bus.port_write(0xcf8, 4, address, board, clock);
        let port = 0xcfc + (offset & 3) as u16;
        self.bus.port_read(port, size, board, clock)
    }

    pub fn set_config(&mut self, offset: u32, size: u8, value: u32) {
        let (board, clock) = (&mut self.bench.board, &self.bench.clock);
        let address = 0x8000_0800 | offset & 0xfc;
        self.bus.port_write(0xcf8, 4, address, board, clock);
        let port = 0xcfc + (offset & 3) as u16;
        self.bus.port_write(port, size, value, board, clock);
    }

    pub fn read(&mut self, address: u64, size: usize) -> u64 {
        let mut data = [0; 8];
        let (board, clock) = (&mut self.bench.board, &self.bench.clock);
        let address = PhysicalAddress(address);
        self.bus
            .memory_read(address, &mut data[..size], board, clock);
        u64::from_le_bytes(data)
    }

    pub fn write(&mut self, address: u64, size: usize, value: u64) {
        let (board, clock) = (&mut self.bench.board, &self.bench.clock);
        let data = &value.to_le_bytes()[..size];
        self.bus
            .memory_write(PhysicalAddress(address), data, board, clock);
    }

    /// Writes guest memory.
    pub fn poke(&mut self, address: u64, data: &[u8]) {
        assert!(
            self.bench
                .board
                .memory
                .write(PhysicalAddress(address), data)
        );
    }

    /// Reads guest memory.
    pub fn peek(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        assert!(
            self.bench
                .board
                .memory
                .read(PhysicalAddress(address), &mut data)
        );
        data
    }

    pub fn status(&mut self) -> u8 {
        self.read(BAR + 20, 1) as u8
    }

    pub fn features(&mut self) -> u64 {
        let mut features = 0;
        for half in 0..2 {
            self.write(BAR, 4, half);
            features |= self.read(BAR + 4, 4) << (32 * half);
        }
        features
    }

    /// Accepts features and enables queue 0 with `size` descriptors.
    pub fn start(&mut self, features: u64, size: u16) {
        self.write(BAR + 20, 1, 0);
        (self.available, self.used, self.queue_size) = (0, 0, size);
        self.poke(AVAILABLE, &[0; 4]);
        self.poke(USED, &[0; 4]);
        self.write(BAR + 20, 1, 3);
        for half in 0..2 {
            self.write(BAR + 8, 4, half);
            self.write(BAR + 12, 4, features >> (32 * half) & 0xffff_ffff);
        }
        self.write(BAR + 20, 1, 11);
        assert_eq!(self.status(), 11);
        self.write(BAR + 22, 2, 0);
        self.write(BAR + 24, 2, size.into());
        for (register, address) in [(32, DESCRIPTORS), (40, AVAILABLE), (48, USED)] {
            self.write(BAR + register, 4, address);
            self.write(BAR + register + 4, 4, 0);
        }
        self.write(BAR + 28, 2, 1);
        self.write(BAR + 20, 1, 15);
    }

    /// Accepts all offered features and enables a queue of 16 descriptors.
    pub fn start_with_all(&mut self) {
        let features = self.features();
        self.start(features, 16);
    }

    pub fn descriptor(&mut self, index: u16, address: u64, bytes: u32, flags: u16, next: u16) {
        self.descriptor_at(DESCRIPTORS, index, address, bytes, flags, next);
    }

    pub fn descriptor_at(
        &mut self,
        table: u64,
        index: u16,
        address: u64,
        bytes: u32,
        flags: u16,
        next: u16,
    ) {
        let mut descriptor = address.to_le_bytes().to_vec();
        descriptor.extend(bytes.to_le_bytes());
        descriptor.extend(flags.to_le_bytes());
        descriptor.extend(next.to_le_bytes());
        self.poke(table + 16 * u64::from(index), &descriptor);
    }

    /// Makes a chain available and notifies the device.
    pub fn offer(&mut self, head: u16) {
        let place = AVAILABLE + 4 + 2 * u64::from(self.available % self.queue_size);
        self.poke(place, &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        let index = self.available;
        self.poke(AVAILABLE + 2, &index.to_le_bytes());
        self.notify();
    }

    /// Enables another queue with the same rings.
    pub fn enable(&mut self, queue: u16) {
        self.write(BAR + 22, 2, queue.into());
        self.write(BAR + 24, 2, self.queue_size.into());
        for (register, address) in [(32, DESCRIPTORS), (40, AVAILABLE), (48, USED)] {
            self.write(BAR + register, 8, address);
        }
        self.write(BAR + 28, 2, 1);
    }

    /// Like [`Driver::offer`], but notifies for another queue.
    pub fn offer_to(&mut self, queue: u16, head: u16) {
        let place = AVAILABLE + 4 + 2 * u64::from(self.available % self.queue_size);
        self.poke(place, &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        let index = self.available;
        self.poke(AVAILABLE + 2, &index.to_le_bytes());
        self.write(BAR + 0x3000 + 4 * u64::from(queue), 4, queue.into());
    }

    pub fn notify(&mut self) {
        self.write(BAR + 0x3000, 4, 0);
    }

    /// Returns how many chains have been returned so far.
    pub fn used_index(&self) -> u16 {
        u16::from_le_bytes(self.peek(USED + 2, 2).try_into().unwrap())
    }

    /// Waits for the next used element, and returns its head and the number of written bytes.
    pub fn wait(&mut self) -> (u32, u32) {
        let place = USED + 4 + 8 * u64::from(self.used % self.queue_size);
        self.used = self.used.wrapping_add(1);
        let end = Instant::now() + Duration::from_secs(60);
        while self.used_index().wrapping_sub(self.used) & 0x8000 != 0 {
            assert!(Instant::now() < end, "no answer");
            self.settle();
        }
        let element = self.peek(place, 8);
        let field = |at: usize| u32::from_le_bytes(element[at..at + 4].try_into().unwrap());
        (field(0), field(4))
    }

    /// Waits until the device's thread has finished all work.
    pub fn settle(&mut self) {
        let (board, clock) = (&mut self.bench.board, &self.bench.clock);
        let patience = Duration::from_secs(60);
        self.bus.quiesce(board, clock, patience).unwrap();
    }

    /// Sends a request with `data` at [`DATA`], which the device reads or writes.
    pub fn send(&mut self, kind: u32, sector: u64, bytes: u32, device_writes: bool) {
        let mut header = kind.to_le_bytes().to_vec();
        header.extend([0; 4]);
        header.extend(sector.to_le_bytes());
        self.poke(HEADER, &header);
        self.poke(STATUS, &[0xee]);
        let flags = if device_writes { NEXT | WRITE } else { NEXT };
        self.descriptor(0, HEADER, 16, NEXT, if bytes == 0 { 2 } else { 1 });
        self.descriptor(1, DATA, bytes, flags, 2);
        self.descriptor(2, STATUS, 1, WRITE, 0);
        self.offer(0);
    }

    /// Sends a request, waits for it, and returns its status.
    pub fn request(&mut self, kind: u32, sector: u64, bytes: u32, device_writes: bool) -> u8 {
        self.send(kind, sector, bytes, device_writes);
        assert_eq!(self.wait().0, 0);
        self.peek(STATUS, 1)[0]
    }

    pub fn needs_reset(&mut self) -> bool {
        self.status() & status::NEEDS_RESET != 0
    }

    pub fn interrupts(&mut self) -> &mut Interrupts {
        &mut self.bench.board.interrupts
    }
}
