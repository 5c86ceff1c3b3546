//! Tests CLI, STI, PUSHF, POPF, INT n and IRET without the monitor, which shows only in the exits:
//! interrupts arrive where they are let in, whichever way the instructions run.

use crate::support::virtual_interrupts::*;
use tollgate_engine::policy::virtual_interrupts::{Transition, VirtualInterrupts};
use tollgate_exits::ExitKind;
use tollgate_x86::{CpuState, Flags, PhysicalAddress};

const CLI: u8 = 0xfa;
const STI: u8 = 0xfb;
const PUSHF: u8 = 0x9c;
const POPF: u8 = 0x9d;
const NOP: u8 = 0x90;
const OUT: u8 = 0xe6;
const INT: u8 = 0xcd;
const HERE: [u8; 2] = [0xeb, 0xfe];
/// Modes in which interrupts can be delivered to the handlers of these tests.
const INTERRUPTIBLE: [GuestMode; 2] = [GuestMode::Flat, GuestMode::Real];
const ROUNDS: u64 = 500;

/// Repeats `body` [`ROUNDS`] times.
fn repeated(body: &[u8]) -> Vec<u8> {
    let back = -(body.len() as i8 + 4);
    // dec ecx or cx; jnz
    [body, &[0xff, 0xc9, 0x75, back as u8]].concat()
}

fn counting(state: &mut CpuState) {
    state.gpr[1] = ROUNDS;
}

/// The place where a program is interrupted under each setting, which must always be the same.
#[track_caller]
fn interrupted_in(mode: GuestMode, code: &[u8]) -> u64 {
    interrupted_with(mode, code, |_| {})
}

#[track_caller]
fn interrupted_with(mode: GuestMode, code: &[u8], change: impl Fn(&mut CpuState)) -> u64 {
    let code = [code, &HERE].concat();
    let places = arms().map(|arm| {
        let mut vcpu = vcpu_with(mode, &code, arm, |state, _| change(state));
        run(&mut vcpu);
        interrupted_at(mode, &mut vcpu)
    });
    assert!(
        places.iter().all(|place| *place == places[0]),
        "{mode:?} {places:?}"
    );
    places[0]
}

#[test]
fn no_instruction_leaves_while_nothing_waits() {
    for mode in MODES {
        let code = repeated(&[CLI, STI, NOP, PUSHF, CLI, POPF, STI, STI, NOP, PUSHF, POPF]);
        let mut vcpu = vcpu_with(mode, &code, VirtualInterrupts::default(), |state, _| {
            counting(state);
        });
        run(&mut vcpu);
        assert_eq!(sensitive_exits(&vcpu), [0; 6], "{mode:?}");
        assert_ne!(vcpu.state().flags & Flags::IF.bits(), 0);
    }
}

#[test]
fn each_instruction_leaves_if_the_mechanism_is_off() {
    let off = VirtualInterrupts {
        flag: false,
        ..VirtualInterrupts::default()
    };
    for mode in MODES {
        let code = repeated(&[CLI, STI, NOP, PUSHF, CLI, POPF]);
        let mut vcpu = vcpu_with(mode, &code, off, |state, _| counting(state));
        run(&mut vcpu);
        let expected = [2, 1, 1, 1, 0, 0].map(|each| each * ROUNDS);
        assert_eq!(sensitive_exits(&vcpu), expected, "{mode:?}");
    }
}

#[test]
fn every_transition_to_the_monitor_and_back_leads_to_the_same() {
    const ADD_AL: [u8; 2] = [0x04, 0x35];
    let round = [
        &[CLI, STI, NOP, PUSHF, CLI][..],
        &ADD_AL,
        &[PUSHF, POPF, POPF],
    ]
    .concat();
    for mode in MODES {
        let ends = [Transition::Call, Transition::Trap, Transition::Task].map(|transition| {
            let arm = VirtualInterrupts {
                flag: false,
                transition,
                ..VirtualInterrupts::default()
            };
            let code = repeated(&round);
            let mut vcpu = vcpu_with(mode, &code, arm, |state, _| counting(state));
            run(&mut vcpu);
            (sensitive_exits(&vcpu), vcpu.dump())
        });
        assert_eq!(ends[0].0, [2, 1, 2, 2, 0, 0].map(|each| each * ROUNDS));
        assert_eq!(ends[0], ends[1], "{mode:?}");
        assert_eq!(ends[0], ends[2], "{mode:?}");
    }
}

