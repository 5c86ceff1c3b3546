//! Tests EFLAGS.RF in the frames of events, whichever host instruction a request to leave arrives
//! before (SDM volume 3, 17.3.1.1; AMD volume 2, 3.1.6 and 13.1.1). In the frame of an interrupt,
//! RF is clear between two instructions and set between two iterations of a repeated string
//! instruction. In the frame of a fault, RF is set; in that of a trap or a software interrupt, RF
//! is clear. Requests bring an interrupt in these tests.
//!
//! By default the test stops at every 7th of each guest's host instructions;
//! `TOLLGATE_EVERY_INSTRUCTION=1` makes it stop at all of them.

use crate::every_shape::machine::{Machine, vcpu};
use crate::every_shape::{EXIT, Guest, Scene, guests, put};
use crate::tracer::{COUNT, Orders, trace};
use tollgate_test_support::Computer;
use tollgate_x86::{Flags, Gpr, PhysicalAddress};

/// Address of the handlers, which have eight bytes for each vector and set EBP to the vector.
const HANDLERS: u32 = 0x3400;
/// The vector of the machine's interrupt.
const INTERRUPT: u32 = 0x20;
/// EBP of a guest that reaches its own end.
const NONE: u64 = 0x1234;

/// How a guest ends if it is not interrupted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    /// The guest reaches its end.
    Well,
    /// The instruction at this offset raises a fault with this vector.
    Faults(u64, u8),
    /// The guest enters the handler of this vector, from before this offset.
    Enters(u64, u8),
}

struct Case {
    name: &'static str,
    code: &'static [u8],
    ends: Ends,
}

const fn case(name: &'static str, code: &'static [u8], ends: Ends) -> Case {
    Case { name, code, ends }
}

/// The cases. RCX is 6, and RSI and RDI point to addresses shortly before the ends of pages.
const CASES: [Case; 11] = [
    // inc edx; mov [esi], dl; add ecx, edx; jmp on; push dx; pop dx
    case(
        "plain instructions",
        &[
            0x83, 0xc2, 1, 0x88, 0x16, 0x01, 0xd1, 0xeb, 0, 0x66, 0x52, 0x66, 0x5a,
        ],
        Ends::Well,
    ),
    case("rep movsb", &[0x90, 0xf3, 0xa4], Ends::Well),
    case("rep stosw", &[0x90, 0xf3, 0x66, 0xab], Ends::Well),
    case("rep lodsb", &[0xf3, 0xac], Ends::Well),
    case("repe cmpsb", &[0xf3, 0xa6, 0x90], Ends::Well),
    case("rep movsb, std", &[0xfd, 0xf3, 0xa4, 0xfc], Ends::Well),
    case("ud2", &[0x90, 0x0f, 0x0b], Ends::Faults(1, 6)),
    // xor edx, edx; xor ebx, ebx; div ebx
    case(
        "division by zero",
        &[0x31, 0xd2, 0x31, 0xdb, 0xf7, 0xf3],
        Ends::Faults(4, 0),
    ),
    // mov bx, 7ff8h; verr bx; mov ss, bx
    case(
        "load of a bad selector",
        &[0x66, 0xbb, 0xf8, 0x7f, 0x0f, 0x00, 0xe3, 0x8e, 0xd3],
        Ends::Faults(7, 13),
    ),
    case("int3", &[0x90, 0xcc], Ends::Enters(2, 3)),
    case("int 60h", &[0x90, 0xcd, 0x60], Ends::Enters(3, 0x60)),
];

/// The guest of a mode with the code of a case, or `None` if the case is not for that mode.
fn guest(base: &Guest, case: &Case) -> Option<Guest> {
    let mut guest = base.clone();
    let is_virtual = base.state.is_virtual_8086();
    if is_virtual && case.name.contains("selector") {
        return None;
    }
    // 16-bit operands become 32-bit operands, which makes no difference here.
    let mode = base.name.split(':').next().unwrap_or_default();
    guest.name = format!("{} ({mode})", case.name);
    guest.code = case.code.to_vec();
    if is_virtual && case.name == "plain instructions" {
        // The addresses of 16-bit code have another encoding: mov [si], dl
        guest.code[4] = 0x14;
    }
    put(&mut guest.memory, guest.eip, &guest.code);
    put(
        &mut guest.memory,
        guest.eip + guest.code.len() as u32,
        &EXIT,
    );
    let table = base.state.idtr.base as u32;
    let gate = if base.state.is_long_mode() { 16 } else { 8 };
    for vector in 0..=0x60_u32 {
        let handler = HANDLERS + 8 * vector;
        let [low, high, ..] = handler.to_le_bytes();
        put(&mut guest.memory, table + gate * vector, &[low, high]);
        let code = [&[0xbd][..], &vector.to_le_bytes(), &EXIT].concat();
        put(&mut guest.memory, handler, &code);
    }
    let registers = &mut guest.state.gpr;
    registers[Gpr::Rcx as usize] = 6;
    registers[Gpr::Rbp as usize] = NONE;
    let (source, destination) = match is_virtual {
        true => (0x9ffd, 0xaffb),
        false => (0x2_0ffd, 0x2_3ffb),
    };
    (registers[Gpr::Rsi as usize], registers[Gpr::Rdi as usize]) = (source, destination);
    let base_of_data = if is_virtual { 0x1000 } else { 0 };
    for place in [source, destination] {
        put(&mut guest.memory, base_of_data + place as u32 - 8, &[7; 24]);
    }
    guest.state.flags |= Flags::IF.bits();
    if is_virtual {
        guest.state.flags |= Flags::IOPL.bits();
        guest.state.tr.limit = 0x67 + 0x20;
        let map = guest.state.tr.base as u32 + 0x68;
        put(&mut guest.memory, map, &[0; 0x20]);
    }
    Some(guest)
}

