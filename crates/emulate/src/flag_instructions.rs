//! CLI, STI, PUSHF and POPF in every mode (SDM volume 2, tables 3-7, 4-15 and 4-16).
//! [`crate::virtual_8086`] decides whether they access IF or VIF, or raise #GP.

use crate::Outcome;
use crate::operand::next_rip;
use crate::stack_access::Stack;
use crate::virtual_8086::{
    InterruptFlag, flags_after_virtual_pop, interrupt_flag, interrupt_flag_of_image, virtual_image,
};
use iced_x86::{Code, Instruction};
use tollgate_platform::Environment;
use tollgate_x86::{CpuState, Exception, Flags};

/// CLI: clears IF, or VIF where the program has its own.
///
/// # Errors
///
/// #GP(0) if the CPL is above IOPL and neither VME nor PVI gives the program VIF.
pub fn clear_interrupt_flag(state: &mut CpuState) -> Result<Outcome, Exception> {
    let cleared = match interrupt_flag(state)? {
        InterruptFlag::Real => Flags::IF,
        InterruptFlag::Virtual => Flags::VIF,
    };
    state.flags &= !cleared.bits();
    Ok(Outcome::Next)
}

/// STI: sets IF, or VIF where the program has its own. If IF was clear, interrupts wait for one
/// more instruction; VIF delays no interrupt.
///
/// # Errors
///
/// #GP(0) if the CPL is above IOPL and neither VME nor PVI gives the program VIF, or if VIP shows
/// that an
/// interrupt waits for VIF.
pub fn set_interrupt_flag(
    state: &mut CpuState,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    match interrupt_flag(state)? {
        InterruptFlag::Virtual if state.flags().contains(Flags::VIP) => {
            return Err(Exception::general_protection(0));
        }
        InterruptFlag::Virtual => state.flags |= Flags::VIF.bits(),
        InterruptFlag::Real if !state.flags().contains(Flags::IF) => {
            state.flags |= Flags::IF.bits();
            state.begin_interrupt_shadow(next_rip(state, instruction));
        }
        InterruptFlag::Real => {}
    }
    Ok(Outcome::Next)
}

/// PUSHF, PUSHFD and PUSHFQ. VM and RF read as zero. In V86 mode with IOPL below 3 and VME, PUSHF
/// shows VIF as IF, and IOPL as 3.
///
/// # Errors
///
/// #GP(0) in V86 mode with IOPL below 3, except for PUSHF with VME; the faults of the stack.
pub fn push_flags(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let size = match instruction.code() {
        Code::Pushfw => 2,
        Code::Pushfd => 4,
        Code::Pushfq if state.is_64_bit() => 8,
        _ => return Err(Exception::invalid_opcode()),
    };
    let image = match interrupt_flag_of_image(state, size)? {
        InterruptFlag::Real => state.flags().image() & !(Flags::VM | Flags::RF).bits(),
        InterruptFlag::Virtual => virtual_image(state.flags()),
    };
    let mut stack = Stack::current(state);
    stack.push(state, environment, size, image)?;
    stack.commit(state);
    Ok(Outcome::Next)
}

