//! The interrupt shadow: interrupts are held off during the instruction that follows STI, MOV SS or
//! POP SS. While an interrupt waits for the end of that instruction, the instruction is run alone.

use crate::execution::runner::{Extent, Runner};
use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use tollgate_engine::abi::state_map::Shadow;
use tollgate_exits::ExitKind;
use tollgate_platform::Platform;
use tollgate_x86::Flags;

impl<R: Runner, P: Platform> Running<'_, R, P> {
    /// Casts the shadow of an inline STI, MOV SS or POP SS over the present instruction, which has
    /// not completed, however it is executed from here.
    pub(crate) fn continue_shadow(&mut self, shadow: Shadow) {
        let cpu = self.runner.state_mut();
        match shadow {
            Shadow::None => {}
            Shadow::Interrupts if cpu.shadow_rip == cpu.rip => {}
            Shadow::Interrupts => cpu.begin_interrupt_shadow(cpu.rip),
            Shadow::All => {
                cpu.shadow_rip = cpu.rip;
                cpu.shadow_holds_all = true;
            }
        }
    }

    /// Whether an interrupt or an NMI waits that the shadow of an instruction holds back.
    pub(crate) fn something_waits_for_shadow(&mut self, flags: Flags) -> bool {
        flags.contains(Flags::IF) && self.platform.interrupt_pending()
            || self.runner.state().shadow_holds_all && self.nmi_waits()
    }

    /// Whether an interrupt or an NMI would be delivered if no shadow held it back.
    pub(crate) fn something_waits(&mut self, flags: Flags) -> bool {
        flags.contains(Flags::IF) && self.platform.interrupt_pending() || self.nmi_waits()
    }

    /// Runs exactly one instruction, before any interrupt is delivered.
    pub(crate) fn step_single(&mut self) -> Result<(), VcpuStop> {
        self.count(ExitKind::SingleStep);
        // Events that waited for this instruction are due after it.
        self.due.events = true;
        let before = self.runner.state().rip;
        let Some(entry) = R::entry(self, Extent::One)? else {
            return Ok(());
        };
        self.enter(entry)?;
        if self.work.has_completed() {
            self.runner.start_anew();
            // The shadow ends, unless the instruction has cast one of its own.
            let cpu = self.runner.state_mut();
            if cpu.shadow_rip == before {
                cpu.end_shadow();
            }
        }
        Ok(())
    }
}
