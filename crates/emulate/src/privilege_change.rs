//! What call gates, interrupts and returns share when the privilege level changes:
//! inner stacks from the TSS, checks of return targets, and data segments that the
//! outer level may not keep (SDM volume 3, 5.8).

use crate::descriptor_table::{accessed_segment, read_descriptor, stack_segment, with_rpl};
use crate::operand::{is_inside, linear_mask, read_linear};
use crate::stack_access::Stack;
use tollgate_platform::Environment;
use tollgate_x86::descriptor::system_type;
use tollgate_x86::paging::Privilege;
use tollgate_x86::{CpuState, Exception, Gpr, LinearAddress, Segment, SegmentRegister, Selector};

/// SS and ESP for privilege level `level` (0 to 2) as the current TSS holds them.
///
/// # Errors
/// #TS(TR's selector) if they lie outside the TSS or TR holds none; page fault.
fn stack_of_tss(
    state: &CpuState,
    environment: &mut dyn Environment,
    level: u8,
    external: u32,
) -> Result<(Selector, u64), Exception> {
    let refused = Exception::invalid_tss(state.tr.selector.error_code() | external);
    let level = u32::from(level.min(2));
    let (offset, width) = match state.tr.attributes.kind() {
        system_type::TSS32_AVAILABLE | system_type::TSS32_BUSY => (level * 8 + 4, 4),
        system_type::TSS16_AVAILABLE | system_type::TSS16_BUSY => (level * 4 + 2, 2),
        _ => return Err(refused),
    };
    if !state.tr.is_usable() || offset + width as u32 + 1 > state.tr.limit {
        return Err(refused);
    }
    let address = state.tr.base.wrapping_add(u64::from(offset)) & linear_mask(state);
    let mut bytes = [0; 6];
    let bytes = &mut bytes[..width + 2];
    let supervisor = Privilege::Supervisor;
    read_linear(
        state,
        environment,
        LinearAddress(address),
        bytes,
        supervisor,
    )?;
    let (pointer, selector) = bytes.split_at(width);
    let mut wide = [0; 8];
    wide[..width].copy_from_slice(pointer);
    let selector = Selector(u16::from_le_bytes([selector[0], selector[1]]));
    Ok((selector, u64::from_le_bytes(wide)))
}

/// The stack for privilege level `level` from the current TSS, checked.
/// `external` (0 or 1) is the EXT bit of error codes.
///
/// # Errors
/// #TS for a bad TSS or stack selector, #SS(selector) if not present, page fault.
pub fn inner_stack(
    state: &CpuState,
    environment: &mut dyn Environment,
    level: u8,
    external: u32,
) -> Result<Stack, Exception> {
    let (selector, pointer) = stack_of_tss(state, environment, level, external)?;
    let refused = Exception::invalid_tss;
    let segment = stack_segment(state, environment, selector, level, refused, external)?;
    Ok(Stack {
        segment,
        pointer,
        privilege: Privilege::of_cpl(level),
        error_code: selector.error_code() | external,
    })
}

/// The code segment that RETF or IRET returns to, checked; its RPL is the new CPL.
///
/// # Errors
/// #GP(selector): null, outside the table, not code, more privileged than now, or of the
/// wrong DPL; #NP(selector); #GP(0) if `offset` is outside it; page fault.
pub fn return_code_segment(
    state: &CpuState,
    environment: &mut dyn Environment,
    selector: Selector,
) -> Result<Segment, Exception> {
    let refused = Exception::general_protection(selector.error_code());
    let entry = read_descriptor(state, environment, selector)?.ok_or(refused)?;
    let attributes = entry.attributes();
    let privilege_fits = if attributes.is_conforming() {
        attributes.dpl() <= selector.rpl()
    } else {
        attributes.dpl() == selector.rpl()
    };
    if !attributes.is_code() || selector.rpl() < state.cpl() || !privilege_fits {
        return Err(refused);
    }
    if !entry.is_present() {
        return Err(Exception::segment_not_present(selector.error_code()));
    }
    accessed_segment(state, environment, entry)
}

/// The stack that a return to outer level `level` switches to. On a 16-bit stack only
/// SP is replaced; the upper half of ESP stays.
///
/// # Errors
/// #GP(selector) or #SS(selector), page fault.
pub fn outer_stack(
    state: &CpuState,
    environment: &mut dyn Environment,
    selector: Selector,
    pointer: u32,
    level: u8,
) -> Result<Stack, Exception> {
    let refused = Exception::general_protection;
    let segment = stack_segment(state, environment, selector, level, refused, 0)?;
    let mut stack = Stack {
        segment,
        pointer: 0,
        privilege: Privilege::of_cpl(level),
        error_code: 0,
    };
    let mask = stack.mask();
    stack.pointer = (state.register(Gpr::Rsp) & !mask) | (u64::from(pointer) & mask);
    Ok(stack)
}

/// #GP(`error_code`) unless `offset` lies inside the code segment.
///
/// # Errors
/// #GP.
pub fn check_code_offset(segment: &Segment, offset: u64, error_code: u32) -> Result<(), Exception> {
    if is_inside(segment, offset, 1) {
        Ok(())
    } else {
        Err(Exception::general_protection(error_code))
    }
}

/// Jumps: CS with the CPL as its RPL, and RIP. For protected mode.
pub fn enter_code(state: &mut CpuState, segment: Segment, offset: u64, cpl: u8) {
    *state.segment_mut(SegmentRegister::Cs) = with_rpl(segment, cpl);
    state.rip = offset;
}

/// After a return to an outer level: DS, ES, FS and GS that the new CPL may not use
/// become null (SDM volume 3, 5.8.6).
pub fn drop_inner_data_segments(state: &mut CpuState, cpl: u8) {
    for register in [
        SegmentRegister::Es,
        SegmentRegister::Ds,
        SegmentRegister::Fs,
        SegmentRegister::Gs,
    ] {
        let attributes = state.segment(register).attributes;
        if !attributes.is_conforming() && attributes.dpl() < cpl {
            *state.segment_mut(register) = Segment::null(Selector(0));
        }
    }
}