/// POPF, POPFD and POPFQ. RF becomes zero; VM, VIF and VIP do not change; IOPL changes only at CPL
/// 0, IF only if the CPL is at most IOPL (otherwise it silently keeps its value). In V86 mode with
/// IOPL below 3 and VME, POPF loads VIF instead of IF.
///
/// # Errors
///
/// #GP(0) in V86 mode with IOPL below 3, except for POPF with VME, unless that would set TF, or VIF
/// while
/// VIP is set; the faults of the stack.
pub fn pop_flags(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let size = match instruction.code() {
        Code::Popfw => 2,
        Code::Popfd => 4,
        Code::Popfq if state.is_64_bit() => 8,
        _ => return Err(Exception::invalid_opcode()),
    };
    let flag = interrupt_flag_of_image(state, size)?;
    let mut stack = Stack::current(state);
    let popped = stack.pop(state, environment, size)?;
    if flag == InterruptFlag::Virtual {
        let flags = flags_after_virtual_pop(state, popped)?;
        stack.commit(state);
        state.set_flags(flags - Flags::RF);
        return Ok(Outcome::Next);
    }
    let cpl = state.cpl();
    let mut changed = Flags::ARITHMETIC | Flags::TF | Flags::DF | Flags::NT;
    if cpl <= state.flags().iopl() || cpl == 0 {
        changed |= Flags::IF;
    }
    if cpl == 0 {
        changed |= Flags::IOPL;
    }
    if size >= 4 {
        changed |= Flags::AC | Flags::ID;
    }
    let popped = Flags::from_bits_truncate(popped);
    let flags = (state.flags() & !changed) | (popped & changed);
    stack.commit(state);
    state.set_flags(flags & !Flags::RF);
    Ok(Outcome::Next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_environment::{long_mode, protected_mode, real_mode, run, virtual_8086_mode};
    use tollgate_x86::Gpr;

    const CLI: [u8; 1] = [0xfa];
    const STI: [u8; 1] = [0xfb];
    const PUSHFD: [u8; 1] = [0x9c];
    const POPFD: [u8; 1] = [0x9d];
    const POPF_IN_32_BIT_CODE: [u8; 2] = [0x66, 0x9d];
    const REFUSED: Result<Outcome, Exception> = Err(Exception::general_protection(0));

    #[test]
    fn sti_holds_interrupts_off_only_when_if_was_clear() {
        let (mut state, mut environment) = protected_mode(0);
        assert_eq!(run(&mut state, &mut environment, &STI), Ok(Outcome::Next));
        assert_eq!(state.flags(), Flags::IF);
        assert_eq!(state.shadow_rip, 0x5001);
        assert!(run(&mut state, &mut environment, &STI).is_ok());
        assert_eq!(state.shadow_rip, 0x5001);
        assert!(run(&mut state, &mut environment, &CLI).is_ok());
        assert_eq!(state.flags(), Flags::empty());
    }

    #[test]
    fn cli_and_sti_need_a_cpl_not_above_iopl() {
        let (mut state, mut environment) = protected_mode(3);
        assert_eq!(run(&mut state, &mut environment, &CLI), REFUSED);
        assert_eq!(run(&mut state, &mut environment, &STI), REFUSED);
        state.flags = Flags::IOPL.bits();
        assert!(run(&mut state, &mut environment, &STI).is_ok());
        let (mut state, mut environment) = virtual_8086_mode(2);
        assert_eq!(run(&mut state, &mut environment, &CLI), REFUSED);
        let (mut state, mut environment) = real_mode();
        assert!(run(&mut state, &mut environment, &STI).is_ok());
    }

    #[test]
    fn pushf_hides_vm_and_rf() {
        let (mut state, mut environment) = virtual_8086_mode(3);
        state.flags |= (Flags::RF | Flags::CF | Flags::ID).bits();
        assert!(run(&mut state, &mut environment, &[0x66, 0x9c]).is_ok());
        assert_eq!(environment.u32(0x2ffc), 0x20_3003);
        assert_eq!(state.register(Gpr::Rsp), 0xffc);
    }

    #[test]
    fn pushf_and_popf_in_v86_mode_need_iopl_3() {
        let (mut state, mut environment) = virtual_8086_mode(0);
        assert_eq!(run(&mut state, &mut environment, &PUSHFD), REFUSED);
        assert_eq!(run(&mut state, &mut environment, &POPFD), REFUSED);
    }

    #[test]
    fn popf_changes_what_the_privilege_level_allows() {
        let virtual_flags = Flags::VIF | Flags::VIP;
        let never = Flags::VM | Flags::RF | virtual_flags;
        for (cpl, iopl, kept) in [
            (0, 0, never),
            (3, 0, never | Flags::IOPL | Flags::IF),
            (3, 3, never),
        ] {
            let (mut state, mut environment) = protected_mode(cpl);
            state.flags = iopl << 12;
            environment.put_u32(0x8000, u32::MAX);
            assert!(run(&mut state, &mut environment, &POPFD).is_ok());
            let expected = (Flags::ALL & !kept) | state.flags() & Flags::IOPL;
            assert_eq!(state.flags(), expected, "CPL {cpl} IOPL {iopl}");
            assert_eq!(state.register(Gpr::Rsp), 0x8004);
        }
    }

    #[test]
    fn popf_of_16_bits_keeps_the_upper_flags() {
        let (mut state, mut environment) = protected_mode(0);
        state.flags = (Flags::AC | Flags::ID | Flags::CF).bits();
        assert!(run(&mut state, &mut environment, &POPF_IN_32_BIT_CODE).is_ok());
        assert_eq!(state.flags(), Flags::AC | Flags::ID);
        assert_eq!(state.register(Gpr::Rsp), 0x8002);
    }

    #[test]
    fn popf_in_v86_mode_keeps_vm_and_iopl() {
        let (mut state, mut environment) = virtual_8086_mode(3);
        environment.put_u16(0x3000, 0x0201);
        assert!(run(&mut state, &mut environment, &POPFD).is_ok());
        assert_eq!(
            state.flags(),
            Flags::VM | Flags::IOPL | Flags::IF | Flags::CF
        );
        assert_eq!(state.register(Gpr::Rsp), 0x1002);
    }

    #[test]
    fn pushfq_and_popfq_take_eight_bytes() {
        let (mut state, mut environment) = long_mode(0);
        environment.put_u64(0x7ff8, u64::MAX);
        state.flags = (Flags::CF | Flags::RF | Flags::AC).bits();
        run(&mut state, &mut environment, &PUSHFD).unwrap();
        assert_eq!(environment.u64(0x7ff8), 0x4_0003);
        environment.put_u64(0x7ff8, u64::MAX);
        run(&mut state, &mut environment, &POPFD).unwrap();
        let kept = Flags::VM | Flags::RF | Flags::VIF | Flags::VIP;
        assert_eq!(state.flags(), Flags::ALL & !kept);
        assert_eq!(state.register(Gpr::Rsp), 0x8000);
    }
}