#[test]
fn without_the_request_each_change_from_0_to_1_leaves() {
    let arm = VirtualInterrupts {
        request: false,
        ..VirtualInterrupts::default()
    };
    for mode in MODES {
        // IF becomes 1 by STI, stays 1 by STI, becomes 0 and 1 by POPF, and stays 1 by POPF.
        let body = [CLI, STI, STI, PUSHF, CLI, POPF, PUSHF, POPF];
        let code = repeated(&body);
        let mut vcpu = vcpu_with(mode, &code, arm, |state, _| counting(state));
        run(&mut vcpu);
        assert_eq!(
            sensitive_exits(&vcpu),
            [0, ROUNDS, 0, ROUNDS, 0, 0],
            "{mode:?}"
        );
    }
}

#[test]
fn int_and_iret_do_not_leave() {
    let code = repeated(&[STI, INT, 0x60, CLI, INT, 0x60]);
    for mode in INTERRUPTIBLE {
        for (arm, each) in arms().into_iter().zip([[0, 0], [0, 1], [2, 2]]) {
            let mut vcpu = vcpu_with(mode, &code, arm, |state, _| counting(state));
            run(&mut vcpu);
            let [.., int, iret] = sensitive_exits(&vcpu);
            let expected = each.map(|each| each * ROUNDS);
            assert_eq!([int, iret], expected, "{mode:?} {arm:?}");
            assert_eq!(vcpu.state().gpr[4], STACK);
        }
    }
}

#[test]
fn iret_in_v86_mode_with_iopl_3_does_not_leave() {
    // pushf; push cs; push 8; iret; 8: ...
    let body = [PUSHF, 0x0e, 0x6a, 6, 0xcf, NOP];
    let code = repeated(&body);
    for (arm, each) in arms().into_iter().zip([0, 0, 1]) {
        let mut vcpu = vcpu_with(GuestMode::Virtual8086, &code, arm, |state, _| {
            counting(state);
        });
        run(&mut vcpu);
        assert_eq!(sensitive_exits(&vcpu)[5], each * ROUNDS, "{arm:?}");
    }
}

#[test]
fn int_in_real_mode_clears_if_and_shows_the_flags() {
    let results = arms().map(|arm| {
        // std; stc; sti; int 20h
        let code = [0xfd, 0xf9, STI, INT, 0x20];
        let mut vcpu = vcpu_with(GuestMode::Real, &code, arm, |state, _| {
            state.flags |= Flags::IOPL.bits();
        });
        run(&mut vcpu);
        assert_eq!(interrupted_at(GuestMode::Real, &mut vcpu), 5);
        let mut frame = [0; 6];
        let top = PhysicalAddress(STACK - 6);
        vcpu.memory_mut().read(top, &mut frame);
        assert_eq!(frame, [5, 0, 0, 0x10, 0x03, 0x36], "{arm:?}");
        assert_eq!(vcpu.state().flags().bits(), 0x3401);
        end_state(&mut vcpu)
    });
    assert!(results.iter().all(|result| *result == results[0]));
}

#[test]
fn the_interrupt_vector_table_moves_with_idtr() {
    for arm in arms() {
        let mut vcpu = vcpu_with(GuestMode::Real, &[INT, 0x20], arm, |state, memory| {
            state.idtr.base = 0x5000;
            let pointer = (HANDLER >> 4 << 16) as u32;
            let place = PhysicalAddress(0x5000 + 0x20 * 4);
            memory.write(place, &pointer.to_le_bytes());
            memory.write(PhysicalAddress(0x80), &[0xff; 4]);
        });
        run(&mut vcpu);
        assert_eq!(interrupted_at(GuestMode::Real, &mut vcpu), 2, "{arm:?}");
    }
}

