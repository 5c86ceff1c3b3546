//! The vCPU's loop: requests, changes, events, then guest code until its next exit.

use crate::host_timer::HostTimer;
use crate::instruction_in_work::InstructionInWork;
use crate::vcpu::{Vcpu, VcpuStop};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tollgate_platform::Platform;
use tollgate_x86::state::Activity;
use tollgate_x86::{Exception, Flags, Vector};

/// Shortest setting of the host timer, in nanoseconds. A guest that asks for interrupts
/// faster than signals can be taken must still get on between two of them.
const SHORTEST_TIMER: u64 = 20_000;

impl<P: Platform> Vcpu<P> {
    /// Runs the guest on the calling thread until it or the machine stops.
    pub fn run(&mut self) -> VcpuStop {
        match HostTimer::new(Arc::clone(&self.pending)) {
            Ok(timer) => self.timer = Some(timer),
            // Without it the guest's timers would not fire: better no run than that one.
            Err(error) => {
                return VcpuStop::NotImplemented(format!(
                    "the host refused a timer: {error} (is its limit of queued signals reached?)"
                ));
            }
        }
        self.kick.arm(Arc::clone(&self.pending));
        self.pending().store(1, Ordering::SeqCst);
        self.ledger.start();
        let stop = self.run_until_stop();
        self.ledger.stop();
        self.timer = None;
        self.armed = None;
        self.kick.disarm();
        stop
    }

    fn run_until_stop(&mut self) -> VcpuStop {
        loop {
            if self.pending().load(Ordering::Relaxed) != 0 {
                self.pending().store(0, Ordering::SeqCst);
                self.platform.advance();
                self.ledger.look_at_waiting();
                self.armed = None;
                self.arm_timer();
                self.due.events = true;
            }
            self.apply_changes();
            if self.due.events || self.context.cpu.activity != Activity::Running {
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
        let Some(deadline) = self.platform.next_deadline() else {
            return;
        };
        if self.armed.is_some_and(|armed| armed <= deadline) {
            return;
        }
        self.armed = Some(deadline);
        let wait = deadline.since(self.platform.now());
        if let Some(timer) = &mut self.timer {
            timer.arm(wait.max(SHORTEST_TIMER));
        }
    }

    /// Runs guest code once and handles the exit.
    fn step(&mut self) -> Result<(), VcpuStop> {
        if self.due.mode {
            self.update_mode();
        }
        let flags = self.context.cpu.flags();
        self.begin_instruction();
        if self.context.cpu.has_breakpoints() && self.meets_code_breakpoint() {
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
        let generation = self.engine.generation();
        if let Some(resume) = self.resume.take()
            && resume.generation == generation
            && let Some(target) = self.engine.address(resume.block, resume.offset)
        {
            self.context.load_vectors = u64::from(resume.vectors);
            self.context.store_pass = resume.store_pass;
            return self.enter_at(target, resume.block, resume.esp);
        }
        let Some(block) = self.find_block(self.mode)? else {
            return Ok(());
        };
        let Some(target) = self.engine.address(block, 0) else {
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
        let cpu = &self.context.cpu;
        let traps = cpu.flags().contains(Flags::TF);
        self.work = InstructionInWork::begin(traps, cpu.shadow_rip == cpu.rip);
    }
}
