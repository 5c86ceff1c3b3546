//! Tests that a request to leave a repeated string instruction finds the guest between two
//! iterations, whichever host instruction it arrives before: registers, flags and memory are those
//! after a whole number of iterations, RF is set if there was at least one (SDM volume 3,
//! 18.3.1.1), and the guest has the same result.
//!
//! By default the test stops at every 5th of each guest's host instructions;
//! `TOLLGATE_EVERY_INSTRUCTION=1` makes it stop at all of them.

use crate::every_shape::machine::{Machine, vcpu};
use crate::every_shape::{EXIT, Guest, MEMORY, Scene, guests, put};
use crate::tracer::{COUNT, Orders, trace};
use tollgate_emulate::cpuid::{Vendor, policy};
use tollgate_test_support::Computer;
use tollgate_x86::state::VectorState;
use tollgate_x86::{CpuState, Flags, Gpr, PhysicalAddress, Segment, SegmentRegister};

/// The state of the guest between two instructions or iterations.
#[derive(Clone, PartialEq)]
struct Moment {
    cpu: CpuState,
    memory: Vec<u8>,
}

impl Moment {
    fn of(vcpu: &mut Computer<Machine>) -> Self {
        let mut memory = vec![0; MEMORY];
        assert!(vcpu.memory_mut().read(PhysicalAddress(0), &mut memory));
        let mut cpu = vcpu.state().clone();
        cpu.vector = VectorState::initial();
        if cpu.shadow_rip != cpu.rip {
            // A note of an interrupt shadow that is over has no effect.
            cpu.end_shadow();
        }
        Self { cpu, memory }
    }
}

/// One instruction with the values of RCX and of the registers for source and destination.
struct Case {
    name: &'static str,
    code: &'static [u8],
    registers: [u64; 3],
    /// Whether EFLAGS.DF is set.
    down: bool,
}

const fn up(name: &'static str, code: &'static [u8], registers: [u64; 3]) -> Case {
    Case {
        name,
        code,
        registers,
        down: false,
    }
}

const fn down(name: &'static str, code: &'static [u8], registers: [u64; 3]) -> Case {
    Case {
        down: true,
        ..up(name, code, registers)
    }
}

const CASES: [Case; 24] = [
    up("rep movsb", &[0xf3, 0xa4], [5, 0x2_0100, 0x2_1103]),
    up(
        "rep movsb that smears",
        &[0xf3, 0xa4],
        [9, 0x2_0100, 0x2_0101],
    ),
    up(
        "rep movsb across pages",
        &[0xf3, 0xa4],
        [9, 0x2_0ffd, 0x2_3ffb],
    ),
    up(
        "rep movsd that straddles",
        &[0xf3, 0xa5],
        [4, 0x2_0ff9, 0x2_3ff4],
    ),
    up(
        "rep movsw within its source",
        &[0xf3, 0x66, 0xa5],
        [7, 0x2_0102, 0x2_0100],
    ),
    up(
        "rep movsd of 80 bytes",
        &[0xf3, 0xa5],
        [20, 0x2_0100, 0x2_1103],
    ),
    up("rep stosb", &[0xf3, 0xaa], [4, 0, 0x2_3ffe]),
    up("rep stosd", &[0xf3, 0xab], [6, 0, 0x2_3ff4]),
    up("repe cmpsb", &[0xf3, 0xa6], [8, 0x2_6ffd, 0x2_8ffb]),
    up(
        "repe cmpsb of equals",
        &[0xf3, 0xa6],
        [6, 0x2_6ffd, 0x2_6ffd],
    ),
    up("repne cmpsw", &[0xf2, 0x66, 0xa7], [5, 0x2_6100, 0x2_8101]),
    up("repne scasb", &[0xf2, 0xae], [7, 0, 0x2_3ffc]),
    up("repe scasd", &[0xf3, 0xaf], [3, 0, 0x2_6000]),
    up("rep lodsb", &[0xf3, 0xac], [5, 0x2_0ffd, 0]),
    up("rep lodsd", &[0xf3, 0xad], [4, 0x2_0100, 0]),
    up(
        "rep movsb of nothing",
        &[0xf3, 0xa4],
        [0, 0x2_0100, 0x2_1103],
    ),
    down(
        "rep movsb down across pages",
        &[0xf3, 0xa4],
        [9, 0x2_1003, 0x2_4001],
    ),
    down(
        "rep movsd down that smears",
        &[0xf3, 0xa5],
        [5, 0x2_0120, 0x2_011f],
    ),
    down(
        "rep movsd down that straddles",
        &[0xf3, 0xa5],
        [4, 0x2_1005, 0x2_4008],
    ),
    down("rep stosw down", &[0xf3, 0x66, 0xab], [5, 0, 0x2_4006]),
    down("repe cmpsb down", &[0xf3, 0xa6], [8, 0x2_7000, 0x2_8fff]),
    down("repne scasb down", &[0xf2, 0xae], [7, 0, 0x2_4002]),
    down("rep lodsw down", &[0xf3, 0x66, 0xad], [4, 0x2_1002, 0]),
    down("rep stosb of nothing", &[0xf3, 0xaa], [0, 0, 0x2_1103]),
];

