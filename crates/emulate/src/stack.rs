//! PUSHA, POPA, ENTER and BOUND (SDM volume 2).

use crate::Outcome;
use crate::cpuid::{Vendor, policy};
use crate::memory_access::{SegmentedAddress, linear_address, probe_linear, read_value};
use crate::operand::{behind_first, memory_address, operand_size, read_register, size_mask};
use crate::stack_access::Stack;
use iced_x86::{Code, Instruction};
use tollgate_platform::Environment;
use tollgate_x86::paging::AccessKind;
use tollgate_x86::{CpuState, Exception, Gpr, SegmentRegister, Vector};

/// The registers in the order in which PUSHA pushes them.
const ALL: [Gpr; 8] = [
    Gpr::Rax,
    Gpr::Rcx,
    Gpr::Rdx,
    Gpr::Rbx,
    Gpr::Rsp,
    Gpr::Rbp,
    Gpr::Rsi,
    Gpr::Rdi,
];

/// Writes the low 2, 4 or 8 bytes of a register.
fn set_low(state: &mut CpuState, register: Gpr, size: u32, value: u64) {
    let mask = size_mask(size);
    let place = &mut state.gpr[register as usize];
    *place = if size == 2 {
        *place & !mask | value & mask
    } else {
        value & mask
    };
}

/// PUSHA and PUSHAD. The value pushed for SP is that before the instruction.
///
/// # Errors
///
/// #SS(0), #AC(0) or a page fault.
pub fn push_all(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let size = if instruction.code() == Code::Pushaw {
        2
    } else {
        4
    };
    let values = ALL.map(|register| state.register(register));
    let mut stack = Stack::current(state);
    stack.push_all(state, environment, size, &values)?;
    stack.commit(state);
    Ok(Outcome::Next)
}

/// POPA and POPAD: the value for SP is skipped.
///
/// # Errors
/// #SS(0), #AC(0) or a page fault.
pub fn pop_all(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let size = if instruction.code() == Code::Popaw {
        2
    } else {
        4
    };
    let mut stack = Stack::current(state);
    let values: [u64; 8] = stack.pop_all(state, environment, size)?;
    for (register, value) in ALL.into_iter().rev().zip(values) {
        if register != Gpr::Rsp {
            set_low(state, register, size, value);
        }
    }
    stack.commit(state);
    Ok(Outcome::Next)
}

/// ENTER, with nesting levels 0 to 31.
///
/// # Errors
///
/// #SS(0), #AC(0) or a page fault, including those of the address that the new SP points to.
pub fn enter(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let size = match instruction.code() {
        Code::Enterw_imm16_imm8 => 2,
        Code::Enterq_imm16_imm8 => 8,
        _ => 4,
    };
    let level = instruction.immediate8_2nd() % 32;
    let mut stack = Stack::current(state);
    let frame_pointer = state.register(Gpr::Rbp);
    stack.push(state, environment, size, frame_pointer)?;
    let frame = if state.is_64_bit() || policy(state).vendor() != Vendor::Intel {
        // The stack pointer after the push (SDM volume 2, ENTER, "FrameTemp").
        stack.pointer
    } else {
        // Intel's processors compute it with 32 bits, even if SP wraps.
        state.register(Gpr::Rsp).wrapping_sub(u64::from(size)) & 0xffff_ffff
    };
    if level > 0 {
        // Copies of the pointers to the enclosing frames, then the pointer to this frame.
        let mut outer = Stack {
            pointer: frame_pointer,
            ..stack
        };
        for _ in 1..level {
            outer.advance(-i64::from(size));
            let mut value = [0];
            outer.peek(state, environment, size, &mut value)?;
            stack.push(state, environment, size, value[0])?;
        }
        stack.push(state, environment, size, frame)?;
    }
    stack.advance(-i64::from(instruction.immediate16()));
    let top = SegmentedAddress {
        segment: SegmentRegister::Ss,
        offset: stack.pointer & stack.mask(),
    };
    let linear = linear_address(state, top, size, AccessKind::Write)?;
    probe_linear(state, environment, linear, size, stack.privilege)?;
    set_low(state, Gpr::Rbp, size, frame);
    stack.commit(state);
    Ok(Outcome::Next)
}

