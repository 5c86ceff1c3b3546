//! Tests common instructions of 16-bit programs, in real mode and V86 mode, which must need no
//! exit.

use crate::support::sixteen_bit::{END, Kind, Program, seen};
use tollgate_exits::ExitKind;
use tollgate_x86::Segment;

/// Address of the programs, 1000:0000.
const MAIN: u32 = 0x1_0000;

#[test]
fn calls_through_a_wide_register_stay_in_translated_code() {
    for kind in Kind::ALL {
        let mut program = Program::new(kind);
        // again: call edx; call dword [0300]; dec si; jnz again
        program.put(
            MAIN,
            &[
                0x66, 0xff, 0xd2, 0x66, 0xff, 0x16, 0x00, 0x03, 0x4e, 0x75, 0xf5,
            ],
        );
        program.put(MAIN + 11, &END);
        program.put(MAIN + 0x200, &[0x43, 0x66, 0xc3]); // inc bx; o32 ret
        program.put_data(0x300, &[0x00, 0x02, 0, 0]);
        program.state.gpr[2] = 0x200;
        program.state.gpr[3] = 0;
        program.state.gpr[6] = 1000;
        let vcpu = program.run();
        assert_eq!(vcpu.state().gpr[3], 2000, "{kind:?}");
        let counts = vcpu.exit_counts();
        assert_eq!(counts.get(ExitKind::SlowAccess), 0, "{kind:?}");
        assert!(counts.total() < 60, "{kind:?}: {counts:?}");
    }
}

#[test]
fn a_call_beyond_the_limit_faults_before_anything_is_pushed() {
    for kind in Kind::ALL {
        for target in [0x1_0000_u32, 0x8000_0200, u32::MAX] {
            let mut program = Program::new(kind);
            // push ax; call edx
            program.put(MAIN, &[0x50, 0x66, 0xff, 0xd2]);
            program.state.gpr[2] = target.into();
            let mut vcpu = program.run();
            assert_eq!(seen(&vcpu), Some(13), "{kind:?} {target:x}");
            assert_eq!(program.faulted_at(&mut vcpu), (0x1000, 1, 0x7fe));
        }
        // The last byte of the segment can be called.
        let mut program = Program::new(kind);
        program.put(MAIN, &[0x66, 0xff, 0xd2]);
        program.put(MAIN + 3, &END);
        program.put(MAIN + 0xffff, &[0xc3]);
        program.state.gpr[2] = 0xffff;
        // The return address has 32 bits, of which RET takes 16.
        assert_eq!(program.run().state().gpr[4], 0x7fe);
    }
}

#[test]
fn frames_are_left_without_an_exit() {
    for kind in Kind::ALL {
        for (wide, size) in [(false, 2u64), (true, 4)] {
            let mut program = Program::new(kind);
            let prefix: &[u8] = if wide { &[0x66] } else { &[] };
            // again: push (e)bp; mov bp, sp; sub sp, 10h; push ax; leave; dec si; jnz again
            let body = [
                prefix,
                &[0x55, 0x89, 0xe5, 0x83, 0xec, 0x10, 0x50],
                prefix,
                &[0xc9, 0x4e, 0x75],
            ]
            .concat();
            program.put(MAIN, &body);
            program.put(
                MAIN + body.len() as u32,
                &[(body.len() as u8 + 1).wrapping_neg()],
            );
            program.put(MAIN + body.len() as u32 + 1, &END);
            program.state.gpr[5] = 0x1234_5678;
            program.state.gpr[6] = 1000;
            // The bits above the 16 bits of the stack pointer must not change.
            program.state.gpr[4] |= 0x5a5a_0000;
            let vcpu = program.run();
            let (sp, bp) = (vcpu.state().gpr[4], vcpu.state().gpr[5]);
            assert_eq!((sp, bp & 0xffff), (0x5a5a_0800, 0x5678), "{kind:?} {size}");
            let counts = vcpu.exit_counts();
            assert_eq!(counts.get(ExitKind::SlowAccess), 0, "{kind:?} {size}");
        }
    }
}