/// RIP and RFLAGS in the frame that a handler of protected mode finds.
fn frame(vcpu: &mut Computer<Machine>, vector: u8) -> (u64, u64) {
    let size = if vcpu.state().is_long_mode() { 8 } else { 4 };
    let has_code = matches!(vector, 8 | 10..=14 | 17);
    let top = vcpu.state().gpr[Gpr::Rsp as usize] + u64::from(has_code) * size;
    let mut value = |index: u64| {
        let mut bytes = [0; 8];
        let place = PhysicalAddress(top + index * size);
        let memory = vcpu.memory_mut();
        assert!(memory.read(place, &mut bytes[..size as usize]));
        u64::from_le_bytes(bytes)
    };
    (value(0), value(2))
}

/// The results of all runs.
#[derive(Default)]
struct Seen {
    runs: u64,
    between_instructions: u64,
    between_iterations: u64,
    own: u64,
}

/// Describes what is wrong with a run that has ended.
fn judge(
    vcpu: &mut Computer<Machine>,
    guest: &Guest,
    case: &Case,
    seen: &mut Seen,
) -> Option<String> {
    let start = guest.state.rip;
    let vector = vcpu.state().gpr[Gpr::Rbp as usize];
    if vector == NONE {
        return (case.ends != Ends::Well)
            .then(|| "the guest reaches its end without an event".into());
    }
    let vector = vector as u8;
    let (rip, flags) = frame(vcpu, vector);
    let shows = flags & Flags::RF.bits() != 0;
    if u32::from(vector) != INTERRUPT {
        seen.own += 1;
        let expected = match case.ends {
            Ends::Faults(at, vector) => (at, vector, true),
            Ends::Enters(at, vector) => (at, vector, false),
            Ends::Well => return Some(format!("exception {vector} at {rip:x}")),
        };
        let found = (rip - start, vector, shows);
        return (found != expected).then(|| format!("{found:x?}, expected {expected:x?}"));
    }
    let string = guest
        .instructions()
        .into_iter()
        .find(|it| it.is_string_instruction() && (it.has_rep_prefix() || it.has_repne_prefix()));
    let remain = vcpu.state().gpr[Gpr::Rcx as usize];
    let is_amid = string.is_some_and(|it| it.ip() == rip) && (1..6).contains(&remain);
    match is_amid {
        true => seen.between_iterations += 1,
        false => seen.between_instructions += 1,
    }
    (shows != is_amid).then(|| format!("at {rip:x} with {remain} to go RF is {shows}"))
}

/// Runs the guest with the request before one host instruction.
fn run(
    (guest, case): (&Guest, &Case),
    orders: &Orders,
    target: u64,
    seen: &mut Seen,
) -> (Option<String>, u64) {
    let mut vcpu = vcpu(guest);
    // These runs translate and fill everything that the code needs, and make the delivery of its
    // fault known.
    for _ in 0..2 {
        vcpu.platform_mut().begin();
        vcpu.run();
        vcpu.change_state(|cpu| *cpu = guest.state.clone());
        guest.fill(vcpu.memory_mut());
        *vcpu.platform_mut() = Machine::default();
    }
    let code = vcpu.code_range();
    orders.run(target, code, || {
        vcpu.platform_mut().raises = true;
        vcpu.platform_mut().begin();
        let stop = vcpu.run();
        match vcpu.platform().ended {
            true => judge(&mut vcpu, guest, case, seen),
            false => Some(format!("stops: {stop:?}")),
        }
    })
}

fn child(orders: &Orders) -> String {
    let all = guests();
    let stride = std::env::var("TOLLGATE_EVERY_INSTRUCTION").ok();
    let stride = stride.and_then(|it| it.parse().ok()).unwrap_or(7);
    let mut seen = Seen::default();
    for mode in ["flat32", "user32", "long", "user64", "vm86"] {
        let mut of_mode = all.iter().filter(|it| it.scene == Scene::Data);
        let base =
            of_mode.find(|it| it.name.split(':').next() == Some(mode) && it.state.rip == 0x1000);
        let Some(base) = base else {
            return format!("there are no guests of {mode}");
        };
        let mut base = base.clone();
        if base.state.cpl() == 3 {
            // The guest uses a port at its end.
            base.state.flags |= Flags::IOPL.bits();
        }
        for case in &CASES {
            let Some(guest) = guest(&base, case) else {
                continue;
            };
            let (wrong, instructions) = run((&guest, case), orders, COUNT, &mut seen);
            if let Some(wrong) = wrong {
                return format!("{} alone: {wrong}", guest.name);
            }
            for target in (1 + seen.runs % stride..=instructions).step_by(stride as usize) {
                let (wrong, place) = run((&guest, case), orders, target, &mut seen);
                if let Some(wrong) = wrong {
                    let name = &guest.name;
                    return format!(
                        "{name}, interrupted at {target} of {instructions} ({place:#x}): {wrong}"
                    );
                }
                seen.runs += 1;
            }
        }
    }
    let Seen {
        between_instructions,
        between_iterations,
        own,
        ..
    } = seen;
    if between_instructions < 50 || between_iterations < 10 || own < 30 {
        return format!("{between_instructions} {between_iterations} {own}");
    }
    seen.runs.to_string()
}

#[test]
fn frames_show_the_resume_flag_of_faults_and_between_iterations_alone() {
    let Some((text, delivered)) = trace(child) else {
        return;
    };
    assert_eq!(text.parse(), Ok(delivered), "{text}");
}
