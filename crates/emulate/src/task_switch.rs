//! Hardware task switches: far JMP and CALL to a TSS or task gate, events through a task gate, and
//! IRET from a nested task (SDM volume 3, chapter 8, "Task Management"). IA-32e mode has none.
//!
//! Everything that can fault in the old task is checked before anything is written. Once the new
//! task is the current one, faults belong to it: those of its LDT and segments, its stack, its EIP,
//! and the debug trap of its TSS. They are returned as exceptions like all others, but `state` is
//! then that of the new task, before its first instruction.

use crate::control::set_cr3;
use crate::descriptor_table::{TableEntry, accessed_segment, read_descriptor, stack_segment};
use crate::memory_access::{probe_system, read_system, write_system};
use crate::privilege_change::check_code_offset;
use crate::stack_access::Stack;
use tollgate_platform::Environment;
use tollgate_x86::breakpoints::DR6_TASK_SWITCH;
use tollgate_x86::descriptor::system_type;
use tollgate_x86::{
    Attributes, CpuState, Cr0, Exception, Flags, Segment, SegmentRegister, Selector, Vector,
};

mod image;

use image::TaskImage;

/// The bits of DR7 that enable breakpoints and exactness only for one task.
const DR7_LOCAL: u64 = 0x155;
/// The busy bit in the access byte of a TSS descriptor.
const BUSY: u8 = 2;
/// Offset of the access byte in a descriptor.
const ACCESS_BYTE: u64 = 5;

/// The cause of a task switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Far JMP: the old task is no longer busy.
    Jump,
    /// Far CALL: the new task is nested in the old one.
    Call,
    /// IRET with NT: the old task is neither busy nor nested any more.
    Return,
    /// An interrupt or exception: the new task is nested in the old one.
    Event {
        /// The error code for the new task's stack, for exceptions that have one.
        error_code: Option<u32>,
        /// The EXT bit of error codes, 0 or 1.
        external: u32,
    },
}

impl Cause {
    const fn external(self) -> u32 {
        match self {
            Cause::Event { external, .. } => external,
            _ => 0,
        }
    }

    /// Whether the new task has a link to the old one, which stays busy.
    const fn nests(self) -> bool {
        matches!(self, Cause::Call | Cause::Event { .. })
    }

    /// The fault for a selector that does not name a TSS that may be entered.
    fn refused(self, selector: Selector) -> Exception {
        let error_code = selector.error_code() | self.external();
        match self {
            Cause::Return => Exception::invalid_tss(error_code),
            _ => Exception::general_protection(error_code),
        }
    }
}

/// The TSS descriptor that a selector names, if its task may be entered now: it must be available,
/// or busy for a return.
///
/// # Errors
///
/// #GP(selector), for a return #TS(selector), if the selector is null, local, outside the GDT, does
/// not name
/// a TSS, or names one that is busy where it should not be; #NP(selector); a page fault of the GDT.
pub fn find_task(
    state: &CpuState,
    environment: &mut dyn Environment,
    selector: Selector,
    cause: Cause,
) -> Result<TableEntry, Exception> {
    let refused = cause.refused(selector);
    if selector.is_local() {
        return Err(refused);
    }
    let entry = read_descriptor(state, environment, selector)?.ok_or(refused)?;
    let fits = match entry.system_type() {
        Some(system_type::TSS16_AVAILABLE | system_type::TSS32_AVAILABLE) => cause != Cause::Return,
        Some(system_type::TSS16_BUSY | system_type::TSS32_BUSY) => cause == Cause::Return,
        _ => false,
    };
    if !fits {
        return Err(refused);
    }
    if !entry.is_present() {
        let error_code = selector.error_code() | cause.external();
        return Err(Exception::segment_not_present(error_code));
    }
    Ok(entry)
}

