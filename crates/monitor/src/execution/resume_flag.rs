//! EFLAGS.RF, which IRET and task switches set for one instruction, and which is set between the
//! iterations of a repeated string instruction (SDM volume 3, 18.3.1.1).
//!
//! Translated code does not maintain RF; the monitor supplies its value where the guest can see it,
//! in the frame of an event. `NonRegisterState::resume_flag_rip` is the address of the instruction
//! for which RF was set. When guest code is left at that instruction, the instruction may not have
//! begun yet, or a loop may have come back to it; emitted code does not distinguish the two cases.
//! RF then stays set, but no event is delivered before the instruction has completed: if an event
//! waits, the instruction is run alone. With breakpoints enabled, every instruction is run alone
//! anyway, and RF is exact.

use crate::execution::runner::Runner;
use crate::execution::running::Running;
use tollgate_engine::abi::sites::{LinkPlace, SiteKind};
use tollgate_platform::Platform;
use tollgate_x86::Flags;

/// Whether the exit leaves the state as it was before the instruction began.
pub(crate) fn is_before_instruction(kind: SiteKind) -> bool {
    matches!(
        kind,
        SiteKind::Memory { .. }
            | SiteKind::SystemRead { .. }
            | SiteKind::VectorLoad
            | SiteKind::Link(LinkPlace::Direct {
                windowless: Some(_),
                ..
            })
    )
}

impl<R: Runner, P: Platform> Running<'_, R, P> {
    /// Clears RF if an instruction has completed since RF was set (SDM volume 3, 17.3.1.1). Copied
    /// instructions do not change RF, so this must be done before the guest can see RF, which is in
    /// the frame of an event.
    pub(crate) fn settle_resume_flag(&mut self) {
        let cpu = self.runner.state_mut();
        if cpu.rip != self.non_register.resume_flag_rip {
            cpu.flags &= !Flags::RF.bits();
        }
    }

    /// Keeps RF set when guest code was left at the start of an instruction. `was_set` is RF at the
    /// time when guest code was entered.
    pub(crate) fn keep_resume_flag(&mut self, was_set: bool) {
        let cpu = self.runner.state_mut();
        if was_set && cpu.rip == self.non_register.resume_flag_rip {
            cpu.flags |= Flags::RF.bits();
            self.non_register.resume_flag_unsettled = !cpu.has_breakpoints();
        }
    }

    /// Sets RF for a repeated string instruction that has done some iterations, but not the last.
    pub(crate) fn set_resume_flag_between_iterations(&mut self) {
        let cpu = self.runner.state_mut();
        cpu.flags |= Flags::RF.bits();
        self.non_register.resume_flag_rip = cpu.rip;
    }

    /// Whether RF is set.
    pub(crate) fn resume_flag(&self) -> bool {
        self.runner.state().flags().contains(Flags::RF)
    }
}