/// The base of both segments for 16-bit addresses: all operands are within 64 KiB.
const BASE: u64 = 0x1_a000;
/// The upper parts of the registers of CX, SI and DI for 16-bit addresses, which must not change.
const ABOVE: [u64; 3] = [0x5a5a_0000, 0x8001_0000, 0xffff_0000];

/// Cases with 16-bit addresses that wrap at the end of 64 KiB.
const WRAPPING: [Case; 4] = [
    up(
        "rep movsb that wraps",
        &[0xf3, 0xa4],
        [7, BASE + 0xfffc, 0x2_1103],
    ),
    up("rep stosw that wraps", &[0xf3, 0xab], [5, 0, BASE + 0xfffa]),
    down(
        "rep movsb down that wraps",
        &[0xf3, 0xa4],
        [7, 0x2_1103, BASE + 2],
    ),
    down("rep lodsw down that wraps", &[0xf3, 0xad], [4, BASE + 4, 0]),
];

fn guest(base: &Guest, case: &Case) -> Guest {
    let mut guest = base.clone();
    let code = case.code;
    let mode = base.name.split(':').next().unwrap_or_default();
    guest.name = format!("{} ({mode})", case.name);
    guest.code = code.to_vec();
    put(&mut guest.memory, guest.eip, code);
    put(&mut guest.memory, guest.eip + code.len() as u32, &EXIT);
    // Bytes of which the first few are equal.
    put(&mut guest.memory, 0x2_6ff0, &[7; 18]);
    put(&mut guest.memory, 0x2_8ff0, &[7; 17]);
    put(
        &mut guest.memory,
        0x2_6000,
        &[0x40, 0x10, 0, 0, 0x40, 0x10, 0, 0],
    );
    let [mut count, mut source, mut destination] = case.registers;
    if guest.bits == 16 {
        let cpl = guest.state.cpl();
        for register in [SegmentRegister::Ds, SegmentRegister::Es] {
            let segment = Segment::real_mode((BASE >> 4) as u16, cpl);
            *guest.state.segment_mut(register) = segment;
        }
        for (pointer, above) in [(&mut source, ABOVE[1]), (&mut destination, ABOVE[2])] {
            *pointer = pointer.wrapping_sub(BASE) & 0xffff | above;
        }
        count |= ABOVE[0];
    }
    guest.state.gpr[Gpr::Rax as usize] = 0x1040;
    guest.state.gpr[Gpr::Rcx as usize] = count;
    guest.state.gpr[Gpr::Rsi as usize] = source;
    guest.state.gpr[Gpr::Rdi as usize] = destination;
    if guest.state.flags().contains(Flags::VM) {
        // The task uses a port at its end: the I/O permission bitmap follows its state.
        guest.state.tr.limit = 0x67 + 0x20;
        let map = guest.state.tr.base as u32 + 0x68;
        put(&mut guest.memory, map, &[0; 0x20]);
    }
    if case.down {
        guest.state.flags |= Flags::DF.bits();
    }
    guest
}

