//! Two facts about an access: the linear address of the instruction at CS:EIP, and the view of the
//! software TLB that serves a privilege.

use tollgate_emulate::operand::linear_mask;
use tollgate_tlb::View;
use tollgate_x86::paging::Privilege;
use tollgate_x86::{CpuState, SegmentRegister};

/// The linear address of the instruction at CS:RIP.
pub fn code_address(state: &CpuState) -> u64 {
    let base = state.segment_base(SegmentRegister::Cs);
    base.wrapping_add(state.rip) & linear_mask(state)
}

/// The view of the software TLB that serves accesses of this privilege.
pub const fn view_of(privilege: Privilege) -> View {
    match privilege {
        Privilege::Supervisor | Privilege::System => View::Supervisor,
        Privilege::User => View::User,
    }
}
