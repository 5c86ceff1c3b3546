//! Selects the function that executes a decoded instruction.

use crate::Outcome;
use crate::interrupt::Planned;
use crate::operand::next_rip;
use crate::{
    descriptor_instructions, far, fast_call, flag_instructions, interrupt, iret, segments,
    system_call,
};
use iced_x86::{Code, Instruction, Mnemonic};
use tollgate_platform::Environment;
use tollgate_x86::{CpuState, Exception, Flags};

/// Executes one instruction, decoded in the guest's mode with EIP as its address.
///
/// RIP is advanced past the instruction for [`Outcome::Next`] and [`Outcome::Halted`]. EFLAGS.RF is
/// cleared as after any instruction (IRET loads it).
///
/// # Errors
///
/// The exception to deliver, with `state` as before; #UD for instructions that this crate does not
/// know.
pub fn execute(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let next = next_rip(state, instruction);
    let outcome = dispatch(state, environment, instruction)?;
    match outcome {
        Outcome::Next | Outcome::Halted => {
            state.rip = next;
            state.flags &= !Flags::RF.bits();
        }
        Outcome::Jumped | Outcome::Repeat => {}
    }
    Ok(outcome)
}

fn dispatch(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    match instruction.mnemonic() {
        Mnemonic::Lds | Mnemonic::Les | Mnemonic::Lss | Mnemonic::Lfs | Mnemonic::Lgs => {
            segments::load_far_pointer(state, environment, instruction)
        }
        Mnemonic::Int | Mnemonic::Int3 | Mnemonic::Into | Mnemonic::Int1 => {
            let mut planned = Planned::nothing();
            interrupt::software_interrupt(state, environment, instruction, &mut planned)
        }
        Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq => {
            iret::interrupt_return(state, environment, instruction)
        }
        Mnemonic::Retf => far::far_return(state, environment, instruction),
        Mnemonic::Sysenter => fast_call::sysenter(state),
        Mnemonic::Sysexit | Mnemonic::Sysexitq => fast_call::sysexit(state, instruction),
        Mnemonic::Syscall => system_call::syscall(state, instruction),
        Mnemonic::Sysret | Mnemonic::Sysretq => system_call::sysret(state, instruction),
        Mnemonic::Cli => flag_instructions::clear_interrupt_flag(state),
        Mnemonic::Sti => flag_instructions::set_interrupt_flag(state, instruction),
        Mnemonic::Pushf | Mnemonic::Pushfd | Mnemonic::Pushfq => {
            flag_instructions::push_flags(state, environment, instruction)
        }
        Mnemonic::Popf | Mnemonic::Popfd | Mnemonic::Popfq => {
            flag_instructions::pop_flags(state, environment, instruction)
        }
        Mnemonic::Lgdt | Mnemonic::Lidt => {
            descriptor_instructions::load_table_register(state, environment, instruction)
        }
        Mnemonic::Sgdt | Mnemonic::Sidt => {
            descriptor_instructions::store_table_register(state, environment, instruction)
        }
        Mnemonic::Lldt => {
            descriptor_instructions::load_local_table(state, environment, instruction)
        }
        Mnemonic::Ltr => {
            descriptor_instructions::load_task_register(state, environment, instruction)
        }
        Mnemonic::Sldt | Mnemonic::Str => {
            descriptor_instructions::store_selector(state, environment, instruction)
        }
        Mnemonic::Smsw => {
            descriptor_instructions::store_status_word(state, environment, instruction)
        }
        Mnemonic::Lmsw => {
            descriptor_instructions::load_status_word(state, environment, instruction)
        }
        Mnemonic::Lar | Mnemonic::Lsl => {
            descriptor_instructions::load_rights_or_limit(state, environment, instruction)
        }
        Mnemonic::Verr | Mnemonic::Verw => {
            descriptor_instructions::verify_segment(state, environment, instruction)
        }
        Mnemonic::Arpl => {
            descriptor_instructions::adjust_requested_privilege(state, environment, instruction)
        }
        _ => dispatch_by_code(state, environment, instruction),
    }
}

