//! The instruction in work: what the vCPU knows of it from its begin to its end.
//!
//! ```text
//!   begin ──> Begun ──complete──> Completed ──raise (its own trap)──> Completed
//!     ^         │
//!     │         ├──raise──> Faulted
//!     └─────────┘ an exit that ends nothing (a page filled, registers loaded): begun anew
//! ```
//!
//! While translated code runs, many instructions begin and end without the monitor; the value
//! is that of the first one. It also holds for the one that exits, because the two cases that
//! it distinguishes are not missed: EFLAGS.TF makes blocks of one instruction, and the exit
//! reports a shadow. Nothing here outlives the instruction; what does is in
//! [`crate::execution::latches::Latches`].

use tollgate_x86::Vector;

/// How far the instruction has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Progress {
    #[default]
    Begun,
    /// Done; a trap behind it may have been delivered.
    Completed,
    /// Undone, and its exception delivered.
    Faulted,
}

/// The instruction in work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct InstructionInWork {
    progress: Progress,
    raised: Option<Vector>,
    traps: bool,
    shadowed: bool,
    loads_resume_flag: bool,
}

impl InstructionInWork {
    /// An instruction begins, or is begun anew. `traps`: EFLAGS.TF is set; `shadowed`: it lies
    /// in an interrupt shadow.
    pub fn begin(traps: bool, shadowed: bool) -> Self {
        Self {
            progress: Progress::Begun,
            raised: None,
            traps,
            shadowed,
            loads_resume_flag: false,
        }
    }

    /// It has completed.
    pub fn complete(&mut self) {
        self.progress = Progress::Completed;
    }

    /// An exception was delivered: its fault, unless it has completed and this is its trap.
    pub fn raise(&mut self, vector: Vector) {
        self.raised.get_or_insert(vector);
        if self.progress == Progress::Begun {
            self.progress = Progress::Faulted;
        }
    }

    /// The first exception that it has raised, if any.
    pub fn raised(&self) -> Option<Vector> {
        self.raised
    }

    /// It has completed.
    pub fn has_completed(&self) -> bool {
        self.progress == Progress::Completed
    }

    /// It has completed or faulted.
    pub fn has_ended(&self) -> bool {
        self.progress != Progress::Begun
    }

    /// It lies in an interrupt shadow.
    pub fn is_shadowed(&self) -> bool {
        self.shadowed
    }

    /// Whether the trap flag causes a debug trap after it.
    pub fn traps(&self) -> bool {
        self.traps
    }

    /// Changes whether the trap flag causes a debug trap after it: INT n and a task switch clear
    /// the flag first, SYSCALL and SYSRET use the flag that they have loaded.
    pub fn set_traps(&mut self, traps: bool) {
        self.traps = traps;
    }

    /// Whether the trap flag strikes; it strikes once.
    pub fn take_trap(&mut self) -> bool {
        std::mem::take(&mut self.traps)
    }

    /// It has loaded EFLAGS.RF (IRET, a task switch), which its end must not clear.
    pub fn load_resume_flag(&mut self) {
        self.loads_resume_flag = true;
    }

    /// Whether it has loaded EFLAGS.RF.
    pub fn loads_resume_flag(&self) -> bool {
        self.loads_resume_flag
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_that_was_only_begun_has_not_ended() {
        let work = InstructionInWork::begin(true, false);
        assert!(!work.has_ended() && !work.has_completed());
        assert!(work.traps() && !work.is_shadowed());
    }

    #[test]
    fn a_fault_ends_it_without_completing_it() {
        let mut work = InstructionInWork::begin(false, true);
        work.raise(Vector::PageFault);
        work.raise(Vector::DoubleFault);
        assert!(work.has_ended() && !work.has_completed());
        assert_eq!(work.raised(), Some(Vector::PageFault));
    }

    #[test]
    fn the_trap_behind_it_leaves_it_completed_and_strikes_once() {
        let mut work = InstructionInWork::begin(true, false);
        work.complete();
        assert!(work.take_trap());
        work.raise(Vector::Debug);
        assert!(work.has_completed());
        assert!(!work.take_trap());
    }

    #[test]
    fn the_next_instruction_begins_without_what_the_last_one_left() {
        let mut work = InstructionInWork::begin(true, true);
        work.load_resume_flag();
        work.complete();
        work = InstructionInWork::begin(false, false);
        assert_eq!(work, InstructionInWork::default());
    }
}