#[test]
fn a_vector_beyond_the_limit_is_refused() {
    for mode in INTERRUPTIBLE {
        for arm in arms() {
            let mut vcpu = vcpu_with(mode, &[NOP, INT, 0x60], arm, |state, memory| {
                let entry = if mode == GuestMode::Real { 4 } else { 8 };
                state.idtr.limit = 0x60 * entry + entry - 2;
                // #GP ends the run as vector 20h does.
                let base = state.idtr.base;
                let mut gate = [0; 8];
                let gate = &mut gate[..usize::from(entry)];
                memory.read(PhysicalAddress(base + 0x20 * u64::from(entry)), gate);
                memory.write(PhysicalAddress(base + 13 * u64::from(entry)), gate);
            });
            run(&mut vcpu);
            let top = vcpu.state().gpr[4];
            let mut frame = [0; 8];
            vcpu.memory_mut().read(PhysicalAddress(top), &mut frame);
            let refused = match mode {
                GuestMode::Real => u64::from(u16::from_le_bytes([frame[0], frame[1]])),
                _ => u64::from(u32::from_le_bytes(frame[4..].try_into().unwrap())) - CODE,
            };
            assert_eq!(refused, 1, "{mode:?} {arm:?}");
        }
    }
}

#[test]
fn int_and_iret_leave_if_the_code_segment_has_another_descriptor_now() {
    // The descriptor of CS has changed since CS was loaded. The new descriptor, whose limit is
    // lower, counts.
    let code = [INT, 0x60, NOP];
    let results = arms().map(|arm| {
        let mut vcpu = vcpu_with(GuestMode::Flat, &code, arm, |_, memory| {
            memory.write_u64(PhysicalAddress(0x3_1010), 0x00c8_9b00_0000_ffff);
        });
        run(&mut vcpu);
        assert_eq!(vcpu.state().cs().limit, 0x8fff_ffff, "{arm:?}");
        end_state(&mut vcpu)
    });
    assert!(results.iter().all(|result| *result == results[0]));
}

#[test]
fn sti_lets_interrupts_in_behind_the_next_instruction() {
    for mode in INTERRUPTIBLE {
        let code = [CLI, OUT, RAISE, NOP, STI, NOP, NOP, NOP];
        assert_eq!(interrupted_in(mode, &code), 6, "{mode:?}");
    }
}

#[test]
fn a_second_sti_does_not_hold_off_what_the_first_let_in() {
    for mode in INTERRUPTIBLE {
        let code = [CLI, OUT, RAISE, STI, STI, STI, NOP];
        assert_eq!(interrupted_in(mode, &code), 5, "{mode:?}");
    }
}

#[test]
fn cli_behind_sti_lets_nothing_in() {
    for mode in INTERRUPTIBLE {
        let code = [CLI, OUT, RAISE, STI, CLI, NOP, STI, NOP, NOP];
        assert_eq!(interrupted_in(mode, &code), 8, "{mode:?}");
    }
}

#[test]
fn popf_lets_interrupts_in_at_once() {
    for mode in INTERRUPTIBLE {
        let code = [STI, NOP, PUSHF, CLI, OUT, RAISE, NOP, POPF, NOP, NOP];
        assert_eq!(interrupted_in(mode, &code), 8, "{mode:?}");
    }
}

