//! Runs one guest instruction at a time, for tools that compare processors.
//!
//! Single steps do not use the vCPU's own loop: timers, interrupts and requests from other threads
//! wait, so the effect of a step depends on the guest's state alone. Do not call both these
//! functions and [`Vcpu::run`] on one vCPU.

use crate::execution::runner::{Extent, Runner};
use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use crate::execution::vcpu::Vcpu;
use iced_x86::Instruction;
use std::sync::atomic::Ordering;
use tollgate_emulate::interrupt::Planned;
use tollgate_exits::ExitKind;
use tollgate_platform::Platform;
use tollgate_x86::state::Activity;
use tollgate_x86::{CpuState, Exception, TranslationChange, Vector};

/// How often an instruction may be entered before the step fails. Each entry that does not complete
/// the instruction fills a page or loads registers, and an instruction needs only a few of these.
const MAX_ENTRIES: u32 = 10_000;

impl<R: Runner, P: Platform> Running<'_, R, P> {
    /// See [`Vcpu::step_one`].
    fn step_one(&mut self) -> Result<(), VcpuStop> {
        self.runner.start_anew();
        let before = self.runner.state().rip;
        self.count(ExitKind::SingleStep);
        for _ in 0..MAX_ENTRIES {
            // A pending request would make the next entry return immediately.
            self.pending.store(0, Ordering::SeqCst);
            self.view.apply_changes(self.runner);
            self.enter_single()?;
            if self.work.has_ended() {
                self.runner.start_anew();
                self.view.apply_changes(self.runner);
                let cpu = self.runner.state_mut();
                if cpu.shadow_rip == before && cpu.rip != before {
                    cpu.end_shadow();
                }
                return self
                    .platform
                    .take_stop_request()
                    .map_or(Ok(()), |stop| Err(VcpuStop::Requested(stop)));
            }
        }
        Err(self.not_implemented("an instruction that never completes when run alone"))
    }

    /// Enters the current instruction, or resumes it where its last exit left off.
    fn enter_single(&mut self) -> Result<(), VcpuStop> {
        if self.due.mode {
            self.follow_control();
        }
        self.begin_instruction();
        match R::entry(self, Extent::RestOfOne)? {
            Some(entry) => self.enter(entry),
            None => Ok(()),
        }
    }
}

impl<R: Runner> Vcpu<R> {
    /// Executes the instruction at CS:EIP in the machine `platform`, a repeated instruction with
    /// all its iterations, or delivers the exception that the instruction raises. No interrupt is
    /// delivered before or after.
    ///
    /// # Errors
    /// The same as for [`Vcpu::run`]: the machine's stop request after an instruction that caused
    /// one, a triple fault, or something that is not implemented.
    pub fn step_one<P: Platform>(&mut self, platform: &mut P) -> Result<(), VcpuStop> {
        // As before a run, another machine may have run on this thread.
        self.view.translations.load_anchor();
        self.follow_watched();
        self.running(platform).step_one()
    }

    /// The first exception that the instruction of the last [`Vcpu::step_one`] raised, if any.
    pub fn raised_exception(&self) -> Option<Vector> {
        self.work.raised()
    }

    /// The instruction at CS:EIP, or `None` if fetching it faults.
    pub fn next_instruction(&mut self) -> Option<Instruction> {
        let cpu = self.runner.state();
        let decoded = self.view.decode(cpu, &self.features);
        decoded.ok().map(|it| it.helper.instruction)
    }

    /// Changes registers from outside, and forgets cached translations if necessary.
    pub fn change_state(&mut self, change: impl FnOnce(&mut CpuState)) {
        let steering =
            |cpu: &CpuState| (cpu.cr0, cpu.cr3, cpu.cr4, cpu.efer, cpu.pdpte, cpu.a20_mask);
        let (runner, view) = (&mut self.runner, &mut self.view);
        let before = steering(runner.state());
        change(runner.state_mut());
        if steering(runner.state()) != before {
            view.change_translations(runner, TranslationChange::Everything);
        }
        runner.state_replaced();
        runner.start_anew();
        view.apply_changes(runner);
        self.due.mode = true;
    }

    /// Forgets all cached translations of addresses, because the guest's page tables were replaced.
    pub fn forget_translations(&mut self) {
        let (runner, view) = (&mut self.runner, &mut self.view);
        view.change_translations(runner, TranslationChange::Everything);
        view.apply_changes(runner);
    }

    /// Delivers a maskable interrupt now, even if EFLAGS.IF is clear.
    ///
    /// # Errors
    /// A triple fault, or something that is not implemented.
    pub fn deliver_interrupt<P: Platform>(
        &mut self,
        platform: &mut P,
        vector: u8,
    ) -> Result<(), VcpuStop> {
        self.runner.state_mut().activity = Activity::Running;
        let mut running = self.running(platform);
        running.deliver_event(vector, &mut Planned::nothing())
    }

    /// Raises #GP(0) for the instruction at CS:EIP.
    ///
    /// # Errors
    /// A triple fault, or something that is not implemented.
    pub fn deliver_general_protection<P: Platform>(
        &mut self,
        platform: &mut P,
    ) -> Result<(), VcpuStop> {
        let fault = Exception::general_protection(0);
        self.running(platform).raise(fault)
    }
}
