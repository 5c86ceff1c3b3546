//! Hostile input for virtio devices of the real PC: a random driver. The input determines the
//! content of registers, configuration space and rings, from nonsense to nearly what a good driver
//! writes.

use crate::input::Input;
use crate::saving::saved;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use tollgate_machine::config::{
    DriveOptions, Format, NetworkKind, NetworkOptions, OnLoss, OptionalDevice, PortOptions,
    PortTarget, ScsiDrive, ScsiKind, ShareOptions, ShareProtocol, UserOptions, VmConfig,
    VsockOptions,
};
use tollgate_machine::device_list;
use tollgate_machine::devices::pci::ECAM_BASE;
use tollgate_machine::devices::virtio::mmio_transport;
use tollgate_machine::pc::Pc;
use tollgate_memory::GuestMemory;
use tollgate_platform::Platform;
use tollgate_x86::PhysicalAddress;

/// The initial address of the registers of the first function.
const BAR: u64 = 0xc000_0000;
/// The initial address of its message table.
const TABLE: u64 = 0xc001_0000;
/// The address of rings and buffers, one page each.
const RINGS: u64 = 0x1_0000;
const MEMORY_BYTES: u64 = 4 << 20;
const DISK_BYTES: u64 = 1 << 20;
/// Number of queues that the driver sets up, all with the same rings; most devices have fewer.
const QUEUES: u32 = 6;
/// Maximum number of steps of one input.
const MAX_STEPS: u32 = 400;

/// A temporary image, and a directory next to it.
struct Image(PathBuf);

impl Image {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-hostile-{}-{number}.img", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = fs::File::create(&path).expect("a temporary file");
        file.set_len(DISK_BYTES).expect("a temporary file");
        fs::create_dir_all(path.with_extension("d")).expect("a temporary directory");
        Self(path)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let _ = fs::remove_dir_all(self.0.with_extension("d"));
    }
}

struct Guest {
    pc: Pc,
    memory: GuestMemory,
    /// Whether the devices are on PCI.
    has_pci: bool,
    /// The address of the registers of the first device.
    base: u64,
}

impl Guest {
    fn config(&mut self, device: u32, offset: u32, size: u8, value: u32) {
        let address = 0x8000_0000 | (device & 31) << 11 | offset & 0xfc;
        self.pc.port_write(0xcf8, 4, address);
        self.pc.port_write(0xcfc + (offset & 3) as u16, size, value);
    }

    fn store(&mut self, address: u64, bytes: &[u8]) {
        self.pc.memory_write(PhysicalAddress(address), bytes);
    }

    fn poke(&mut self, address: u64, bytes: &[u8]) {
        self.memory.write(PhysicalAddress(address), bytes);
    }

    /// Does what a good driver does before its first request.
    fn start(&mut self, features: u64, size: u16) {
        if self.has_pci {
            self.start_on_pci(features, size);
        } else {
            self.start_in_memory(features, size);
        }
    }

    fn start_in_memory(&mut self, features: u64, size: u16) {
        let rings = [0, 1, 2].map(|index| (RINGS + 0x1000 * index) as u32);
        let (low, high) = (features as u32, (features >> 32) as u32);
        let agree = [
            (0x70, 0),
            (0x70, 3),
            (0x24, 0),
            (0x20, low),
            (0x24, 1),
            (0x20, high),
            (0x70, 11),
        ];
        for (register, value) in agree {
            self.store(self.base + register, &u32::to_le_bytes(value));
        }
        for queue in 0..QUEUES {
            for (register, value) in [
                (0x30, queue),
                (0x38, size.into()),
                (0x80, rings[0]),
                (0x90, rings[1]),
                (0xa0, rings[2]),
                (0x44, 1),
            ] {
                self.store(self.base + register, &u32::to_le_bytes(value));
            }
        }
        self.store(self.base + 0x70, &u32::to_le_bytes(15));
    }

    /// Notifies the device that chains are available.
    fn notify(&mut self) {
        for queue in 0..QUEUES {
            let (register, value) = match self.has_pci {
                true => (0x3000 + 4 * u64::from(queue), 0),
                false => (0x50, queue),
            };
            self.store(self.base + register, &u32::to_le_bytes(value));
        }
    }

