//! The vCPU's loop: it handles requests, changes and events, then runs guest code until its next
//! exit.

use crate::execution::current_instruction::InstructionInWork;
use crate::execution::runner::{Exit, Extent, Runner};
use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use crate::memory::addresses::code_address;
use std::sync::atomic::Ordering;
use tollgate_exits::latency::InterruptibleWork;
use tollgate_platform::{Platform, StopRequest};
use tollgate_x86::state::Activity;
use tollgate_x86::{Exception, Vector};

impl<R: Runner, P: Platform> Running<'_, R, P> {
    pub(crate) fn run_until_stop(&mut self) -> VcpuStop {
        // In the meantime another machine may have run on this thread, or this machine on another
        // thread.
        self.view.translations.load_anchor();
        loop {
            if self.watched.has_hit() {
                return VcpuStop::Requested(StopRequest::Attention);
            }
            if self.pending.load(Ordering::Relaxed) != 0 {
                let request = self.pending.take();
                let late = self.lateness();
                // Before the devices' work, which no interrupt of this request has waited for: until
                // now the section that ended last is the one that held it back.
                self.ledger.request_taken(request, late);
                let begin = self.begin_work();
                // While the guest holds interrupts off, it may be waiting for a device.
                match self.pending.checkpoints().may_stop() {
                    true => self.platform.advance_some(),
                    false => self.platform.advance(),
                }
                self.end_work(InterruptibleWork::Devices, begin);
                self.pending.checkpoints().requests_taken();
                let entry = self.runner.state().system_call_entry();
                self.ledger.note_system_call_entry(entry);
                self.alarm.forget();
                self.arm_timer();
                self.due.events = true;
            }
            self.view.apply_changes(self.runner);
            if self.due.events || self.runner.state().activity != Activity::Running {
                if let Some(request) = self.platform.take_stop_request() {
                    return VcpuStop::Requested(request);
                }
                match self.next_event() {
                    Ok(true) => continue,
                    Ok(false) => self.due.events = false,
                    Err(stop) => return stop,
                }
                self.pending.checkpoints().nothing_delivered();
            }
            if R::goes_on_with_work(self) {
                continue;
            }
            if let Err(stop) = self.step() {
                return stop;
            }
        }
    }

    /// Nanoseconds that have passed since the machine's earliest deadline.
    fn lateness(&self) -> u64 {
        let deadline = self.platform.next_deadline();
        deadline.map_or(0, |deadline| self.platform.now().since(deadline))
    }

    /// Sets the host timer to fire at the machine's next deadline, unless it will fire earlier.
    pub(crate) fn arm_timer(&mut self) {
        if let Some(deadline) = self.platform.next_deadline() {
            self.alarm.set(deadline, || self.platform.now());
        }
    }

    /// Runs guest code once and handles the exit.
    fn step(&mut self) -> Result<(), VcpuStop> {
        if self.due.mode {
            self.follow_control();
        }
        let flags = self.runner.state().flags();
        self.begin_instruction();
        let mut is_alone = false;
        let cpu = self.runner.state();
        if cpu.has_breakpoints() || cpu.debugged.breakpoints {
            let (view, features) = (&mut *self.view, self.features);
            let is_fetched = || view.decode(cpu, features).is_ok();
            if self.watched.meets(code_address(cpu), is_fetched) {
                return Err(VcpuStop::Requested(StopRequest::Attention));
            }
            if cpu.has_breakpoints() && self.meets_code_breakpoint() {
                return self.raise(Exception::new(Vector::Debug));
            }
            is_alone = self.runner.may_have_breakpoint();
        }
        let unsettled = std::mem::take(&mut self.non_register.resume_flag_unsettled);
        if self.work.is_shadowed() && self.something_waits_for_shadow(flags)
            || unsettled && self.something_waits(flags)
            || is_alone
        {
            return self.step_single();
        }
        if self.non_register.ignores_x87_error {
            return self.step_ignoring_x87_error();
        }
        if R::runs_otherwise(self)? {
            return Ok(());
        }
        let Some(entry) = R::entry(self, Extent::Free)? else {
            return Ok(());
        };
        self.enter(entry)
    }

    /// Runs guest code from this entry, and handles the exit.
    pub(crate) fn enter(&mut self, entry: R::Entry) -> Result<(), VcpuStop> {
        self.ledger.enter_guest();
        let exit = self
            .runner
            .run(entry, self.view, self.platform, self.ledger);
        self.ledger.leave_guest();
        match exit {
            Exit::Interrupted => Ok(()),
            Exit::Completed => self.completed(),
            Exit::Instruction => self.execute_current(),
            Exit::Fault(exception) => self.raise(exception),
            Exit::Own(exit) => R::settle(self, exit),
        }
    }

    /// Notifies the runner that registers which decide how guest code runs may have changed.
    pub(crate) fn follow_control(&mut self) {
        self.due.mode = false;
        self.runner.control_changed(self.view);
        if self.due.clock {
            self.due.clock = false;
            let offset = self.platform.host_time_stamp_offset();
            let own = self.runner.state().tsc_offset;
            self.runner.set_time_stamp_offset(offset.wrapping_add(own));
        }
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

    /// Begins the instruction at CS:EIP, or begins it again.
    pub(crate) fn begin_instruction(&mut self) {
        *self.work = InstructionInWork::begin(self.runner.state());
    }
}
