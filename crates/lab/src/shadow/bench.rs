//! Runs one workload of the experiment `shadow` on a kernel of ours.

use super::about::*;
use super::work::{IMAGES, Routine, Work};
use crate::experiment::{Arm, Bench, LabError, Stop, Timed};
use crate::paged_guest::{PAGES, PagedGuest, Width};
use tollgate_machine::config::VmConfig;

/// A guest with one workload.
pub struct Single {
    width: Width,
    work: Work,
    /// Number of events in a round.
    events: u64,
}

impl Single {
    /// Opens the workload of this name; with little work if `quick`.
    pub fn open(guest: &str, workload: &str, quick: bool) -> Self {
        let (routine, spaces, pages, events, rounds) = match workload {
            SWITCH_ONLY => (Routine::Switch, 6, 0, 6, 50_000),
            SWITCH => (Routine::Switch, 6, PAGES, 6, 2_000),
            SWITCH_TWELVE => (Routine::Switch, 12, PAGES, 12, 1_000),
            INVALIDATE_ONLY => (Routine::OnlyInvalidate, 1, 0, 1, 100_000),
            INVALIDATE => (Routine::Invalidate, 1, PAGES, 1, 20_000),
            RANGE => (Routine::RangeByPage, 1, PAGES, 1, 5_000),
            RANGE_BY_CALL => (Routine::RangeByCall, 1, PAGES, 1, 5_000),
            PURGE => (Routine::Purge, 1, PAGES, 1, 2_000),
            _ => (Routine::Twice, 12, PAGES, 1, 2_000),
        };
        Self {
            width: match guest {
                NARROW => Width::Narrow,
                _ => Width::Wide,
            },
            work: Work {
                routine,
                spaces,
                pages,
                rounds: if quick { rounds / 50 } else { rounds },
            },
            events,
        }
    }
}

impl Bench for Single {
    fn measure(&mut self, arm: &Arm, stop: &Stop) -> Result<Timed, LabError> {
        let config = arm.config(&VmConfig::default())?;
        let mut guest = PagedGuest::new(self.width, IMAGES, &config)?;
        let warm = Work {
            rounds: (self.work.rounds / 20).next_multiple_of(2),
            ..self.work
        };
        warm.run(&mut guest, stop)?;
        guest.reset_ledger();
        let cycles = self.work.run(&mut guest, stop)?;
        let events = self.work.rounds * self.events;
        let mut timed = Timed::of_events(events, cycles, &guest.reading());
        timed.work.insert("sum".to_owned(), self.work.sum());
        timed.add_counts(&guest.counts());
        Ok(timed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::about::ABOUT;
    use super::super::arms::SIX;
    use super::*;
    use crate::experiment::{EVENT, Workload};

    #[test]
    fn each_workload_does_its_work_with_each_of_its_arms() {
        let workloads = ABOUT.workloads.iter();
        let is_ours = |it: &&Workload| it.guests.contains(&WIDE) && it.name != ONE_SPACE;
        for workload in workloads.filter(is_ours) {
            for guest in [WIDE, NARROW] {
                let mut bench = Single::open(guest, workload.name, true);
                for arm in ABOUT.arms {
                    if workload.arms.contains(&arm.name) {
                        let timed = bench.measure(arm, &Stop::default());
                        let timed = timed.unwrap_or_else(|why| panic!("{}: {why}", arm.name));
                        assert!(timed.values[EVENT] > 0.0, "{} {}", workload.name, arm.name);
                    }
                }
            }
        }
    }

    #[test]
    fn known_spaces_are_switched_without_exits_and_filled_once() {
        let six = ABOUT.arms.iter().find(|arm| arm.name == SIX).unwrap();
        let timed = Single::open(WIDE, SWITCH, true)
            .measure(six, &Stop::default())
            .unwrap();
        for kind in ["cr3-load", "tlb-miss-read"] {
            assert!(timed.exits(kind).is_none_or(|row| row.count < 20), "{kind}");
        }
    }
}