#[test]
fn iret_lets_interrupts_in_at_once() {
    // The frame: the present flags with IF set, CS, and where the program continues.
    let flat = [
        &[CLI, OUT, RAISE, PUSHF, 0x81, 0x0c, 0x24, 0, 2, 0, 0][..], // or dword [esp], 200h
        &[0x0e, 0x68, 0x20, 0, 1, 0, 0xcf],                          // push cs; push 10020h; iretd
        &[NOP; 0x20],
    ]
    .concat();
    assert_eq!(interrupted_in(GuestMode::Flat, &flat), 0x20);
    let real = [
        &[CLI, OUT, RAISE, PUSHF, 0x58, 0x80, 0xcc, 2, 0x50][..], // pop ax; or ah, 2; push ax
        &[0x0e, 0x68, 0x20, 0, 0xcf],                             // push cs; push 20h; iret
        &[NOP; 0x20],
    ]
    .concat();
    assert_eq!(interrupted_in(GuestMode::Real, &real), 0x20);
}

#[test]
fn an_interrupt_that_an_instruction_behind_sti_raises_is_taken_behind_it() {
    let [a, b, c, d] = DEVICE.to_le_bytes();
    // mov eax, [device]; mov [device], eax: the monitor executes these in the shadow.
    for opcode in [0xa1, 0xa3] {
        let code = [CLI, STI, opcode, a, b, c, d, NOP, NOP];
        assert_eq!(interrupted_in(GuestMode::Flat, &code), 7, "{opcode:#x}");
    }
}

#[test]
fn an_interrupt_that_comes_before_the_shadow_is_over_waits_for_its_end() {
    // In V86 mode and real mode OUT itself raises the interrupt, in the shadow.
    for mode in INTERRUPTIBLE {
        let code = [CLI, STI, OUT, RAISE, NOP, NOP];
        assert_eq!(interrupted_in(mode, &code), 4, "{mode:?}");
        // A miss in the software TLB on the way: the push is the first access to memory.
        let code = [CLI, OUT, RAISE, STI, 0x50, NOP];
        assert_eq!(interrupted_in(mode, &code), 5, "{mode:?}");
    }
}

#[test]
fn a_fault_behind_sti_is_delivered_before_the_interrupt() {
    // The handler of the divide error ends the run as the others do.
    for arm in arms() {
        let code = [CLI, OUT, RAISE, 0x31, 0xc9, STI, 0xf7, 0xf1, NOP]; // div ecx
        let mut vcpu = vcpu_with(GuestMode::Flat, &code, arm, |_, memory| {
            let gate = HANDLER & 0xffff | 0x10 << 16 | 0x8e << 40 | HANDLER >> 16 << 48;
            memory.write_u64(PhysicalAddress(0x3_0000), gate);
        });
        run(&mut vcpu);
        assert_eq!(interrupted_at(GuestMode::Flat, &mut vcpu), 6);
        assert!(vcpu.platform().interrupt, "{arm:?}");
    }
}

#[test]
fn an_interrupt_that_went_away_costs_no_exit() {
    let body = [CLI, STI, NOP, PUSHF, CLI, POPF];
    let code = [&[CLI, OUT, RAISE, OUT, WITHDRAW][..], &repeated(&body)].concat();
    for mode in INTERRUPTIBLE {
        let arm = VirtualInterrupts::default();
        let mut vcpu = vcpu_with(mode, &code, arm, |state, _| counting(state));
        run(&mut vcpu);
        assert_eq!(sensitive_exits(&vcpu), [0; 6], "{mode:?}");
    }
}

#[test]
fn what_waits_behind_a_clear_flag_costs_no_exit_until_that_is_set() {
    let body = [CLI, PUSHF, POPF, CLI, PUSHF, POPF];
    let code = [&[CLI, OUT, RAISE][..], &repeated(&body), &[STI, NOP, NOP]].concat();
    for mode in INTERRUPTIBLE {
        let arm = VirtualInterrupts::default();
        let mut vcpu = vcpu_with(mode, &code, arm, |state, _| counting(state));
        run(&mut vcpu);
        assert_eq!(sensitive_exits(&vcpu), [0, 1, 0, 0, 0, 0], "{mode:?}");
        assert_eq!(vcpu.exit_counts().get(ExitKind::InterruptDelivered), 1);
        assert_eq!(interrupted_at(mode, &mut vcpu), code.len() as u64 - 1);
    }
}

