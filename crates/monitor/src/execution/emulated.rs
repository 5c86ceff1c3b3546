//! Executes an instruction in the monitor: decides the kind of exit that it is counted as, and does
//! what must follow it (traps, interrupt shadows, a changed mode).

use crate::execution::hypercall;
use crate::execution::out_of_line;
use crate::execution::runner::Runner;
use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use tollgate_emulate::Outcome;
use tollgate_emulate::interrupt::{Planned, software_interrupt};
use tollgate_engine::policy::instruction_kind::{Effects, Executor, Helper};
use tollgate_engine::policy::out_of_line::Traits;
use tollgate_exits::ExitKind;
use tollgate_exits::latency::InterruptibleWork;
use tollgate_platform::{Environment, Platform};
use tollgate_x86::state::Activity;
use tollgate_x86::{CpuState, Flags, Vector};

impl<R: Runner, P: Platform> Running<'_, R, P> {
    /// Executes an instruction in the monitor, or raises its exception. Returns whether control
    /// continues at the next instruction.
    pub(crate) fn emulate(&mut self, helper: &Helper) -> Result<bool, VcpuStop> {
        let Helper { instruction, kind } = helper;
        let effects = kind.effects;
        let is_null = hypercall::is_null(self.runner.state(), kind.executor);
        self.count(if is_null {
            ExitKind::NullHypercall
        } else {
            kind.exit
        });
        let before = self.runner.state().rip;
        let task = self.runner.state().tr.selector;
        if effects.contains(Effects::ENTERS_HANDLER) {
            self.settle_resume_flag();
        }
        let invalidates = hypercall::invalidates(self.runner.state(), kind.executor);
        let work = match invalidates {
            true => Some(InterruptibleWork::Invalidate),
            false => InterruptibleWork::of(kind.exit),
        };
        let work = work.map(|work| (work, self.begin_work()));
        let mut planned = None;
        let (state, mut environment) = self.parts();
        environment.work = work.map(|(work, _)| work);
        let result = match kind.executor {
            Executor::Near => out_of_line::execute(state, &mut environment, instruction),
            Executor::Hypercall => {
                let mut mark = None;
                let mut forget = |state: &CpuState, change| {
                    let is_prepared = environment.prepare_change(state, change);
                    if is_prepared {
                        environment.translations_changed(state, change);
                    }
                    is_prepared
                };
                let mut set_mark = |name| mark = Some(name);
                let result = hypercall::execute(state, &mut forget, &mut set_mark, instruction);
                if let Some(name) = mark {
                    environment.call_machine(&mut |machine| machine.request_mark(name));
                }
                result
            }
            Executor::Emulate if effects.contains(Effects::ENTERS_HANDLER) => {
                let planned = planned.insert(Planned::nothing());
                software_interrupt(state, &mut environment, instruction, planned)
            }
            Executor::Emulate => tollgate_emulate::execute(state, &mut environment, instruction),
        };
        let touched_device = environment.touched_device;
        if let Some((work, begin)) = work {
            self.end_work(work, begin);
        }
        if effects.contains(Effects::WRITES_VECTOR_AREA) {
            self.runner.vectors_changed();
        }
        self.runner.registers_changed();
        // An instruction that has stopped has changed nothing, and begins again.
        let has_stopped = result == Ok(Outcome::Repeat)
            && work.is_some_and(|(work, _)| work != InterruptibleWork::String);
        if !has_stopped {
            let jumped = matches!(result, Ok(Outcome::Jumped));
            R::executed(self, helper, jumped);
            if let (true, Some(planned)) = (jumped, &planned) {
                R::delivered(self, instruction, planned);
            }
        }
        self.due.mode |= effects.contains(Effects::CHANGES_MODE)
            || effects.contains(Effects::LOADS_DATA_SEGMENT) && self.runner.has_left_mode();
        if touched_device {
            self.arm_timer();
            self.follow_a20();
            self.follow_ignored_x87_error();
        }
        self.due.events |= touched_device
            || effects.intersects(Effects::CHANGES_MODE | Effects::LETS_INTERRUPTS_IN);
        self.due.clock |= effects.contains(Effects::CHANGES_CLOCK);
        let cpu = self.runner.state_mut();
        let ended = matches!(
            result,
            Ok(Outcome::Next | Outcome::Jumped | Outcome::Halted)
        );
        if ended && cpu.shadow_rip == before {
            cpu.end_shadow();
        }
        if effects.contains(Effects::RETURNS_FROM_HANDLER) {
            // Even an IRET that faults unblocks NMIs (SDM volume 3, 6.7.1).
            cpu.nmi_blocked = false;
        }
        // LTR, which is of another kind, changes TR without a task switch.
        let switched = effects.contains(Effects::SWITCHES_TASKS) && self.note_task_switch(task);
        match result {
            Ok(Outcome::Next) => {
                // MOV SS and POP SS postpone the trap to the end of the next instruction.
                let cpu = self.runner.state();
                if cpu.shadow_holds_all && cpu.shadow_rip == cpu.rip {
                    self.work.set_traps(false);
                    self.work.complete();
                    return Ok(true);
                }
                self.completed()?;
                Ok(true)
            }
            Ok(Outcome::Jumped) => {
                if switched {
                    self.work.load_resume_flag();
                }
                if effects.contains(Effects::ENTERS_HANDLER) {
                    // The delivery has cleared TF, so no debug trap follows INT n (SDM volume 3,
                    // 17.3.1.4).
                    self.work.set_traps(false);
                }
                if effects.contains(Effects::RAISES_DEBUG) {
                    // A breakpoint that MOV SS has postponed is reported in this #DB.
                    let hits = std::mem::take(&mut self.non_register.breakpoint_hits);
                    if hits != 0 {
                        self.runner.state_mut().report_debug_conditions(hits);
                    }
                }
                if effects.contains(Effects::RETURNS_FROM_HANDLER) {
                    self.non_register.resume_flag_rip = self.runner.state().rip;
                    self.work.load_resume_flag();
                }
                if effects.contains(Effects::LOOKS_AT_TRAP_FLAG) {
                    // A step does not trap at a system call's entry if FMASK clears TF there, but
                    // it traps after SYSRET.
                    let traps = self.runner.state().flags().contains(Flags::TF);
                    self.work.set_traps(traps);
                }
                self.completed()?;
                Ok(false)
            }
            Ok(Outcome::Halted) => {
                self.runner.state_mut().activity = Activity::Halted;
                self.completed()?;
                Ok(false)
            }
            Ok(Outcome::Repeat) => {
                if effects.contains(Effects::REPEATS) {
                    self.between_iterations()?;
                }
                Ok(false)
            }
            Err(exception) => {
                if exception.vector == Vector::Debug
                    && effects.contains(Effects::NAMES_DEBUG_REGISTER)
                {
                    tollgate_emulate::control::note_detected_access(self.runner.state_mut());
                }
                self.raise(exception)?;
                Ok(false)
            }
        }
    }

    /// Executes the instruction at CS:EIP, which the runner has not begun.
    pub(crate) fn execute_current(&mut self) -> Result<(), VcpuStop> {
        let instruction = match self.decode_current() {
            Ok(instruction) => instruction,
            Err(exception) => return self.raise(exception),
        };
        if instruction.traits.contains(Traits::COPIED) {
            return Err(self.not_implemented(
                "the monitor to execute an instruction that only translated code runs",
            ));
        }
        self.emulate(&instruction.helper).map(|_| ())
    }

    /// Handles a repeated string instruction that has done some iterations, but not the last. The
    /// next event sees RF set (SDM volume 3, 17.3.1.1).
    fn between_iterations(&mut self) -> Result<(), VcpuStop> {
        self.set_resume_flag_between_iterations();
        if self.work.traps() || self.non_register.breakpoint_hits != 0 {
            return self.debug_trap();
        }
        Ok(())
    }
}