/// All moments of the guest: before the instruction, between its iterations, after it and at the
/// end.
fn moments(guest: &Guest) -> Vec<Moment> {
    let mut vcpu = vcpu(guest);
    let mut moments = vec![Moment::of(&mut vcpu)];
    let (start, flags) = (guest.state.rip, guest.state.flags);
    let compares = guest
        .code
        .iter()
        .any(|byte| matches!(byte, 0xa6 | 0xa7 | 0xae | 0xaf));
    let while_equal = guest.code[0] == 0xf3;
    let shows_each = policy(&guest.state).vendor() == Vendor::Amd;
    let counter = guest.state.gpr[Gpr::Rcx as usize];
    let above = if guest.bits == 16 {
        counter & !0xffff
    } else {
        0
    };
    let mut remaining = counter - above;
    while remaining != 0 {
        vcpu.change_state(|cpu| cpu.gpr[Gpr::Rcx as usize] = above | 1);
        vcpu.step_one().unwrap();
        remaining -= 1;
        vcpu.change_state(|cpu| cpu.gpr[Gpr::Rcx as usize] = above | remaining);
        let was_equal = vcpu.state().flags().contains(Flags::ZF);
        if remaining == 0 || compares && was_equal != while_equal {
            break;
        }
        let mut between = Moment::of(&mut vcpu);
        between.cpu.rip = start;
        between.cpu.flags |= Flags::RF.bits();
        if compares && !shows_each {
            let arithmetic = Flags::ARITHMETIC.bits();
            between.cpu.flags = between.cpu.flags & !arithmetic | flags & arithmetic;
        }
        moments.push(between);
        vcpu.change_state(|cpu| cpu.rip = start);
    }
    if counter == above {
        vcpu.step_one().unwrap();
    }
    moments.push(Moment::of(&mut vcpu));
    assert!(vcpu.step_one().is_err());
    assert!(vcpu.platform().ended);
    moments.push(Moment::of(&mut vcpu));
    moments
}

/// Runs the guest to its end with the signal before one host instruction. Returns what is wrong,
/// and what [`Orders::run`] returns.
fn run(guest: &Guest, moments: &[Moment], orders: &Orders, target: u64) -> (Option<String>, u64) {
    let mut vcpu = vcpu(guest);
    // The first run translates and fills everything that the code needs.
    vcpu.platform_mut().begin();
    vcpu.run();
    vcpu.change_state(|cpu| *cpu = guest.state.clone());
    guest.fill(vcpu.memory_mut());
    *vcpu.platform_mut() = Machine::default();
    let code = vcpu.code_range();
    orders.run(target, code, || {
        for _ in 0..8 {
            vcpu.platform_mut().begin();
            let stop = vcpu.run();
            let now = Moment::of(&mut vcpu);
            if vcpu.platform().ended {
                let is_same = Some(&now) == moments.last();
                return (!is_same).then(|| format!("ends differently: {:x?}", now.cpu.gpr));
            }
            if !vcpu.platform().interrupted {
                return Some(format!("stops: {stop:?}"));
            }
            if !moments.contains(&now) {
                let cpu = &now.cpu;
                return Some(format!(
                    "is seen at {:x}, flags {:x}, with {:x?}",
                    cpu.rip, cpu.flags, cpu.gpr
                ));
            }
        }
        Some("does not end".into())
    })
}

fn child(orders: &Orders) -> String {
    let all = guests();
    let base = |bits| {
        let mut of_bits = all
            .iter()
            .filter(|it| it.bits == bits && it.scene == Scene::Data);
        of_bits
            .find(|it| it.state.cpl() == 0 && it.state.rip == 0x1000 && !it.name.contains('+'))
            .expect("there are guests of flat code")
    };
    let named = |mode: &str| {
        let mut found = all.iter().filter(|it| it.scene == Scene::Data);
        found
            .find(|it| it.name.split(':').next() == Some(mode) && it.state.rip == 0x1000)
            .expect("there are guests of this mode")
    };
    let stride = std::env::var("TOLLGATE_EVERY_INSTRUCTION").ok();
    let stride = stride.and_then(|it| it.parse().ok()).unwrap_or(5);
    let (mut runs, mut between) = (0_u64, 0);
    for base in [
        base(32),
        base(64),
        named("compat"),
        named("real"),
        named("vm86"),
    ] {
        let more = if base.bits == 16 { &WRAPPING[..] } else { &[] };
        for case in CASES.iter().chain(more) {
            let guest = guest(base, case);
            let moments = moments(&guest);
            between += moments.len();
            let (wrong, instructions) = run(&guest, &moments, orders, COUNT);
            if let Some(wrong) = wrong {
                return format!("{} {wrong}", guest.name);
            }
            let first = 1 + runs % stride;
            for target in (first..=instructions).step_by(stride as usize) {
                if let (Some(wrong), place) = run(&guest, &moments, orders, target) {
                    let name = &guest.name;
                    return format!(
                        "{name}, interrupted at {target} of {instructions} ({place:#x}), {wrong}"
                    );
                }
                runs += 1;
            }
        }
    }
    assert!(between > 100);
    runs.to_string()
}

#[test]
fn a_repeated_string_instruction_is_left_between_two_iterations() {
    let Some((text, delivered)) = trace(child) else {
        return;
    };
    assert_eq!(text.parse(), Ok(delivered), "{text}");
    assert!(delivered > 500, "{delivered}");
}