    fn start_on_pci(&mut self, features: u64, size: u16) {
        for (offset, value) in [(0x10, BAR as u32), (0x14, TABLE as u32), (4, 7)] {
            self.config(1, offset, 4, value);
        }
        self.store(BAR + 20, &[0]);
        self.store(BAR + 20, &[3]);
        for half in 0..2u32 {
            self.store(BAR + 8, &half.to_le_bytes());
            let bits = (features >> (32 * half)) as u32;
            self.store(BAR + 12, &bits.to_le_bytes());
        }
        self.store(BAR + 20, &[11]);
        for queue in 0..QUEUES {
            self.store(BAR + 22, &(queue as u16).to_le_bytes());
            self.store(BAR + 24, &size.to_le_bytes());
            for (index, register) in [32, 40, 48].into_iter().enumerate() {
                let address = RINGS + 0x1000 * index as u64;
                self.store(BAR + register, &address.to_le_bytes());
            }
            self.store(BAR + 28, &[1, 0]);
        }
        self.store(BAR + 20, &[15]);
    }
}

/// Makes the driver do what the input describes.
///
/// # Panics
///
/// Panics if a device breaks a promise.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let image = Image::new();
    let is_network = input.byte() & 1 != 0;
    let choices = input.byte();
    let has_pci = choices & 8 == 0;
    let drive = DriveOptions {
        format: Some(Format::Raw),
        readonly: choices & 1 != 0,
        discard: choices & 2 != 0,
        ..DriveOptions::new(&image.0)
    };
    // The guest's packets are not sent anywhere.
    let network = NetworkOptions::new(NetworkKind::User(UserOptions {
        restrict: true,
        ..UserOptions::default()
    }));
    // The driver uses the first device: network, sockets, disk, share, ports or balloon.
    let is_vsock = is_network && choices & 3 == 3;
    let is_share = !is_network && choices & 0x11 == 0x11;
    let is_console = !is_network && choices & 0x13 == 0x10;
    let is_balloon = !is_network && choices & 0x13 == 0x12;
    // The share is one of 9P, and the disk is at a controller.
    let is_nine = is_share && choices & 0x22 == 0x20;
    let is_scsi = !is_network && choices & 0x31 == 0x20;
    let mut config = VmConfig {
        memory_bytes: MEMORY_BYTES,
        pci: has_pci,
        devices: vec![OptionalDevice::VirtioRng],
        drives: if is_network { vec![] } else { vec![drive] },
        networks: if is_network { vec![network] } else { vec![] },
        ..VmConfig::default()
    };
    if is_share || is_console || is_balloon {
        config.drives.clear();
        config.devices.clear();
    }
    if is_balloon {
        config.devices.push(OptionalDevice::VirtioBalloon);
    }
    if is_console {
        config.ports = vec![PortOptions {
            name: "port".into(),
            target: PortTarget::File(image.0.clone()),
            is_console: choices & 4 != 0,
            on_loss: OnLoss::default(),
        }];
    }
    if is_vsock {
        config.networks.clear();
        config.devices.clear();
        config.vsock = Some(VsockOptions {
            cid: 3,
            path: image.0.with_extension("d").join("socket"),
        });
    }
    if is_share {
        let mut share = ShareOptions::new(image.0.with_extension("d"), "share");
        if is_nine {
            share.protocol = ShareProtocol::NineP;
        }
        config.shares = vec![share];
    }
    if is_scsi {
        config.devices.clear();
        let disk = config.drives.remove(0);
        config.scsi_drives = vec![
            ScsiDrive::target(1, ScsiKind::Disk(disk)),
            ScsiDrive::target(2, ScsiKind::CdRom(None)),
        ];
    }
    let memory = GuestMemory::new(MEMORY_BYTES).expect("memory");
    let devices = device_list::virtio_devices(&config).expect("image and directory");
    let mut pc = Pc::with_virtio(&config, memory.clone(), Box::new(io::sink()), devices);
    pc.set_debug_output(Box::new(io::sink()));
    pc.pause();
    let base = if has_pci {
        BAR
    } else {
        mmio_transport::address(0)
    };
    let mut guest = Guest {
        pc,
        memory,
        has_pci,
        base,
    };
    if choices & 4 == 0 {
        // Features of the device itself: flushes, several ports, checksums and segments that are
        // not cut.
        let own = match (is_network, is_share, is_console) {
            (true, _, _) if is_vsock => 1,
            (true, _, _) => 0x1983,
            (_, true, _) => u64::from(is_nine),
            (_, _, true) => 1 << 1,
            _ if is_scsi => 0,
            _ => 1 << 9,
        };
        let features = 1 << 32 | u64::from(choices >> 4) << 28 & 0x3000_0000 | own;
        guest.start(features, 1 << (choices >> 5));
    }
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        step(&mut guest, &mut input);
    }
    // The threads of the device finish.
    saved(&mut guest.pc);
}

