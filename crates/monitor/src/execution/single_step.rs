//! One guest instruction at a time, for tools that compare processors.
//!
//! The vCPU's own loop is not used: timers, interrupts and requests from other threads
//! wait, so that what a step does depends on the guest's state alone. Do not mix with
//! [`Vcpu::run`] on the same vCPU.

use crate::execution::runner::{Extent, Runner};
use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use crate::execution::vcpu::Vcpu;
use iced_x86::Instruction;
use std::sync::atomic::Ordering;
use tollgate_emulate::interrupt::EventSource;
use tollgate_exits::ExitKind;
use tollgate_platform::Platform;
use tollgate_x86::state::Activity;
use tollgate_x86::{CpuState, Exception, TranslationChange, Vector};

/// How often an instruction may be entered before it is given up: each entry that does
/// not complete it resolves a page or loads registers, and few are needed.
const MAX_ENTRIES: u32 = 10_000;

impl<R: Runner, P: Platform> Running<'_, R, P> {
    /// See [`Vcpu::step_one`].
    fn step_one(&mut self) -> Result<(), VcpuStop> {
        self.runner.start_anew();
        let before = self.runner.state().rip;
        self.count(ExitKind::SingleStep);
        for _ in 0..MAX_ENTRIES {
            // Requests would make the next entry return at once.
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

    /// Enters the current instruction, or goes on where its last exit left off.
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
    /// Executes the instruction at CS:EIP in the machine `platform`, a repeated one with all
    /// its iterations, or delivers the exception that it raises. No interrupt is delivered
    /// before or after.
    ///
    /// # Errors
    /// As [`Vcpu::run`]: the machine's stop request after an instruction that caused
    /// one, a triple fault, or something that is not implemented.
    pub fn step_one<P: Platform>(&mut self, platform: &mut P) -> Result<(), VcpuStop> {
        self.running(platform).step_one()
    }

    /// The first exception that the last instruction raised, if any: of [`Vcpu::step_one`].
    pub fn raised_exception(&self) -> Option<Vector> {
        self.work.raised()
    }

    /// The instruction at CS:EIP; `None` if fetching it faults.
    pub fn next_instruction(&mut self) -> Option<Instruction> {
        let cpu = self.runner.state();
        let decoded = self.view.decode(cpu, &self.features);
        decoded.ok().map(|it| it.helper.instruction)
    }

    /// Changes registers from outside; cached translations are forgotten if need be.
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

    /// Delivers a maskable interrupt now, whatever EFLAGS.IF says.
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
        running.deliver_event(vector, EventSource::External)
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
