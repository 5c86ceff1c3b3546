//! The vCPU's loop: requests, changes, events, then guest code until its next exit.

use crate::instruction_in_work::InstructionInWork;
use crate::running::Running;
use crate::vcpu::VcpuStop;
use std::sync::atomic::Ordering;
use tollgate_platform::Platform;
use tollgate_x86::state::Activity;
use tollgate_x86::{Exception, Flags, Vector};

impl<P: Platform> Running<'_, P> {
    pub(crate) fn run_until_stop(&mut self) -> VcpuStop {
        loop {
            if self.pending.load(Ordering::Relaxed) != 0 {
                self.pending.store(0, Ordering::SeqCst);
                self.platform.advance();
                self.ledger.look_at_waiting();
                self.alarm.forget();
                self.arm_timer();
                self.due.events = true;
            }
            self.view.apply_changes(self.runner);
            if self.due.events || self.runner.context.cpu.activity != Activity::Running {
                if let Some(request) = self.platform.take_stop_request() {
                    return VcpuStop::Requested(request);
                }
                match self.next_event() {
                    Ok(true) => continue,
                    Ok(false) => self.due.events = false,
                    Err(stop) => return stop,
                }
            }
            if let Err(stop) = self.step() {
                return stop;
            }
        }
    }

    /// Has the host timer fire at the machine's next deadline, if it is not set to fire
    /// earlier already.
    pub(crate) fn arm_timer(&mut self) {
        if let Some(deadline) = self.platform.next_deadline() {
            self.alarm.set(deadline, || self.platform.now());
        }
    }

    /// Runs guest code once and handles the exit.
    fn step(&mut self) -> Result<(), VcpuStop> {
        if self.due.mode {
            self.update_mode();
        }
        let flags = self.runner.context.cpu.flags();
        self.begin_instruction();
        if self.runner.context.cpu.has_breakpoints() && self.meets_code_breakpoint() {
            return self.raise(Exception::new(Vector::Debug));
        }
        let unsettled = std::mem::take(&mut self.latches.resume_flag_unsettled);
        if self.work.is_shadowed() && self.something_waits_for_shadow(flags)
            || unsettled && self.something_waits(flags)
        {
            return self.step_single();
        }
        if self.latches.ignores_x87_error {
            return self.step_ignoring_x87_error();
        }
        let generation = self.runner.engine.generation();
        if let Some(resume) = self.runner.resume.take()
            && resume.generation == generation
            && let Some(target) = self.runner.engine.address(resume.block, resume.offset)
        {
            self.runner.context.load_vectors = u64::from(resume.vectors);
            self.runner.context.store_pass = resume.store_pass;
            return self.enter_at(target, resume.block, resume.esp);
        }
        let Some(block) = self.find_block(self.runner.mode)? else {
            return Ok(());
        };
        let Some(target) = self.runner.engine.address(block, 0) else {
            return Ok(());
        };
        self.enter_at(target, block, 0)
    }

    /// Runs one instruction while a pending x87 error is ignored.
    fn step_ignoring_x87_error(&mut self) -> Result<(), VcpuStop> {
        self.follow_ignored_x87_error();
        let hidden = self.hide_x87_error();
        let result = self.step_single();
        if let Some(hidden) = hidden {
            self.unhide_x87_error(&hidden);
        }
        result
    }

    /// The instruction at CS:EIP begins, or is begun anew.
    pub(crate) fn begin_instruction(&mut self) {
        let cpu = &self.runner.context.cpu;
        let traps = cpu.flags().contains(Flags::TF);
        *self.work = InstructionInWork::begin(traps, cpu.shadow_rip == cpu.rip);
    }
}
