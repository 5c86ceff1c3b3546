//! Tests string instructions on display memory that is not RAM, and between it and RAM. Executed in
//! translated code, they have the results of the general path. Each program also runs instruction
//! by instruction, by the general path, and must have the same result. All emitted code is
//! verified.

use crate::support::display::*;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_test_support::{Computer, Random};
use tollgate_x86::{CpuState, Gpr, PhysicalAddress, Segment, SegmentRegister};

/// Address of RAM that holds no code.
const RAM: u64 = 0x1_0000;
const REPE: u8 = 0xf3;
const REPNE: u8 = 0xf2;
const MOVS: u8 = 0xa4;
const CMPS: u8 = 0xa6;
const STOS: u8 = 0xaa;
const LODS: u8 = 0xac;
const SCAS: u8 = 0xae;

/// The memory that holds an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Display,
    Ram,
}

impl Place {
    const ALL: [Self; 2] = [Self::Display, Self::Ram];

    /// The value of a pointer register for an offset in the segment of this memory.
    fn pointer(self, mode: GuestMode, offset: u64) -> u64 {
        match self {
            Self::Display => mode.pointer(offset),
            Self::Ram if mode.is_narrow() => offset,
            Self::Ram => RAM + offset,
        }
    }

    fn segment(self, mode: GuestMode) -> Segment {
        segment_at(mode, if self == Self::Display { WINDOW } else { RAM })
    }
}

/// A segment of 16-bit code.
fn segment_at(mode: GuestMode, base: u64) -> Segment {
    let level = if mode == GuestMode::Real { 0 } else { 3 };
    Segment::real_mode((base >> 4) as u16, level)
}

/// Sets DS and SI, ES and DI for operands in these places. RAM is filled with values.
fn set_up(
    mode: GuestMode,
    (source, source_at): (Place, u64),
    (destination, destination_at): (Place, u64),
    state: &mut CpuState,
    memory: &mut GuestMemory,
) {
    if mode.is_narrow() {
        *state.segment_mut(SegmentRegister::Ds) = source.segment(mode);
        *state.segment_mut(SegmentRegister::Es) = destination.segment(mode);
    }
    state.gpr[Gpr::Rsi as usize] = source.pointer(mode, source_at);
    state.gpr[Gpr::Rdi as usize] = destination.pointer(mode, destination_at);
    let mut random = Random::new(7);
    let bytes: Vec<u8> = (0..0x1_0000).map(|_| random.byte()).collect();
    memory.write(PhysicalAddress(RAM), &bytes);
}

/// The prefix for an operand of `size` bytes.
fn width(mode: GuestMode, size: u8) -> &'static [u8] {
    match size {
        8 => &[0x48],
        2 if !mode.is_narrow() => &[0x66],
        4 if mode.is_narrow() => &[0x66],
        _ => &[],
    }
}

fn sizes(mode: GuestMode) -> &'static [u8] {
    match mode.is_long() {
        true => &[1, 2, 4, 8],
        false => &[1, 2, 4],
    }
}

/// A string instruction on elements of `size` bytes, with its prefix.
fn string(mode: GuestMode, prefix: &[u8], opcode: u8, size: u8) -> Vec<u8> {
    [prefix, width(mode, size), &[opcode | u8::from(size > 1)]].concat()
}

/// mov cx, number
fn count(mode: GuestMode, number: u16) -> Vec<u8> {
    let bytes = u32::from(number).to_le_bytes();
    let used = if mode.is_narrow() { 2 } else { 4 };
    [&[0xb9], &bytes[..used]].concat()
}

/// Repeats `body` as often as BP says, and then ends.
fn by_bp(body: &[u8]) -> Vec<u8> {
    // again: body; dec bp; jnz again
    let back = -(body.len() as i64 + 4);
    let back = i8::try_from(back).expect("short enough");
    [body, &[0xff, 0xcd, 0x75, back as u8], &END].concat()
}

fn string_exits(vcpu: &Computer<Display>) -> u64 {
    let of_memory: u64 = exits(vcpu).iter().sum();
    of_memory + vcpu.exit_counts().get(ExitKind::StringInstruction)
}

#[test]
fn single_instructions_take_no_exit_once_each_was_made() {
    for mode in GuestMode::ALL {
        for source in Place::ALL {
            for destination in Place::ALL {
                for &size in sizes(mode) {
                    let body = string(mode, &[], MOVS, size);
                    let vcpu = run_with(mode, &repeated(&body), 300, |state, memory| {
                        set_up(mode, (source, 0xff0), (destination, 0x3ffd), state, memory);
                    });
                    let what = (mode, source, destination, size);
                    // Each of the two look-ups misses once or, with direct access, twice.
                    let exits = string_exits(&vcpu);
                    assert!(exits <= 2 * at_first(&vcpu), "{what:?}: {exits}");
                    let of_display = [source, destination].map(|it| it == Place::Display);
                    let done: u64 = fast_paths(&vcpu).iter().sum();
                    if of_display.contains(&true) {
                        assert!(done >= 296, "{what:?}: {done}");
                    }
                }
            }
        }
    }
}

