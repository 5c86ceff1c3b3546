//! Tests of memory regions that a device changes while the guest runs. The guest's next access sees
//! the change, even in the middle of translated code that has just accessed the same page.

use std::io;
use std::sync::{Arc, Mutex};
use tollgate_machine::bus::{Claims, Device, DeviceContext, SavedState, StateError};
use tollgate_machine::config::VmConfig;
use tollgate_machine::pc::Pc;
use tollgate_memory::{BlockId, GuestMemory, Region, RegionKind};
use tollgate_monitor::VcpuStop;
use tollgate_platform::StopRequest;
use tollgate_test_support::{Computer, flat_state};
use tollgate_x86::PhysicalAddress;

const RAM: u64 = 4 << 20;
/// The address of the programs.
const CODE: u64 = 0x1_0000;
/// The page whose region changes.
const PAGE: u64 = 0x2_0000;
/// The address where the guest stores the values that it has read.
const RESULTS: u64 = 0x3_0000;
/// The port of [`Switch`].
const PORT: u16 = 0xe000;

/// The requests that a write to the port makes.
mod ask {
    pub const LAYOUT: u8 = 0;
    pub const ROM: u8 = 1;
    pub const DEVICE: u8 = 2;
    pub const OTHER_RAM: u8 = 3;
    pub const LOCKED_RAM: u8 = 4;
    pub const DISPLAY: u8 = 5;
    pub const DIRTY: u8 = 6;
}

/// A store that the device has seen, with its address, or the pages of a harvest.
type Note = (u64, Vec<u8>);

/// Everything that the device has seen.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Note>>>);

impl Seen {
    fn take(&self) -> Vec<Note> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Sets regions over one page, and answers there where there is no memory.
struct Switch {
    rom: BlockId,
    other: BlockId,
    seen: Seen,
}

impl Switch {
    fn region(&self, what: u8) -> Option<Region> {
        let (kind, block) = match what {
            ask::ROM => (RegionKind::Rom, Some((self.rom, 0))),
            ask::DEVICE => (RegionKind::Device, None),
            ask::OTHER_RAM => (RegionKind::Ram, Some((self.other, 0x1000))),
            ask::LOCKED_RAM => (RegionKind::Rom, None),
            ask::DISPLAY => (RegionKind::Display, Some((self.other, 0))),
            _ => return None,
        };
        Some(Region {
            start: PhysicalAddress(PAGE),
            bytes: 0x1000,
            kind,
            block,
        })
    }

    fn note(&self, what: u64, data: &[u8]) {
        self.seen.0.lock().unwrap().push((what, data.to_vec()));
    }
}

impl Device for Switch {
    fn name(&self) -> &str {
        "switch"
    }

    fn claims(&self) -> Claims {
        Claims::none()
            .with_byte_ports(PORT..=PORT)
            .with_memory(PAGE, 0x1000)
    }

    fn port_write(&mut self, _port: u16, _size: u8, value: u32, context: &mut DeviceContext<'_>) {
        let value = value as u8;
        let memory = context.memory();
        if value == ask::DIRTY {
            let pages = memory.take_dirty_pages(0, u64::MAX);
            self.note(
                ask::DIRTY.into(),
                &pages.iter().map(|&page| page as u8).collect::<Vec<_>>(),
            );
        } else if let Some(region) = self.region(value) {
            memory.set_region(region).unwrap();
        } else {
            memory.clear_region(PhysicalAddress(PAGE), 0x1000).unwrap();
        }
    }

    fn memory_read(
        &mut self,
        _address: PhysicalAddress,
        data: &mut [u8],
        _context: &mut DeviceContext<'_>,
    ) {
        data.fill(0x5a);
    }

    fn memory_write(
        &mut self,
        address: PhysicalAddress,
        data: &[u8],
        _context: &mut DeviceContext<'_>,
    ) {
        self.note(address.0, data);
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {}

    fn save(&self) -> SavedState {
        SavedState::empty()
    }

    fn restore(&mut self, _saved: &SavedState) -> Result<(), StateError> {
        Ok(())
    }
}

/// A program of 32-bit code, assembled step by step.
#[derive(Default)]
struct Program(Vec<u8>);

impl Program {
    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// mov al, what; out dx, al
    fn ask(self, what: u8) -> Self {
        self.bytes(&[0xb0, what, 0xee])
    }

    /// mov eax, [PAGE]; mov [edi], eax; add edi, 4
    fn load(self) -> Self {
        self.bytes(&[0xa1, 0, 0, 2, 0, 0x89, 0x07, 0x83, 0xc7, 4])
    }

    /// mov dword [PAGE], value
    fn store(self, value: u32) -> Self {
        self.bytes(&[0xc7, 0x05, 0, 0, 2, 0])
            .bytes(&value.to_le_bytes())
    }

    /// call esi; mov [edi], eax; add edi, 4
    fn call(self) -> Self {
        self.bytes(&[0xff, 0xd6, 0x89, 0x07, 0x83, 0xc7, 4])
    }

