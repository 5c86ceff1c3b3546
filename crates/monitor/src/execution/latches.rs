//! What the processor remembers from one instruction to the next, beside its registers.
//!
//! [`tollgate_x86::CpuState`] holds what the guest can read and write. The latches are the
//! rest of what decides how the guest goes on: a saved machine that lacks them loses an NMI
//! or a breakpoint, or sees EFLAGS.RF where a processor has cleared it. Everything else in a
//! vCPU belongs to the instruction in work or is derived, and is formed anew.

use serde::{Deserialize, Serialize};

/// The latches of one vCPU: plain data, zero after a reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Latches {
    /// An NMI arrived while NMIs were blocked or a shadow of MOV SS held. One is kept, further
    /// ones are lost (SDM volume 3, 6.7.1).
    pub nmi_pending: bool,
    /// The EIP of the only instruction for which EFLAGS.RF is still meant; at any other EIP
    /// a set RF is a leftover of an instruction that has completed and reads as clear.
    pub resume_flag_rip: u64,
    /// EFLAGS.RF is set for the instruction at CS:EIP, which may have completed already: it is
    /// run alone if an event waits.
    pub resume_flag_unsettled: bool,
    /// Data breakpoints that were met and not yet reported, as bits 0 to 3 of DR6. MOV SS and
    /// POP SS carry them over to the instruction behind (SDM volume 3, 6.8.3).
    pub breakpoint_hits: u64,
    /// The machine asserts IGNNE#: a pending x87 error with CR0.NE clear is ignored.
    pub ignores_x87_error: bool,
}
