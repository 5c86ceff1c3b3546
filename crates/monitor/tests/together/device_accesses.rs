//! Tests which accesses a device sees for each kind of instruction: every access once, with its
//! size and in order, even if another access of the instruction faults first.

use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_platform::{BareMachine, StopRequest};
use tollgate_test_support::{Computer, flat_state};
use tollgate_x86::state::TableRegister;
use tollgate_x86::{CpuState, PhysicalAddress};

/// Size of guest RAM in bytes. Devices begin after RAM.
const RAM: u64 = 4 << 20;
/// Address of the device's memory.
const DEVICE: u32 = 0xe000_0000;
/// Address of plain memory for the other operand.
const PLAIN: u32 = 0x2_0000;
/// Address of the programs.
const CODE: u32 = 0x1_0000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    Read(u64, usize),
    Write(u64, usize),
}
use Access::{Read, Write};

/// A machine that records what devices see, and stops when the guest writes to a port.
#[derive(Default)]
struct Device {
    stop: Option<StopRequest>,
    seen: Vec<Access>,
}

impl BareMachine for Device {
    fn port_read(&mut self, _port: u16, _size: u8) -> u32 {
        0xff
    }
    fn port_write(&mut self, _port: u16, _size: u8, value: u32) {
        self.stop = Some(StopRequest::DebugExit(value as u8));
    }
    fn memory_read(&mut self, address: PhysicalAddress, data: &mut [u8]) {
        self.seen.push(Read(address.0, data.len()));
        data.fill(0x5a);
    }
    fn memory_write(&mut self, address: PhysicalAddress, data: &[u8]) {
        self.seen.push(Write(address.0, data.len()));
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        self.stop.take()
    }
}

/// A state in which ESI points to the device, EDI and ESP to plain memory, ECX is 3, EAX is 2, and
/// all other registers are zero.
fn state() -> CpuState {
    let mut state = flat_state(u64::from(CODE));
    state.cr0 = 0x21;
    state.cr4 = 0x600;
    for (register, value) in [
        (0, 2),
        (1, 3),
        (4, PLAIN),
        (5, DEVICE),
        (6, DEVICE),
        (7, PLAIN),
    ] {
        state.gpr[register] = u64::from(value);
    }
    state
}

/// Runs `code` and then OUT. Returns the processor in its state at the end.
fn run(
    map: &'static RegisterMap,
    state: CpuState,
    code: &[u8],
    prepare: impl FnOnce(&mut GuestMemory),
) -> Computer<Device> {
    let mut memory = GuestMemory::new(RAM).unwrap();
    memory.write(PhysicalAddress(u64::from(CODE)), code);
    let end = u64::from(CODE) + code.len() as u64;
    memory.write(PhysicalAddress(end), &[0xe6, 0xf4]);
    prepare(&mut memory);
    let mut vcpu = Computer::new(state, memory, Device::default(), 1 << 20, true).unwrap();
    vcpu.set_register_map(map);
    let stop = vcpu.run();
    assert!(
        matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_))),
        "{code:02x?}: {stop:?}\n{}",
        vcpu.dump()
    );
    vcpu
}

/// The two register maps that are tested.
const MAPS: [&RegisterMap; 2] = [&RegisterMap::LEGACY, &RegisterMap::SPILLED];

const D: u64 = DEVICE as u64;

