//! The initial state of programs in flat segments.

use tollgate_x86::{Attributes, CpuState, Segment, SegmentRegister, Selector};

/// A processor in ring 0 of protected mode that will execute 32-bit code at `entry`; all segments
/// have 4 GiB, and registers are as after reset.
pub fn flat_state(entry: u64) -> CpuState {
    let mut state = CpuState::at_reset();
    state.cr0 |= 1;
    state.rip = entry;
    let data = Segment {
        base: 0,
        limit: u32::MAX,
        selector: Selector(0x18),
        attributes: Attributes::from_bits_retain(0xc093),
    };
    for register in SegmentRegister::ALL {
        *state.segment_mut(register) = data;
    }
    *state.segment_mut(SegmentRegister::Cs) = Segment {
        selector: Selector(0x10),
        attributes: Attributes::from_bits_retain(0xc09b),
        ..data
    };
    state
}