/// The task that the current one is nested in, from the link in its TSS.
///
/// # Errors
///
/// Those of [`find_task`]; a page fault of the TSS.
pub fn find_linked_task(
    state: &CpuState,
    environment: &mut dyn Environment,
) -> Result<TableEntry, Exception> {
    let mut link = [0; 2];
    read_system(state, environment, state.tr.base, 0, &mut link)?;
    let selector = Selector(u16::from_le_bytes(link));
    find_task(state, environment, selector, Cause::Return)
}

/// Sets or clears the busy bit of the TSS descriptor at a linear address.
fn set_busy(
    state: &CpuState,
    environment: &mut dyn Environment,
    descriptor: u64,
    busy: bool,
) -> Result<(), Exception> {
    let mut access = [0];
    read_system(state, environment, descriptor, ACCESS_BYTE, &mut access)?;
    if busy {
        access[0] |= BUSY;
    } else {
        access[0] &= !BUSY;
    }
    write_system(state, environment, descriptor, ACCESS_BYTE, &access)
}

/// Switches to the task that `entry`, found by [`find_task`], describes. The old task will later
/// continue at `return_rip` with `flags_image`.
///
/// # Errors
///
/// With nothing changed: #TS for a TSS that is too short, page faults. With `state` that of the new
/// task: #TS, #NP, #SS and #GP for the contents of its TSS, page faults, #DB.
pub fn switch_task(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    entry: TableEntry,
    cause: Cause,
    return_rip: u64,
    flags_image: u64,
) -> Result<(), Exception> {
    let new = entry.descriptor.segment(entry.selector);
    let invalid = |task: &Segment| {
        Err(Exception::invalid_tss(
            task.selector.error_code() | cause.external(),
        ))
    };
    if new.limit < image::last_byte(&new) {
        return invalid(&new);
    }
    let old = state.tr;
    if !old.is_usable() || old.limit < image::last_byte(&old) {
        return invalid(&old);
    }
    let old_entry = state
        .gdtr
        .base
        .wrapping_add(u64::from(old.selector.table_offset()));
    probe_system(state, environment, old_entry, ACCESS_BYTE, 1)?;
    probe_system(state, environment, entry.address.0, ACCESS_BYTE, 1)?;
    TaskImage::probe_store(state, environment, &old)?;
    TaskImage::read(state, environment, &new)?;
    if cause.nests() {
        probe_system(state, environment, new.base, 0, 2)?;
    }

    let saved_flags = match cause {
        Cause::Return => flags_image & !Flags::NT.bits(),
        _ => flags_image,
    };
    TaskImage::of(state, return_rip, saved_flags).store(state, environment, &old)?;
    if cause.nests() {
        let link = old.selector.0.to_le_bytes();
        write_system(state, environment, new.base, 0, &link)?;
    } else {
        set_busy(state, environment, old_entry, false)?;
    }
    set_busy(state, environment, entry.address.0, true)?;
    let image = TaskImage::read(state, environment, &new)?;
    state.tr = new;
    state.tr.attributes |= Attributes::from_bits_retain(u16::from(BUSY));
    state.cr0 |= Cr0::TS.bits();
    state.dr[7] &= !DR7_LOCAL;
    enter(state, environment, &image, cause)
}