/// The address of a register, or one next to it.
fn address(input: &mut Input<'_>) -> u64 {
    match input.byte() {
        choice @ 0..=0x7f => RINGS + u64::from(choice & 7) * 0x1000 + u64::from(choice >> 3) * 16,
        choice @ 0x80..=0xbf => RINGS + u64::from(choice & 0x3f) * 0x200,
        0xc0..=0xdf => MEMORY_BYTES - u64::from(input.byte()),
        0xe0..=0xef => BAR + u64::from(input.word()),
        _ => input.qword(),
    }
}

fn step(guest: &mut Guest, input: &mut Input<'_>) {
    let what = input.byte();
    match what & 15 {
        // Write a descriptor.
        0..=3 => {
            let index = u64::from(input.byte() & 31);
            let mut descriptor = address(input).to_le_bytes().to_vec();
            let bytes = match what >> 6 {
                0 => 16,
                1 => u32::from(input.byte()),
                2 => u32::from(input.byte()) * 512,
                _ => input.dword(),
            };
            descriptor.extend(bytes.to_le_bytes());
            descriptor.extend([input.byte(), 0, input.byte() & 31, 0]);
            guest.poke(RINGS + 16 * index, &descriptor);
        }
        // Write a message for 9P: kind, tag, and names or numbers.
        4 if what & 0x50 == 0x50 => {
            let mut header = u32::from(input.byte()).to_le_bytes().to_vec();
            header.extend([input.byte(), 1, 0]);
            let count = usize::from(input.byte() & 63);
            header.extend(input.bytes(count));
            let place = address(input);
            guest.poke(place, &header);
        }
        // Write a header for the controller: target, task and command.
        4 if what & 0x60 == 0x60 => {
            let mut header = vec![1, input.byte() & 3, 0x40, input.byte() & 1, 0, 0, 0, 0];
            header.extend([7; 8]);
            header.extend([0; 3]);
            header.extend(input.bytes(16));
            header.resize(51, 0);
            let place = address(input);
            guest.poke(place, &header);
        }
        // Write a header for the file system device: operation, node, and a name or numbers.
        4 if what & 16 != 0 => {
            let mut header = u32::from(input.byte()).to_le_bytes().to_vec();
            header.extend(u32::from(input.byte() & 63).to_le_bytes());
            header.extend(u64::from(input.byte()).to_le_bytes());
            header.extend(u64::from(input.byte() & 7).to_le_bytes());
            header.extend([0; 16]);
            let count = usize::from(input.byte() & 63);
            header.extend(input.bytes(count));
            let place = address(input);
            guest.poke(place, &header);
        }
        // Write a header for the socket device: ports, length, type, operation, flags and room.
        4 if what & 32 != 0 => {
            let mut header = [3u64.to_le_bytes(), 2u64.to_le_bytes()].concat();
            header.extend([input.byte() & 3, 0, 0, 0, input.byte() & 3, 0, 0, 0]);
            header.extend(u32::from(input.byte()).to_le_bytes());
            header.extend([1, 0, input.byte() & 15, 0, input.byte() & 7, 0, 0, 0]);
            header.extend(input.dword().to_le_bytes());
            header.extend(input.dword().to_le_bytes());
            let place = address(input);
            guest.poke(place, &header);
        }
        // Write a header for the disk.
        4 => {
            let kinds = [0, 1, 4, 8, 11, 13, 2, 0xff];
            let mut header = vec![kinds[usize::from(what >> 5)], 0, 0, 0, 0, 0, 0, 0];
            header.extend(u64::from(input.word()).to_le_bytes());
            let place = address(input);
            guest.poke(place, &header);
        }
        // Make chains available.
        5..=7 => {
            let place = RINGS + 0x1000;
            let mut index = [0; 2];
            guest.memory.read(PhysicalAddress(place + 2), &mut index);
            let next = u16::from_le_bytes(index).wrapping_add(u16::from(what >> 4 & 3));
            let ring = place + 4 + 2 * u64::from(input.byte());
            guest.poke(ring, &[input.byte() & 31, what >> 7]);
            guest.poke(place + 2, &next.to_le_bytes());
            guest.notify();
        }
        8 => {
            let (place, count) = (address(input), usize::from(input.byte() & 63));
            let bytes = input.bytes(count).to_vec();
            guest.poke(place, &bytes);
        }
        // Access a register, usually with its own width.
        9 | 10 => {
            let register = u64::from(input.byte());
            let (register, size) = if guest.has_pci {
                (register & 63, [1, 2, 4, 8][usize::from(what >> 6)])
            } else {
                (register & 0xfc, 4)
            };
            let value = input.qword().to_le_bytes();
            guest.store(guest.base + register, &value[..size]);
        }
        11 => {
            let mut bytes = vec![0; 1 + usize::from(what >> 4)];
            let place = guest.base + u64::from(input.word() & 0x3fff);
            guest.pc.memory_read(PhysicalAddress(place), &mut bytes);
        }
        12 => {
            let (offset, value) = (input.byte(), input.dword());
            guest.config(
                (what >> 7).into(),
                offset.into(),
                1 << (what >> 4 & 3).min(2),
                value,
            );
        }
        13 => {
            let place = [ECAM_BASE + (1 << 15), TABLE][usize::from(what >> 7)];
            let offset = u64::from(input.word() & 0x0fff);
            let value = input.qword().to_le_bytes();
            guest.store(place + offset, &value[..1 + usize::from(what >> 4 & 7)]);
        }
        14 => match what >> 6 {
            0 => guest.start(u64::from(input.dword()) | 1 << 32, 16),
            1 => guest.pc.reset(),
            2 => guest.pc.advance(),
            _ => while guest.pc.acknowledge_interrupt().is_some() {},
        },
        _ => {
            if let Some(state) = saved(&mut guest.pc) {
                guest.pc.restore(state).expect("its own version");
            }
        }
    }
}

