//! Points at which a long piece of the monitor's work stops, because a request waits.
//!
//! The monitor looks at requests only between two of the guest's instructions, so its work for one
//! masks interrupts. A *section*, a piece of it that can be long, asks at its points whether to
//! [stop](Points::stops). It then ends with what it has done, in a state as if it had never meant to
//! do more; the interrupt is delivered at the boundary of the instruction that the work is for, which
//! begins again behind the handler and needs less. Each section says why its work comes to an end.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tollgate_exits::counter::counter;
use tollgate_exits::latency::Section;

/// What sections do about requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interruptible {
    /// They are done to the end.
    Off,
    /// They stop at the next point. What is left is done when it is needed again.
    #[default]
    Restart,
}

/// The points of one vCPU's sections, of which one runs at a time, on its thread.
#[derive(Debug, Default)]
pub struct Points {
    divides: AtomicBool,
    /// When the last point was passed, or the section began.
    since: AtomicU64,
    /// The longest time between two points of the section.
    longest: AtomicU64,
    /// Points that were passed.
    passed: AtomicU64,
    /// At every so many points a request is made: for tests; 0: at none.
    forced: AtomicU64,
    /// How often each section stopped.
    stopped: [AtomicU64; Section::ALL.len()],
}

impl Points {
    /// Whether sections stop.
    pub fn interruptible(&self) -> Interruptible {
        match self.divides.load(Ordering::Relaxed) {
            true => Interruptible::Restart,
            false => Interruptible::Off,
        }
    }

    /// Whether sections stop from now on.
    pub fn set_interruptible(&self, choice: Interruptible) {
        let divides = choice == Interruptible::Restart;
        self.divides.store(divides, Ordering::Relaxed);
    }

    /// From now on a request is made at every so many points; 0: at none.
    pub fn force(&self, every: u64) {
        self.forced.store(every, Ordering::Relaxed);
    }

    /// A section begins, at this reading of the counter.
    #[inline]
    pub fn begin(&self, now: u64) {
        self.since.store(now, Ordering::Relaxed);
        self.longest.store(0, Ordering::Relaxed);
    }

    /// A point is passed at which the section can stop.
    #[inline]
    pub(crate) fn pass(&self) {
        let now = counter();
        let masked = now.saturating_sub(self.since.load(Ordering::Relaxed));
        self.longest.fetch_max(masked, Ordering::Relaxed);
        self.since.store(now, Ordering::Relaxed);
    }

    /// The section has ended: its longest time between two points, in cycles.
    pub fn end(&self) -> u64 {
        self.pass();
        self.longest.load(Ordering::Relaxed)
    }

    /// Whether a section stops at this point, if it can and a request is made (`pending`).
    #[inline]
    pub(crate) fn stops(&self, section: Section, pending: &AtomicU32) -> bool {
        if !self.divides.load(Ordering::Relaxed) {
            return false;
        }
        self.pass();
        let forced = self.forced.load(Ordering::Relaxed);
        if forced != 0 {
            let passed = self.passed.fetch_add(1, Ordering::Relaxed);
            if passed.is_multiple_of(forced) {
                pending.store(1, Ordering::SeqCst);
            }
        }
        let stops = pending.load(Ordering::Relaxed) != 0;
        if stops {
            self.stopped[section as usize].fetch_add(1, Ordering::Relaxed);
        }
        stops
    }

    /// How often each section stopped.
    pub fn stopped(&self) -> [(&'static str, u64); Section::ALL.len()] {
        let count = |section: Section| self.stopped[section as usize].load(Ordering::Relaxed);
        Section::ALL.map(|section| (section.name(), count(section)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped(points: &Points) -> u64 {
        points.stopped().iter().map(|row| row.1).sum()
    }

    #[test]
    fn a_section_stops_only_if_it_can_and_something_is_asked() {
        let (points, pending) = (Points::default(), AtomicU32::new(1));
        assert!(!points.stops(Section::Translate, &pending));
        points.set_interruptible(Interruptible::Restart);
        assert!(points.stops(Section::Translate, &pending));
        pending.store(0, Ordering::SeqCst);
        assert!(!points.stops(Section::Translate, &pending));
        assert_eq!(stopped(&points), 1);
        assert!(points.stopped().contains(&("translate", 1)));
    }

    #[test]
    fn requests_can_be_forced_at_every_other_point() {
        let (points, pending) = (Points::default(), AtomicU32::new(0));
        points.set_interruptible(Interruptible::Restart);
        points.force(2);
        let stops = [0; 6].map(|_| {
            pending.store(0, Ordering::SeqCst);
            points.stops(Section::MapWindow, &pending)
        });
        assert_eq!(stops, [true, false, true, false, true, false]);
    }

    #[test]
    fn what_masks_is_the_longest_time_between_two_points() {
        let points = Points::default();
        let begun = counter();
        points.begin(begun);
        let mut last = begun;
        let mut longest = 0;
        for _ in 0..100 {
            points.pass();
            let now = points.since.load(Ordering::Relaxed);
            longest = longest.max(now - last);
            last = now;
        }
        assert!(points.end() >= longest);
        points.begin(counter());
        assert!(points.longest.load(Ordering::Relaxed) == 0);
    }
}
