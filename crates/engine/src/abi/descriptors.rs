//! The values that the descriptors of CS and SS must have so that loading the same selector again
//! changes nothing.
//!
//! Emitted code compares descriptors with these values before INT n and IRET (see `interrupt` in
//! [`crate::translate`]).

use tollgate_x86::descriptor::{TSS_IO_MAP_BASE, system_type};
use tollgate_x86::{CpuState, Segment, Watched};

/// The attributes in a descriptor: the only part of a 64-bit code segment's descriptor that
/// matters.
const RIGHTS: u64 = 0xf0ff << 40;

/// The offset in a 32-bit TSS of the word that contains the offset of the I/O permission bitmap.
pub(crate) const BITMAP_OFFSET: i32 = TSS_IO_MAP_BASE as i32;

/// The descriptor whose load gives this segment, if there is one.
fn descriptor(segment: &Segment) -> Option<u64> {
    const GRANULARITY: u64 = 1 << 15;
    let attributes = u64::from(segment.attributes.bits());
    let limit = if attributes & GRANULARITY == 0 {
        segment.limit
    } else if segment.limit & 0xfff == 0xfff {
        segment.limit >> 12
    } else {
        return None;
    };
    let base = u32::try_from(segment.base).ok()?;
    if limit > 0xf_ffff || !segment.is_usable() {
        return None;
    }
    let (limit, base) = (u64::from(limit), u64::from(base));
    let low = limit & 0xffff | (base & 0xff_ffff) << 16;
    let high = attributes & 0xf0ff | limit >> 16 << 8 | base >> 24 << 16;
    Some(low | high << 40)
}

/// The linear address of a segment's descriptor, if the descriptor is in the GDT.
fn place(state: &CpuState, segment: &Segment) -> Option<u64> {
    let selector = segment.selector;
    let offset = selector.table_offset();
    if selector.is_null() || selector.is_local() || offset | 7 > state.gdtr.limit {
        return None;
    }
    let place = state.gdtr.base.wrapping_add(u64::from(offset));
    Some(if state.is_long_mode() {
        place
    } else {
        place & 0xffff_ffff
    })
}

/// The descriptor whose load gives this segment, if the descriptor is in the GDT.
pub fn known_descriptor(state: &CpuState, segment: &Segment) -> Option<Watched> {
    Some(Watched::all(place(state, segment)?, descriptor(segment)?))
}

fn of_code(state: &CpuState) -> Option<Watched> {
    if state.is_64_bit() {
        let attributes = u64::from(state.cs().attributes.bits());
        let place = place(state, state.cs())?;
        return Some(Watched::of(place, RIGHTS, attributes << 40));
    }
    known_descriptor(state, state.cs())
}

fn of_stack(state: &CpuState) -> Option<Watched> {
    let stack = state.ss();
    if stack.selector.is_null() {
        // A null segment has no descriptor: any descriptor that can be read will do.
        let is_loaded = *stack == Segment::null_stack(stack.selector, state.cpl());
        return (state.is_64_bit() && is_loaded).then_some(Watched {
            place: place(state, state.cs())?,
            ..Watched::NONE
        });
    }
    known_descriptor(state, stack)
}

/// The limit of the TSS, if it is a 32-bit TSS that contains the offset of its bitmap; otherwise 0.
fn limit_of_task(state: &CpuState) -> u64 {
    let task = &state.tr;
    let kind = task.attributes.kind();
    let is_wide = matches!(kind, system_type::TSS32_AVAILABLE | system_type::TSS32_BUSY);
    if task.is_usable() && is_wide && task.limit > BITMAP_OFFSET as u32 {
        u64::from(task.limit)
    } else {
        0
    }
}

/// What is known of the descriptors that a processor's segments were loaded from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct KnownDescriptors {
    /// The value that a descriptor must have for a load of CS to change nothing.
    pub code: Watched,
    /// The value that a descriptor must have for a load of SS to change nothing.
    pub stack: Watched,
    /// The limit of the current TSS, if it is a 32-bit TSS and may contain a bitmap for I/O and one
    /// for INT n; otherwise 0.
    pub task_limit: u64,
}

impl KnownDescriptors {
    /// What is known of the descriptors of a processor in this state.
    pub fn of(state: &CpuState) -> Self {
        Self {
            code: of_code(state).unwrap_or(Watched::NEVER),
            stack: of_stack(state).unwrap_or(Watched::NEVER),
            task_limit: limit_of_task(state),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_x86::{Descriptor, Selector};

    #[test]
    fn a_segment_comes_from_the_descriptor_that_is_expected() {
        for raw in [
            0x00cf_9b00_0000_ffff,
            0x1240_9334_5678_9abc_u64,
            0x0f_9300_0000_ffff,
        ] {
            let segment = Descriptor(raw).segment(Selector(8));
            assert_eq!(descriptor(&segment), Some(raw), "{raw:#x}");
        }
    }

    #[test]
    fn no_descriptor_gives_what_only_a_reset_does() {
        let state = CpuState::at_reset();
        let above = Segment {
            base: 1 << 32,
            ..*state.cs()
        };
        assert_eq!(descriptor(&above), None);
        let odd = Segment {
            limit: 0x12_3456,
            ..*state.cs()
        };
        assert_eq!(descriptor(&odd), None);
    }
}
