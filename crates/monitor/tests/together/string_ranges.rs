//! Tests repeated string instructions over ranges that their routines must leave to the monitor,
//! immediately or in the middle: devices, the code that runs, address wraps, counts beyond all
//! memory, the direction flag, the ends of 64 KiB. They must have the results that they have when
//! the monitor alone executes them.

use crate::support::every_shape::machine::{Machine, vcpu};
use crate::support::every_shape::{EXIT, Guest, MEMORY, Scene, guests, put};
use tollgate_test_support::Computer;
use tollgate_x86::state::VectorState;
use tollgate_x86::{CpuState, Flags, Gpr, PhysicalAddress, Segment, SegmentRegister};

/// The most instructions that any guest may take to its end.
const LONGEST: usize = 40;
const REP_MOVSB: &[u8] = &[0xf3, 0xa4];
const REP_MOVSD: &[u8] = &[0xf3, 0xa5];
const REP_STOSB: &[u8] = &[0xf3, 0xaa];
const REP_STOSD: &[u8] = &[0xf3, 0xab];
const REPE_CMPSB: &[u8] = &[0xf3, 0xa6];
const REPNE_SCASB: &[u8] = &[0xf2, 0xae];
const DEVICE: u64 = 0xa_0000;
/// Address of the guests' code.
const CODE: u64 = 0x1000;

/// What the instruction does, its code, and RCX, RSI and RDI.
type Case = (&'static str, &'static [u8], [u64; 3]);

const CASES: [Case; 18] = [
    ("reads a device", REP_MOVSB, [20, DEVICE + 0x10, 0x2_0100]),
    ("writes a device", REP_STOSB, [16, 0, DEVICE + 0x20]),
    ("reaches a device", REP_STOSD, [6, 0, DEVICE - 12]),
    ("compares a device", REPE_CMPSB, [9, DEVICE, DEVICE + 0x40]),
    ("writes its own code", REP_STOSB, [9, 0, CODE]),
    ("writes what comes next", REP_STOSB, [2, 0, CODE + 3]),
    ("copies to its page", REP_MOVSD, [30, 0x2_0100, CODE + 0x40]),
    ("reaches its page", REP_MOVSB, [90, 0x2_0100, CODE - 0x20]),
    ("smears", REP_MOVSB, [300, 0x2_0100, 0x2_0101]),
    ("smears doublewords", REP_MOVSD, [40, 0x2_0100, 0x2_0103]),
    (
        "moves down over itself",
        REP_MOVSD,
        [40, 0x2_0103, 0x2_0100],
    ),
    ("moves pages", REP_MOVSD, [3000, 0x2_0003, 0x2_8ffe]),
    ("fills pages", REP_STOSD, [3000, 0, 0x2_8001]),
    ("wraps", REP_MOVSB, [48, 0xffff_fff0, 0x2_0100]),
    ("scans from the last byte", REPNE_SCASB, [3, 0, 0xffff_ffff]),
    (
        "scans for what it finds",
        REPNE_SCASB,
        [1 << 63 | 0x8000_0000, 0, 0x2_0ff0],
    ),
    ("compares equals", REPE_CMPSB, [0x1800, 0x2_0010, 0x2_0010]),
    ("does nothing", REP_MOVSD, [0, DEVICE, DEVICE]),
];

/// Cases with addresses above 32 bits.
const LONG_CASES: [Case; 3] = [
    (
        "leaves the canonical addresses",
        REP_STOSB,
        [1 << 63, 0, 0x7fff_ffff_fff8],
    ),
    ("is beyond them", REP_MOVSB, [5, 1 << 47, 0x2_0100]),
    (
        "wraps at the top",
        REP_MOVSB,
        [40, 0xffff_ffff_ffff_fff0, 0x2_0100],
    ),
];

/// Cases with 16-bit addresses, named by where they lead.
const WORD_CASES: [Case; 11] = [
    (
        "moves pages",
        REP_MOVSB,
        [0x1fff, WORDS + 0x803, WORDS + 0x6ffe],
    ),
    ("fills pages", REP_STOSW, [0x1fff, 0, WORDS + 0x6001]),
    ("smears", REP_MOVSB, [300, WORDS + 0x6100, WORDS + 0x6101]),
    ("wraps", REP_MOVSB, [48, WORDS + 0xfff0, WORDS + 0x6100]),
    ("wraps words", REP_STOSW, [9, 0, WORDS + 0xfffa]),
    ("is cut by the end", REP_STOSW, [9, 0, WORDS + 0xfffb]),
    (
        "is cut by the beginning",
        REP_MOVSW,
        [9, WORDS + 0x6100, WORDS + 3],
    ),
    ("reads a device", REP_LODSB, [7, DEVICE + 0x10, 0]),
    ("reaches a device", REP_STOSW, [6, 0, DEVICE - 6]),
    ("reads pages", REP_LODSB, [0x1fff, WORDS + 0x803, 0]),
    ("does nothing", REP_MOVSB, [0, WORDS, WORDS]),
];
const REP_STOSW: &[u8] = &[0xf3, 0xab];
const REP_MOVSW: &[u8] = &[0xf3, 0xa5];
const REP_LODSB: &[u8] = &[0xf3, 0xac];
/// Base of the data segments for 16-bit addresses, except that of the device.
const WORDS: u64 = 0x1_a000;
const DEVICE_WORDS: u64 = DEVICE - 0x8000;

