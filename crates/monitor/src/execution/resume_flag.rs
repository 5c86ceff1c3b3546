//! EFLAGS.RF: set by IRET and task switches for one instruction, and between the iterations
//! of a repeated string instruction (SDM volume 3, 18.3.1.1).
//!
//! Translated code leaves RF alone; it is made up for where it can be seen, in the frame of
//! an event. `Latches::resume_flag_rip` says for which instruction it was set. Guest code that
//! is left at that instruction may not have begun it, or may have come back to it in a loop;
//! emitted code does not tell which. RF then stays set, but no event is let in before the
//! instruction has completed: if one waits, it is run alone. With breakpoints enabled each
//! instruction is run alone anyway, and RF is exact.

use crate::execution::runner::Runner;
use crate::execution::running::Running;
use tollgate_engine::abi::sites::{LinkPlace, SiteKind};
use tollgate_platform::Platform;
use tollgate_x86::Flags;

/// Whether the exit leaves the instruction as if it had not begun.
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
    /// EFLAGS.RF is cleared by the first instruction that completes (SDM volume 3,
    /// 17.3.1.1). Copied ones leave it alone, so this is made up for before it can be seen,
    /// which is in the frame of an event.
    pub(crate) fn settle_resume_flag(&mut self) {
        let cpu = self.runner.state_mut();
        if cpu.rip != self.latches.resume_flag_rip {
            cpu.flags &= !Flags::RF.bits();
        }
    }

    /// Guest code was left at the start of an instruction; `was_set` is RF as it was when
    /// guest code was entered.
    pub(crate) fn keep_resume_flag(&mut self, was_set: bool) {
        let cpu = self.runner.state_mut();
        if was_set && cpu.rip == self.latches.resume_flag_rip {
            cpu.flags |= Flags::RF.bits();
            self.latches.resume_flag_unsettled = !cpu.has_breakpoints();
        }
    }

    /// A repeated string instruction has done some iterations, but not the last.
    pub(crate) fn set_resume_flag_between_iterations(&mut self) {
        let cpu = self.runner.state_mut();
        cpu.flags |= Flags::RF.bits();
        self.latches.resume_flag_rip = cpu.rip;
    }

    /// RF is set.
    pub(crate) fn resume_flag(&self) -> bool {
        self.runner.state().flags().contains(Flags::RF)
    }
}
