//! What a debugger outside of the machine watches. The guest does not see it: its memory and its debug
//! registers stay as they are.
//!
//! Guest code runs up to an instruction with a breakpoint, and returns to the monitor there
//! ([`Runner::set_breakpoints`]). It also returns for each access to a page in which memory is watched
//! ([`WatchedPages`](crate::memory::watched_pages::WatchedPages)).
//!
//! [`Runner::set_breakpoints`]: crate::execution::runner::Runner::set_breakpoints

use std::collections::BTreeSet;
use tollgate_x86::breakpoints::Debugged;

/// The kinds of accesses that are watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchedAccess {
    /// Only writes are watched.
    Write,
    /// Only reads are watched.
    Read,
    /// Reads and writes.
    Any,
}

/// Memory that is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatchedMemory {
    /// The linear address of the first byte.
    pub address: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// Which accesses are reported.
    pub access: WatchedAccess,
}

impl WatchedMemory {
    const fn is_hit(self, first: u64, size: u64, write: bool) -> bool {
        let is_meant = match self.access {
            WatchedAccess::Write => write,
            WatchedAccess::Read => !write,
            WatchedAccess::Any => true,
        };
        let last = self.address.saturating_add(self.bytes.saturating_sub(1));
        is_meant && size != 0 && first <= last && first.saturating_add(size - 1) >= self.address
    }
}

/// Why the debugger is due. The processor is between two instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DebugStop {
    /// The next instruction has a breakpoint.
    Breakpoint,
    /// An instruction has accessed watched memory.
    Accessed(WatchedMemory),
    /// A single step has ended.
    Stepped,
}

/// Breakpoints, watched memory, and a step in progress.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Watched {
    /// The linear addresses of instructions before which the processor stops.
    pub code: BTreeSet<u64>,
    /// The watched memory.
    pub memory: Vec<WatchedMemory>,
    /// Whether the processor stops before the next instruction that it would execute.
    pub stops_next: bool,
    /// Why the processor has stopped, or stops after this instruction.
    stop: Option<DebugStop>,
}

impl Watched {
    /// Returns how code must run.
    pub fn debugged(&self) -> Debugged {
        Debugged {
            instructions: self.stops_next,
            accesses: !self.memory.is_empty(),
            breakpoints: !self.code.is_empty(),
        }
    }

    /// Notes an access to memory.
    pub(crate) fn note_access(&mut self, address: u64, size: u64, write: bool) {
        let mut memory = self.memory.iter();
        if let Some(memory) = memory.find(|it| it.is_hit(address, size, write)) {
            self.stop = Some(DebugStop::Accessed(*memory));
        }
    }

    /// Whether an instruction has accessed watched memory.
    #[inline]
    pub(crate) const fn has_hit(&self) -> bool {
        self.stop.is_some()
    }

    /// Whether the processor stops before the instruction at a linear address. `is_fetched` is whether
    /// the instruction can be fetched. If not, its breakpoint does not count yet: the page fault of the
    /// fetch comes first, and the instruction is executed after that.
    pub(crate) fn meets(&mut self, address: u64, is_fetched: impl FnOnce() -> bool) -> bool {
        if std::mem::take(&mut self.stops_next) {
            self.stop = Some(DebugStop::Stepped);
        } else if self.code.contains(&address) && is_fetched() {
            self.stop = Some(DebugStop::Breakpoint);
        }
        self.stop.is_some()
    }

    /// Takes the reason for which the processor has stopped for the debugger. It then returns from
    /// `run` as for a request for attention.
    pub const fn take_stop(&mut self) -> Option<DebugStop> {
        self.stop.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_hit_by_accesses_of_its_kind_that_overlap_it() {
        let mut watched = Watched::default();
        assert_eq!(watched.debugged(), Debugged::default());
        let memory = |access| WatchedMemory {
            address: 100,
            bytes: 4,
            access,
        };
        for (access, hit_by) in [
            (WatchedAccess::Write, [false, true]),
            (WatchedAccess::Read, [true, false]),
            (WatchedAccess::Any, [true, true]),
        ] {
            watched.memory = vec![memory(access)];
            for (write, is_hit) in [false, true].into_iter().zip(hit_by) {
                for (address, size, overlaps) in [
                    (99, 1, false),
                    (99, 2, true),
                    (103, 8, true),
                    (104, 1, false),
                ] {
                    watched.note_access(address, size, write);
                    let stop = watched.take_stop();
                    assert_eq!(stop.is_some(), is_hit && overlaps, "{access:?} {address}");
                }
            }
        }
        assert!(watched.debugged().accesses);
    }

    #[test]
    fn the_next_instruction_or_one_with_a_breakpoint_stops() {
        let mut watched = Watched::default();
        watched.code.insert(7);
        let debugged = watched.debugged();
        assert!(debugged.breakpoints && !debugged.instructions);
        assert!(!watched.meets(6, || true));
        assert!(!watched.meets(7, || false));
        assert_eq!(watched.take_stop(), None);
        assert!(watched.meets(7, || true));
        assert_eq!(watched.take_stop(), Some(DebugStop::Breakpoint));
        watched.stops_next = true;
        assert!(watched.meets(8, || false));
        assert_eq!(watched.take_stop(), Some(DebugStop::Stepped));
        assert!(!watched.meets(8, || true));
    }
}
