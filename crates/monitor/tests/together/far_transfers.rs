//! Tests far transfers of real mode and V86 mode.

use crate::support::sixteen_bit::{END, Kind, Program, seen};
use tollgate_exits::ExitKind;
use tollgate_x86::SegmentRegister;

/// Address of the programs, 1000:0000.
const MAIN: u32 = 0x1_0000;

#[test]
fn far_calls_and_returns_in_a_loop_stay_in_translated_code() {
    for kind in Kind::ALL {
        let mut program = Program::new(kind);
        // again: call 2000:0100; call far [0300]; call far dword [0304]; loop again
        program.put(
            MAIN,
            &[
                0x9a, 0x00, 0x01, 0x00, 0x20, 0xff, 0x1e, 0x00, 0x03, 0x66, 0xff, 0x1e, 0x04, 0x03,
                0xe2, 0xf0,
            ],
        );
        program.put(MAIN + 16, &END);
        program.put(0x2_0100, &[0x43, 0xcb]); // inc bx; retf
        program.put(0x3_0200, &[0x43, 0xca, 0x00, 0x00]); // inc bx; retf 0
        program.put(0x3_0300, &[0x43, 0x66, 0xcb]); // inc bx; o32 retf
        program.put_data(0x300, &[0x00, 0x02, 0x00, 0x30]);
        program.put_data(0x304, &[0x00, 0x03, 0, 0, 0x00, 0x30]);
        program.state.gpr[1] = 1000;
        program.state.gpr[3] = 0;
        let vcpu = program.run();
        assert_eq!(vcpu.state().gpr[3], 3000, "{kind:?}");
        let counts = vcpu.exit_counts();
        assert_eq!(counts.get(ExitKind::FarTransfer), 0, "{kind:?}");
        assert!(counts.total() < 60, "{kind:?}: {counts:?}");
    }
}

#[test]
fn a_far_jump_loads_selector_and_base_and_nothing_else_of_cs() {
    for kind in Kind::ALL {
        let mut program = Program::new(kind);
        program.put(MAIN, &[0xea, 0x05, 0x00, 0x34, 0x22]); // jmp 2234:0005
        program.put(0x2_2345, &END);
        let vcpu = program.run();
        let cs = *vcpu.state().segment(SegmentRegister::Cs);
        assert_eq!((cs.selector.0, cs.base), (0x2234, 0x2_2340));
        assert_eq!(
            cs,
            program.stepped().cpu.segments[SegmentRegister::Cs as usize]
        );
    }
}

#[test]
fn one_place_by_two_selectors_is_two_places() {
    for kind in Kind::ALL {
        let mut program = Program::new(kind);
        // again: call far [0300]; call far [0304]; loop again
        program.put(
            MAIN,
            &[0xff, 0x1e, 0x00, 0x03, 0xff, 0x1e, 0x04, 0x03, 0xe2, 0xf6],
        );
        program.put(MAIN + 10, &END);
        // call next; next: pop ax; add bx, ax; add si, cs; retf
        program.put(
            0x2_0010,
            &[0xe8, 0, 0, 0x58, 0x01, 0xc3, 0x8c, 0xc8, 0x01, 0xc6, 0xcb],
        );
        program.put_data(0x300, &[0x10, 0x00, 0x00, 0x20]);
        program.put_data(0x304, &[0x00, 0x00, 0x01, 0x20]);
        program.state.gpr[1] = 10;
        program.state.gpr[3] = 0;
        program.state.gpr[6] = 0;
        let vcpu = program.run();
        assert_eq!(vcpu.state().gpr[3], 10 * (0x13 + 3), "{kind:?}");
        assert_eq!(vcpu.state().gpr[6] & 0xffff, (10 * 0x4001) & 0xffff);
    }
}

#[test]
fn a_far_call_stores_cs_and_ip_below_the_stack_pointer() {
    for kind in Kind::ALL {
        let mut program = Program::new(kind);
        program.put(MAIN, &[0x9a, 0x00, 0x01, 0x00, 0x20]); // call 2000:0100
        program.put(0x2_0100, &[0x66, 0x9a, 0x00, 0x02, 0, 0, 0x00, 0x20]); // o32 call 2000:0200
        program.put(0x2_0200, &END);
        program.state.gpr[4] = 0xabcd_0800;
        let mut vcpu = program.run();
        assert_eq!(vcpu.state().gpr[4], 0xabcd_07f4);
        assert_eq!(program.stack(&mut vcpu, 0x7fc, 4), [5, 0, 0, 0x10]);
        assert_eq!(
            program.stack(&mut vcpu, 0x7f4, 8),
            [0x08, 0x01, 0, 0, 0x00, 0x20, 0, 0]
        );
    }
}

#[test]
fn far_call_and_return_wrap_at_the_end_of_a_16_bit_stack() {
    for kind in Kind::ALL {
        for pointer in [0_u64, 2, 4, 6] {
            let mut program = Program::new(kind);
            program.put(MAIN, &[0x9a, 0x00, 0x01, 0x00, 0x20]); // call 2000:0100
            program.put(MAIN + 5, &END);
            program.put(0x2_0100, &[0x89, 0xe3, 0xcb]); // mov bx, sp; retf
            program.state.gpr[4] = pointer;
            let mut vcpu = program.run();
            let state = vcpu.state();
            let called = pointer.wrapping_sub(4) & 0xffff;
            assert_eq!((state.gpr[4], state.gpr[3]), (pointer, called));
            assert_eq!(program.stack(&mut vcpu, called, 2), [5, 0]);
            let upper = called.wrapping_add(2) & 0xffff;
            assert_eq!(program.stack(&mut vcpu, upper, 2), [0, 0x10]);
        }
    }
}

