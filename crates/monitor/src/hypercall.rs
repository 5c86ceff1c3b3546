//! Hypercalls: VMCALL and VMMCALL, which mean the same here (docs/hypercalls.md).
//!
//! EAX selects the call. The null call exists to be measured: it changes nothing but
//! EIP and returns before any other work, so that it measures the cost of leaving guest code
//! and entering it again. Any ring and any mode may make these calls; they give nothing
//! away and change nothing outside the caller's registers.

use iced_x86::Instruction;
use tollgate_emulate::Outcome;
use tollgate_emulate::operand::next_rip;
use tollgate_engine::policy::instruction_kind::Executor;
use tollgate_x86::paravirtual::kvm;
use tollgate_x86::{CpuState, Exception, Flags, Gpr, Paravirtual};

/// EAX of the null hypercall: returns at once, no register and no flag changes.
pub const NULL: u32 = 0x544f_4c00;
/// EAX of the call that answers with [`VERSION`] in EAX.
pub const GET_VERSION: u32 = 0x544f_4c01;
/// The version of this interface; it grows when calls are added.
pub const VERSION: u32 = 1;

fn selector(state: &CpuState) -> u32 {
    state.register(Gpr::Rax) as u32
}

/// Whether an instruction that `executor` executes is the null hypercall now.
pub(crate) fn is_null(state: &CpuState, executor: Executor) -> bool {
    executor == Executor::Hypercall && selector(state) == NULL
}

/// Executes VMCALL or VMMCALL.
///
/// # Errors
/// #UD for calls that do not exist, as on a processor without a hypervisor; a guest that sees
/// KVM's interface gets its answer to them instead.
pub(crate) fn execute(
    state: &mut CpuState,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    match selector(state) {
        NULL => {}
        GET_VERSION => state.gpr[Gpr::Rax as usize] = u64::from(VERSION),
        _ if state.paravirtual == Paravirtual::Kvm => {
            state.gpr[Gpr::Rax as usize] = match state.is_64_bit() {
                true => kvm::NO_SUCH_CALL as u64,
                false => u64::from(kvm::NO_SUCH_CALL as u32),
            };
        }
        _ => return Err(Exception::invalid_opcode()),
    }
    state.rip = next_rip(state, instruction);
    state.flags &= !Flags::RF.bits();
    Ok(Outcome::Next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn vmcall() -> Instruction {
        Decoder::with_ip(32, &[0x0f, 0x01, 0xc1], 0x1000, DecoderOptions::NONE).decode()
    }

    fn calling(eax: u32) -> CpuState {
        let mut state = CpuState::at_reset();
        state.rip = 0x1000;
        state.gpr[Gpr::Rax as usize] = u64::from(eax);
        state
    }

    #[test]
    fn the_null_call_changes_only_the_instruction_pointer() {
        let mut state = calling(NULL);
        let mut expected = state.clone();
        expected.rip = 0x1003;
        assert!(is_null(&state, Executor::Hypercall));
        assert_eq!(execute(&mut state, &vmcall()), Ok(Outcome::Next));
        assert_eq!(state, expected);
    }

    #[test]
    fn the_version_is_answered_in_eax() {
        let mut state = calling(GET_VERSION);
        assert_eq!(execute(&mut state, &vmcall()), Ok(Outcome::Next));
        assert_eq!(state.gpr[Gpr::Rax as usize], u64::from(VERSION));
        assert_eq!(state.rip, 0x1003);
    }

    #[test]
    fn a_call_that_kvm_does_not_know_has_its_answer() {
        let mut state = calling(11);
        state.paravirtual = Paravirtual::Kvm;
        assert_eq!(execute(&mut state, &vmcall()), Ok(Outcome::Next));
        assert_eq!(state.gpr[Gpr::Rax as usize], 0xffff_fc18);
        assert_eq!(state.rip, 0x1003);
    }

    #[test]
    fn a_call_that_does_not_exist_is_an_invalid_opcode() {
        let mut state = calling(7);
        let before = state.clone();
        assert_eq!(
            execute(&mut state, &vmcall()),
            Err(Exception::invalid_opcode())
        );
        assert_eq!(state, before);
    }
}