#[test]
fn popf_that_sets_tf_traps_behind_the_next_instruction() {
    for mode in INTERRUPTIBLE {
        let change = |state: &mut CpuState| state.gpr[0] = 0x102;
        let wide = 0x50; // push eax or ax
        let code = [wide, POPF, NOP, NOP, NOP];
        assert_eq!(interrupted_with(mode, &code, change), 3, "{mode:?}");
    }
}

/// The image that PUSHF stores and the flags that POPF leaves, for given flags and a given image.
fn flags_of(mode: GuestMode, arm: VirtualInterrupts, flags: u64, image: u64) -> (u32, u64) {
    // push eax; popf, or not; pushf
    let code = [PUSHF, 0x50, POPF, PUSHF];
    let mut vcpu = vcpu_with(mode, &code, arm, |state, _| {
        state.flags |= flags;
        state.gpr[0] = image;
    });
    run(&mut vcpu);
    let mut stored = [0; 4];
    let top = PhysicalAddress(STACK - mode.word() as u64);
    vcpu.memory_mut().read(top, &mut stored[..mode.word()]);
    (u32::from_le_bytes(stored), vcpu.state().flags)
}

#[test]
fn images_are_the_same_in_every_arm() {
    let [on, without_request, off] = arms();
    let rights = Flags::IOPL | Flags::NT | Flags::AC | Flags::ID;
    for mode in MODES {
        for number in 0..600_u64 {
            let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            let plain = Flags::ARITHMETIC | Flags::DF | Flags::IF;
            let mut flags = hash & plain.bits();
            let mut image = hash >> 22 & plain.bits();
            if number % 3 == 0 {
                flags |= hash & rights.bits() & !Flags::IOPL.bits();
                image |= hash >> 7 & rights.bits();
            } else if number % 3 == 1 && mode != GuestMode::Virtual8086 {
                flags |= Flags::IOPL.bits();
                image |= Flags::IOPL.bits();
            }
            if mode == GuestMode::Virtual8086 {
                image |= Flags::IOPL.bits();
            }
            let expected = flags_of(mode, off, flags, image);
            for arm in [on, without_request] {
                let found = flags_of(mode, arm, flags, image);
                assert_eq!(found, expected, "{mode:?} {arm:?} {flags:#x} {image:#x}");
            }
        }
    }
}

/// A generator of numbers, which need only differ from one another.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

/// A random loop of the six instructions and some others, for flat code, which counts down ECX.
fn random_loop(numbers: &mut Numbers) -> Vec<u8> {
    let mut code = Vec::new();
    let start = code.len();
    for _ in 0..12 + numbers.below(20) {
        let pieces: [&[u8]; 14] = [
            &[CLI],
            &[STI],
            &[NOP],
            &[0x43],       // inc ebx
            &[0x01, 0xd8], // add eax, ebx
            &[0x11, 0xc2], // adc edx, eax
            &[PUSHF, POPF],
            &[PUSHF, CLI, POPF],
            &[PUSHF, STI, POPF],
            &[INT, 0x60],
            &[PUSHF, 0x81, 0x34, 0x24, 0xd5, 0x0a, 0, 0, POPF], // xor dword [esp], 0ad5h
            &[0x89, 0x05, 0, 0, 5, 0],                          // mov [50000h], eax
            &[0x03, 0x05, 0, 0, 5, 0],                          // add eax, [50000h]
            &[0xfc],                                            // cld
        ];
        code.extend(pieces[numbers.below(pieces.len())]);
    }
    let back = start as i32 - (code.len() as i32 + 9);
    // dec ecx; jnz near; cld
    code.extend([0x8d, 0x49, 0xff, 0x85, 0xc9, 0x0f, 0x85]);
    code.extend((back - 2).to_le_bytes());
    code.extend([0xfc, CLI]);
    code
}

