//! CLI, STI, PUSHF and POPF in every mode (SDM volume 2, tables 3-7, 4-15 and 4-16).
//!
//! Not implemented, and not offered by CPUID: virtual interrupts (CR4.VME, CR4.PVI).
//! What they would permit is #GP(0), as on a processor without them.

use crate::Outcome;
use crate::operand::next_rip;
use crate::stack_access::Stack;
use iced_x86::{Code, Instruction};
use tollgate_platform::Environment;
use tollgate_x86::{CpuState, Exception, Flags};

/// #GP(0) unless the CPL (3 in V86 mode) may change IF.
fn require_io_privilege(state: &CpuState) -> Result<(), Exception> {
    if state.cpl() <= state.flags().iopl() || !state.is_protected() {
        Ok(())
    } else {
        Err(Exception::general_protection(0))
    }
}

/// CLI.
///
/// # Errors
/// #GP(0) if the CPL is above IOPL.
pub fn clear_interrupt_flag(state: &mut CpuState) -> Result<Outcome, Exception> {
    require_io_privilege(state)?;
    state.flags &= !Flags::IF.bits();
    Ok(Outcome::Next)
}

/// STI. When IF was clear, interrupts wait for one more instruction.
///
/// # Errors
/// #GP(0) if the CPL is above IOPL.
pub fn set_interrupt_flag(
    state: &mut CpuState,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_io_privilege(state)?;
    if !state.flags().contains(Flags::IF) {
        state.flags |= Flags::IF.bits();
        state.begin_interrupt_shadow(next_rip(state, instruction));
    }
    Ok(Outcome::Next)
}

/// #GP(0) in V86 mode with IOPL below 3.
fn require_virtual_io_privilege(state: &CpuState) -> Result<(), Exception> {
    if state.is_virtual_8086() {
        require_io_privilege(state)
    } else {
        Ok(())
    }
}

/// PUSHF, PUSHFD and PUSHFQ. VM and RF read as zero.
///
/// # Errors
/// #GP(0) in V86 mode with IOPL below 3; of the stack.
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
    require_virtual_io_privilege(state)?;
    let image = state.flags().image() & !(Flags::VM | Flags::RF).bits();
    let mut stack = Stack::current(state);
    stack.push(state, environment, size, image)?;
    stack.commit(state);
    Ok(Outcome::Next)
}

/// POPF, POPFD and POPFQ. RF becomes zero; VM, VIF and VIP stay; IOPL changes only at CPL 0,
/// IF only if the CPL is at most IOPL (silently kept otherwise).
///
/// # Errors
/// #GP(0) in V86 mode with IOPL below 3; of the stack.
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
    require_virtual_io_privilege(state)?;
    let mut stack = Stack::current(state);
    let popped = stack.pop(state, environment, size)?;
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