    /// Runs the program three times in one machine; each run must read `results`. Returns what the
    /// device has seen in the last run.
    fn run(self, page: &[u8], rom: &[u8], results: &[u32]) -> Vec<Note> {
        // mov al, 10h; out F4h, al; and back to the start
        let length = self.0.len() as i32;
        let back = -(length + 4 + 5);
        let code = self
            .bytes(&[0xb0, 0x10, 0xe6, 0xf4, 0xe9])
            .bytes(&back.to_le_bytes())
            .0;
        let mut memory = GuestMemory::new(RAM).unwrap();
        memory.write(PhysicalAddress(CODE), &code);
        memory.write(PhysicalAddress(PAGE), page);
        let seen = Seen::default();
        let switch = Switch {
            rom: memory.new_block(0x1000).unwrap(),
            other: memory.new_block(0x2000).unwrap(),
            seen: seen.clone(),
        };
        memory.write_block(switch.rom, 0, rom).unwrap();
        let mut pc = Pc::new(&VmConfig::default(), memory.clone(), Box::new(io::sink()));
        pc.add_device(Box::new(switch)).unwrap();
        let mut state = flat_state(CODE);
        state.gpr[2] = PORT.into();
        state.gpr[4] = 0x8000;
        state.gpr[6] = PAGE;
        let mut vcpu = Computer::new(state, memory.clone(), pc, 1 << 20, true).unwrap();
        for _ in 0..3 {
            seen.take();
            vcpu.change_state(|state| state.gpr[7] = RESULTS);
            let stop = vcpu.run();
            assert_eq!(stop, VcpuStop::Requested(StopRequest::DebugExit(0x10)));
            let read: Vec<u32> = (0..results.len() as u64)
                .map(|index| memory.read_u32(PhysicalAddress(RESULTS + 4 * index)))
                .collect();
            assert_eq!(read, results);
        }
        seen.take()
    }
}

#[test]
fn the_next_access_sees_what_a_region_became() {
    let seen = Program::default()
        .ask(ask::LAYOUT)
        .load()
        .store(0x1111_1111)
        .load()
        .ask(ask::ROM)
        .load()
        .store(7)
        .load()
        .ask(ask::DEVICE)
        .load()
        .ask(ask::LAYOUT)
        .load()
        .ask(ask::LOCKED_RAM)
        .store(9)
        .load()
        .ask(ask::OTHER_RAM)
        .store(0x3333_3333)
        .load()
        .ask(ask::LAYOUT)
        .load()
        .run(
            &[0x11; 4],
            &[0x22; 4],
            &[
                0x1111_1111,
                0x1111_1111,
                0x2222_2222,
                0x2222_2222,
                0x5a5a_5a5a,
                0x1111_1111,
                0x1111_1111,
                0x3333_3333,
                0x1111_1111,
            ],
        );
    // Stores to ROM go to the device at the same address.
    assert_eq!(seen, [(PAGE, vec![7, 0, 0, 0]), (PAGE, vec![9, 0, 0, 0])]);
}

#[test]
fn code_is_fetched_from_what_a_region_became() {
    let returns = |value: u8| [0xb8, value, 0, 0, 0, 0xc3];
    Program::default()
        .ask(ask::LAYOUT)
        .call()
        .ask(ask::ROM)
        .call()
        .call()
        .ask(ask::LAYOUT)
        .call()
        .run(&returns(1), &returns(2), &[1, 2, 2, 1]);
}

/// Instructions that read and write a location access ROM and then the device there.
#[test]
fn rom_takes_no_store_of_any_kind() {
    let seen = Program::default()
        .ask(ask::ROM)
        // add dword [PAGE], 1; mov byte [PAGE+3], 1
        .bytes(&[0x83, 0x05, 0, 0, 2, 0, 1, 0xc6, 0x05, 3, 0, 2, 0, 1])
        // xchg edi, esi; mov al, 5; stosb; dec edi; xchg edi, esi
        .bytes(&[0x87, 0xfe, 0xb0, 5, 0xaa, 0x4f, 0x87, 0xfe])
        // fnstcw [PAGE]
        .bytes(&[0xd9, 0x3d, 0, 0, 2, 0])
        .load()
        .run(&[], &[0x22; 4], &[0x2222_2222]);
    assert_eq!(
        seen,
        [
            (PAGE, vec![0x23, 0x22, 0x22, 0x22]),
            (PAGE + 3, vec![1]),
            (PAGE, vec![5]),
            (PAGE, vec![0x7f, 3]),
        ]
    );
}

#[test]
fn each_harvest_tells_the_display_pages_written_since_the_last_one() {
    let page = vec![(PAGE >> 12) as u8];
    let seen = Program::default()
        .ask(ask::DISPLAY)
        .ask(ask::DIRTY)
        .ask(ask::DIRTY)
        .load()
        .ask(ask::DIRTY)
        .store(1)
        .store(2)
        .ask(ask::DIRTY)
        .store(3)
        .ask(ask::DIRTY)
        // xchg edi, esi; stosb; dec edi; xchg edi, esi
        .bytes(&[0x87, 0xfe, 0xaa, 0x4f, 0x87, 0xfe])
        .ask(ask::DIRTY)
        // xchg edi, esi; mov ecx, 3; rep stosb; sub edi, 3; xchg edi, esi
        .bytes(&[0x87, 0xfe, 0xb9, 3, 0, 0, 0, 0xf3, 0xaa])
        .bytes(&[0x83, 0xef, 3, 0x87, 0xfe])
        .ask(ask::DIRTY)
        .ask(ask::DIRTY)
        // The page is cleared for the next round.
        .store(0)
        .run(&[], &[], &[0]);
    let harvests: Vec<Vec<u8>> = seen.into_iter().map(|(_, pages)| pages).collect();
    assert_eq!(
        harvests,
        [
            page.clone(),
            vec![],
            vec![],
            page.clone(),
            page.clone(),
            page.clone(),
            page,
            vec![],
        ]
    );
}
