//! Loads and stores of segment registers: MOV, POP, PUSH, LDS, LES, LSS, LFS and LGS (SDM volume 2,
//! MOV, POP, LDS).

use crate::Outcome;
use crate::cpuid::{Vendor, policy};
use crate::descriptor_table::{data_segment, stack_segment};
use crate::operand::{
    behind_first, memory_address, next_rip, operand_size, read_operand, read_value,
    segment_register, write_operand, write_register,
};
use crate::stack_access::Stack;
use iced_x86::{Code, Instruction, OpKind};
use tollgate_platform::Environment;
use tollgate_x86::{CpuState, Exception, Segment, SegmentRegister, Selector};

/// Loads DS, ES, FS, GS or SS in the current mode. Real and V86 mode accept any value. A null
/// selector clears the base of FS and GS, as CPUID reports for AMD's processors.
///
/// # Errors
///
/// #UD for CS; in protected mode those of [`data_segment`] and [`stack_segment`].
pub fn load_segment(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    register: SegmentRegister,
    selector: Selector,
) -> Result<(), Exception> {
    if register == SegmentRegister::Cs {
        return Err(Exception::invalid_opcode());
    }
    if state.has_real_mode_segments() {
        state.load_real_mode_segment(register, selector.0);
        return Ok(());
    }
    // 64-bit code below level 3 may have a null stack segment (SDM volume 3, 5.4.1.1).
    let may_be_null = state.is_64_bit() && state.cpl() < 3 && selector.rpl() == state.cpl();
    *state.segment_mut(register) = if register != SegmentRegister::Ss {
        data_segment(state, environment, selector)?
    } else if may_be_null && selector.is_null() {
        Segment::null_stack(selector, state.cpl())
    } else {
        let refused = Exception::general_protection;
        stack_segment(state, environment, selector, state.cpl(), refused, 0)?
    };
    Ok(())
}

/// MOV Sreg, r/m16. A load of SS holds interrupts off for one instruction.
///
/// # Errors
///
/// The faults of the source operand and of the load.
pub fn move_to_segment(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let register =
        segment_register(instruction.op0_register()).ok_or(Exception::invalid_opcode())?;
    if register == SegmentRegister::Cs {
        return Err(Exception::invalid_opcode());
    }
    let selector = Selector(read_operand(state, environment, instruction, 1)? as u16);
    load_segment(state, environment, register, selector)?;
    if register == SegmentRegister::Ss {
        state.begin_stack_shadow(next_rip(state, instruction));
    }
    Ok(Outcome::Next)
}

/// MOV r/m, Sreg. A memory operand receives 16 bits; a 32-bit register is zero-extended.
///
/// # Errors
///
/// The faults of the destination operand.
pub fn move_from_segment(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let selector = read_operand(state, environment, instruction, 1)?;
    write_operand(state, environment, instruction, 0, selector)?;
    Ok(Outcome::Next)
}

/// The number of bytes by which PUSH or POP of a segment register moves the stack pointer.
fn stack_operand_size(instruction: &Instruction) -> u32 {
    match instruction.code() {
        Code::Pushq_FS | Code::Pushq_GS | Code::Popq_FS | Code::Popq_GS => 8,
        Code::Pushd_ES
        | Code::Pushd_CS
        | Code::Pushd_SS
        | Code::Pushd_DS
        | Code::Pushd_FS
        | Code::Pushd_GS
        | Code::Popd_ES
        | Code::Popd_SS
        | Code::Popd_DS
        | Code::Popd_FS
        | Code::Popd_GS => 4,
        _ => 2,
    }
}

/// Whether PUSH and POP of a segment register access only the low half of a 32-bit slot. The manual
/// leaves this to the processor (SDM volume 2, PUSH); the guest's processor does what the host's
/// does.
fn moves_low_half_only(state: &CpuState, size: u32) -> bool {
    size == 4 && policy(state).vendor() == Vendor::Intel
}

/// Whether POP of a segment register reads only the selector, as Intel's processors do, also for
/// slots of 64 bits.
fn pops_selector_only(state: &CpuState, size: u32) -> bool {
    size > 2 && policy(state).vendor() == Vendor::Intel
}