/// The guest with segments of 64 KiB, with its operands in them, and with values above CX, SI and
/// DI.
fn in_words(mut guest: Guest) -> Guest {
    guest.name += " in 64 KiB";
    for (pointer, register) in [
        (Gpr::Rsi, SegmentRegister::Ds),
        (Gpr::Rdi, SegmentRegister::Es),
    ] {
        let pointer = &mut guest.state.gpr[pointer as usize];
        let base = match *pointer >= DEVICE_WORDS {
            true => DEVICE_WORDS,
            false => WORDS,
        };
        *pointer = pointer.wrapping_sub(base) & 0xffff | 0x7531_0000;
        *guest.state.segment_mut(register) = Segment::real_mode((base >> 4) as u16, 0);
    }
    guest.state.gpr[Gpr::Rcx as usize] |= 0x1248_0000;
    guest
}

fn guest(base: &Guest, (name, code, [count, source, destination]): Case, down: bool) -> Guest {
    let mut guest = base.clone();
    guest.name = format!("{name} ({} bits, down: {down})", guest.bits);
    guest.code = code.to_vec();
    put(&mut guest.memory, guest.eip, code);
    put(&mut guest.memory, guest.eip + code.len() as u32, &EXIT);
    // The values that the scan looks for.
    put(&mut guest.memory, 0x2_0ff0, &[1; 0x40]);
    put(&mut guest.memory, 0x2_1027, &[0x90]);
    // NOPs: code that is overwritten with them continues after them.
    guest.state.gpr[Gpr::Rax as usize] = 0x9090_9090;
    guest.state.gpr[Gpr::Rcx as usize] = count;
    guest.state.gpr[Gpr::Rsi as usize] = source;
    guest.state.gpr[Gpr::Rdi as usize] = destination;
    if down {
        guest.state.flags |= Flags::DF.bits();
    }
    guest
}

/// Registers, memory and accesses to devices at the end of a guest.
type End = (CpuState, Vec<u8>, Vec<(u64, Vec<u8>)>);

fn end(vcpu: &mut Computer<Machine>) -> End {
    assert!(vcpu.platform().ended, "{}", vcpu.dump());
    let mut memory = vec![0; MEMORY];
    assert!(vcpu.memory_mut().read(PhysicalAddress(0), &mut memory));
    let mut cpu = vcpu.state().clone();
    cpu.vector = VectorState::initial();
    (cpu, memory, vcpu.platform().accesses.clone())
}

fn alone(guest: &Guest) -> End {
    let mut vcpu = vcpu(guest);
    for _ in 0..LONGEST {
        if vcpu.step_one().is_err() {
            break;
        }
    }
    end(&mut vcpu)
}

/// Runs the guest, and a second time after everything that it needs is translated and filled.
fn together(guest: &Guest) -> [End; 2] {
    let mut vcpu = vcpu(guest);
    let mut run = || {
        // The vCPU may ask the machine for events on the way, which then stops the run.
        for _ in 0..8 {
            vcpu.platform_mut().begin();
            vcpu.run();
            if vcpu.platform().ended {
                break;
            }
        }
        let end = end(&mut vcpu);
        let state = guest.state.clone();
        vcpu.change_state(|cpu| *cpu = state);
        guest.fill(vcpu.memory_mut());
        *vcpu.platform_mut() = Machine::default();
        end
    };
    [run(), run()]
}

fn bases() -> [Guest; 4] {
    let all = guests();
    let plain = |it: &&Guest| {
        it.scene == Scene::Data
            && it.state.cpl() == 0
            && it.state.rip == CODE
            && !it.name.split(':').next().unwrap_or("").contains('+')
    };
    let named = |name: &str| {
        let mut found = all.iter().filter(plain);
        let found = found.find(|it| it.name.split(':').next() == Some(name));
        found.expect("there are guests of this mode").clone()
    };
    [
        named("flat32"),
        named("long"),
        named("compat"),
        named("real"),
    ]
}

#[test]
fn what_a_routine_cannot_do_comes_to_the_same_end() {
    let [flat, long, compatible, real] = bases();
    let mut count = 0;
    for (base, cases, more) in [
        (flat, &CASES[..], &[][..]),
        (long, &CASES, &LONG_CASES),
        (compatible, &CASES, &[]),
        (real, &WORD_CASES, &[]),
    ] {
        for &case in cases.iter().chain(more) {
            for down in [false, true] {
                let mut guest = guest(&base, case, down);
                if guest.bits == 16 {
                    guest = in_words(guest);
                }
                let expected = alone(&guest);
                for (way, found) in together(&guest).into_iter().enumerate() {
                    let name = &guest.name;
                    assert_eq!(
                        format!("{:x?}", found.0),
                        format!("{:x?}", expected.0),
                        "{name}, run {way}"
                    );
                    assert!(found.1 == expected.1, "memory of '{name}', run {way}");
                    assert_eq!(found.2, expected.2, "{name}, run {way}");
                }
                count += 1;
            }
        }
    }
    assert_eq!(
        count,
        2 * (3 * CASES.len() + LONG_CASES.len() + WORD_CASES.len())
    );
}