/// Address of the marks for interrupts: `mov byte [eip + MARKS - CODE], 1`.
const MARKS: u64 = 0x6_0000;

/// The handler of vector 20h, which marks where the interrupt came, and returns.
fn marking_handler() -> Vec<u8> {
    let distance = (MARKS - CODE) as u32;
    let mut code = vec![0x53, 0x8b, 0x5c, 0x24, 4, 0xc6, 0x83]; // push ebx; mov ebx, [esp+4]
    code.extend(distance.to_le_bytes());
    code.extend([1, 0x5b, 0xcf]); // pop ebx; iretd
    code
}

fn random_guest(
    code: &[u8],
    rounds: u64,
    arm: VirtualInterrupts,
) -> tollgate_test_support::Computer<Bench> {
    vcpu_with(GuestMode::Flat, code, arm, |state, memory| {
        state.gpr[1] = rounds;
        memory.write(PhysicalAddress(HANDLER + 0x100), &marking_handler());
        let handler = HANDLER + 0x100;
        let gate = handler & 0xffff | 0x10 << 16 | 0x8e << 40 | handler >> 16 << 48;
        memory.write_u64(PhysicalAddress(0x3_0000 + 0x20 * 8), gate);
    })
}

/// The results of a program, and separately the marks.
fn result(vcpu: &mut tollgate_test_support::Computer<Bench>) -> (String, Vec<u8>, Vec<u8>) {
    let (registers, mut memory) = end_state(vcpu);
    let marks = memory[MARKS as usize..][..0x1000].to_vec();
    memory[MARKS as usize..][..0x1000].fill(0);
    // The values that interrupts left below the stack pointer are not compared.
    memory[STACK as usize - 0x100..STACK as usize].fill(0);
    (registers, memory, marks)
}

#[test]
fn random_programs_end_the_same_in_every_arm_and_step_by_step() {
    let mut numbers = Numbers(1);
    for _ in 0..150 {
        let code = random_loop(&mut numbers);
        let mut stepping = random_guest(&code, 3, VirtualInterrupts::default());
        step(&mut stepping);
        let expected = result(&mut stepping);
        for arm in arms() {
            let mut running = random_guest(&code, 3, arm);
            run(&mut running);
            assert_eq!(result(&mut running), expected, "{arm:?} {code:02x?}");
        }
    }
}

/// The places where interrupts may arrive in a program, found by running it step by step.
fn allowed(code: &[u8]) -> Vec<u8> {
    let mut vcpu = random_guest(code, 3, VirtualInterrupts::default());
    let mut places = vec![0; 0x1000];
    while vcpu.step_one().is_ok() {
        let cpu = vcpu.state();
        let is_shadowed = cpu.shadow_rip == cpu.rip;
        let place = cpu.rip.wrapping_sub(CODE) as usize;
        if cpu.flags().contains(Flags::IF) && !is_shadowed && place < places.len() {
            places[place] = 1;
        }
    }
    places
}

#[test]
fn interrupts_come_where_they_are_let_in_and_change_nothing() {
    let mut numbers = Numbers(2);
    let mut came = 0;
    for _ in 0..12 {
        let code = random_loop(&mut numbers);
        let allowed = allowed(&code);
        let rounds = 20_000;
        let mut quiet = random_guest(&code, rounds, VirtualInterrupts::default());
        run(&mut quiet);
        let (registers, memory, _) = result(&mut quiet);
        for arm in arms() {
            let mut vcpu = random_guest(&code, rounds, arm);
            came += run_interrupted(&mut vcpu);
            let found = result(&mut vcpu);
            assert_eq!(
                (found.0, found.1),
                (registers.clone(), memory.clone()),
                "{arm:?} {code:02x?}"
            );
            for (place, mark) in found.2.iter().enumerate() {
                assert!(
                    *mark <= allowed[place],
                    "{arm:?} at {place:#x} of {code:02x?}"
                );
            }
        }
    }
    assert!(came > 0);
}