/// PUSH Sreg. The 32- and 64-bit forms push the selector zero-extended, one of the two behaviours
/// that the manual allows.
///
/// # Errors
///
/// The faults of the stack.
pub fn push_segment(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let register =
        segment_register(instruction.op0_register()).ok_or(Exception::invalid_opcode())?;
    let mut stack = Stack::current(state);
    let selector = state.segment(register).selector.0;
    let size = stack_operand_size(instruction);
    if moves_low_half_only(state, size) {
        stack.advance(-4);
        let mut low = stack;
        low.advance(2);
        low.push(state, environment, 2, selector)?;
    } else {
        stack.push(state, environment, size, selector)?;
    }
    stack.commit(state);
    Ok(Outcome::Next)
}

/// POP Sreg. POP SS holds interrupts off for one instruction.
///
/// # Errors
///
/// The faults of the stack and of the load.
pub fn pop_segment(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let register =
        segment_register(instruction.op0_register()).ok_or(Exception::invalid_opcode())?;
    let mut stack = Stack::current(state);
    let size = stack_operand_size(instruction);
    let value = if pops_selector_only(state, size) {
        let value = stack.pop(state, environment, 2)?;
        stack.advance(i64::from(size) - 2);
        value
    } else {
        stack.pop(state, environment, size)?
    };
    load_segment(state, environment, register, Selector(value as u16))?;
    // The old SS determines how the pointer moves, even if SS itself was loaded.
    state.gpr[tollgate_x86::Gpr::Rsp as usize] = stack.pointer;
    if register == SegmentRegister::Ss {
        state.begin_stack_shadow(next_rip(state, instruction));
    }
    Ok(Outcome::Next)
}