/// Executes instructions whose mnemonics are shared with copied ones.
fn dispatch_by_code(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    match instruction.code() {
        Code::Mov_Sreg_rm16 | Code::Mov_Sreg_r32m16 | Code::Mov_Sreg_r64m16 => {
            segments::move_to_segment(state, environment, instruction)
        }
        Code::Mov_rm16_Sreg | Code::Mov_r32m16_Sreg | Code::Mov_r64m16_Sreg => {
            segments::move_from_segment(state, environment, instruction)
        }
        Code::Pushw_ES
        | Code::Pushd_ES
        | Code::Pushw_CS
        | Code::Pushd_CS
        | Code::Pushw_SS
        | Code::Pushd_SS
        | Code::Pushw_DS
        | Code::Pushd_DS
        | Code::Pushw_FS
        | Code::Pushd_FS
        | Code::Pushq_FS
        | Code::Pushw_GS
        | Code::Pushd_GS
        | Code::Pushq_GS => segments::push_segment(state, environment, instruction),
        Code::Popw_ES
        | Code::Popd_ES
        | Code::Popw_SS
        | Code::Popd_SS
        | Code::Popw_DS
        | Code::Popd_DS
        | Code::Popw_FS
        | Code::Popd_FS
        | Code::Popq_FS
        | Code::Popw_GS
        | Code::Popd_GS
        | Code::Popq_GS => segments::pop_segment(state, environment, instruction),
        Code::Jmp_ptr1616
        | Code::Jmp_ptr1632
        | Code::Jmp_m1616
        | Code::Jmp_m1632
        | Code::Jmp_m1664 => far::far_jump(state, environment, instruction),
        Code::Call_ptr1616
        | Code::Call_ptr1632
        | Code::Call_m1616
        | Code::Call_m1632
        | Code::Call_m1664 => far::far_call(state, environment, instruction),
        _ => crate::dispatch_system::dispatch(state, environment, instruction),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_environment::{
        TestEnvironment, compatibility_mode, decode, long_mode, protected_mode, real_mode,
        virtual_8086_mode,
    };
    use tollgate_test_support::Random;
    use tollgate_x86::{Cr4, SegmentRegister};

    fn scramble(random: &mut Random, state: &mut CpuState, environment: &mut TestEnvironment) {
        for register in &mut state.gpr[..8] {
            let value = random.next_u64();
            *register = match value & 7 {
                0 => value >> 32,
                1 => 0xffff_ffff,
                2 => 0xffff,
                3 => 0,
                _ => (value >> 40) & 0xf_fffc,
            };
        }
        state.rip = random.next_u64() & 0xffff;
        state.flags ^= random.next_u64() & 0x4fd5;
        if random.next_u64() & 1 == 0 {
            state.cr4 |= (Cr4::VME | Cr4::PVI).bits();
            state.flags |= random.next_u64() & (Flags::VIF | Flags::VIP).bits();
        }
        let base = random.next_u64() & 0xffff_ffff;
        let segment = (random.next_u64() & 3) as usize;
        if random.next_u64() & 3 == 0 && segment != SegmentRegister::Cs as usize {
            state.segments[segment].base = base;
        }
        for address in (0x1000..0xb000).step_by(8) {
            if random.next_u64() & 3 == 0 {
                environment.put_u64(address, random.next_u64());
            }
        }
    }

    #[test]
    fn no_instruction_panics_and_faults_leave_the_registers() {
        let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
        for round in 0..700 {
            let (mut first, mut environment) = match round % 7 {
                0 => real_mode(),
                1 => virtual_8086_mode((round / 7 % 4) as u8),
                2 => protected_mode(0),
                3 => protected_mode(3),
                4 => long_mode(0),
                5 => long_mode(3),
                _ => compatibility_mode(0),
            };
            scramble(&mut random, &mut first, &mut environment);
            for _ in 0..100 {
                let mut state = first.clone();
                let mut code = [0; 15];
                for byte in &mut code {
                    *byte = random.next_u64() as u8;
                }
                if random.next_u64() & 1 == 0 {
                    code[0] = 0x0f;
                }
                let instruction = decode(&state, &code);
                let result = execute(&mut state, &mut environment, &instruction);
                let is_string = instruction.has_rep_prefix() || instruction.has_repne_prefix();
                // After a task switch, faults belong to the new task, which is then the current
                // one.
                let is_same_task = state.tr == first.tr;
                if result.is_err() && !is_string && is_same_task {
                    assert_eq!(state, first, "{instruction} changed the registers");
                }
            }
        }
    }
}