#[test]
fn each_instruction_makes_each_of_its_device_accesses_once() {
    let cases: &[(&str, &[u8], &[Access])] = &[
        ("mov eax, [esi]", &[0x8b, 0x06], &[Read(D, 4)]),
        ("mov al, [esi]", &[0x8a, 0x06], &[Read(D, 1)]),
        ("mov [esi], ax", &[0x66, 0x89, 0x06], &[Write(D, 2)]),
        ("mov [esi], 9", &[0xc6, 0x06, 9], &[Write(D, 1)]),
        ("movzx", &[0x0f, 0xb7, 0x06], &[Read(D, 2)]),
        ("add from", &[0x03, 0x06], &[Read(D, 4)]),
        ("add to", &[0x01, 0x06], &[Read(D, 4), Write(D, 4)]),
        ("inc", &[0xff, 0x06], &[Read(D, 4), Write(D, 4)]),
        ("not byte", &[0xf6, 0x16], &[Read(D, 1), Write(D, 1)]),
        ("shl by 1", &[0xd1, 0x26], &[Read(D, 4), Write(D, 4)]),
        ("xchg", &[0x87, 0x06], &[Read(D, 4), Write(D, 4)]),
        (
            "lock xadd",
            &[0xf0, 0x0f, 0xc1, 0x06],
            &[Read(D, 4), Write(D, 4)],
        ),
        (
            "cmpxchg that fails",
            &[0x0f, 0xb1, 0x0e],
            &[Read(D, 4), Write(D, 4)],
        ),
        (
            "cmpxchg8b",
            &[0xf0, 0x0f, 0xc7, 0x0e],
            &[Read(D, 8), Write(D, 8)],
        ),
        ("cmp", &[0x39, 0x06], &[Read(D, 4)]),
        ("test", &[0x85, 0x06], &[Read(D, 4)]),
        ("bt", &[0x0f, 0xa3, 0x0e], &[Read(D, 4)]),
        ("bts", &[0x0f, 0xba, 0x2e, 3], &[Read(D, 4), Write(D, 4)]),
        ("setc", &[0x0f, 0x92, 0x06], &[Write(D, 1)]),
        ("cmovc, not taken", &[0x0f, 0x42, 0x06], &[Read(D, 4)]),
        ("mul", &[0xf7, 0x26], &[Read(D, 4)]),
        ("push [esi]", &[0xff, 0x36], &[Read(D, 4)]),
        ("pop [esi]", &[0x8f, 0x06], &[Write(D, 4)]),
        ("mov [esi], ds", &[0x8c, 0x1e], &[Write(D, 2)]),
        ("movs from", &[0xa5], &[Read(D, 4)]),
        ("lods", &[0xad], &[Read(D, 4)]),
        ("cmps", &[0xa7], &[Read(D, 4)]),
        (
            "rep movsd from",
            &[0xf3, 0xa5],
            &[Read(D, 4), Read(D + 4, 4), Read(D + 8, 4)],
        ),
        (
            "rep lodsb",
            &[0xf3, 0xac],
            &[Read(D, 1), Read(D + 1, 1), Read(D + 2, 1)],
        ),
        (
            "rep stosd to",
            &[0x89, 0xf7, 0xf3, 0xab],
            &[Write(D, 4), Write(D + 4, 4), Write(D + 8, 4)],
        ),
        (
            "movs within",
            &[0x89, 0xf7, 0xa4],
            &[Read(D, 1), Write(D, 1)],
        ),
        ("scas", &[0x89, 0xf7, 0xae], &[Read(D, 1)]),
        ("fld of 32 bits", &[0xd9, 0x06], &[Read(D, 4)]),
        ("fld of 80 bits", &[0xdb, 0x2e], &[Read(D, 10)]),
        ("fild of 64 bits", &[0xdf, 0x2e], &[Read(D, 8)]),
        ("fstp of 64 bits", &[0xd9, 0xe8, 0xdd, 0x1e], &[Write(D, 8)]),
        ("fnstcw", &[0xd9, 0x3e], &[Write(D, 2)]),
        ("movups from", &[0x0f, 0x10, 0x06], &[Read(D, 16)]),
        ("movups to", &[0x0f, 0x11, 0x06], &[Write(D, 16)]),
        ("movss from", &[0xf3, 0x0f, 0x10, 0x06], &[Read(D, 4)]),
        ("leave", &[0xc9], &[Read(D, 4)]),
        ("push on it", &[0x8d, 0x66, 4, 0x50], &[Write(D, 4)]),
        ("pop from it", &[0x89, 0xf4, 0x58], &[Read(D, 4)]),
        (
            "call with its stack there",
            &[0x8d, 0x66, 4, 0xe8, 0, 0, 0, 0],
            &[Write(D, 4)],
        ),
        (
            "across two pages",
            &[0x8b, 0x86, 0xfe, 0x0f, 0, 0],
            &[Read(D + 0xffe, 2), Read(D + 0x1000, 2)],
        ),
        (
            "across the end of memory",
            &[0xff, 0x05, 0xfe, 0xff, 0x3f, 0],
            &[Read(RAM, 2), Write(RAM, 2)],
        ),
        ("lea", &[0x8d, 0x06], &[]),
        ("prefetch", &[0x0f, 0x18, 0x0e], &[]),
        ("long nop", &[0x0f, 0x1f, 0x06], &[]),
    ];
    for (name, code, expected) in cases {
        for map in MAPS {
            let mut vcpu = run(map, state(), code, |_| ());
            assert_eq!(vcpu.platform_mut().seen, *expected, "{name}");
        }
    }
}