/// BOUND: compares a signed index with two bounds in memory.
///
/// # Errors
///
/// #BR if it is outside; the fault of the memory access.
pub fn check_bounds(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let size = operand_size(instruction, 0);
    let address = memory_address(state, instruction);
    let signed = |value: u64| {
        if size == 2 {
            i64::from(value as i16)
        } else {
            i64::from(value as i32)
        }
    };
    let lower = read_value(state, environment, address, size)?;
    let behind = behind_first(state, instruction, address, size);
    let upper = read_value(state, environment, behind, size)?;
    let index = signed(read_register(state, instruction.op0_register()));
    if index < signed(lower) || index > signed(upper) {
        return Err(Exception::new(Vector::BoundRange));
    }
    Ok(Outcome::Next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_environment::{STACK, long_mode, protected_mode, real_mode, run};

    #[test]
    fn pusha_pushes_the_old_stack_pointer_and_popa_skips_it() {
        let (mut state, mut environment) = protected_mode(0);
        for (index, register) in state.gpr.iter_mut().enumerate().take(8) {
            if index != 4 {
                *register = 0x1111 * index as u64;
            }
        }
        let before = state.clone();
        run(&mut state, &mut environment, &[0x60]).unwrap();
        let top = STACK as usize - 32;
        assert_eq!(state.register(Gpr::Rsp), top as u64);
        assert_eq!(environment.u32(top), 0x7777);
        assert_eq!(environment.u32(top + 12), STACK);
        assert_eq!(environment.u32(top + 28), 0);
        environment.put_u32(top + 12, 0xdead_beef);
        environment.put_u32(top + 28, 0x1234_5678);
        run(&mut state, &mut environment, &[0x61]).unwrap();
        assert_eq!(state.gpr[0], 0x1234_5678);
        assert_eq!(state.gpr[1..8], before.gpr[1..8]);
    }

    #[test]
    fn popaw_keeps_the_upper_halves() {
        let (mut state, mut environment) = protected_mode(0);
        state.gpr[3] = 0xaaaa_bbbb;
        environment.put_u16(STACK as usize + 8, 0x1234);
        run(&mut state, &mut environment, &[0x66, 0x61]).unwrap();
        assert_eq!(state.gpr[3], 0xaaaa_1234);
        assert_eq!(state.register(Gpr::Rsp), u64::from(STACK) + 16);
    }

    #[test]
    fn a_16_bit_stack_wraps_between_elements() {
        let (mut state, mut environment) = real_mode();
        state.gpr[4] = 8;
        state.gpr[7] = 0xd1d1;
        run(&mut state, &mut environment, &[0x60]).unwrap();
        assert_eq!(state.gpr[4], 0xfff8);
        assert_eq!(environment.u16(0x2000 + 0xfff8), 0xd1d1);
    }

    #[test]
    fn enter_builds_nested_frames() {
        let (mut state, mut environment) = protected_mode(0);
        state.gpr[5] = 0x9000;
        environment.put_u32(0x8ffc, 0xaaaa);
        environment.put_u32(0x8ff8, 0xbbbb);
        // enter 16, 3
        run(&mut state, &mut environment, &[0xc8, 16, 0, 3]).unwrap();
        let frame = STACK as usize - 4;
        assert_eq!(state.gpr[5], frame as u64);
        assert_eq!(environment.u32(frame), 0x9000);
        assert_eq!(environment.u32(frame - 4), 0xaaaa);
        assert_eq!(environment.u32(frame - 8), 0xbbbb);
        assert_eq!(environment.u32(frame - 12), frame as u32);
        assert_eq!(state.gpr[4], frame as u64 - 12 - 16);
    }

    #[test]
    fn enter_faults_if_the_new_top_of_stack_cannot_be_written() {
        let (mut state, mut environment) = protected_mode(0);
        environment.read_only.push(0x6000..0x7000);
        let fault = run(&mut state, &mut environment, &[0xc8, 0x00, 0x10, 0]).unwrap_err();
        assert_eq!(fault.vector, Vector::PageFault);
        assert_eq!(state.gpr[4], u64::from(STACK));
    }

    #[test]
    fn enter_level_0_with_16_bit_operands_keeps_the_upper_half_of_ebp() {
        let (mut state, mut environment) = protected_mode(0);
        state.gpr[5] = 0x1234_5678;
        run(&mut state, &mut environment, &[0x66, 0xc8, 4, 0, 0]).unwrap();
        assert_eq!(state.gpr[5], 0x1234_7ffe);
        assert_eq!(state.gpr[4], 0x7ffa);
        assert_eq!(environment.u16(0x7ffe), 0x5678);
    }

    #[test]
    fn bound_compares_signed_and_both_bounds_are_inside() {
        let (mut state, mut environment) = protected_mode(0);
        environment.put_u32(0x9000, -5i32 as u32);
        environment.put_u32(0x9004, 5);
        state.gpr[0] = 0x9000;
        for (index, inside) in [(-5i32, true), (5, true), (-6, false), (6, false)] {
            state.gpr[1] = u64::from(index as u32);
            // bound ecx, [eax]
            let result = run(&mut state, &mut environment, &[0x62, 0x08]);
            if inside {
                assert_eq!(result, Ok(Outcome::Next));
            } else {
                assert_eq!(result, Err(Exception::new(Vector::BoundRange)));
            }
        }
    }

    #[test]
    fn enter_of_64_bit_code_pushes_quadwords_and_needs_a_canonical_stack() {
        let (mut state, mut environment) = long_mode(3);
        state.gpr[5] = 0x9000;
        environment.put_u64(0x8ff8, 0x1122_3344_5566_7788);
        // enter 16, 2
        run(&mut state, &mut environment, &[0xc8, 16, 0, 2]).unwrap();
        let frame = STACK as usize - 8;
        assert_eq!(environment.u64(frame), 0x9000);
        assert_eq!(environment.u64(frame - 8), 0x1122_3344_5566_7788);
        assert_eq!(environment.u64(frame - 16), frame as u64);
        assert_eq!(state.gpr[4], frame as u64 - 16 - 16);
        assert_eq!(state.gpr[5], frame as u64);
        state.gpr[4] = 0x8000_0000_0000;
        let enter = [0xc8, 0, 0, 0];
        let fault = run(&mut state, &mut environment, &enter).unwrap_err();
        assert_eq!(fault.vector, Vector::PageFault, "just below the hole");
        state.gpr[4] = 0x8000_0000_0008;
        let fault = run(&mut state, &mut environment, &enter).unwrap_err();
        assert_eq!(fault, Exception::stack_fault(0));
    }

    #[test]
    fn enter_on_a_16_bit_stack_that_wraps_forms_ebp_from_esp_or_with_intel_with_32_bits() {
        for (esp, from_esp, with_32_bits) in [
            (0x1_0000, 0x1_fffc, 0xfffc),
            (0, 0xfffc, 0xffff_fffc),
            (0xffff_0000, 0xffff_fffc, 0xfffe_fffc),
            (0x1_8000, 0x1_7ffc, 0x1_7ffc),
        ] {
            let (mut state, mut environment) = real_mode();
            (state.gpr[4], state.gpr[5]) = (esp, 0x1234_5678);
            // enter 16, 0 with 32 bits
            run(&mut state, &mut environment, &[0x66, 0xc8, 16, 0, 0]).unwrap();
            let frame = match policy(&state).vendor() {
                Vendor::Intel => with_32_bits,
                _ => from_esp,
            };
            assert_eq!(state.gpr[5], frame, "ESP {esp:#x}");
            assert_eq!(state.gpr[4], esp & !0xffff | (frame - 16) & 0xffff);
        }
    }

    #[test]
    fn pusha_bound_and_decimal_instructions_do_not_exist_in_64_bit_code() {
        // PUSHA, POPA, BOUND is EVEX, DAA, AAA, AAM, INTO, PUSH ES, POP DS, far CALL.
        for code in [0x60, 0x61, 0x27, 0x37, 0xd4, 0xce, 0x06, 0x1f, 0x9a] {
            let (mut state, mut environment) = long_mode(0);
            let bytes = [code, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(
                run(&mut state, &mut environment, &bytes),
                Err(Exception::invalid_opcode()),
                "{code:#x}"
            );
        }
    }

    #[test]
    fn the_upper_bound_wraps_with_the_address() {
        let (mut state, mut environment) = protected_mode(0);
        environment.put_u16(0xfffe, 0);
        environment.put_u16(0, 5);
        (state.gpr[3], state.gpr[1]) = (0xfffe, 5);
        // bound cx, [bx]
        let code = [0x67, 0x66, 0x62, 0x0f];
        assert_eq!(run(&mut state, &mut environment, &code), Ok(Outcome::Next));
    }
}
