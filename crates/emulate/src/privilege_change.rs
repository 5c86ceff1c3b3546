//! The common parts of call gates, interrupts and returns that change the privilege level: inner
//! stacks from the TSS, checks of return targets, and data segments that the outer level must not
//! keep (SDM volume 3, 5.8).

use crate::descriptor_table::{
    accessed_segment, has_valid_code_size, is_64_bit_code, read_descriptor, stack_segment, with_rpl,
};
use crate::operand::{is_inside, read_system, system_mask};
use crate::stack_access::Stack;
use tollgate_platform::Environment;
use tollgate_x86::canonical::is_canonical;
use tollgate_x86::descriptor::system_type;
use tollgate_x86::paging::Privilege;
use tollgate_x86::{CpuState, Exception, Gpr, Segment, SegmentRegister, Selector};

/// Where in the TSS the pointer of a stack is, and what was read there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PointerSlot {
    /// The linear address.
    pub place: u64,
    /// The size of the pointer in bytes: 2, 4 or 8.
    pub size: u8,
    /// The stack pointer that was read there.
    pub pointer: u64,
}

impl PointerSlot {
    /// The stack pointer in the eight bytes of memory that begin at the slot.
    #[inline]
    pub const fn pointer_in(&self, bytes: u64) -> u64 {
        bytes & u64::MAX >> (64 - 8 * self.size)
    }
}

/// A stack that is named by the current TSS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InnerStack {
    /// The stack, with its segment and pointer.
    pub stack: Stack,
    /// The origin of its pointer.
    pub slot: PointerSlot,
}

/// SS and ESP in the current TSS for privilege level `level` (0 to 2).
///
/// # Errors
///
/// #TS(TR's selector) if they lie outside the TSS or TR has none; a page fault.
fn stack_of_tss(
    state: &CpuState,
    environment: &mut dyn Environment,
    level: u8,
    external: u32,
) -> Result<(Selector, PointerSlot), Exception> {
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
    let mut bytes = [0; 6];
    let bytes = &mut bytes[..width + 2];
    read_system(state, environment, state.tr.base, u64::from(offset), bytes)?;
    let (pointer, selector) = bytes.split_at(width);
    let mut wide = [0; 8];
    wide[..width].copy_from_slice(pointer);
    let selector = Selector(u16::from_le_bytes([selector[0], selector[1]]));
    let slot = PointerSlot {
        place: state.tr.base.wrapping_add(u64::from(offset)) & system_mask(state),
        size: width as u8,
        pointer: u64::from_le_bytes(wide),
    };
    Ok((selector, slot))
}

/// The checked stack for privilege level `level` from the current TSS. `external` (0 or 1) is the
/// EXT bit of error codes.
///
/// # Errors
///
/// #TS for an invalid TSS or stack selector, #SS(selector) if not present, a page fault.
pub fn inner_stack(
    state: &CpuState,
    environment: &mut dyn Environment,
    level: u8,
    external: u32,
) -> Result<InnerStack, Exception> {
    let (selector, slot) = stack_of_tss(state, environment, level, external)?;
    let refused = Exception::invalid_tss;
    let segment = stack_segment(state, environment, selector, level, refused, external)?;
    let stack = Stack {
        segment,
        pointer: slot.pointer,
        is_64_bit: false,
        privilege: Privilege::of_cpl(level),
        error_code: selector.error_code() | external,
    };
    Ok(InnerStack { stack, slot })
}

/// A stack pointer in the 64-bit TSS (SDM volume 3, 8.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StackSlot {
    /// RSP0 to RSP2, by privilege level.
    Level(u8),
    /// IST1 to IST7, by number.
    InterruptStack(u8),
}

/// The stack that IA-32e mode takes from the current TSS for privilege level `level`; SS is null.
/// `external` (0 or 1) is the EXT bit of error codes.
///
/// # Errors
///
/// #TS(TR's selector) if it lies outside the TSS or TR has none; #SS(0) for a non-canonical stack
/// pointer; a
/// page fault.
pub fn long_inner_stack(
    state: &CpuState,
    environment: &mut dyn Environment,
    slot: StackSlot,
    level: u8,
    external: u32,
) -> Result<InnerStack, Exception> {
    let offset = match slot {
        StackSlot::Level(level) => 4 + u32::from(level.min(2)) * 8,
        StackSlot::InterruptStack(number) => 0x24 + u32::from(number.clamp(1, 7) - 1) * 8,
    };
    if !state.tr.is_usable() || offset + 7 > state.tr.limit {
        let selector = state.tr.selector.error_code();
        return Err(Exception::invalid_tss(selector | external));
    }
    let mut bytes = [0; 8];
    let base = state.tr.base;
    read_system(state, environment, base, u64::from(offset), &mut bytes)?;
    let pointer = u64::from_le_bytes(bytes);
    if !is_canonical(pointer) {
        return Err(Exception::stack_fault(external));
    }
    let stack = Stack {
        segment: Segment::null_stack(Selector(u16::from(level)), level),
        pointer,
        is_64_bit: true,
        privilege: Privilege::of_cpl(level),
        error_code: external,
    };
    let slot = PointerSlot {
        place: base.wrapping_add(u64::from(offset)),
        size: 8,
        pointer,
    };
    Ok(InnerStack { stack, slot })
}