/// LDS, LES, LSS, LFS, LGS: load a register and a segment register from a far pointer.
///
/// # Errors
///
/// #UD for a register source; the faults of the memory operand and of the load.
pub fn load_far_pointer(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let register = match instruction.code() {
        Code::Les_r16_m1616 | Code::Les_r32_m1632 => SegmentRegister::Es,
        Code::Lds_r16_m1616 | Code::Lds_r32_m1632 => SegmentRegister::Ds,
        Code::Lss_r16_m1616 | Code::Lss_r32_m1632 | Code::Lss_r64_m1664 => SegmentRegister::Ss,
        Code::Lfs_r16_m1616 | Code::Lfs_r32_m1632 | Code::Lfs_r64_m1664 => SegmentRegister::Fs,
        Code::Lgs_r16_m1616 | Code::Lgs_r32_m1632 | Code::Lgs_r64_m1664 => SegmentRegister::Gs,
        _ => return Err(Exception::invalid_opcode()),
    };
    if instruction.op1_kind() != OpKind::Memory {
        return Err(Exception::invalid_opcode());
    }
    let size = operand_size(instruction, 0);
    let address = memory_address(state, instruction);
    let offset = read_value(state, environment, address, size)?;
    let behind = behind_first(state, instruction, address, size);
    let selector = read_value(state, environment, behind, 2)?;
    load_segment(state, environment, register, Selector(selector as u16))?;
    write_register(state, instruction.op0_register(), offset);
    Ok(Outcome::Next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_environment::{
        GDT, compatibility_mode, descriptor, long_mode, protected_mode, real_mode, run, selector,
        virtual_8086_mode,
    };
    use tollgate_x86::{Attributes, Gpr};

    const MOV_DS_AX: [u8; 2] = [0x8e, 0xd8];
    const MOV_SS_AX: [u8; 2] = [0x8e, 0xd0];

    #[test]
    fn a_data_segment_load_sets_the_accessed_bit_in_the_table() {
        let (mut state, mut environment) = protected_mode(0);
        state.gpr[0] = u64::from(selector::DATA3);
        assert_eq!(
            run(&mut state, &mut environment, &MOV_DS_AX),
            Ok(Outcome::Next)
        );
        let ds = *state.segment(SegmentRegister::Ds);
        assert_eq!(ds.selector.0, selector::DATA3);
        assert!(ds.attributes.contains(Attributes::ACCESSED));
        assert_eq!(ds.limit, u32::MAX);
        assert_eq!(environment.ram[GDT + 0x25], 0xf3);
        assert_eq!(state.rip, 0x5002);
        assert_eq!(state.shadow_rip, u64::MAX);
    }

    #[test]
    fn a_null_selector_makes_ds_unusable_but_is_refused_for_ss() {
        let (mut state, mut environment) = protected_mode(0);
        state.gpr[0] = 3;
        assert!(run(&mut state, &mut environment, &MOV_DS_AX).is_ok());
        assert!(!state.segment(SegmentRegister::Ds).is_usable());
        // MOV AX, [0] through DS.
        let read = crate::operand::linear_address(
            &state,
            crate::operand::SegmentedAddress {
                segment: SegmentRegister::Ds,
                offset: 0,
            },
            1,
            tollgate_x86::paging::AccessKind::Read,
        );
        assert_eq!(read, Err(Exception::general_protection(0)));
        assert_eq!(
            run(&mut state, &mut environment, &MOV_SS_AX),
            Err(Exception::general_protection(0))
        );
    }

    #[test]
    fn segment_loads_check_table_limit_type_privilege_and_presence() {
        for (cpl, code, value, expected) in [
            (0, MOV_DS_AX, 0x80, Err(Exception::general_protection(0x80))),
            (
                0,
                MOV_DS_AX,
                selector::EXECUTE_ONLY0,
                Err(Exception::general_protection(0x48)),
            ),
            (
                3,
                MOV_DS_AX,
                selector::DATA0,
                Err(Exception::general_protection(0x10)),
            ),
            (
                0,
                MOV_DS_AX,
                selector::DATA0 | 3,
                Err(Exception::general_protection(0x10)),
            ),
            (3, MOV_DS_AX, selector::CONFORMING0, Ok(Outcome::Next)),
            (
                0,
                MOV_DS_AX,
                selector::ABSENT0,
                Err(Exception::segment_not_present(0x50)),
            ),
            (
                0,
                MOV_SS_AX,
                selector::ABSENT0,
                Err(Exception::stack_fault(0x50)),
            ),
            (
                0,
                MOV_SS_AX,
                selector::DATA3,
                Err(Exception::general_protection(0x20)),
            ),
            (
                3,
                MOV_SS_AX,
                selector::READ_ONLY3,
                Err(Exception::general_protection(0x40)),
            ),
            (
                0,
                MOV_DS_AX,
                selector::TSS,
                Err(Exception::general_protection(0x58)),
            ),
            (
                0,
                MOV_DS_AX,
                0x104,
                Err(Exception::general_protection(0x104)),
            ),
            (3, MOV_SS_AX, selector::DATA3, Ok(Outcome::Next)),
        ] {
            let (mut state, mut environment) = protected_mode(cpl);
            state.gpr[0] = u64::from(value);
            let result = run(&mut state, &mut environment, &code);
            assert_eq!(result, expected, "selector {value:#x} at CPL {cpl}");
        }
    }

    #[test]
    fn mov_ss_holds_interrupts_off_for_one_instruction_and_lss_does_not() {
        let (mut state, mut environment) = protected_mode(0);
        state.gpr[0] = u64::from(selector::DATA0);
        assert!(run(&mut state, &mut environment, &MOV_SS_AX).is_ok());
        assert_eq!(state.shadow_rip, 0x5002);
        state.shadow_rip = u64::MAX;
        environment.put_u32(0x6000, 0x9000);
        environment.put_u16(0x6004, selector::DATA0);
        let lss_esp = [0x0f, 0xb2, 0x25, 0x00, 0x60, 0, 0];
        assert!(run(&mut state, &mut environment, &lss_esp).is_ok());
        assert_eq!(state.shadow_rip, u64::MAX);
        assert_eq!(state.register(Gpr::Rsp), 0x9000);
    }

    #[test]
    fn mov_to_cs_is_undefined() {
        let (mut state, mut environment) = protected_mode(0);
        assert_eq!(
            run(&mut state, &mut environment, &[0x8e, 0xc8]),
            Err(Exception::invalid_opcode())
        );
    }

    #[test]
    fn real_mode_loads_shift_and_keep_the_limit() {
        let (mut state, mut environment) = real_mode();
        state.segment_mut(SegmentRegister::Ds).limit = u32::MAX;
        state.gpr[0] = 0x1234;
        assert!(run(&mut state, &mut environment, &MOV_DS_AX).is_ok());
        let ds = state.segment(SegmentRegister::Ds);
        assert_eq!((ds.base, ds.limit), (0x12340, u32::MAX));
    }

    #[test]
    fn v86_loads_shift_and_set_a_64_kib_limit() {
        let (mut state, mut environment) = virtual_8086_mode(0);
        state.gpr[0] = 0x1234;
        assert!(run(&mut state, &mut environment, &MOV_DS_AX).is_ok());
        assert_eq!(
            *state.segment(SegmentRegister::Ds),
            Segment::real_mode(0x1234, 3)
        );
    }

    #[test]
    fn push_and_pop_of_32_bits_move_esp_by_four() {
        let (mut state, mut environment) = protected_mode(0);
        environment.put_u32(0x7ffc, 0xffff_ffff);
        assert!(run(&mut state, &mut environment, &[0x1e]).is_ok());
        assert_eq!(state.register(Gpr::Rsp), 0x7ffc);
        assert_eq!(environment.u16(0x7ffc), selector::DATA0);
        environment.put_u16(0x7ffc, selector::DATA3);
        assert!(run(&mut state, &mut environment, &[0x07]).is_ok());
        assert_eq!(
            state.segment(SegmentRegister::Es).selector.0,
            selector::DATA3
        );
        assert_eq!(state.register(Gpr::Rsp), 0x8000);
    }

    #[test]
    fn a_pop_that_faults_leaves_the_stack_pointer() {
        let (mut state, mut environment) = protected_mode(3);
        environment.put_u32(0x8000, u32::from(selector::DATA0));
        assert_eq!(
            run(&mut state, &mut environment, &[0x07]),
            Err(Exception::general_protection(0x10))
        );
    }

    #[test]
    fn a_segment_register_stored_in_memory_takes_two_bytes() {
        let (mut state, mut environment) = protected_mode(0);
        environment.put_u32(0x6000, 0xffff_ffff);
        let mov_mem_ss = [0x8c, 0x15, 0x00, 0x60, 0, 0];
        assert!(run(&mut state, &mut environment, &mov_mem_ss).is_ok());
        assert_eq!(environment.u32(0x6000), 0xffff_0010);
        state.gpr[0] = u64::from(u32::MAX);
        assert!(run(&mut state, &mut environment, &[0x8c, 0xd0]).is_ok());
        assert_eq!(state.gpr[0], 0x10);
    }

    #[test]
    fn a_16_bit_stack_segment_makes_pushes_move_sp_alone() {
        let (mut state, mut environment) = protected_mode(0);
        state.gpr[0] = u64::from(selector::DATA16);
        state.gpr[Gpr::Rsp as usize] = 0xabcd_0000;
        assert!(run(&mut state, &mut environment, &MOV_SS_AX).is_ok());
        assert!(run(&mut state, &mut environment, &[0x1e]).is_ok());
        assert_eq!(state.register(Gpr::Rsp), 0xabcd_fffc);
        assert_eq!(environment.u32(0xfffc), u32::from(selector::DATA0));
    }

    #[test]
    fn a_null_ss_is_for_64_bit_code_below_level_3_with_its_own_level() {
        let (mut state, mut environment) = long_mode(0);
        state.gpr[0] = 0;
        run(&mut state, &mut environment, &MOV_SS_AX).unwrap();
        assert!(!state.ss().is_usable());
        assert_eq!((state.cpl(), state.shadow_rip), (0, 0x5002));
        state.gpr[0] = 1;
        let refused = Err(Exception::general_protection(0));
        assert_eq!(run(&mut state, &mut environment, &MOV_SS_AX), refused);
        let (mut state, mut environment) = long_mode(3);
        state.gpr[0] = 3;
        assert_eq!(run(&mut state, &mut environment, &MOV_SS_AX), refused);
        let (mut state, mut environment) = compatibility_mode(0);
        assert_eq!(run(&mut state, &mut environment, &MOV_SS_AX), refused);
    }

    #[test]
    fn a_load_of_fs_replaces_its_base_and_a_null_one_clears_it() {
        let (mut state, mut environment) = long_mode(3);
        environment.put_u64(GDT + 0x68, descriptor(0x8765_4000, 0, 0x40f2));
        state.segment_mut(SegmentRegister::Fs).base = 0x7fff_0000_0000;
        state.gpr[0] = 0x6b;
        // mov fs, eax
        run(&mut state, &mut environment, &[0x8e, 0xe0]).unwrap();
        assert_eq!(state.segment(SegmentRegister::Fs).base, 0x8765_4000);
        state.segment_mut(SegmentRegister::Fs).base = 0x7fff_0000_0000;
        state.gpr[0] = 0;
        run(&mut state, &mut environment, &[0x8e, 0xe0]).unwrap();
        assert_eq!(state.segment(SegmentRegister::Fs).base, 0);
    }

    #[test]
    fn fs_and_gs_are_pushed_and_popped_as_quadwords() {
        let (mut state, mut environment) = long_mode(3);
        environment.put_u64(0x7ff8, u64::MAX);
        // push fs; pop gs
        run(&mut state, &mut environment, &[0x0f, 0xa0]).unwrap();
        assert_eq!(environment.u64(0x7ff8), u64::from(selector::DATA3));
        environment.put_u64(0x7ff8, u64::from(selector::READ_ONLY3));
        run(&mut state, &mut environment, &[0x0f, 0xa9]).unwrap();
        assert_eq!(state.register(Gpr::Rsp), 0x8000);
        let gs = state.segment(SegmentRegister::Gs);
        assert_eq!(gs.selector.0, selector::READ_ONLY3);
        // mov rax, gs
        state.gpr[0] = u64::MAX;
        run(&mut state, &mut environment, &[0x48, 0x8c, 0xe8]).unwrap();
        assert_eq!(state.gpr[0], u64::from(selector::READ_ONLY3));
    }

    #[test]
    fn lfs_with_rex_w_loads_a_64_bit_offset() {
        let (mut state, mut environment) = long_mode(3);
        environment.put_u64(0x6000, 0x1122_3344_5566_7788);
        environment.put_u16(0x6008, selector::DATA3);
        // lfs rbx, [6000h]; LDS and LES are VEX prefixes here.
        let code = [0x48, 0x0f, 0xb4, 0x1c, 0x25, 0, 0x60, 0, 0];
        run(&mut state, &mut environment, &code).unwrap();
        assert_eq!(state.gpr[3], 0x1122_3344_5566_7788);
    }

    #[test]
    fn the_selector_of_a_far_pointer_wraps_with_the_address() {
        let (mut state, mut environment) = protected_mode(0);
        environment.put_u16(0xfffe, 0x1234);
        environment.put_u16(0, 3);
        state.gpr[3] = 0xfffe;
        // les ax, [bx]
        let code = [0x67, 0x66, 0xc4, 0x07];
        run(&mut state, &mut environment, &code).unwrap();
        assert_eq!(state.gpr[0] & 0xffff, 0x1234);
        assert_eq!(state.segment(SegmentRegister::Es).selector, Selector(3));
    }

    #[test]
    fn a_segment_register_takes_as_much_of_its_slot_as_on_the_host() {
        let (mut state, mut environment) = protected_mode(0);
        let esp = state.gpr[4] as usize;
        environment.put_u32(esp - 4, 0xaaaa_aaaa);
        // push ds
        run(&mut state, &mut environment, &[0x1e]).unwrap();
        let upper = if policy(&state).vendor() == Vendor::Intel {
            0xaaaa
        } else {
            0
        };
        assert_eq!(state.gpr[4] as usize, esp - 4);
        assert_eq!(environment.u16(esp - 2), upper);
    }
}
