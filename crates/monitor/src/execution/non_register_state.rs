//! What the processor remembers from one instruction to the next, in addition to its registers.
//!
//! [`tollgate_x86::CpuState`] holds the state that the guest can read and write. The non-register
//! state, as the manuals call it (SDM volume 3, 25.4.2), is the rest of what decides how the guest
//! continues: a saved machine without it would lose an NMI or a breakpoint, or would see EFLAGS.RF
//! set where a processor has cleared it. All other state in a vCPU belongs to the instruction that
//! is being executed, or is derived and can be computed again.

use serde::{Deserialize, Serialize};

/// The non-register state of one vCPU: plain data, all zero after a reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NonRegisterState {
    /// Whether an NMI arrived while NMIs were blocked or during a shadow of MOV SS. One NMI is
    /// kept, further ones are lost (SDM volume 3, 6.7.1).
    pub nmi_pending: bool,
    /// The EIP of the only instruction to which a set EFLAGS.RF applies. At any other EIP a set RF
    /// is left over from an instruction that has completed, and reads as clear.
    pub resume_flag_rip: u64,
    /// Whether EFLAGS.RF is set for the instruction at CS:EIP, which may have completed already.
    /// The instruction is run alone if an event waits.
    pub resume_flag_unsettled: bool,
    /// Data breakpoints that were hit and not yet reported, as bits 0 to 3 of DR6. MOV SS and POP
    /// SS carry them over to the next instruction (SDM volume 3, 6.8.3).
    pub breakpoint_hits: u64,
    /// Whether the machine asserts IGNNE#: then a pending x87 error is ignored if CR0.NE is clear.
    pub ignores_x87_error: bool,
}