/// Loads the contents of the new task's TSS. TR already has its descriptor.
fn enter(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    image: &TaskImage,
    cause: Cause,
) -> Result<(), Exception> {
    let loaded = if image.cr3.is_some() {
        u64::MAX
    } else {
        0xffff
    };
    for (register, value) in state.gpr.iter_mut().zip(image.gpr) {
        *register = *register & !loaded | u64::from(value) & loaded;
    }
    state.rip = u64::from(image.eip);
    let mut flags = Flags::from_bits_truncate(u64::from(image.eflags));
    if cause.nests() {
        flags |= Flags::NT;
    }
    state.set_flags(flags);
    let is_virtual = state.is_virtual_8086();
    for (register, selector) in SegmentRegister::ALL.into_iter().zip(image.segments) {
        *state.segment_mut(register) = match register {
            _ if is_virtual => Segment::real_mode(selector, 3),
            // Until the stack is loaded, the level is 3, so that handlers switch to another stack.
            SegmentRegister::Ss => Segment::null_stack(Selector(selector), 3),
            _ => Segment::null(Selector(selector)),
        };
    }
    state.ldtr = Segment::null(Selector(image.ldt));
    if let Some(cr3) = image.cr3.filter(|_| state.is_paging()) {
        set_cr3(state, environment, u64::from(cr3))?;
    }
    let external = cause.external();
    load_local_table(state, environment, external)?;
    if !is_virtual {
        load_segments(state, environment, external)?;
    }
    if let Cause::Event {
        error_code: Some(error_code),
        ..
    } = cause
    {
        let size = if image.cr3.is_some() { 4 } else { 2 };
        let mut stack = Stack::current(state);
        stack.error_code = external;
        stack.push(state, environment, size, error_code)?;
        stack.commit(state);
    }
    check_code_offset(state, state.cs(), state.rip, external)?;
    if image.traps {
        state.report_debug_conditions(DR6_TASK_SWITCH);
        return Err(Exception::new(Vector::Debug));
    }
    Ok(())
}

/// Loads LDTR, which already has its selector.
fn load_local_table(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    external: u32,
) -> Result<(), Exception> {
    let selector = state.ldtr.selector;
    if selector.is_null() {
        return Ok(());
    }
    let refused = Exception::invalid_tss(selector.error_code() | external);
    if selector.is_local() {
        return Err(refused);
    }
    let entry = read_descriptor(state, environment, selector)?.ok_or(refused)?;
    if entry.system_type() != Some(system_type::LDT) || !entry.is_present() {
        return Err(refused);
    }
    state.ldtr = entry.descriptor.segment(selector);
    Ok(())
}

/// Loads CS, SS and the data segments, which already have their selectors. The RPL of CS is the new
/// CPL.
fn load_segments(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    external: u32,
) -> Result<(), Exception> {
    let selector = state.cs().selector;
    let level = selector.rpl();
    let error_code = selector.error_code() | external;
    let refused = Exception::invalid_tss(error_code);
    let entry = read_descriptor(state, environment, selector)?.ok_or(refused)?;
    let code = entry.attributes();
    let level_fits = if code.is_conforming() {
        code.dpl() <= level
    } else {
        code.dpl() == level
    };
    if !code.is_code() || !level_fits {
        return Err(refused);
    }
    if !entry.is_present() {
        return Err(Exception::segment_not_present(error_code));
    }
    *state.segment_mut(SegmentRegister::Cs) = accessed_segment(state, environment, entry)?;

    let selector = state.ss().selector;
    let refused = Exception::invalid_tss;
    let stack = stack_segment(state, environment, selector, level, refused, external)?;
    *state.segment_mut(SegmentRegister::Ss) = stack;
    for register in [
        SegmentRegister::Ds,
        SegmentRegister::Es,
        SegmentRegister::Fs,
        SegmentRegister::Gs,
    ] {
        let selector = state.segment(register).selector;
        if !selector.is_null() {
            let segment = data_segment(state, environment, selector, external)?;
            *state.segment_mut(register) = segment;
        }
    }
    Ok(())
}

/// The content of DS, ES, FS or GS for a selector from a TSS.
fn data_segment(
    state: &CpuState,
    environment: &mut dyn Environment,
    selector: Selector,
    external: u32,
) -> Result<Segment, Exception> {
    let error_code = selector.error_code() | external;
    let refused = Exception::invalid_tss(error_code);
    let entry = read_descriptor(state, environment, selector)?.ok_or(refused)?;
    let attributes = entry.attributes();
    let too_privileged = attributes.dpl() < selector.rpl().max(state.cpl());
    if !attributes.is_readable() || too_privileged && !attributes.is_conforming() {
        return Err(refused);
    }
    if !entry.is_present() {
        return Err(Exception::segment_not_present(error_code));
    }
    accessed_segment(state, environment, entry)
}

#[cfg(test)]
mod tests;
