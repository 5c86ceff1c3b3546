//! The events that are due at an instruction boundary: interrupts, exceptions, HLT, the trap flag.

use crate::execution::runner::Runner;
use crate::execution::running::Running;
use crate::execution::state_dump;
use crate::execution::stop::VcpuStop;
use crate::host::facts;
use crate::memory::addresses::code_address;
use tollgate_emulate::cpuid::{Vendor, policy};
use tollgate_emulate::interrupt::{
    Event, Planned, Target, TripleFault, deliver, deliver_exception,
};
use tollgate_emulate::virtual_8086::virtual_interrupt_is_due;
use tollgate_engine::signals::kick_signal;
use tollgate_exits::ExitKind;
use tollgate_platform::Platform;
use tollgate_x86::breakpoints::DR6_SINGLE_STEP;
use tollgate_x86::state::Activity;
use tollgate_x86::{Exception, Flags, Selector};

/// Longest sleep of a halted processor without a deadline, in nanoseconds. Signals and timers end sleeps
/// early; each sleep that only ends costs a machine with nothing to do some processor time.
const LONGEST_SLEEP: u64 = 10_000_000_000;

impl<R: Runner, P: Platform> Running<'_, R, P> {
    /// Delivers an event that is due at this boundary. Returns true if the caller must call again,
    /// because more may be due.
    pub(crate) fn next_event(&mut self) -> Result<bool, VcpuStop> {
        let cpu = self.runner.state();
        let shadowed = cpu.shadow_rip == cpu.rip;
        let unsettled = self.non_register.resume_flag_unsettled;
        let held = cpu.nmi_blocked || shadowed && cpu.shadow_holds_all || unsettled;
        if self.nmi_waits() && !held {
            self.non_register.nmi_pending = false;
            // NMIs are blocked until IRET, even if the delivery faults (SDM volume 3, 6.7.1).
            self.runner.state_mut().nmi_blocked = true;
            self.deliver_event(2, &mut Planned::nothing())?;
            return Ok(true);
        }
        let flags = self.runner.state().flags();
        let waits = self.platform.interrupt_pending();
        // If the interrupt waits past this boundary, guest code is left when it lets interrupts in.
        self.runner.interrupt_waits(waits);
        self.ledger.interrupts_wait(waits);
        if flags.contains(Flags::IF) && !shadowed && !unsettled && waits {
            if let Some(vector) = self.platform.acknowledge_interrupt() {
                self.ledger.interrupt_delivered();
                self.count(ExitKind::InterruptDelivered);
                R::deliver_interrupt(self, vector)?;
                self.pending.checkpoints().delivered();
            }
            return Ok(true);
        }
        match self.runner.state().activity {
            Activity::Running if virtual_interrupt_is_due(self.runner.state()) => {
                self.raise(Exception::general_protection(0))?;
                Ok(true)
            }
            Activity::Running => Ok(false),
            Activity::Halted => {
                self.wait();
                Ok(true)
            }
            Activity::Shutdown => Err(VcpuStop::TripleFault(self.dump())),
        }
    }

    /// Whether an NMI waits. While NMIs are held off, one is remembered and further ones are lost.
    pub(crate) fn nmi_waits(&mut self) -> bool {
        self.non_register.nmi_pending |= self.platform.take_nmi();
        self.non_register.nmi_pending
    }

    /// Delivers an external interrupt or an NMI through the guest's tables. `planned` becomes the
    /// plan of the delivery, unless the delivery raised an exception.
    pub(crate) fn deliver_event(
        &mut self,
        vector: u8,
        planned: &mut Planned,
    ) -> Result<(), VcpuStop> {
        self.runner.start_anew();
        self.due.mode = true;
        self.due.events = true;
        self.runner.state_mut().end_shadow();
        self.settle_resume_flag();
        let event = Event::external(vector, self.runner.state().rip);
        let task = self.runner.state().tr.selector;
        let (state, mut environment) = self.parts();
        let result = deliver(state, &mut environment, &event, planned);
        self.note_task_switch(task);
        if let Err(exception) = result {
            planned.target = Target::Nothing;
            self.raise(exception)?;
        }
        self.non_register.breakpoint_hits = 0;
        self.runner.registers_changed();
        Ok(())
    }

    /// Delivers an exception of the instruction at the current RIP, or of the one that has just
    /// completed.
    pub(crate) fn raise(&mut self, exception: Exception) -> Result<(), VcpuStop> {
        self.work.raise(exception.vector);
        let page_fault = exception.vector == tollgate_x86::Vector::PageFault;
        self.count(if page_fault {
            ExitKind::GuestPageFault
        } else {
            ExitKind::GuestException
        });
        match R::deliver(self, exception) {
            Ok(()) => Ok(()),
            Err(TripleFault) => {
                self.runner.state_mut().activity = Activity::Shutdown;
                let mut text = format!("first exception: {}\n", state_dump::named(&exception));
                text += &self.dump();
                Err(VcpuStop::TripleFault(text))
            }
        }
    }

    /// Delivers an exception through the guest's tables, as well as any exception that its delivery
    /// raises. `planned` becomes the plan of the delivery, unless the delivery raised an exception.
    pub(crate) fn deliver_by_tables(
        &mut self,
        exception: Exception,
        planned: &mut Planned,
    ) -> Result<(), TripleFault> {
        self.runner.start_anew();
        self.due.mode = true;
        self.due.events = true;
        self.runner.state_mut().end_shadow();
        self.settle_resume_flag();
        let task = self.runner.state().tr.selector;
        let (state, mut environment) = self.parts();
        let result = deliver_exception(state, &mut environment, exception, planned);
        self.note_task_switch(task);
        self.non_register.breakpoint_hits = 0;
        self.runner.registers_changed();
        result
    }

    /// Whether the task has changed from `before`. If so, EFLAGS, including RF, was loaded from the
    /// TSS of the new task, and the trap flag of the old task remains in the old task's TSS.
    pub(crate) fn note_task_switch(&mut self, before: Selector) -> bool {
        let cpu = self.runner.state();
        let switched = cpu.tr.selector != before;
        if switched {
            self.non_register.resume_flag_rip = cpu.rip;
            self.work.set_traps(false);
        }
        switched
    }

    pub(crate) fn not_implemented(&self, what: &str) -> VcpuStop {
        let cpu = self.runner.state();
        VcpuStop::NotImplemented(format!(
            "the guest needs {what}, which this version does not implement (at {:#06x}:{:#010x})",
            cpu.cs().selector.0,
            cpu.rip
        ))
    }

    /// Executes HLT: sleeps until an event may have occurred.
    fn wait(&mut self) {
        tollgate_native::leave_seat();
        let begun = self.platform.now();
        let sleep = match self.platform.next_deadline() {
            // The alarm's signal ends the sleep. A second host timer for the same moment would
            // double the cost of setting it and of taking its signal.
            Some(deadline) => self.alarm.sleep_until(deadline, || self.platform.now()),
            None => LONGEST_SLEEP,
        };
        self.ledger.sleep(|| {
            facts::sleep_while_zero(self.pending, kick_signal(), sleep.clamp(1, LONGEST_SLEEP));
        });
        self.runner.slept(self.platform.now().since(begun));
        self.pending.wake();
    }

    /// Whether a breakpoint is set on the instruction that comes next; if so, DR6 reports it.
    /// EFLAGS.RF suppresses the breakpoint. On Intel's processors, so does the shadow of a load of
    /// SS, "as if EFLAGS.RF were 1" (SDM volume 3, 18.3.1.1); AMD's processors report it.
    pub(crate) fn meets_code_breakpoint(&mut self) -> bool {
        self.settle_resume_flag();
        let behind_load_of_ss = self.work.is_shadowed() && self.runner.state().shadow_holds_all;
        let cpu = self.runner.state_mut();
        if !behind_load_of_ss {
            // The hits of the previous instruction are already reported. Those that MOV SS has
            // postponed are reported now.
            self.non_register.breakpoint_hits = 0;
        }
        let held = behind_load_of_ss && policy(cpu).vendor() != Vendor::Amd;
        if held || cpu.flags().contains(Flags::RF) {
            return false;
        }
        let met = cpu.code_breakpoints_at(code_address(cpu));
        if met != 0 {
            let carried_over = std::mem::take(&mut self.non_register.breakpoint_hits);
            cpu.report_debug_conditions(met | carried_over);
        }
        met != 0
    }

    /// Records that an instruction has completed, and delivers its debug trap if the trap flag was
    /// set before it.
    pub(crate) fn completed(&mut self) -> Result<(), VcpuStop> {
        self.work.complete();
        if !self.work.loads_resume_flag() {
            self.runner.state_mut().flags &= !Flags::RF.bits();
        }
        if !self.work.traps() && self.non_register.breakpoint_hits == 0 {
            return Ok(());
        }
        self.debug_trap()
    }

    /// Delivers the debug trap that is due at this boundary, because of the trap flag or of a
    /// breakpoint.
    pub(crate) fn debug_trap(&mut self) -> Result<(), VcpuStop> {
        let mut conditions = std::mem::take(&mut self.non_register.breakpoint_hits);
        if self.work.take_trap() {
            conditions |= DR6_SINGLE_STEP;
        }
        self.runner.state_mut().report_debug_conditions(conditions);
        self.raise(Exception::new(tollgate_x86::Vector::Debug))
    }
}
