//! Executes near branches, stack instructions and moves in the monitor instead of in translated
//! code.
//!
//! The translator emits all of these inline. The monitor executes them when the inline form cannot
//! serve: a segment has unusual rights, an access straddles two pages that are not adjacent in host
//! memory, or the stack lies in device memory.

use iced_x86::{Code, CodeSize, Instruction, Mnemonic, OpKind, Register};
use tollgate_emulate::Outcome;
use tollgate_emulate::operand::{
    SegmentedAddress, current_privilege, linear_address, memory_address, next_rip, operand_size,
    read_operand, read_register, read_value, segment_register, size_mask, write_operand,
};
use tollgate_emulate::stack_access::Stack;
use tollgate_platform::Environment;
use tollgate_x86::canonical::is_canonical;
use tollgate_x86::paging::AccessKind;
use tollgate_x86::{CpuState, Exception, Flags, Gpr, SegmentRegister};

fn width(instruction: &Instruction) -> u32 {
    match instruction.code() {
        Code::Call_rel16
        | Code::Call_rm16
        | Code::Jmp_rm16
        | Code::Retnw
        | Code::Retnw_imm16
        | Code::Leavew => 2,
        Code::Jmp_rel8_16 | Code::Jmp_rel16 => 2,
        _ if instruction.stack_pointer_increment().unsigned_abs() == 2 => 2,
        _ if instruction.code_size() == CodeSize::Code64 => 8,
        _ => 4,
    }
}

/// The target of a branch, which is not yet checked.
fn branch_target(
    state: &CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<u64, Exception> {
    match instruction.op0_kind() {
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
            Ok(instruction.near_branch_target())
        }
        _ => read_operand(state, environment, instruction, 0),
    }
}

fn check_target(state: &CpuState, target: u64) -> Result<u64, Exception> {
    let reachable = if state.is_64_bit() {
        is_canonical(target)
    } else {
        target <= u64::from(state.cs().limit)
    };
    if !reachable {
        return Err(Exception::general_protection(0));
    }
    Ok(target)
}

/// If the memory operand is in a device, checks that `size` bytes can be pushed afterwards. Reading
/// a device may change the device, and a later fault would make the instruction start again.
fn probe_before_device(
    state: &CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
    size: u32,
) -> Result<(), Exception> {
    let address = memory_address(state, instruction);
    let read = AccessKind::Read;
    let bytes = operand_size(instruction, 0);
    let linear = linear_address(state, address, bytes, read)?;
    let privilege = current_privilege(state);
    if environment
        .ram(state, linear, bytes, read, privilege)?
        .is_none()
    {
        Stack::current(state).probe_push(state, environment, size)?;
    }
    Ok(())
}

