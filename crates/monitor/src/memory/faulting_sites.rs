//! Finds instructions whose direct accesses keep faulting on the host.
//!
//! A fault in a shadow window costs some microseconds, a look-up in the software TLB nanoseconds.
//! An instruction that keeps touching new pages, such as a store of a program that maps memory,
//! uses the memory once and unmaps it, is faster with look-ups in every address space where it
//! runs.

use rustc_hash::FxHashMap;

/// Each period of this length, in nanoseconds, forgives an instruction one fault. Together with the
/// cost of a fault it limits the share of time that one instruction may lose.
const FREE_AFTER: u64 = 250_000;
/// Faults in excess of the forgiven ones after which the instruction looks its operands up.
const MOST_FAULTS: u64 = 12;
/// How often in a row an instruction may fault at one host address before the monitor executes it
/// without accesses of its own, because handling the fault evidently does not help.
const MOST_REPEATS: u32 = 3;
/// Maximum number of instructions on record.
const MOST_SITES: usize = 1024;

/// The faults on record for one instruction.
#[derive(Clone, Copy, Debug)]
struct Faults {
    count: u64,
    /// Time of the last fault, in nanoseconds.
    last: u64,
}

/// The instructions that have faulted recently, by their physical addresses.
#[derive(Default, Debug)]
pub(crate) struct FaultingSites {
    sites: FxHashMap<u64, Faults>,
    /// RIP and host address of the last fault.
    last: (u64, u64),
    repeats: u32,
}

impl FaultingSites {
    /// Records that the instruction at `rip` has faulted at a host address. Returns whether the two
    /// keep repeating.
    pub(crate) fn is_stuck(&mut self, rip: u64, host: u64) -> bool {
        let is_same = self.last == (rip, host);
        self.last = (rip, host);
        self.repeats = if is_same { self.repeats + 1 } else { 0 };
        if self.repeats < MOST_REPEATS {
            return false;
        }
        self.repeats = 0;
        true
    }

    /// Records a fault of the instruction at this physical address at time `now`, in nanoseconds.
    /// Returns whether the instruction faults too often.
    pub(crate) fn fault(&mut self, physical: u64, now: u64) -> bool {
        if self.sites.len() >= MOST_SITES && !self.sites.contains_key(&physical) {
            self.sites.clear();
        }
        let new = Faults {
            count: 0,
            last: now,
        };
        let faults = self.sites.entry(physical).or_insert(new);
        let free = now.saturating_sub(faults.last) / FREE_AFTER;
        faults.count = faults.count.saturating_sub(free) + 1;
        faults.last = now;
        faults.count > MOST_FAULTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_faults_in_a_row_are_held_against_an_instruction() {
        let mut sites = FaultingSites::default();
        let mut now = 0;
        for _ in 0..1000 {
            now += FREE_AFTER;
            assert!(!sites.fault(7, now));
        }
        let in_a_row = (0..100).position(|at| sites.fault(7, now + at));
        assert_eq!(in_a_row, Some(MOST_FAULTS as usize - 1));
        assert!(
            !sites.fault(8, now),
            "another instruction has faulted once only"
        );
        assert!(
            sites.fault(7, now + 200),
            "the instruction still faults too often"
        );
        assert!(!sites.fault(7, now + 200 + 20 * FREE_AFTER));
    }

    #[test]
    fn an_instruction_is_stuck_that_faults_again_and_again_at_one_address() {
        let mut sites = FaultingSites::default();
        let stuck = (0..2 * MOST_REPEATS + 2).map(|_| sites.is_stuck(1, 2));
        let times = stuck.filter(|&stuck| stuck).count();
        assert_eq!(times, 2);
        for other in 0..100 {
            assert!(!sites.is_stuck(1, other), "another address");
            assert!(!sites.is_stuck(other, 2), "another instruction");
        }
    }

    #[test]
    fn not_more_are_known_of_than_there_is_room_for() {
        let mut sites = FaultingSites::default();
        for site in 0..10 * MOST_SITES as u64 {
            sites.fault(site, 0);
        }
        assert!(sites.sites.len() <= MOST_SITES);
    }
}
