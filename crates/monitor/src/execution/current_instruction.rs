//! The instruction that is being executed: what the vCPU knows about it from its beginning to its
//! end.
//!
//! ```text
//!   begin ──> Begun ──complete──> Completed ──raise (its own trap)──> Completed
//!     ^         │
//!     │         ├──raise──> Faulted
//!     └─────────┘ an exit that ends no instruction (after a page was filled): it begins again
//! ```
//!
//! While translated code runs, many instructions begin and end without the monitor, and the value
//! remains that of the first one. It is also correct for the instruction that exits, because the
//! two cases that the value distinguishes cannot be missed: EFLAGS.TF makes blocks of one
//! instruction, and the exit reports an interrupt shadow. No value here outlives the
//! instruction; what must outlive it is in [`NonRegisterState`](crate::NonRegisterState).

use tollgate_x86::{CpuState, Flags, Vector};

/// How far the execution of the instruction has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Progress {
    #[default]
    Begun,
    /// The instruction has completed. A trap after it may have been delivered.
    Completed,
    /// The instruction has had no effect, and its exception was delivered.
    Faulted,
}

/// The state of the instruction that is being executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct InstructionInWork {
    progress: Progress,
    raised: Option<Vector>,
    traps: bool,
    shadowed: bool,
    loads_resume_flag: bool,
}

impl InstructionInWork {
    /// Begins an instruction, or begins it again, in the state that the registers show.
    pub fn begin(cpu: &CpuState) -> Self {
        Self {
            traps: cpu.flags().contains(Flags::TF),
            shadowed: cpu.shadow_rip == cpu.rip,
            ..Self::default()
        }
    }

    /// Records that the instruction has completed.
    pub fn complete(&mut self) {
        self.progress = Progress::Completed;
    }

    /// Records that an exception was delivered. The exception is the instruction's fault, unless
    /// the instruction has completed and the exception is its trap.
    pub fn raise(&mut self, vector: Vector) {
        self.raised.get_or_insert(vector);
        if self.progress == Progress::Begun {
            self.progress = Progress::Faulted;
        }
    }

    /// The first exception that the instruction has raised, if any.
    pub fn raised(&self) -> Option<Vector> {
        self.raised
    }

    /// Whether the instruction has completed.
    pub fn has_completed(&self) -> bool {
        self.progress == Progress::Completed
    }

    /// Whether the instruction has completed or faulted.
    pub fn has_ended(&self) -> bool {
        self.progress != Progress::Begun
    }

    /// Whether the instruction is in an interrupt shadow.
    pub fn is_shadowed(&self) -> bool {
        self.shadowed
    }

    /// Whether the trap flag causes a debug trap after the instruction.
    pub fn traps(&self) -> bool {
        self.traps
    }

    /// Sets whether the trap flag causes a debug trap after the instruction. INT n and a task
    /// switch clear the flag first; SYSCALL and SYSRET use the flag that they have loaded.
    pub fn set_traps(&mut self, traps: bool) {
        self.traps = traps;
    }

    /// Whether the trap flag causes a debug trap now. It causes only one.
    pub fn take_trap(&mut self) -> bool {
        std::mem::take(&mut self.traps)
    }

    /// Records that the instruction has loaded EFLAGS.RF (IRET, a task switch), which its end must
    /// not clear.
    pub fn load_resume_flag(&mut self) {
        self.loads_resume_flag = true;
    }

    /// Whether the instruction has loaded EFLAGS.RF.
    pub fn loads_resume_flag(&self) -> bool {
        self.loads_resume_flag
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An instruction that has begun.
    const BEGUN: InstructionInWork = InstructionInWork {
        progress: Progress::Begun,
        raised: None,
        traps: false,
        shadowed: false,
        loads_resume_flag: false,
    };
    /// An instruction that has begun and is followed by a debug trap.
    const TRAPS: InstructionInWork = InstructionInWork {
        traps: true,
        ..BEGUN
    };
    /// An instruction that has begun in an interrupt shadow.
    const SHADOWED: InstructionInWork = InstructionInWork {
        shadowed: true,
        ..BEGUN
    };

    #[test]
    fn an_instruction_that_was_only_begun_has_not_ended() {
        let work = TRAPS;
        assert!(!work.has_ended() && !work.has_completed());
        assert!(work.traps() && !work.is_shadowed());
    }

    #[test]
    fn a_fault_ends_it_without_completing_it() {
        let mut work = SHADOWED;
        work.raise(Vector::PageFault);
        work.raise(Vector::DoubleFault);
        assert!(work.has_ended() && !work.has_completed());
        assert_eq!(work.raised(), Some(Vector::PageFault));
    }

    #[test]
    fn the_trap_behind_it_leaves_it_completed_and_strikes_once() {
        let mut work = TRAPS;
        work.complete();
        assert!(work.take_trap());
        work.raise(Vector::Debug);
        assert!(work.has_completed());
        assert!(!work.take_trap());
    }

    #[test]
    fn the_next_instruction_begins_without_what_the_last_one_left() {
        let mut cpu = CpuState::at_reset();
        cpu.flags |= Flags::TF.bits();
        cpu.shadow_rip = cpu.rip;
        let mut work = InstructionInWork::begin(&cpu);
        assert!(work.traps() && work.is_shadowed());
        work.load_resume_flag();
        work.complete();
        cpu.flags &= !Flags::TF.bits();
        cpu.end_shadow();
        work = InstructionInWork::begin(&cpu);
        assert_eq!(work, BEGUN);
    }
}
