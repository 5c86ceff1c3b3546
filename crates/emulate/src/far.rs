//! Far JMP, CALL and RET (SDM volume 2, JMP, CALL, RET; volume 3, 5.8).

use crate::Outcome;
use crate::descriptor_table::{
    TableEntry, accessed_segment, has_valid_code_size, read_descriptor, read_upper_half,
};
use crate::operand::{behind_first, memory_address, next_rip, read_value};
use crate::privilege_change::{
    StackSlot, check_code_offset, drop_inner_data_segments, enter_code, inner_stack,
    long_inner_stack, outer_stack, return_code_segment,
};
use crate::stack_access::Stack;
use crate::task_switch::{Cause, find_task, switch_task};
use iced_x86::{Code, Instruction};
use tollgate_platform::Environment;
use tollgate_x86::descriptor::system_type;
use tollgate_x86::{CpuState, Exception, Flags, Segment, SegmentRegister, Selector};

/// The target of a far JMP or CALL.
#[derive(Clone, Copy)]
struct FarPointer {
    selector: Selector,
    /// Offset of the target, truncated to the operand size.
    offset: u64,
    /// Operand size in bytes: 2, 4 or 8.
    size: u32,
}

fn far_pointer(
    state: &CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<FarPointer, Exception> {
    let direct = |offset: u32, size| FarPointer {
        selector: Selector(instruction.far_branch_selector()),
        offset: u64::from(offset),
        size,
    };
    let size = match instruction.code() {
        Code::Jmp_ptr1616 | Code::Call_ptr1616 => {
            return Ok(direct(u32::from(instruction.far_branch16()), 2));
        }
        Code::Jmp_ptr1632 | Code::Call_ptr1632 => {
            return Ok(direct(instruction.far_branch32(), 4));
        }
        Code::Jmp_m1616 | Code::Call_m1616 => 2,
        Code::Jmp_m1632 | Code::Call_m1632 => 4,
        Code::Jmp_m1664 | Code::Call_m1664 if state.is_64_bit() => 8,
        _ => return Err(Exception::invalid_opcode()),
    };
    let address = memory_address(state, instruction);
    let offset = read_value(state, environment, address, size)?;
    let behind = behind_first(state, instruction, address, size);
    let selector = read_value(state, environment, behind, 2)?;
    Ok(FarPointer {
        selector: Selector(selector as u16),
        offset,
        size,
    })
}

/// #GP(0) for a target in real or V86 mode outside CS. The limit is never below 64 KiB.
fn check_real_mode_offset(state: &CpuState, offset: u64) -> Result<(), Exception> {
    let limit = if state.is_virtual_8086() {
        0xffff
    } else {
        state.cs().limit.max(0xffff)
    };
    if offset > u64::from(limit) {
        return Err(Exception::general_protection(0));
    }
    Ok(())
}

fn enter_real_mode_code(state: &mut CpuState, selector: Selector, offset: u64) {
    state.load_real_mode_segment(SegmentRegister::Cs, selector.0);
    state.rip = offset;
    state.flags &= !Flags::RF.bits();
}

fn enter_protected_code(state: &mut CpuState, segment: Segment, offset: u64, cpl: u8) {
    enter_code(state, segment, offset, cpl);
    state.flags &= !Flags::RF.bits();
}

/// The target of a far JMP or CALL in protected mode, after all checks.
enum Target {
    /// Code at the current privilege level.
    SameLevel {
        segment: Segment,
        offset: u64,
        size: u32,
    },
    /// Code at a more privileged level through a call gate: CALL only.
    InnerLevel {
        segment: Segment,
        offset: u64,
        size: u32,
        parameters: u8,
    },
    /// Another task, by its TSS descriptor.
    Task(TableEntry),
}

/// Checks a far JMP or CALL that names a code segment directly.
fn direct_target(
    state: &CpuState,
    environment: &mut dyn Environment,
    entry: TableEntry,
    pointer: FarPointer,
) -> Result<Target, Exception> {
    let attributes = entry.attributes();
    let cpl = state.cpl();
    let allowed = if attributes.is_conforming() {
        attributes.dpl() <= cpl
    } else {
        pointer.selector.rpl() <= cpl && attributes.dpl() == cpl
    };
    let error_code = pointer.selector.error_code();
    if !allowed || !has_valid_code_size(state, attributes) {
        return Err(Exception::general_protection(error_code));
    }
    if !entry.is_present() {
        return Err(Exception::segment_not_present(error_code));
    }
    let segment = accessed_segment(state, environment, entry)?;
    check_code_offset(state, &segment, pointer.offset, 0)?;
    Ok(Target::SameLevel {
        segment,
        offset: pointer.offset,
        size: pointer.size,
    })
}

/// Checks a far JMP or CALL that names a call gate.
fn gate_target(
    state: &CpuState,
    environment: &mut dyn Environment,
    gate: TableEntry,
    is_call: bool,
) -> Result<Target, Exception> {
    let is_long = state.is_long_mode();
    let is_wide = gate.system_type() == Some(system_type::CALL_GATE32);
    let low = u64::from(gate.descriptor.gate_offset());
    let (offset, size) = if is_long {
        let high = read_upper_half(state, environment, &gate)?;
        (low | u64::from(high) << 32, 8)
    } else if is_wide {
        (low, 4)
    } else {
        (low & 0xffff, 2)
    };
    let selector = gate.descriptor.gate_selector();
    let refused = Exception::general_protection(selector.error_code());
    let entry = read_descriptor(state, environment, selector)?.ok_or(refused)?;
    let attributes = entry.attributes();
    let cpl = state.cpl();
    let allowed = if attributes.is_conforming() || is_call {
        attributes.dpl() <= cpl
    } else {
        attributes.dpl() == cpl
    };
    // In IA-32e mode, a gate must lead to 64-bit code.
    let size_fits = !is_long || attributes.is_long_code() && has_valid_code_size(state, attributes);
    if !attributes.is_code() || !allowed || !size_fits {
        return Err(refused);
    }
    if !entry.is_present() {
        return Err(Exception::segment_not_present(selector.error_code()));
    }
    let segment = accessed_segment(state, environment, entry)?;
    if attributes.is_conforming() || attributes.dpl() == cpl {
        check_code_offset(state, &segment, offset, 0)?;
        return Ok(Target::SameLevel {
            segment,
            offset,
            size,
        });
    }
    Ok(Target::InnerLevel {
        segment,
        offset,
        size,
        parameters: gate.descriptor.gate_parameter_count(),
    })
}

fn protected_target(
    state: &CpuState,
    environment: &mut dyn Environment,
    pointer: FarPointer,
    is_call: bool,
) -> Result<Target, Exception> {
    let selector = pointer.selector;
    let refused = Exception::general_protection(selector.error_code());
    let entry = read_descriptor(state, environment, selector)?.ok_or(refused)?;
    let attributes = entry.attributes();
    if attributes.is_code() {
        return direct_target(state, environment, entry, pointer);
    }
    let kind = entry.system_type().ok_or(refused)?;
    let is_gate = matches!(kind, system_type::CALL_GATE16 | system_type::CALL_GATE32);
    let is_task = matches!(
        kind,
        system_type::TASK_GATE | system_type::TSS16_AVAILABLE | system_type::TSS32_AVAILABLE
    );
    let exists = if state.is_long_mode() {
        kind == system_type::CALL_GATE32
    } else {
        is_gate || is_task
    };
    let is_reachable = attributes.dpl() >= state.cpl() && attributes.dpl() >= selector.rpl();
    if !exists || !is_reachable {
        return Err(refused);
    }
    if !entry.is_present() {
        return Err(Exception::segment_not_present(selector.error_code()));
    }
    if is_task {
        let task = if kind == system_type::TASK_GATE {
            let named = entry.descriptor.gate_selector();
            find_task(state, environment, named, cause(is_call))?
        } else if selector.is_local() {
            return Err(refused);
        } else {
            entry
        };
        return Ok(Target::Task(task));
    }
    gate_target(state, environment, entry, is_call)
}

/// The cause of a task switch by this instruction.
const fn cause(is_call: bool) -> Cause {
    if is_call { Cause::Call } else { Cause::Jump }
}

/// JMP ptr16:16, ptr16:32, m16:16, m16:32, m16:64.
///
/// # Errors
///
/// The faults of the operand; #GP, #NP and page faults of the target; the faults of a task switch.
pub fn far_jump(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let pointer = far_pointer(state, environment, instruction)?;
    if state.has_real_mode_segments() {
        check_real_mode_offset(state, pointer.offset)?;
        enter_real_mode_code(state, pointer.selector, pointer.offset);
        return Ok(Outcome::Jumped);
    }
    match protected_target(state, environment, pointer, false)? {
        Target::SameLevel {
            segment, offset, ..
        } => enter_protected_code(state, segment, offset, state.cpl()),
        Target::Task(task) => {
            let (rip, flags) = (next_rip(state, instruction), state.flags().image());
            switch_task(state, environment, task, Cause::Jump, rip, flags)?;
        }
        // `gate_target` permits only calls to an inner level.
        Target::InnerLevel { .. } => return Err(Exception::invalid_opcode()),
    }
    Ok(Outcome::Jumped)
}

/// CALL ptr16:16, ptr16:32, m16:16, m16:32, m16:64.
///
/// # Errors
///
/// The faults of the operand and the stack; #GP, #NP, #TS, #SS and page faults of the target; the
/// faults of a task switch.
pub fn far_call(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let pointer = far_pointer(state, environment, instruction)?;
    let return_cs = u64::from(state.cs().selector.0);
    let return_rip = next_rip(state, instruction);
    let mut stack = Stack::current(state);
    if state.has_real_mode_segments() {
        check_real_mode_offset(state, pointer.offset)?;
        stack.push_all(state, environment, pointer.size, &[return_cs, return_rip])?;
        stack.commit(state);
        enter_real_mode_code(state, pointer.selector, pointer.offset);
        return Ok(Outcome::Jumped);
    }
    match protected_target(state, environment, pointer, true)? {
        Target::SameLevel {
            segment,
            offset,
            size,
        } => {
            stack.push_all(state, environment, size, &[return_cs, return_rip])?;
            stack.commit(state);
            enter_protected_code(state, segment, offset, state.cpl());
        }
        Target::InnerLevel {
            segment,
            offset,
            size,
            ..
        } if state.is_long_mode() => {
            let level = segment.attributes.dpl();
            let slot = StackSlot::Level(level);
            let mut inner = long_inner_stack(state, environment, slot, level, 0)?.stack;
            check_code_offset(state, &segment, offset, 0)?;
            // No parameters are copied.
            let ss = u64::from(stack.segment.selector.0);
            let frame = [ss, stack.pointer, return_cs, return_rip];
            inner.push_all(state, environment, size, &frame)?;
            inner.commit(state);
            enter_protected_code(state, segment, offset, level);
        }
        Target::InnerLevel {
            segment,
            offset,
            size,
            parameters,
        } => {
            let level = segment.attributes.dpl();
            let mut inner = inner_stack(state, environment, level, 0)?.stack;
            check_code_offset(state, &segment, offset, 0)?;
            let count = usize::from(parameters & 31);
            // The frame holds the old SS, the old ESP, the parameters, the old CS and the old EIP.
            let mut frame = [0; 35];
            frame[0] = u64::from(stack.segment.selector.0);
            frame[1] = stack.pointer;
            stack.peek(state, environment, size, &mut frame[2..2 + count])?;
            frame[2..2 + count].reverse();
            frame[2 + count] = return_cs;
            frame[3 + count] = return_rip;
            inner.push_all(state, environment, size, &frame[..4 + count])?;
            inner.commit(state);
            enter_protected_code(state, segment, offset, level);
        }
        Target::Task(task) => {
            let flags = state.flags().image();
            switch_task(state, environment, task, Cause::Call, return_rip, flags)?;
        }
    }
    Ok(Outcome::Jumped)
}

/// RETF and RETF imm16, of 16, 32 and 64 bits.
///
/// # Errors
///
/// The faults of the stack; #GP, #NP, #SS and page faults of the return target.
pub fn far_return(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let (size, released) = match instruction.code() {
        Code::Retfw => (2, 0),
        Code::Retfw_imm16 => (2, i64::from(instruction.immediate16())),
        Code::Retfd => (4, 0),
        Code::Retfd_imm16 => (4, i64::from(instruction.immediate16())),
        Code::Retfq if state.is_64_bit() => (8, 0),
        Code::Retfq_imm16 if state.is_64_bit() => (8, i64::from(instruction.immediate16())),
        _ => return Err(Exception::invalid_opcode()),
    };
    let mut stack = Stack::current(state);
    let [offset, selector] = stack.pop_all(state, environment, size)?;
    let selector = Selector(selector as u16);
    stack.advance(released);
    if state.has_real_mode_segments() {
        check_real_mode_offset(state, offset)?;
        stack.commit(state);
        enter_real_mode_code(state, selector, offset);
        return Ok(Outcome::Jumped);
    }
    let segment = return_code_segment(state, environment, selector)?;
    let cpl = selector.rpl();
    if cpl == state.cpl() {
        check_code_offset(state, &segment, offset, 0)?;
        stack.commit(state);
        enter_protected_code(state, segment, offset, cpl);
        return Ok(Outcome::Jumped);
    }
    let [pointer, ss] = stack.pop_all(state, environment, size)?;
    let ss = Selector(ss as u16);
    let mut outer = outer_stack(state, environment, ss, pointer, cpl, &segment)?;
    check_code_offset(state, &segment, offset, 0)?;
    outer.advance(released);
    outer.commit(state);
    enter_protected_code(state, segment, offset, cpl);
    drop_inner_data_segments(state, cpl);
    Ok(Outcome::Jumped)
}

#[cfg(test)]
mod long_tests;
#[cfg(test)]
mod tests;