#[test]
fn a_frame_that_wraps_is_left_as_the_processor_does() {
    for kind in Kind::ALL {
        let mut program = Program::new(kind);
        // leave with BP = FFFEh: SP is 0 afterwards
        program.put(MAIN, &[0xc9]);
        program.put(MAIN + 1, &END);
        program.put_stack(0xfffe, &[0xcd, 0xab]);
        program.state.gpr[5] = 0x7777_fffe;
        let vcpu = program.run();
        assert_eq!(vcpu.state().gpr[4], 0, "{kind:?}");
        assert_eq!(vcpu.state().gpr[5], 0x7777_abcd, "{kind:?}");
        // leave with BP = FFFFh: the instruction faults, and SP does not change
        program.state.gpr[5] = 0xffff;
        let mut vcpu = program.run();
        assert_eq!(seen(&vcpu), Some(12), "{kind:?}");
        assert_eq!(program.faulted_at(&mut vcpu).2, 0x800);
    }
}

#[test]
fn stores_to_variables_in_the_lines_of_code_stop_being_exits() {
    for kind in Kind::ALL {
        let mut program = Program::new(kind);
        // again: inc word cs:[0020h]; mov cs:[0022h], cl; add dword cs:[003eh], 1
        //        loop again; jmp 30h; two variables; 30h: end
        program.put(
            MAIN,
            &[
                0x2e, 0xff, 0x06, 0x20, 0x00, 0x2e, 0x88, 0x0e, 0x22, 0x00, 0x66, 0x2e, 0x83, 0x06,
                0x3e, 0x00, 0x01, 0xe2, 0xed, 0xeb, 0x1b,
            ],
        );
        program.put(MAIN + 0x30, &END);
        // The first instruction, in the line that the last variable extends into: jmp again
        program.put(MAIN + 0x50, &[0xeb, 0xae]);
        program.state.rip = 0x50;
        program.state.gpr[1] = 5000;
        let mut vcpu = program.run();
        let mut bytes = [0; 0x22];
        let at = tollgate_x86::PhysicalAddress(u64::from(MAIN) + 0x20);
        assert!(vcpu.memory_mut().read(at, &mut bytes));
        assert_eq!(bytes[..3], [0x88, 0x13, 1], "{kind:?}");
        assert_eq!(bytes[0x1e..], [0x88, 0x13, 0, 0], "{kind:?}");
        let writes = vcpu.exit_counts().get(ExitKind::CodeWrite);
        assert!(writes < 20, "{kind:?}: {writes}");
    }
}

#[test]
fn code_beside_a_variable_is_new_when_it_is_written() {
    for kind in Kind::ALL {
        let mut program = Program::new(kind);
        // again: inc word cs:[0020h]; inc byte cs:[000bh]; mov al, 0; add bx, ax; loop again
        program.put(
            MAIN,
            &[
                0x2e, 0xff, 0x06, 0x20, 0x00, 0x2e, 0xfe, 0x06, 0x0b, 0x00, 0xb0, 0x00, 0x01, 0xc3,
                0xe2, 0xf0,
            ],
        );
        program.put(MAIN + 16, &END);
        program.state.gpr[0] = 0;
        program.state.gpr[1] = 100;
        program.state.gpr[3] = 0;
        let vcpu = program.run();
        assert_eq!(vcpu.state().gpr[3], 5050, "{kind:?}");
    }
}

#[test]
fn code_runs_at_more_places_than_modes_have_numbers() {
    // Each base of CS is a mode, and so is each mode in which an instruction runs alone.
    const PLACES: u16 = 20_000;
    let mut program = Program::new(Kind::Real);
    // int1, every 8 bytes: its handler is at 0:610h
    let code: Vec<u8> = std::iter::repeat_n([0xf1, 0, 0, 0, 0, 0, 0, 0], 2 * usize::from(PLACES))
        .flatten()
        .collect();
    program.put(MAIN, &code);
    program.state.segments[2] = Segment::real_mode(0, 0);
    // A load from device memory, which runs in a third mode, so that the last number is given to a
    // mode of either kind.
    program.put(MAIN + 8, &[0x8a, 0x07]);
    program.state.segments[3] = Segment::real_mode(0xa000, 0);
    for begins_with_load in [false, true] {
        let mut vcpu = program.vcpu();
        if begins_with_load {
            vcpu.change_state(|it| it.rip = 8);
            assert_eq!(vcpu.step_one(), Ok(()));
        }
        for place in 0..PLACES {
            let mut state = program.state.clone();
            state.segments[1] = Segment::real_mode(0x1000 + place, 0);
            vcpu.change_state(|it| *it = state);
            assert_eq!(vcpu.step_one(), Ok(()), "{place}");
            assert_eq!((vcpu.state().cs().base, vcpu.state().rip), (0, 0x610));
        }
    }
}