/// Requests that good drivers make.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    // Header, data and status: descriptors 0, 1 and 2.
    let chain = |kind: u8, device_writes: u8, sectors: u8| -> Vec<u8> {
        let mut steps = vec![kind << 5 | 4, 1, 0, 3];
        steps.extend([0x00, 0, 3, 1, 1]);
        steps.extend([0x80, 1, 4, sectors, 1 | device_writes << 1, 2]);
        steps.extend([0x40, 2, 5, 1, 2, 0]);
        steps.extend([0x15, 0, 0]);
        steps.extend([0x0f, 0x8e, 0xce, 0x0b, 0, 0x10]);
        steps
    };
    let names = ["read", "write", "flush", "identify", "discard", "zero"];
    let kinds = names.iter().zip(0u8..);
    kinds
        .map(|(name, kind)| {
            let device_writes = u8::from(matches!(kind, 0 | 3));
            let steps = chain(kind, device_writes, 1 + kind % 2);
            ((*name).to_owned(), steps)
        })
        // With the device on PCI, and in memory.
        .flat_map(|(name, steps)| {
            [0xb2, 0xba].map(|choices| {
                (
                    format!("{name}-{choices:x}"),
                    [&[0, choices], &*steps].concat(),
                )
            })
        })
        .chain(share_seeds())
        .chain(nine_seeds())
        .chain(scsi_seeds())
        .chain(frames())
        .collect()
}

/// Requests to the file system device: the mount and the following ones.
fn share_seeds() -> impl Iterator<Item = (String, Vec<u8>)> {
    let request = |opcode: u8, body: &[u8]| -> Vec<u8> {
        let bytes = 40 + body.len() as u8;
        // The header, for node 1; then descriptors of request and reply, which are made available.
        let mut steps = vec![0x14, bytes, opcode, 7, 1, body.len() as u8];
        steps.extend(body);
        steps.push(3);
        steps.extend([0x40, 0, 3, bytes, 1, 1]);
        steps.extend([0x80, 1, 4, 1, 2, 0]);
        steps.extend([0x15, 0, 0]);
        steps.extend([0x0f, 0x8e, 0xce, 0x0b, 0, 0x10]);
        steps
    };
    let init = [7, 0, 0, 0, 38, 0, 0, 0, 0, 0, 1, 0, 0xff, 0xff, 0xff, 0xff];
    let seeds = [
        ("init", request(26, &init)),
        ("make", request(9, b"\xed\x01\0\0\0\0\0\0name\0")),
        ("look-up", request(1, b"name\0")),
        ("list", request(27, &[0; 8])),
    ];
    seeds.into_iter().flat_map(|(name, steps)| {
        [0xb3, 0xbb].map(|choices: u8| {
            let seed = [&[0, choices], &*steps].concat();
            (format!("share-{name}-{choices:x}"), seed)
        })
    })
}