#[test]
fn a_far_call_whose_word_would_straddle_the_end_of_the_stack_faults_before_it_stores() {
    // In V86 mode the guest's monitor handles the fault, on another stack.
    let mut program = Program::new(Kind::Real);
    program.put(MAIN, &[0x9a, 0x00, 0x01, 0x00, 0x20]);
    program.state.gpr[4] = 3;
    let vcpu = program.run_to_stop();
    // The frame of the stack fault does not fit either: double fault, then shutdown.
    assert!(format!("{:?}", vcpu.1).contains("TripleFault"));
    assert_eq!(vcpu.0.state().gpr[4], 3);
}

#[test]
fn an_offset_beyond_64_kib_is_refused_before_anything_is_stored() {
    for kind in Kind::ALL {
        for code in [
            &[0x66, 0x9a, 0x00, 0x01, 0x01, 0x00, 0x00, 0x20][..], // call 2000:00010100
            &[0x66, 0xea, 0x00, 0x01, 0x01, 0x00, 0x00, 0x20],     // jmp
            &[0x66, 0xff, 0x1e, 0x00, 0x03],                       // call far [0300]
            &[0x66, 0xff, 0x2e, 0x00, 0x03],                       // jmp far [0300]
            &[0x66, 0xcb],                                         // retf
        ] {
            let mut program = Program::new(kind);
            program.put(MAIN, code);
            let target = [0x00, 0x01, 0x01, 0x00, 0x00, 0x20];
            program.put_data(0x300, &target);
            program.put_stack(0x800, &target);
            program.state.gpr[4] = 0x800;
            let mut vcpu = program.run();
            assert_eq!(seen(&vcpu), Some(13), "{kind:?} {code:x?}");
            let faulted = program.faulted_at(&mut vcpu);
            assert_eq!(faulted, (0x1000, 0, 0x800), "{kind:?} {code:x?}");
        }
    }
}

#[test]
fn a_far_transfer_reaches_the_code_that_is_there_now() {
    for kind in Kind::ALL {
        let mut program = Program::new(kind);
        // again: call far [0300]; inc byte es:[0102]; loop again
        program.put(
            MAIN,
            &[
                0xff, 0x1e, 0x00, 0x03, 0x26, 0xfe, 0x06, 0x02, 0x01, 0xe2, 0xf5,
            ],
        );
        program.put(MAIN + 11, &END);
        program.put(0x2_0100, &[0x83, 0xc3, 0x00, 0xcb]); // add bx, 0; retf
        program.put_data(0x300, &[0x00, 0x01, 0x00, 0x20]);
        let es = program.state.segment_mut(SegmentRegister::Es);
        (es.selector.0, es.base) = (0x2000, 0x2_0000);
        program.state.gpr[1] = 20;
        program.state.gpr[3] = 0;
        let vcpu = program.run();
        assert_eq!(vcpu.state().gpr[3], (0..20).sum::<u64>(), "{kind:?}");
    }
}

#[test]
fn a_far_return_releases_its_operand_from_a_16_bit_stack_pointer() {
    for kind in Kind::ALL {
        let mut program = Program::new(kind);
        program.put(MAIN, &[0xca, 0x10, 0x00]); // retf 10h
        program.put_stack(0xfff4, &[0x00, 0x01, 0x00, 0x20]);
        program.put(0x2_0100, &END);
        program.state.gpr[4] = 0x5555_fff4;
        let vcpu = program.run();
        assert_eq!(vcpu.state().gpr[4], 0x5555_0008, "{kind:?}");
    }
}

#[test]
fn unreal_code_segments_of_4_gib_are_the_monitors() {
    let mut program = Program::new(Kind::Real);
    program.put(MAIN, &[0xea, 0x05, 0x00, 0x34, 0x22]);
    program.put(0x2_2345, &END);
    program.state.segment_mut(SegmentRegister::Cs).limit = u32::MAX;
    let vcpu = program.run();
    assert_eq!(vcpu.exit_counts().get(ExitKind::FarTransfer), 1);
    assert_eq!(vcpu.state().cs().limit, u32::MAX);
}

#[test]
fn a_patched_operand_of_16_bit_code_is_not_translated_anew() {
    for kind in Kind::ALL {
        let mut program = Program::new(kind);
        // again: inc byte cs:[41]; jmp patched; (at 40h) patched: mov dl, 0; add bx, dx; loop again
        program.put(MAIN, &[0x2e, 0xfe, 0x06, 0x41, 0, 0xeb, 0x39]);
        program.put(MAIN + 0x40, &[0xb2, 0, 0x01, 0xd3, 0xe2, 0xba]);
        program.put(MAIN + 0x46, &END);
        program.state.gpr[1] = 200;
        program.state.gpr[2] = 0;
        program.state.gpr[3] = 0;
        let vcpu = program.run();
        assert_eq!(vcpu.state().gpr[3], (1..=200).sum::<u64>(), "{kind:?}");
        let counts = vcpu.counts().engine;
        assert!(counts.revived > 150, "{kind:?}: {counts:?}");
        assert!(counts.translations < 30, "{kind:?}: {counts:?}");
    }
}

#[test]
fn data_beside_16_bit_code_is_written_without_an_exit() {
    for kind in Kind::ALL {
        let mut program = Program::new(kind);
        // again: inc word cs:[100]; mov cs:[102], cx; loop again
        program.put(
            MAIN,
            &[0x2e, 0xff, 0x06, 0, 1, 0x2e, 0x89, 0x0e, 2, 1, 0xe2, 0xf4],
        );
        program.put(MAIN + 12, &END);
        program.state.gpr[1] = 1000;
        let vcpu = program.run();
        let counts = vcpu.exit_counts();
        assert!(counts.total() < 20, "{kind:?}: {counts:?}");
    }
}
