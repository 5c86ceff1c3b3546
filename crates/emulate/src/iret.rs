//! IRET and IRETD (SDM volume 2, IRET; volume 3, 21.3).

use crate::Outcome;
use crate::operand::next_rip;
use crate::privilege_change::{
    check_code_offset, drop_inner_data_segments, enter_code, outer_stack, return_code_segment,
};
use crate::stack_access::Stack;
use crate::task_switch::{Cause, find_linked_task, switch_task};
use crate::virtual_8086::{InterruptFlag, flags_after_virtual_pop, interrupt_flag_of_image};
use iced_x86::{Code, Instruction};
use tollgate_platform::Environment;
use tollgate_x86::{CpuState, Exception, Flags, Gpr, Segment, SegmentRegister, Selector};

/// Flags that every IRET takes from the stack.
const ALWAYS: Flags = Flags::ARITHMETIC
    .union(Flags::TF)
    .union(Flags::DF)
    .union(Flags::NT);
/// Flags in the upper half that a 32-bit IRET takes at any privilege level.
const WIDE: Flags = Flags::RF.union(Flags::AC).union(Flags::ID);
/// Virtual interrupt flags: only from CPL 0, never in real or V86 mode.
const VIRTUAL: Flags = Flags::VIF.union(Flags::VIP);

/// The flags after an IRET in protected mode that does not enter V86 mode.
/// `cpl` is the privilege level before it.
fn returned_flags(state: &CpuState, popped: u64, size: u32, cpl: u8) -> Flags {
    let mut changed = ALWAYS;
    if cpl <= state.flags().iopl() {
        changed |= Flags::IF;
    }
    if cpl == 0 {
        changed |= Flags::IOPL;
    }
    if size >= 4 {
        changed |= WIDE;
        if cpl == 0 {
            changed |= VIRTUAL;
        }
    }
    merge(state, popped, changed)
}

fn merge(state: &CpuState, popped: u64, changed: Flags) -> Flags {
    let popped = Flags::from_bits_truncate(popped);
    (state.flags() & !changed) | (popped & changed)
}

/// IRET, IRETD and IRETQ in every mode. IA-32e mode has neither nested tasks nor returns to V86
/// mode, and 64-bit code always pops SS and RSP.
///
/// # Errors
///
/// The faults of the stack; #GP, #NP, #SS and page faults of the return target; with NT the faults
/// of a task switch, or #GP(0) in IA-32e mode; #GP(0) in V86 mode with IOPL below 3, except for a
/// 16-bit IRET with VME, unless that would set TF, or VIF while VIP is set.
pub fn interrupt_return(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let size = match instruction.code() {
        Code::Iretw => 2,
        Code::Iretd => 4,
        Code::Iretq if state.is_64_bit() => 8,
        _ => return Err(Exception::invalid_opcode()),
    };
    if state.has_real_mode_segments() {
        return real_mode_return(state, environment, size);
    }
    let is_long = state.is_long_mode();
    if state.flags().contains(Flags::NT) {
        if is_long {
            return Err(Exception::general_protection(0));
        }
        let task = find_linked_task(state, environment)?;
        let (rip, flags) = (next_rip(state, instruction), state.flags().image());
        switch_task(state, environment, task, Cause::Return, rip, flags)?;
        return Ok(Outcome::Jumped);
    }
    let mut stack = Stack::current(state);
    let [offset, selector, flags] = stack.pop_all(state, environment, size)?;
    let cpl = state.cpl();
    let popped = Flags::from_bits_truncate(flags);
    if size == 4 && cpl == 0 && !is_long && popped.contains(Flags::VM) {
        return virtual_8086_return(state, environment, stack, offset, selector, popped);
    }

    let selector = Selector(selector as u16);
    let segment = return_code_segment(state, environment, selector)?;
    let new_cpl = selector.rpl();
    let new_flags = returned_flags(state, flags, size, cpl);
    if new_cpl != cpl || state.is_64_bit() {
        let [pointer, outer] = stack.pop_all(state, environment, size)?;
        let outer = Selector(outer as u16);
        stack = outer_stack(state, environment, outer, pointer, new_cpl, &segment)?;
    }
    check_code_offset(state, &segment, offset, 0)?;
    stack.commit(state);
    enter_code(state, segment, offset, new_cpl);
    state.set_flags(new_flags);
    if new_cpl != cpl {
        drop_inner_data_segments(state, new_cpl);
    }
    Ok(Outcome::Jumped)
}

/// IRET in real mode, and in V86 mode with IOPL 3 or VME.
fn real_mode_return(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    size: u32,
) -> Result<Outcome, Exception> {
    let is_virtual = state.is_virtual_8086();
    let flag = interrupt_flag_of_image(state, size)?;
    let mut stack = Stack::current(state);
    let [offset, selector, flags] = stack.pop_all(state, environment, size)?;
    let limit = if is_virtual {
        0xffff
    } else {
        state.cs().limit.max(0xffff)
    };
    if offset > u64::from(limit) {
        return Err(Exception::general_protection(0));
    }
    let new_flags = match flag {
        InterruptFlag::Virtual => flags_after_virtual_pop(state, flags)?,
        InterruptFlag::Real => {
            let mut changed = ALWAYS | Flags::IF;
            if !is_virtual {
                changed |= Flags::IOPL;
            }
            if size == 4 {
                changed |= WIDE;
            }
            merge(state, flags, changed)
        }
    };
    stack.commit(state);
    state.load_real_mode_segment(SegmentRegister::Cs, selector as u16);
    state.rip = offset;
    state.set_flags(new_flags);
    Ok(Outcome::Jumped)
}

/// IRETD at CPL 0 with VM set in the popped flags: pops the rest of the nine-word frame.
fn virtual_8086_return(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    mut stack: Stack,
    offset: u64,
    selector: u64,
    flags: Flags,
) -> Result<Outcome, Exception> {
    let [pointer, ss, es, ds, fs, gs] = stack.pop_all(state, environment, 4)?;
    // The limit of the new CS is always 64 KiB.
    if offset > 0xffff {
        return Err(Exception::general_protection(0));
    }
    for (register, value) in [
        (SegmentRegister::Cs, selector),
        (SegmentRegister::Ss, ss),
        (SegmentRegister::Es, es),
        (SegmentRegister::Ds, ds),
        (SegmentRegister::Fs, fs),
        (SegmentRegister::Gs, gs),
    ] {
        *state.segment_mut(register) = Segment::real_mode(value as u16, 3);
    }
    state.gpr[Gpr::Rsp as usize] = pointer;
    state.rip = offset;
    state.set_flags(flags);
    Ok(Outcome::Jumped)
}

#[cfg(test)]
mod long_tests;
#[cfg(test)]
mod tests;
