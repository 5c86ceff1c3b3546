//! One guest instruction at a time, for tools that compare processors.
//!
//! The vCPU's own loop is not used: timers, interrupts and requests from other threads
//! wait, so that what a step does depends on the guest's state alone. Do not mix with
//! [`Vcpu::run`] on the same vCPU.

use crate::vcpu::{PendingLink, Vcpu, VcpuStop};
use iced_x86::Instruction;
use std::sync::atomic::Ordering;
use tollgate_emulate::interrupt::EventSource;
use tollgate_exits::ExitKind;
use tollgate_platform::Platform;
use tollgate_x86::state::Activity;
use tollgate_x86::{CpuState, Exception, TranslationChange};

/// How often an instruction may be entered before it is given up: each entry that does
/// not complete it resolves a page or loads registers, and few are needed.
const MAX_ENTRIES: u32 = 10_000;

impl<P: Platform> Vcpu<P> {
    /// Executes the instruction at CS:EIP, a repeated one with all its iterations, or
    /// delivers the exception that it raises. No interrupt is delivered before or after.
    ///
    /// # Errors
    /// As [`Vcpu::run`]: the machine's stop request after an instruction that caused
    /// one, a triple fault, or something that is not implemented.
    pub fn step_one(&mut self) -> Result<(), VcpuStop> {
        self.resume = None;
        self.link = PendingLink::None;
        let before = self.context.cpu.rip;
        self.count(ExitKind::SingleStep);
        for _ in 0..MAX_ENTRIES {
            // Requests would make the next entry return at once.
            self.pending().store(0, Ordering::SeqCst);
            self.apply_changes();
            self.enter_single()?;
            if self.work.has_ended() {
                self.resume = None;
                self.link = PendingLink::None;
                self.apply_changes();
                let cpu = &mut self.context.cpu;
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
        if let Some(resume) = self.resume.take()
            && resume.generation == self.engine.generation()
            && let Some(target) = self.engine.address(resume.block, resume.offset)
        {
            self.context.load_vectors = u64::from(resume.vectors);
            self.context.store_pass = resume.store_pass;
            return self.enter_at(target, resume.block, resume.esp);
        }
        let mode = self.engine.mode(self.mode).single();
        let mode = self.intern_temporary(mode);
        let Some(block) = self.find_block(mode)? else {
            return Ok(());
        };
        let Some(target) = self.engine.address(block, 0) else {
            return Ok(());
        };
        self.enter_at(target, block, 0)
    }

    /// The instruction at CS:EIP; `None` if fetching it faults.
    pub fn next_instruction(&mut self) -> Option<Instruction> {
        if self.due.mode {
            self.update_mode();
        }
        self.decode_current().ok().map(|it| it.helper.instruction)
    }

    /// Changes registers from outside; cached translations are forgotten if need be.
    pub fn change_state(&mut self, change: impl FnOnce(&mut CpuState)) {
        let steering =
            |cpu: &CpuState| (cpu.cr0, cpu.cr3, cpu.cr4, cpu.efer, cpu.pdpte, cpu.a20_mask);
        let before = steering(&self.context.cpu);
        change(&mut self.context.cpu);
        if steering(&self.context.cpu) != before {
            self.change_translations(TranslationChange::Everything);
        }
        self.context.scatter_flags();
        self.context.scatter_x87_pointers();
        self.forget_level_changes();
        self.due.mode = true;
        self.resume = None;
        self.link = PendingLink::None;
        self.apply_changes();
    }

    /// Delivers a maskable interrupt now, whatever EFLAGS.IF says.
    ///
    /// # Errors
    /// A triple fault, or something that is not implemented.
    pub fn deliver_interrupt(&mut self, vector: u8) -> Result<(), VcpuStop> {
        self.context.cpu.activity = Activity::Running;
        self.deliver_event(vector, EventSource::External)
    }

    /// Raises #GP(0) for the instruction at CS:EIP.
    ///
    /// # Errors
    /// A triple fault, or something that is not implemented.
    pub fn deliver_general_protection(&mut self) -> Result<(), VcpuStop> {
        self.raise(Exception::general_protection(0))
    }
}