/// PUSHA, PUSHAD, POPA and POPAD, and the size of their words.
const ALL_REGISTERS: [(&[u8], &[u8], u64); 2] =
    [(&[0x60], &[0x61], 2), (&[0x66, 0x60], &[0x66, 0x61], 4)];

fn with_registers(kind: Kind) -> Program {
    let mut program = Program::new(kind);
    for (number, register) in program.state.gpr[..8].iter_mut().enumerate() {
        if number != 4 {
            *register = 0x1234_5600 + 0x1111 * number as u64;
        }
    }
    program
}

#[test]
fn all_registers_are_pushed_and_popped_without_an_exit() {
    for kind in Kind::ALL {
        for (push, pop, size) in ALL_REGISTERS {
            let mut program = with_registers(kind);
            // again: push all; xor the general registers' low words; pop all; dec si; jnz again
            let changes: &[u8] = &[
                0x31, 0xc0, 0x31, 0xdb, 0x31, 0xc9, 0x31, 0xd2, 0x31, 0xed, 0x31, 0xff,
            ];
            let body = [push, changes, pop, &[0x4e, 0x75]].concat();
            let back = (body.len() as u8 + 1).wrapping_neg();
            program.put(MAIN, &[&body[..], &[back], &END].concat());
            program.state.gpr[6] = 1000;
            program.state.gpr[4] |= 0x5a5a_0000;
            let mut vcpu = program.run();
            let mut expected = program.state.gpr;
            expected[6] = 0;
            assert_eq!(vcpu.state().gpr, expected, "{kind:?} {size}");
            let counts = vcpu.exit_counts();
            assert_eq!(counts.get(ExitKind::OtherInstruction), 0, "{kind:?} {size}");
            assert_eq!(counts.get(ExitKind::SlowAccess), 0, "{kind:?} {size}");
            // The values that the last round has pushed.
            expected[6] = 1;
            let words = program.stack(&mut vcpu, 0x800 - 8 * size, 8 * size as usize);
            let pushed = (0..8).rev().map(|number| expected[number]);
            for (word, register) in words.chunks(size as usize).zip(pushed) {
                assert_eq!(word, &register.to_le_bytes()[..size as usize], "{kind:?}");
            }
        }
    }
}

#[test]
fn all_registers_wrap_with_the_stack_pointer_word_by_word() {
    for kind in Kind::ALL {
        for (push, pop, size) in ALL_REGISTERS {
            for number in 0..=8 {
                let mut program = with_registers(kind);
                program.put(MAIN, &[push, &END].concat());
                let pointer = number * size;
                program.state.gpr[4] = 0x7654_0000 | pointer;
                let mut vcpu = program.run();
                for (place, register) in (1..).zip(program.state.gpr[..8].iter()) {
                    let at = pointer.wrapping_sub(place * size) & 0xffff;
                    let word = program.stack(&mut vcpu, at, size as usize);
                    let expected = &register.to_le_bytes()[..size as usize];
                    assert_eq!(word, expected, "{kind:?} {pointer:x} {place}");
                }
                // The pop restores SP.
                program.put(MAIN, &[pop, &END].concat());
                for place in 0..8 {
                    let at = (0x1_0000 - pointer + place * size) as u16;
                    program.put_stack(
                        at,
                        &(0xa0b0_c0d0 + place as u32).to_le_bytes()[..size as usize],
                    );
                }
                program.state.gpr[4] = 0x7654_0000 | (0x1_0000 - pointer) & 0xffff;
                let vcpu = program.run();
                let mask = u64::MAX >> (64 - 8 * size);
                for (place, register) in (0..8).rev().enumerate().filter(|(place, _)| *place != 3) {
                    let kept = program.state.gpr[register] & !mask;
                    let expected = kept | (0xa0b0_c0d0 + place as u64) & mask;
                    assert_eq!(vcpu.state().gpr[register], expected, "{kind:?} {pointer:x}");
                }
                let behind = 0x7654_0000 | (0x1_0000 - pointer + 8 * size) & 0xffff;
                assert_eq!(vcpu.state().gpr[4], behind, "{kind:?} {pointer:x}");
            }
        }
    }
}
