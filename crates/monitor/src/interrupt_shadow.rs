//! The interrupt shadow: interrupts are held off during the instruction that follows STI,
//! MOV SS or POP SS. While an interrupt waits for the end of that instruction, it is run alone.

use crate::running::Running;
use crate::translated::PendingLink;
use crate::vcpu::VcpuStop;
use tollgate_engine::abi::context::NO_PASS;
use tollgate_engine::abi::marks::Shadow;
use tollgate_exits::ExitKind;
use tollgate_platform::Platform;
use tollgate_x86::Flags;

impl<P: Platform> Running<'_, P> {
    /// The shadow of an inline STI, MOV SS or POP SS over the instruction that has not
    /// completed holds, however it goes on.
    pub(crate) fn continue_shadow(&mut self, shadow: Shadow) {
        let cpu = &mut self.runner.context.cpu;
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

    pub(crate) fn something_waits_for_shadow(&mut self, flags: Flags) -> bool {
        flags.contains(Flags::IF) && self.platform.interrupt_pending()
            || self.runner.context.cpu.shadow_holds_all && self.nmi_waits()
    }

    /// As [`Running::something_waits_for_shadow`], of an instruction that nothing may precede.
    pub(crate) fn something_waits(&mut self, flags: Flags) -> bool {
        flags.contains(Flags::IF) && self.platform.interrupt_pending() || self.nmi_waits()
    }

    /// Runs exactly one instruction: interrupts wait for it.
    pub(crate) fn step_single(&mut self) -> Result<(), VcpuStop> {
        self.count(ExitKind::SingleStep);
        // What waited for this instruction is due behind it.
        self.due.events = true;
        self.runner.link = PendingLink::None;
        let passing = self.take_passing_store();
        let (block, offset, esp) = match passing {
            Some(resume) => (resume.block, resume.offset, resume.esp),
            None => {
                let mode = self.runner.engine.mode(self.runner.mode).single();
                let mode = self.intern_temporary(mode);
                let Some(block) = self.find_block(mode)? else {
                    return Ok(());
                };
                (block, 0, 0)
            }
        };
        let Some(target) = self.runner.engine.address(block, offset) else {
            return Ok(());
        };
        self.runner.context.load_vectors = 1;
        self.runner.context.store_pass = passing.map_or(NO_PASS, |resume| resume.store_pass);
        let before = self.runner.context.cpu.rip;
        self.enter_at(target, block, esp)?;
        if self.work.has_completed() {
            self.runner.resume = None;
        }
        self.runner.link = PendingLink::None;
        // Unless the instruction cast a shadow of its own.
        if self.work.has_completed() && self.runner.context.cpu.shadow_rip == before {
            self.runner.context.cpu.end_shadow();
        }
        Ok(())
    }
}