/// The checked code segment that RETF or IRET returns to; its RPL is the new CPL.
///
/// # Errors
///
/// #GP(selector) if it is null, outside the table, not code, more privileged than the present one,
/// of the
/// wrong DPL, or has both L and D set in IA-32e mode; #NP(selector); a page fault.
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
    if !attributes.is_code()
        || selector.rpl() < state.cpl()
        || !privilege_fits
        || !has_valid_code_size(state, attributes)
    {
        return Err(refused);
    }
    if !entry.is_present() {
        return Err(Exception::segment_not_present(selector.error_code()));
    }
    accessed_segment(state, environment, entry)
}

/// The stack that a return to privilege level `level` and to the code segment `code` switches to.
/// On a 16-bit stack only SP is replaced; the upper half of ESP does not change. 64-bit code below
/// level 3 may have a null SS.
///
/// # Errors
///
/// #GP(selector) or #SS(selector), a page fault.
pub fn outer_stack(
    state: &CpuState,
    environment: &mut dyn Environment,
    selector: Selector,
    pointer: u64,
    level: u8,
    code: &Segment,
) -> Result<Stack, Exception> {
    let is_64_bit = is_64_bit_code(state, code);
    let segment = if is_64_bit && level != 3 && selector.is_null() {
        Segment::null_stack(selector, level)
    } else {
        let refused = Exception::general_protection;
        stack_segment(state, environment, selector, level, refused, 0)?
    };
    let mut stack = Stack {
        segment,
        pointer: 0,
        is_64_bit,
        privilege: Privilege::of_cpl(level),
        error_code: 0,
    };
    let mask = stack.mask();
    stack.pointer = pointer & mask;
    if mask == 0xffff {
        stack.pointer |= state.register(Gpr::Rsp) & !mask;
    }
    Ok(stack)
}

/// Checks that `offset` lies inside the code segment or, for 64-bit code, is canonical.
///
/// # Errors
///
/// #GP(`error_code`) if it is not.
pub fn check_code_offset(
    state: &CpuState,
    segment: &Segment,
    offset: u64,
    error_code: u32,
) -> Result<(), Exception> {
    let allowed = if is_64_bit_code(state, segment) {
        is_canonical(offset)
    } else {
        is_inside(segment, offset, 1)
    };
    if allowed {
        Ok(())
    } else {
        Err(Exception::general_protection(error_code))
    }
}

/// CS after a transfer in protected mode to a code segment at level `cpl`, which becomes the
/// selector's RPL. 64-bit code ignores base and limit of CS, which are stored as zero base and no
/// limit.
pub fn entered_code(state: &CpuState, segment: &Segment, cpl: u8) -> Segment {
    let mut code = with_rpl(*segment, cpl);
    if is_64_bit_code(state, segment) {
        code.base = 0;
        code.limit = u32::MAX;
    }
    code
}

/// Jumps in protected mode: sets CS, as [`entered_code`] returns it, and RIP.
pub fn enter_code(state: &mut CpuState, segment: Segment, offset: u64, cpl: u8) {
    *state.segment_mut(SegmentRegister::Cs) = entered_code(state, &segment, cpl);
    state.rip = offset;
}

/// After a return to an outer level, makes DS, ES, FS and GS null if the new CPL must not use them
/// (SDM volume 3, 5.8.6). For FS and GS in IA-32e mode, only the selector becomes invalid (volume
/// 2, IRET and RET, "SegmentSelector := 0"): the base, which an MSR may have set, stays valid for
/// 64-bit code.
pub fn drop_inner_data_segments(state: &mut CpuState, cpl: u8) {
    for register in [
        SegmentRegister::Es,
        SegmentRegister::Ds,
        SegmentRegister::Fs,
        SegmentRegister::Gs,
    ] {
        let segment = state.segment(register);
        let attributes = segment.attributes;
        if attributes.is_conforming() || segment.is_usable() && attributes.dpl() >= cpl {
            continue;
        }
        let keeps_base =
            state.is_long_mode() && matches!(register, SegmentRegister::Fs | SegmentRegister::Gs);
        let base = if keeps_base { segment.base } else { 0 };
        *state.segment_mut(register) = Segment {
            base,
            ..Segment::null(Selector(0))
        };
    }
}