/// The steps that send a message to the 9P device: 7 bytes and its body; then descriptors of request and
/// reply, which are made available.
pub fn nine_message(kind: u8, body: &[u8]) -> Vec<u8> {
    let bytes = 7 + body.len() as u8;
    let mut steps = vec![0x54, bytes, kind, body.len() as u8];
    steps.extend(body);
    steps.push(3);
    steps.extend([0x40, 0, 3, bytes, 1, 1]);
    steps.extend([0x80, 1, 4, 1, 2, 0]);
    steps.extend([0x15, 0, 0]);
    steps
}

/// The steps that send a command of 16 bytes to a unit of a target of the SCSI controller.
pub fn scsi_request(target: u8, unit: u8, command: &[u8]) -> Vec<u8> {
    let mut steps = vec![0x64, target, unit];
    steps.extend(command);
    steps.push(3);
    // The request, the answer, and its data.
    steps.extend([0x40, 0, 3, 51, 1, 1]);
    steps.extend([0x40, 1, 4, 108, 3, 2]);
    steps.extend([0x80, 2, 5, 1, 2, 0]);
    steps.extend([0x15, 0, 0]);
    steps
}

/// Messages to the 9P device: the beginning of a session and what follows.
fn nine_seeds() -> impl Iterator<Item = (String, Vec<u8>)> {
    let version = nine_message(100, b"\0\0\x02\0\x08\09P2000.L");
    let attach = nine_message(104, b"\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0\0\0");
    let create = nine_message(14, b"\0\0\0\0\x01\0a\x02\0\0\0\xa4\x01\0\0\0\0\0\0");
    let walk = nine_message(110, b"\0\0\0\0\x01\0\0\0\x01\0\x01\0a");
    let end = [0x0f, 0x8e, 0xce, 0x0b, 0, 0x10];
    [("create", create), ("walk", walk)]
        .into_iter()
        .flat_map(move |(name, last)| {
            let steps = [&*version, &*attach, &*last, &end].concat();
            [0xb1, 0xb9].map(|choices: u8| {
                let seed = [&[0, choices], &*steps].concat();
                (format!("nine-{name}-{choices:x}"), seed)
            })
        })
}

/// Commands for the disk of the controller.
fn scsi_seeds() -> impl Iterator<Item = (String, Vec<u8>)> {
    let commands: [(&str, &[u8]); 4] = [
        ("ready", &[0]),
        ("inquire", &[0x12, 0, 0, 0, 96]),
        ("read", &[0x28, 0, 0, 0, 0, 1, 0, 0, 1]),
        ("modes", &[0x5a, 0, 0x3f, 0, 0, 0, 0, 0, 200]),
    ];
    commands.into_iter().flat_map(|(name, command)| {
        let mut bytes = command.to_vec();
        bytes.resize(16, 0);
        let mut steps = scsi_request(1, 0, &bytes);
        steps.extend([0x0f, 0x8e, 0xce, 0x0b, 0, 0x10]);
        [0xa2, 0xaa].map(|choices: u8| {
            let seed = [&[0, choices], &*steps].concat();
            (format!("scsi-{name}-{choices:x}"), seed)
        })
    })
}

/// Buffers for frames, and frames in them.
fn frames() -> impl Iterator<Item = (String, Vec<u8>)> {
    let mut steps = Vec::new();
    // An ARP request for the gateway, after twelve bytes of header.
    let mut frame = vec![0; 12];
    frame.extend([0xff; 6]);
    frame.extend([0x52, 0x54, 0, 0x12, 0x34, 0x56, 8, 6]);
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1, 0x52, 0x54, 0, 0x12, 0x34, 0x56]);
    frame.extend([10, 0, 2, 15, 0, 0, 0, 0, 0, 0, 10, 0, 2, 2]);
    steps.extend([8, 3, frame.len() as u8]);
    steps.extend(&frame);
    // Descriptor 0 is the frame; descriptor 1 is a buffer for the answer.
    steps.extend([0x40, 0, 3, frame.len() as u8, 0, 0]);
    steps.extend([0x80, 1, 4, 4, 2, 0]);
    steps.extend([0x15, 0, 0, 0x15, 1, 1, 0x0f, 0x8e, 0x15, 2, 0, 0x0f]);
    [0xb2, 0xba].into_iter().map(move |choices| {
        let input = [&[1, choices], &*steps].concat();
        (format!("frame-{choices:x}"), input)
    })
}
