//! Tests instructions of all kinds with an operand in display memory that is not RAM. Executed in
//! translated code, they have the results of the general path. Each program also runs instruction
//! by instruction, by the general path, and must have the same result. All emitted code is
//! verified.

use crate::support::display::code::{At::*, Code, any_instruction};
use crate::support::display::*;
use tollgate_test_support::Random;
use tollgate_x86::Gpr;

/// and [di], al; or; xor; add; xchg; inc; not; cmp; test: instructions that set bits through the
/// latches.
fn classic(mode: GuestMode) -> Vec<u8> {
    let code = [0x20, 0x08, 0x30, 0x00, 0x86, 0x38, 0x84]
        .into_iter()
        .fold(Code::new(mode), |code, opcode| {
            code.memory(1, &[opcode], 0, Destination, 3)
        });
    code.memory(1, &[0xfe], 0, Destination, 3)
        .memory(1, &[0xf6], 2, Destination, 3)
        .bytes
}

#[test]
fn what_loads_and_stores_at_once_takes_no_exit_once_it_was_made() {
    for mode in GuestMode::ALL {
        let vcpu = run(mode, &classic(mode), 100);
        let at_first = at_first(&vcpu);
        // CMP and TEST only load.
        assert_eq!(exits(&vcpu), [2 * at_first, 7 * at_first], "{mode:?}");
        let rounds = 100 - at_first;
        assert_eq!(fast_paths(&vcpu), [2 * rounds, 7 * rounds], "{mode:?}");
    }
}

#[test]
fn an_operand_is_loaded_once_and_stored_once() {
    for mode in GuestMode::ALL {
        let vcpu = run(mode, &classic(mode), 3);
        assert_eq!(vcpu.platform().accesses.len(), 3 * (7 * 2 + 2), "{mode:?}");
    }
}

#[test]
fn more_instructions_than_are_known_at_once_take_no_more_exits() {
    for mode in GuestMode::ALL {
        // 400 stores, add dword [di], eax, which is too long for LOOP: dec cx; jz end; jmp again
        let stores = (0..400).fold(Code::new(mode), |code, _| {
            code.memory(4, &[0x00], 0, Destination, 0)
        });
        let mut code = stores.bytes;
        code.extend([0xff, 0xc9, 0x74, if mode.is_narrow() { 3 } else { 5 }, 0xe9]);
        let back = -(code.len() as i32) - if mode.is_narrow() { 2 } else { 4 };
        let back = back.to_le_bytes();
        code.extend(if mode.is_narrow() { &back[..2] } else { &back });
        code.extend(END);
        let vcpu = run_with(mode, &code, 20, |_, _| ());
        assert!(vcpu.platform().ended, "{mode:?}");
        assert_eq!(exits(&vcpu), [0, 400 * at_first(&vcpu)], "{mode:?}");
    }
}

#[test]
fn random_programs_end_as_when_they_run_step_by_step() {
    let mut random = Random::new(0x4711);
    for round in 0..300 {
        let mode = random.pick(&GuestMode::ALL);
        let mut code = Code::new(mode);
        let mut instructions = 0;
        while code.bytes.len() < 100 {
            code = match random.below(12) {
                // stosb or stosw; lodsb or lodsw; cld; std; out 81h, al
                0 => code.string(random.pick(&[1, 2, 4]), 0xaa),
                1 => code.string(random.pick(&[1, 2, 4]), 0xac),
                2 => code.plain(random.pick(&[&[0xfc], &[0xfd], &[0xe6, 0x81]])),
                _ => any_instruction(code, &mut random),
            };
            instructions += 1;
        }
        // The pointers are often near the end of a page.
        let pointers = [Gpr::Rsi, Gpr::Rdi].map(|register| {
            let page = (random.below(14) as u64 + 1) << 12;
            let place = match random.below(2) {
                0 => page - random.below(8) as u64,
                _ => page + random.below(0x1000) as u64,
            };
            (register, mode.pointer(place))
        });
        let vcpu = run_with(mode, &repeated(&code.bytes), 40, |state, _| {
            for (register, pointer) in pointers {
                state.gpr[register as usize] = pointer;
            }
        });
        let exits: u64 = exits(&vcpu).iter().sum();
        assert!(vcpu.platform().ended, "{round}: {mode:?}");
        assert!(
            exits <= instructions * at_first(&vcpu),
            "{round}: {mode:?}: {exits} exits of {instructions} instructions\n{:x?}",
            code.bytes
        );
    }
}

#[test]
fn the_registers_of_64_bit_code_are_operands_too() {
    // xor r9b, [rdi]; add [rdi], r15d; xchg r12, [rdi]; sub spl, [rdi]; movsx r8, byte [rdi]
    // adc byte [rdi], r10b; and rax, [rdi]
    let body = [
        0x44, 0x32, 0x0f, 0x44, 0x01, 0x3f, 0x4c, 0x87, 0x27, 0x4c, 0x0f, 0xbe, 0x07, 0x44, 0x10,
        0x17, 0x48, 0x23, 0x07,
    ];
    for mode in [GuestMode::Long, GuestMode::LongUser] {
        let vcpu = run(mode, &body, 100);
        let at_first = at_first(&vcpu);
        assert_eq!(exits(&vcpu), [3 * at_first, 3 * at_first], "{mode:?}");
    }
}

#[test]
fn requests_to_leave_lose_and_repeat_no_access() {
    for mode in GuestMode::ALL {
        let mut expected = computer(mode, &repeated(&classic(mode)), 3_000);
        expected.run();
        let mut vcpu = computer(mode, &repeated(&classic(mode)), 3_000);
        vcpu.run_kicked();
        assert!(vcpu.platform().ended);
        assert_eq!(vcpu.dump(), expected.dump());
        assert!(vcpu.platform().accesses == expected.platform().accesses);
        assert!(vcpu.platform().bytes == expected.platform().bytes);
    }
}

#[test]
fn an_operand_that_lies_in_the_window_in_part_is_accessed_as_by_the_general_path() {
    for mode in GuestMode::ALL.into_iter().filter(|mode| !mode.is_narrow()) {
        // The end of the window, its beginning, and the ends of parts that may be windows of their
        // own.
        for place in [0xc_0000, 0xa_0000, 0xb_0000, 0xb_8000, 0xa_8000] {
            for size in [2, 4] {
                // out 81h, al; mov; xor; xchg; mov from memory; cmp; bts: these begin one byte
                // before the place
                let code = [0x88, 0x30, 0x86, 0x8a, 0x38]
                    .into_iter()
                    .fold(Code::new(mode).plain(&[0xe6, 0x81]), |code, opcode| {
                        code.memory(size, &[opcode], 0, Destination, -1)
                    });
                let code = code
                    .plain(&[0x0f, 0xba, 0x6f, 0xff, 0x0f])
                    .plain(&[0x83, 0xc0, 0x03]);
                let vcpu = run_with(mode, &repeated(&code.bytes), 30, |state, _| {
                    state.gpr[Gpr::Rdi as usize] = place;
                });
                assert!(vcpu.platform().ended);
                assert!(!vcpu.platform().accesses.is_empty());
            }
        }
    }
}