/// Physical addresses of the page tables, GDT and IDT of the faulting programs, and of the absent
/// page.
const DIRECTORY: u64 = 0x10_0000;
const TABLE: u64 = 0x10_1000;
const GDT: u64 = 0x10_2000;
const IDT: u64 = 0x10_3000;
const HANDLER: u32 = 0x10_4000;
const ABSENT: u32 = 0x3_0000;
const DEVICE_TABLE: u64 = 0x10_5000;

fn paged_state() -> CpuState {
    let mut state = state();
    state.cr0 |= 1 << 31;
    state.cr3 = DIRECTORY;
    state.gdtr = TableRegister {
        base: GDT,
        limit: 0x1f,
    };
    state.idtr = TableRegister {
        base: IDT,
        limit: 0x7f,
    };
    state.gpr[7] = u64::from(ABSENT);
    state
}

/// Maps the low 4 MiB and the device, except for the absent page. The handler of page faults counts
/// them in EBX and makes the page present.
fn prepare(memory: &mut GuestMemory) {
    let mut put = |address: u64, value: u32| {
        assert!(memory.write(PhysicalAddress(address), &value.to_le_bytes()));
    };
    put(DIRECTORY, TABLE as u32 | 3);
    put(
        DIRECTORY + u64::from(DEVICE >> 22) * 4,
        DEVICE_TABLE as u32 | 3,
    );
    put(DEVICE_TABLE, DEVICE | 3);
    for page in 0..1024 {
        let present = if page == ABSENT >> 12 { 2 } else { 3 };
        put(TABLE + u64::from(page) * 4, page << 12 | present);
    }
    put(GDT + 0x10, 0x0000_ffff);
    put(GDT + 0x14, 0x00cf_9b00);
    put(IDT + 14 * 8, 0x0010_0000 | HANDLER & 0xffff);
    put(IDT + 14 * 8 + 4, HANDLER & 0xffff_0000 | 0x8e00);
    // inc ebx; or dword ptr [entry], 1; add esp, 4; iretd
    let entry = (TABLE as u32 + (ABSENT >> 12) * 4).to_le_bytes();
    let mut handler = vec![0x43, 0x83, 0x0d];
    handler.extend(entry);
    handler.extend([1, 0x83, 0xc4, 4, 0xcf]);
    assert!(memory.write(PhysicalAddress(u64::from(HANDLER)), &handler));
}

#[test]
fn a_device_is_not_read_before_the_other_operand_has_been_found_good() {
    let cases: &[(&str, &[u8], &[Access])] = &[
        ("movs", &[0xa5], &[Read(D, 4)]),
        (
            "rep movs",
            &[0xf3, 0xa5],
            &[Read(D, 4), Read(D + 4, 4), Read(D + 8, 4)],
        ),
        ("cmps", &[0xa7], &[Read(D, 4)]),
    ];
    for (name, code, expected) in cases {
        for map in MAPS {
            let mut vcpu = run(map, paged_state(), code, prepare);
            assert_eq!(vcpu.state().gpr[3], 1, "{name}: faults");
            assert_eq!(vcpu.platform_mut().seen, *expected, "{name}");
        }
    }
}

#[test]
fn a_device_is_not_read_for_a_push_that_has_no_room() {
    // Without a valid stack the fault cannot be delivered either, so the processor shuts down.
    for (name, code) in [("push [esi]", [0xff, 0x36]), ("call [esi]", [0xff, 0x16])] {
        for map in MAPS {
            let mut state = paged_state();
            state.gpr[4] = u64::from(ABSENT) + 4;
            let mut vcpu = Computer::new(
                state,
                {
                    let mut memory = GuestMemory::new(RAM).unwrap();
                    memory.write(PhysicalAddress(u64::from(CODE)), &code);
                    prepare(&mut memory);
                    memory
                },
                Device::default(),
                1 << 20,
                true,
            )
            .unwrap();
            vcpu.set_register_map(map);
            assert!(matches!(vcpu.run(), VcpuStop::TripleFault(_)), "{name}");
            assert_eq!(vcpu.platform_mut().seen, [], "{name}");
        }
    }
}
