//! One guest instruction at a time, for tools that compare processors.
//!
//! The vCPU's own loop is not used: timers, interrupts and requests from other threads
//! wait, so that what a step does depends on the guest's state alone. Do not mix with
//! [`Vcpu::run`] on the same vCPU.

use crate::running::Running;
use crate::vcpu::{Vcpu, VcpuStop};
use iced_x86::Instruction;
use std::sync::atomic::Ordering;
use tollgate_emulate::interrupt::EventSource;
use tollgate_engine::policy::mode::Mode;
use tollgate_exits::ExitKind;
use tollgate_platform::Platform;
use tollgate_x86::state::Activity;
use tollgate_x86::{CpuState, Exception, TranslationChange};

/// How often an instruction may be entered before it is given up: each entry that does
/// not complete it resolves a page or loads registers, and few are needed.
const MAX_ENTRIES: u32 = 10_000;

impl<P: Platform> Running<'_, P> {
    /// See [`Vcpu::step_one`].
    fn step_one(&mut self) -> Result<(), VcpuStop> {
        self.runner.start_anew();
        let before = self.runner.context.cpu.rip;
        self.count(ExitKind::SingleStep);
        for _ in 0..MAX_ENTRIES {
            // Requests would make the next entry return at once.
            self.pending.store(0, Ordering::SeqCst);
            self.view.apply_changes(self.runner);
            self.enter_single()?;
            if self.work.has_ended() {
                self.runner.start_anew();
                self.view.apply_changes(self.runner);
                let cpu = &mut self.runner.context.cpu;
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
            self.update_mode();
        }
        self.begin_instruction();
        if let Some(resume) = self.runner.resume.take()
            && resume.generation == self.runner.engine.generation()
            && let Some(target) = self.runner.engine.address(resume.block, resume.offset)
        {
            self.runner.context.load_vectors = u64::from(resume.vectors);
            self.runner.context.store_pass = resume.store_pass;
            return self.enter_at(target, resume.block, resume.esp);
        }
        let mode = self.runner.engine.mode(self.runner.mode).single();
        let mode = self.intern_temporary(mode);
        let Some(block) = self.find_block(mode)? else {
            return Ok(());
        };
        let Some(target) = self.runner.engine.address(block, 0) else {
            return Ok(());
        };
        self.enter_at(target, block, 0)
    }
}

impl Vcpu {
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

    /// The instruction at CS:EIP; `None` if fetching it faults.
    pub fn next_instruction(&mut self) -> Option<Instruction> {
        let cpu = &self.runner.context.cpu;
        let decoded = self.view.decode(cpu, &Mode::of(cpu), &self.features);
        decoded.ok().map(|it| it.helper.instruction)
    }

    /// Changes registers from outside; cached translations are forgotten if need be.
    pub fn change_state(&mut self, change: impl FnOnce(&mut CpuState)) {
        let steering =
            |cpu: &CpuState| (cpu.cr0, cpu.cr3, cpu.cr4, cpu.efer, cpu.pdpte, cpu.a20_mask);
        let (runner, view) = (&mut self.runner, &mut self.view);
        let before = steering(&runner.context.cpu);
        change(&mut runner.context.cpu);
        if steering(&runner.context.cpu) != before {
            view.change_translations(runner, TranslationChange::Everything);
        }
        runner.context.scatter_flags();
        runner.context.scatter_x87_pointers();
        runner.forget_level_changes();
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
        self.runner.context.cpu.activity = Activity::Running;
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