#[test]
fn comparing_instructions_take_no_exit_once_each_was_made() {
    for mode in GuestMode::ALL {
        // cmpsb; adc ax, ax; scasw; adc ax, ax
        let body = [
            string(mode, &[], CMPS, 1),
            vec![0x11, 0xc0],
            string(mode, &[], SCAS, 2),
            vec![0x11, 0xc0],
        ]
        .concat();
        let vcpu = run_with(mode, &repeated(&body), 300, |state, memory| {
            set_up(mode, (Place::Ram, 0), (Place::Display, 0x10), state, memory);
        });
        let exits = string_exits(&vcpu);
        assert!(
            exits <= 3 * at_first(&vcpu),
            "{mode:?}: {exits} {:?}",
            vcpu.exit_counts()
        );
    }
}

#[test]
fn repeated_instructions_take_no_exit_once_one_was_made() {
    for mode in GuestMode::ALL {
        for source in Place::ALL {
            for destination in Place::ALL {
                for opcode in [MOVS, STOS, LODS, CMPS, SCAS] {
                    let body = [
                        count(mode, 80),
                        string(mode, &[REPE], opcode, 1),
                        count(mode, 20),
                        string(mode, &[REPNE], CMPS, 2),
                        string(mode, &[REPE], MOVS, 4),
                    ]
                    .concat();
                    let vcpu = run_with(mode, &by_bp(&body), 0, |state, memory| {
                        state.gpr[Gpr::Rbp as usize] = 60;
                        set_up(mode, (source, 0xff0), (destination, 0x3ffd), state, memory);
                    });
                    let what = (mode, source, destination, opcode);
                    assert!(vcpu.platform().ended, "{what:?}");
                    // Instructions that access RAM take exits for its pages, as always.
                    let all = vcpu.exit_counts().get(ExitKind::StringInstruction);
                    assert!(all <= 24, "{what:?}: {all}");
                    if source == Place::Display && destination == Place::Display {
                        assert_eq!(all, 1, "{what:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn random_programs_end_as_when_they_run_step_by_step() {
    let mut random = Random::new(0x5717);
    for round in 0..300 {
        let mode = random.pick(&GuestMode::ALL);
        let mut body = Vec::new();
        while body.len() < 90 {
            let size = random.pick(sizes(mode));
            let opcode = random.pick(&[MOVS, MOVS, CMPS, STOS, LODS, SCAS]);
            match random.below(8) {
                0 => body.extend([random.pick(&[0xfc, 0xfd])]),
                // out 81h, al
                1 => body.extend([0xe6, 0x81]),
                2 | 3 => body.extend(string(mode, &[], opcode, size)),
                _ => {
                    body.extend(count(mode, random.below(60) as u16));
                    body.extend(string(mode, &[random.pick(&[REPE, REPNE])], opcode, size));
                }
            }
        }
        let places = [(); 2].map(|()| {
            let page = (random.below(12) as u64 + 2) << 12;
            let place = match random.below(2) {
                0 => page - random.below(9) as u64,
                _ => page + random.below(0x1000) as u64,
            };
            (random.pick(&Place::ALL), place)
        });
        let vcpu = run_with(mode, &by_bp(&body), 0, |state, memory| {
            state.gpr[Gpr::Rbp as usize] = 12;
            set_up(mode, places[0], places[1], state, memory);
        });
        assert!(vcpu.platform().ended, "{round}: {mode:?}");
    }
}

#[test]
fn an_instruction_goes_on_from_ram_into_the_window_and_out_of_it() {
    for mode in &GuestMode::ALL[2..] {
        for (source, destination) in [
            (WINDOW - 0x80, RAM),
            (RAM, WINDOW - 0x80),
            (WINDOW + 0x1_ff80, RAM),
            (RAM, WINDOW + 0x1_ff80),
            (WINDOW + 0x1_ff80, WINDOW - 0x7f),
        ] {
            for size in [1, 2, 4] {
                let body = [count(*mode, 300), string(*mode, &[REPE], MOVS, size)].concat();
                run_with(*mode, &by_bp(&body), 0, |state, memory| {
                    state.gpr[Gpr::Rbp as usize] = 1;
                    let ram = (Place::Ram, 0);
                    set_up(*mode, ram, ram, state, memory);
                    state.gpr[Gpr::Rsi as usize] = source + 1;
                    state.gpr[Gpr::Rdi as usize] = destination + 1;
                });
            }
        }
    }
}

#[test]
fn pages_of_ram_and_such_that_fault_may_lie_amid_the_display() {
    for mode in &GuestMode::PAGED[1..] {
        for (entry, ends) in [(0x1_9000 | 7, true), (0, false), (WINDOW | 5, false)] {
            for backward in [false, true] {
                // The third page of the alias is changed to lead elsewhere.
                let direction = if backward { 0xfd } else { 0xfc };
                let body = [
                    vec![direction],
                    count(*mode, 0x1800),
                    string(*mode, &[REPE], MOVS, 2),
                ]
                .concat();
                let vcpu = run_with(*mode, &by_bp(&body), 0, |state, memory| {
                    state.gpr[Gpr::Rbp as usize] = 1;
                    let ram = (Place::Ram, 0);
                    set_up(*mode, ram, ram, state, memory);
                    let first = if backward { 0x3f01 } else { 0x101 };
                    state.gpr[Gpr::Rsi as usize] = RAM + first;
                    state.gpr[Gpr::Rdi as usize] = ALIAS + first;
                    let place = PAGE_TABLE + ((ALIAS >> 12) + 2) * mode.entry_bytes();
                    let bytes = u64::to_le_bytes(entry);
                    memory.write(
                        PhysicalAddress(place),
                        &bytes[..mode.entry_bytes() as usize],
                    );
                });
                assert_eq!(vcpu.platform().ended, ends, "{mode:?} {entry:x}");
            }
        }
    }
}

#[test]
fn what_is_not_near_any_more_exits_and_goes_on() {
    for mode in GuestMode::ALL {
        // mov ax, bp; out 80h, al; mov cx, 5; rep movsb: near in every other round
        let body = [
            vec![0x89, 0xe8, 0xe6, 0x80],
            count(mode, 5),
            string(mode, &[REPE], MOVS, 1),
        ]
        .concat();
        let vcpu = run_with(mode, &by_bp(&body), 0, |state, memory| {
            state.gpr[Gpr::Rbp as usize] = 100;
            let place = (Place::Display, 0x100);
            set_up(mode, place, place, state, memory);
        });
        let all = vcpu.exit_counts().get(ExitKind::StringInstruction);
        assert_eq!(all, 50, "{mode:?}");
    }
}

#[test]
fn requests_to_leave_lose_and_repeat_no_iteration() {
    for mode in GuestMode::ALL {
        let body = [
            count(mode, 200),
            string(mode, &[REPE], MOVS, 1),
            string(mode, &[], MOVS, 2),
        ]
        .concat();
        let run = |is_kicked: bool| {
            let mut vcpu = computer_with(mode, &by_bp(&body), 0, |state, memory| {
                state.gpr[Gpr::Rbp as usize] = 400;
                set_up(
                    mode,
                    (Place::Display, 0x100),
                    (Place::Display, 0x101),
                    state,
                    memory,
                );
                // The pointers wrap in time: all elements lie in one page of the window.
                if !mode.is_narrow() {
                    state.gpr[Gpr::Rsi as usize] = WINDOW;
                    state.gpr[Gpr::Rdi as usize] = WINDOW + 0x100;
                }
            });
            match is_kicked {
                true => vcpu.run_kicked(),
                false => vcpu.run(),
            };
            assert!(vcpu.platform().ended);
            vcpu
        };
        let (kicked, plain) = (run(true), run(false));
        assert_eq!(kicked.dump(), plain.dump(), "{mode:?}");
        assert!(kicked.platform().accesses == plain.platform().accesses);
        assert!(kicked.platform().bytes == plain.platform().bytes);
    }
}

#[test]
fn ram_beside_code_is_stored_to_like_other_ram() {
    for mode in GuestMode::ALL {
        // The copies begin in the middle of the code's page, and in the last line of the code.
        for (distance, most) in [(0x800, 8), (0, 100)] {
            let body = [
                count(mode, 40),
                string(mode, &[REPE], MOVS, 1),
                string(mode, &[], MOVS, 1),
            ]
            .concat();
            let code = by_bp(&body);
            let target = CODE + code.len() as u64 + distance;
            let vcpu = run_with(mode, &code, 0, |state, memory| {
                state.gpr[Gpr::Rbp as usize] = 40;
                set_up(
                    mode,
                    (Place::Display, 0x100),
                    (Place::Ram, 0),
                    state,
                    memory,
                );
                if mode.is_narrow() {
                    *state.segment_mut(SegmentRegister::Es) = segment_at(mode, 0);
                }
                state.gpr[Gpr::Rdi as usize] = target;
            });
            assert!(vcpu.platform().ended);
            let exits = vcpu.exit_counts().get(ExitKind::StringInstruction);
            assert!(exits <= most, "{mode:?} {distance:x}: {exits}");
        }
    }
}