/// Executes an instruction whose kind names
/// [`Executor::Near`](tollgate_engine::policy::instruction_kind::Executor::Near); any other
/// instruction raises #UD.
///
/// # Errors
/// The exception that the instruction raises, with `state` unchanged.
pub fn execute(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let next = next_rip(state, instruction);
    let size = width(instruction);
    match instruction.mnemonic() {
        Mnemonic::Push => {
            let value = match instruction.op0_kind() {
                OpKind::Register => read_register(state, instruction.op0_register()),
                OpKind::Memory => {
                    probe_before_device(state, environment, instruction, size)?;
                    read_operand(state, environment, instruction, 0)?
                }
                _ => instruction.immediate(0),
            };
            let mut stack = Stack::current(state);
            stack.push(state, environment, size, value)?;
            stack.commit(state);
        }
        Mnemonic::Pop => pop(state, environment, instruction, size)?,
        Mnemonic::Leave => {
            let mut stack = Stack::current(state);
            let frame = state.register(Gpr::Rbp);
            stack.pointer = if state.is_64_bit() {
                frame
            } else if state.ss().is_big() {
                frame & 0xffff_ffff
            } else {
                (stack.pointer & !0xffff) | (frame & 0xffff)
            };
            let value = stack.pop(state, environment, size)?;
            stack.commit(state);
            let name = match size {
                2 => Register::BP,
                4 => Register::EBP,
                _ => Register::RBP,
            };
            tollgate_emulate::operand::write_register(state, name, value);
        }
        Mnemonic::Call => {
            if instruction.op0_kind() == OpKind::Memory {
                probe_before_device(state, environment, instruction, size)?;
            }
            let target = branch_target(state, environment, instruction)?;
            let mut stack = Stack::current(state);
            // Intel's processors check the stack first; the manual leaves the order open (SDM
            // volume 3, table 6-2).
            let target = match check_target(state, target) {
                Ok(target) => target,
                Err(fault) => {
                    stack.probe_push(state, environment, size)?;
                    return Err(fault);
                }
            };
            stack.push(state, environment, size, next)?;
            stack.commit(state);
            state.rip = target;
            return Ok(Outcome::Jumped);
        }
        Mnemonic::Jmp => {
            let target = branch_target(state, environment, instruction)?;
            state.rip = check_target(state, target)?;
            return Ok(Outcome::Jumped);
        }
        Mnemonic::Ret => {
            let mut stack = Stack::current(state);
            let target = stack.pop(state, environment, size)?;
            let target = check_target(state, target)?;
            if instruction.op_count() == 1 {
                stack.advance(i64::from(instruction.immediate16()));
            }
            stack.commit(state);
            state.rip = target;
            return Ok(Outcome::Jumped);
        }
        Mnemonic::Loop | Mnemonic::Loope | Mnemonic::Loopne => {
            // Such a branch is executed here only if its target is beyond the limit. It faults if
            // it is taken.
            return loop_out_of_line(state, instruction, next);
        }
        Mnemonic::Xlatb => {
            let base = state.register(Gpr::Rbx);
            let offset = base.wrapping_add(state.register(Gpr::Rax) & 0xff);
            let offset = offset & size_mask(instruction.memory_base().size() as u32);
            let segment =
                segment_register(instruction.memory_segment()).unwrap_or(SegmentRegister::Ds);
            let value = read_value(state, environment, SegmentedAddress { segment, offset }, 1)?;
            tollgate_emulate::operand::write_register(state, Register::AL, value);
        }
        Mnemonic::Salc => {
            let value = if state.flags().contains(Flags::CF) {
                0xff
            } else {
                0
            };
            tollgate_emulate::operand::write_register(state, Register::AL, value);
        }
        Mnemonic::Mov => {
            let value = read_operand(state, environment, instruction, 1)?;
            write_operand(state, environment, instruction, 0, value)?;
        }
        _ => return Err(Exception::invalid_opcode()),
    }
    state.rip = next;
    Ok(Outcome::Next)
}

fn pop(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
    size: u32,
) -> Result<(), Exception> {
    let before = state.register(Gpr::Rsp);
    let mut stack = Stack::current(state);
    let value = stack.pop(state, environment, size)?;
    stack.commit(state);
    if instruction.op0_kind() == OpKind::Register {
        tollgate_emulate::operand::write_register(state, instruction.op0_register(), value);
        return Ok(());
    }
    // The operand's address is computed with the incremented stack pointer.
    let address = memory_address(state, instruction);
    let bytes = operand_size(instruction, 0);
    let result = tollgate_emulate::operand::write_value(state, environment, address, bytes, value);
    if result.is_err() {
        state.gpr[Gpr::Rsp as usize] = before;
    }
    result
}

fn loop_out_of_line(
    state: &mut CpuState,
    instruction: &Instruction,
    next: u64,
) -> Result<Outcome, Exception> {
    let name = match instruction.op_code().address_size() {
        16 => Register::CX,
        64 => Register::RCX,
        _ => Register::ECX,
    };
    let count = read_register(state, name).wrapping_sub(1) & size_mask(name.size() as u32);
    let zero = state.flags().contains(Flags::ZF);
    let taken = count != 0
        && match instruction.mnemonic() {
            Mnemonic::Loope => zero,
            Mnemonic::Loopne => !zero,
            _ => true,
        };
    if taken {
        let target = check_target(state, instruction.near_branch_target())?;
        tollgate_emulate::operand::write_register(state, name, count);
        state.rip = target;
        return Ok(Outcome::Jumped);
    }
    tollgate_emulate::operand::write_register(state, name, count);
    state.rip = next;
    Ok(Outcome::Next)
}
