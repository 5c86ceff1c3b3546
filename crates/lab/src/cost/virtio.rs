//! The virtio devices to which the guest makes requests, a disk and a network adapter in memory,
//! and the part of a driver that runs once: it tells the devices where the queues are.
//!
//! Each queue has one chain, which the guest makes available repeatedly: the entries of a new ring
//! are zero, so they refer to this chain.

use super::CostError;
use super::disk::Disk;
use tollgate_machine::config::VmConfig;
use tollgate_machine::device_list;
use tollgate_machine::devices::virtio::device::VirtioDevice;
use tollgate_machine::devices::virtio::mmio_transport::{address, interrupt_line};
use tollgate_machine::pc::Pc;
use tollgate_memory::GuestMemory;
use tollgate_network::{NetworkKind, NetworkOptions, UserOptions};
use tollgate_platform::Platform;
use tollgate_x86::PhysicalAddress;

/// Number of descriptors in each queue.
const QUEUE_SIZE: u32 = 256;

/// The guest's `DEVICE_VECTOR`.
const VECTOR: u32 = 0x52;
/// The address of the I/O APIC: its register select; its window follows at offset 10h.
const IO_APIC: u64 = 0xfec0_0000;

/// The memory of a device's queue. The guest's `DISK_AVAILABLE` and `NET_AVAILABLE` are the second
/// page.
struct Layout {
    device: u8,
    queue: u32,
    descriptors: u64,
}

impl Layout {
    const fn available(&self) -> u64 {
        self.descriptors + 0x1000
    }

    const fn used(&self) -> u64 {
        self.descriptors + 0x2000
    }

    const fn buffers(&self) -> u64 {
        self.descriptors + 0x3000
    }
}

const DISK: Layout = Layout {
    device: 0,
    queue: 0,
    descriptors: 0x12_0000,
};
/// Packets are sent through the transmit queue.
const ADAPTER: Layout = Layout {
    device: 1,
    queue: 1,
    descriptors: 0x13_0000,
};

/// A part of a chain: its size in bytes, and whether the device writes it.
type Part = (u32, bool);
/// Header, data and status of a request that reads from the first sector on: its header is zero.
const DISK_CHAIN: &[Part] = &[(16, false), (4096, true), (1, true)];
/// A header, and a frame of minimum length that is addressed to no host.
const ADAPTER_CHAIN: &[Part] = &[(12 + 60, false)];

/// Makes the devices, and adds them to the configuration.
///
/// # Errors
///
/// The host refuses a file, a thread or a socket.
pub fn devices(config: &mut VmConfig) -> Result<Vec<Box<dyn VirtioDevice>>, CostError> {
    let refused = |error: &dyn std::fmt::Display| CostError::Host(error.to_string());
    let disk = Disk::new()?;
    config.pci = false;
    config.drives = vec![disk.options.clone()];
    config.networks = vec![NetworkOptions::new(NetworkKind::User(UserOptions {
        restrict: true,
        ..UserOptions::default()
    }))];
    device_list::virtio_devices(config).map_err(|error| refused(&error))
}

/// Does what a driver does once, and routes the interrupts to the processor.
pub fn start(pc: &mut Pc, memory: &mut GuestMemory) {
    start_device(pc, memory, &DISK, DISK_CHAIN);
    start_device(pc, memory, &ADAPTER, ADAPTER_CHAIN);
}

fn start_device(pc: &mut Pc, memory: &mut GuestMemory, layout: &Layout, chain: &[Part]) {
    /// Flags of a descriptor (virtio 1.2, 2.7.5).
    const NEXT: u32 = 1;
    const WRITE: u32 = 2;
    let mut buffer = layout.buffers();
    for (index, &(bytes, is_written)) in (0u32..).zip(chain) {
        let at = layout.descriptors + 16 * u64::from(index);
        let is_last = index as usize + 1 == chain.len();
        let flags = if is_last { 0 } else { NEXT } | if is_written { WRITE } else { 0 };
        let words = [buffer as u32, 0, bytes, flags | (index + 1) << 16];
        for (word, at) in words.into_iter().zip((at..).step_by(4)) {
            memory.write_u32(PhysicalAddress(at), word);
        }
        buffer += u64::from(bytes);
    }
    // Registers and values (virtio 1.2, 4.2.2 and 3.1.1).
    let writes = [
        (0x70, 0),
        (0x70, 1),
        (0x70, 3),
        // Accept only VIRTIO_F_VERSION_1.
        (0x24, 1),
        (0x20, 1),
        (0x70, 11),
        (0x30, layout.queue),
        (0x38, QUEUE_SIZE),
        (0x80, layout.descriptors as u32),
        (0x90, layout.available() as u32),
        (0xa0, layout.used() as u32),
        (0x44, 1),
        (0x70, 15),
    ];
    for (register, value) in writes {
        let at = PhysicalAddress(address(layout.device) + register);
        pc.memory_write(at, &u32::to_le_bytes(value));
    }
    route_interrupt(pc, interrupt_line(layout.device));
}

/// Leads a line to the processor as the vector of devices.
pub fn route_interrupt(pc: &mut Pc, line: u8) {
    // A redirection entry: edge-triggered, fixed, to processor 0.
    let entry = 0x10 + 2 * u32::from(line);
    for (register, value) in [(entry + 1, 0), (entry, VECTOR)] {
        for (at, value) in [(IO_APIC, register), (IO_APIC + 0x10, value)] {
            pc.memory_write(PhysicalAddress(at), &value.to_le_bytes());
        }
    }
}
