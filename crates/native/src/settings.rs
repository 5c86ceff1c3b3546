//! How a process is made, and what the host gave of it.

use crate::image::Instruction;
use crate::layout::DEFAULT_PLACE;

/// On which processor a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Placement {
    /// Wherever the host's kernel puts it.
    Free,
    /// On that of the thread that runs it, which sleeps then, and stays there
    /// ([`leave_seat`](crate::leave_seat)). Waking a task on another processor costs several times more
    /// than switching to it.
    #[default]
    WithCaller,
}

/// How a process is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How many PAUSE instructions each side executes while it looks for the other before it
    /// sleeps. This makes sense only with [`Placement::Free`] and an idle processor.
    pub spins: u32,
    /// On which processor it runs.
    pub placement: Placement,
    /// Where the stub lies. It must be a multiple of a page, not within 64 GiB of the end of the
    /// addresses of programs, where Linux puts the first stack.
    pub place: u64,
    /// What CPUID does.
    pub cpuid: Instruction,
    /// What RDTSC and RDTSCP do.
    pub time_stamp_counter: Instruction,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            spins: 0,
            placement: Placement::default(),
            place: DEFAULT_PLACE,
            cpuid: Instruction::Runs,
            time_stamp_counter: Instruction::Runs,
        }
    }
}

/// What instructions do in a process: what it got of what [`Settings`] asked for, and what the host's
/// processor decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What CPUID does.
    pub cpuid: Instruction,
    /// What RDTSC and RDTSCP do.
    pub time_stamp_counter: Instruction,
    /// What SGDT, SIDT, SLDT, STR and SMSW do. If they fault, the host's kernel may emulate them with
    /// values of its own.
    pub descriptor_table_reads: Instruction,
}
