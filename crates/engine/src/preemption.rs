//! Checkpoints at which a long piece of the monitor's work stops because a request waits.
//!
//! The monitor looks at requests only between two guest instructions, so its work for one
//! instruction delays interrupts. *Interruptible work* (`Section`), a piece of the monitor's work
//! that can be long, asks at its checkpoints whether to [stop](Points::stops). If it stops, it ends
//! with what it has done so far, in a state as if no more had been intended; the interrupt is
//! delivered at the boundary of the instruction that the work is for. After the handler that
//! instruction begins again and has less to do, or the work is [resumed](Interruptible::Resume)
//! first. Each piece of work documents why it comes to an end.
//!
//! A stop costs time, and gains nothing while the guest's own flag holds interrupts off. So work
//! continues past a checkpoint if interrupts are off, and until it has run for the *break-even*:
//! the time from a checkpoint to the handler's first instruction, as measured at the last
//! deliveries.
//!
//! ```text
//! begin        break-even      request      point
//!   |--- no stops ---|------------|-----------| handler ... return |--- what is left ---|
//! ```

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use tollgate_exits::counter::counter;
use tollgate_exits::latency::Section;

/// Cycles after which a section stops that goes on for as long as the guest likes: some
/// hundred microseconds.
const LONGEST: u64 = 1_000_000;
/// What is taken for the break-even, in cycles, before it was measured.
const FIRST_BREAK_EVEN: u64 = 3_000;
/// Each delivery moves the break-even by so large a part of it.
const STEPS: u64 = 32;

/// What sections do about requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interruptible {
    /// They are done to the end.
    Off,
    /// They stop at the next point. What is left is done when it is needed again.
    #[default]
    Restart,
    /// They stop at the next point. What is left is done when the guest has come back from the
    /// handler to the instruction that it is for, before that begins again.
    Resume,
}

impl Interruptible {
    const ALL: [Self; 3] = [Self::Off, Self::Restart, Self::Resume];
}

/// What happened at the points of one kind of section.
#[derive(Debug, Default)]
struct Happened {
    /// It stopped.
    stopped: AtomicU64,
    /// It was gone on with.
    resumed: AtomicU64,
}

/// The points of one vCPU's sections, of which one runs at a time, on its thread.
#[derive(Debug)]
pub struct Points {
    /// Which of [`Interruptible::ALL`].
    choice: AtomicU8,
    /// The guest lets interrupts in.
    lets_in: AtomicBool,
    /// The section has stopped.
    has_stopped: AtomicBool,
    /// Cycles that a section must have run for before it stops.
    break_even: AtomicU64,
    /// When requests were last taken; 0: what came of them is known.
    taken: AtomicU64,
    /// When the section began.
    begun: AtomicU64,
    /// When the last point was passed at which it could have stopped, or it began.
    since: AtomicU64,
    /// The longest time between two points of the section.
    longest: AtomicU64,
    /// Points that were passed.
    passed: AtomicU64,
    /// At every so many points a request is made: for tests; 0: at none.
    forced: AtomicU64,
    happened: [Happened; Section::ALL.len()],
    /// Sections that stopped and to which the guest did not come back.
    dropped: AtomicU64,
}

impl Default for Points {
    fn default() -> Self {
        Self {
            choice: AtomicU8::new(Interruptible::Off as u8),
            lets_in: AtomicBool::new(true),
            has_stopped: AtomicBool::new(false),
            break_even: AtomicU64::new(FIRST_BREAK_EVEN),
            taken: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            since: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            forced: AtomicU64::new(0),
            happened: Default::default(),
            dropped: AtomicU64::new(0),
        }
    }
}

/// Other pieces of work that are waited for until one that has given up is taken to be forgotten.
const MOST_OTHERS: u32 = 16;

/// Which piece of work has stopped with nothing to show for it. When it comes again it is done to
/// the end, or interrupts in quick succession could keep the guest from getting on. Until then no
/// other one gives up, unless it is long in coming: the guest's scheduler may have gone on with another
/// task.
#[derive(Debug)]
pub struct GivenUp<T>(Option<(T, u32)>);

impl<T> Default for GivenUp<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: PartialEq> GivenUp<T> {
    /// Whether a piece of work that begins may give up. Not to be asked for one that could not stop.
    pub fn may_give_up(&mut self, work: &T) -> bool {
        match &mut self.0 {
            None => return true,
            Some((given_up, _)) if given_up == work => self.0 = None,
            Some((_, others)) if *others < MOST_OTHERS => *others += 1,
            Some(_) => self.0 = None,
        }
        false
    }

    /// It has.
    pub fn give_up(&mut self, work: T) {
        self.0 = Some((work, 0));
    }
}

/// What became of sections that stopped for requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stops {
    /// How often each kind of section stopped.
    pub stopped: Vec<(&'static str, u64)>,
    /// How often each was gone on with where it had stopped.
    pub resumed: Vec<(&'static str, u64)>,
    /// How many were to be gone on with, and the guest did not come back.
    pub dropped: u64,
    /// Cycles that a section must have run for before it stops.
    pub break_even: u64,
}

impl Points {
    /// What sections do about requests.
    pub fn interruptible(&self) -> Interruptible {
        Interruptible::ALL[usize::from(self.choice.load(Ordering::Relaxed))]
    }

    /// What they do from now on.
    pub fn set_interruptible(&self, choice: Interruptible) {
        self.choice.store(choice as u8, Ordering::Relaxed);
    }

    /// From now on a request is made at every so many points, and sections stop however short they
    /// are; 0: at none.
    pub fn force(&self, every: u64) {
        self.forced.store(every, Ordering::Relaxed);
    }

    /// A section begins, at this reading of the counter; the guest `lets_in` interrupts.
    #[inline]
    pub fn begin(&self, now: u64, lets_in: bool) {
        self.lets_in.store(lets_in, Ordering::Relaxed);
        self.has_stopped.store(false, Ordering::Relaxed);
        self.begun.store(now, Ordering::Relaxed);
        self.since.store(now, Ordering::Relaxed);
        self.longest.store(0, Ordering::Relaxed);
    }

    /// A point is passed at which the section can stop.
    #[inline]
    fn pass_at(&self, now: u64) {
        let masked = now.saturating_sub(self.since.load(Ordering::Relaxed));
        self.longest.fetch_max(masked, Ordering::Relaxed);
        self.since.store(now, Ordering::Relaxed);
    }

    /// The section has ended: its longest time between two points, in cycles, and whether the guest
    /// let interrupts in meanwhile.
    pub fn end(&self) -> (u64, bool) {
        self.pass_at(counter());
        let longest = self.longest.load(Ordering::Relaxed);
        (longest, self.lets_in.load(Ordering::Relaxed))
    }

    /// Whether a section stops at this point, if it can and a request is made (`pending`).
    #[inline]
    pub(crate) fn stops(&self, section: Section, pending: &AtomicU32) -> bool {
        if !self.may_stop() {
            return false;
        }
        let now = counter();
        let forced = self.forced.load(Ordering::Relaxed);
        if forced != 0 {
            let passed = self.passed.fetch_add(1, Ordering::Relaxed);
            if passed.is_multiple_of(forced) {
                pending.store(1, Ordering::SeqCst);
            }
        } else {
            let run = now.saturating_sub(self.begun.load(Ordering::Relaxed));
            if run < self.break_even.load(Ordering::Relaxed) {
                return false;
            }
        }
        self.pass_at(now);
        let stops = pending.load(Ordering::Relaxed) != 0;
        if stops && !self.has_stopped.swap(true, Ordering::Relaxed) {
            let happened = &self.happened[section as usize];
            happened.stopped.fetch_add(1, Ordering::Relaxed);
        }
        stops
    }

    /// The same of a section that is as long as the guest likes. If it has run for [`LONGEST`] it
    /// stops though it could not, for what waits may be more than an interrupt.
    #[inline]
    pub(crate) fn pauses(&self, section: Section, pending: &AtomicU32) -> bool {
        if self.stops(section, pending) {
            return true;
        }
        pending.load(Ordering::Relaxed) != 0 && {
            let run = counter().saturating_sub(self.begun.load(Ordering::Relaxed));
            run >= LONGEST
        }
    }

    /// Whether the section that runs can stop at all.
    #[inline]
    pub fn may_stop(&self) -> bool {
        self.choice.load(Ordering::Relaxed) != Interruptible::Off as u8
            && self.lets_in.load(Ordering::Relaxed)
    }

    /// Whether the section that ended last, or runs, has stopped at a point.
    #[inline]
    pub fn has_stopped(&self) -> bool {
        self.has_stopped.load(Ordering::Relaxed)
    }

    /// A section goes on where it had stopped.
    pub fn resume(&self, section: Section) {
        let happened = &self.happened[section as usize];
        happened.resumed.fetch_add(1, Ordering::Relaxed);
    }

    /// One that was to go on will not.
    pub fn drop_one(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// The devices have done what was due: from here it is the monitor's way to the handler.
    #[inline]
    pub fn requests_taken(&self) {
        self.taken.store(counter(), Ordering::Relaxed);
    }

    /// Nothing came of the requests that were taken.
    #[inline]
    pub fn nothing_delivered(&self) {
        self.taken.store(0, Ordering::Relaxed);
    }

    /// An interrupt has been delivered: the break-even follows the median of what that takes.
    #[inline]
    pub fn delivered(&self) {
        let taken = self.taken.swap(0, Ordering::Relaxed);
        if taken == 0 {
            return;
        }
        let took = counter().saturating_sub(taken);
        let known = self.break_even.load(Ordering::Relaxed);
        let next = match took > known {
            true => known + known / STEPS + 1,
            false => known - known / STEPS,
        };
        self.break_even.store(next, Ordering::Relaxed);
    }

    /// What became of sections that stopped.
    pub fn what_stopped(&self) -> Stops {
        let rows = |count: fn(&Happened) -> &AtomicU64| {
            let count = |section: &Section| {
                let happened = &self.happened[*section as usize];
                (section.name(), count(happened).load(Ordering::Relaxed))
            };
            Section::ALL.iter().map(count).collect()
        };
        Stops {
            stopped: rows(|it| &it.stopped),
            resumed: rows(|it| &it.resumed),
            dropped: self.dropped.load(Ordering::Relaxed),
            break_even: self.break_even.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped(points: &Points) -> u64 {
        let stops = points.what_stopped();
        stops.stopped.iter().map(|row| row.1).sum()
    }

    /// Points that stop at once.
    fn dividing() -> Points {
        let points = Points::default();
        points.set_interruptible(Interruptible::Restart);
        points.begin(0, true);
        points
    }

    #[test]
    fn a_section_stops_only_if_it_can_and_something_is_asked() {
        let (points, pending) = (Points::default(), AtomicU32::new(1));
        points.begin(0, true);
        assert!(!points.stops(Section::Translate, &pending));
        for choice in [Interruptible::Restart, Interruptible::Resume] {
            points.set_interruptible(choice);
            assert_eq!(points.interruptible(), choice);
            points.begin(0, true);
            // It may ask again on its way out.
            assert!(points.stops(Section::Translate, &pending));
            assert!(points.stops(Section::Translate, &pending));
        }
        pending.store(0, Ordering::SeqCst);
        assert!(!points.stops(Section::Translate, &pending));
        assert_eq!(stopped(&points), 2);
        let stops = points.what_stopped();
        assert!(stops.stopped.contains(&("translate", 2)));
    }

    #[test]
    fn a_section_does_not_stop_while_the_guest_holds_interrupts_off() {
        let (points, pending) = (dividing(), AtomicU32::new(1));
        points.begin(0, false);
        assert!(!points.stops(Section::Translate, &pending));
        assert!(!points.end().1);
        points.begin(0, true);
        assert!(points.stops(Section::Translate, &pending));
        assert!(points.end().1);
    }

    #[test]
    fn a_section_stops_when_it_has_run_for_the_break_even() {
        let (points, pending) = (dividing(), AtomicU32::new(1));
        points.break_even.store(u64::MAX, Ordering::Relaxed);
        points.begin(counter(), true);
        assert!(!points.stops(Section::Translate, &pending));
        points.break_even.store(0, Ordering::Relaxed);
        assert!(points.stops(Section::Translate, &pending));
    }

    #[test]
    fn the_break_even_follows_what_deliveries_take() {
        let points = Points::default();
        // One of which the boundary is not known says nothing.
        points.delivered();
        assert_eq!(points.what_stopped().break_even, FIRST_BREAK_EVEN);
        points.taken.store(1, Ordering::Relaxed);
        points.delivered();
        let more = points.what_stopped().break_even;
        assert!(more > FIRST_BREAK_EVEN && more < FIRST_BREAK_EVEN * 11 / 10);
        for _ in 0..10_000 {
            points.taken.store(u64::MAX, Ordering::Relaxed);
            points.delivered();
        }
        assert!(points.what_stopped().break_even <= STEPS);
    }

    #[test]
    fn requests_can_be_forced_at_every_other_point() {
        let (points, pending) = (dividing(), AtomicU32::new(0));
        points.break_even.store(u64::MAX, Ordering::Relaxed);
        points.force(2);
        let stops = [0; 6].map(|_| {
            pending.store(0, Ordering::SeqCst);
            points.stops(Section::MapWindow, &pending)
        });
        assert_eq!(stops, [true, false, true, false, true, false]);
    }

    #[test]
    fn what_has_given_up_comes_to_its_end_before_anything_else_gives_up() {
        let mut given_up = GivenUp::default();
        assert!(given_up.may_give_up(&1));
        given_up.give_up(1);
        for _ in 0..MOST_OTHERS {
            assert!(!given_up.may_give_up(&2));
        }
        assert!(!given_up.may_give_up(&1));
        assert!(given_up.may_give_up(&1));
        given_up.give_up(1);
        // It never comes again.
        for _ in 0..=MOST_OTHERS {
            assert!(!given_up.may_give_up(&2));
        }
        assert!(given_up.may_give_up(&2));
    }

    #[test]
    fn a_section_as_long_as_the_guest_likes_stops_at_last() {
        for (choice, lets_in) in [(Interruptible::Off, true), (Interruptible::Restart, false)] {
            let (points, pending) = (Points::default(), AtomicU32::new(1));
            points.set_interruptible(choice);
            points.begin(counter(), lets_in);
            assert!(!points.pauses(Section::String, &pending));
            points.begin(counter() - LONGEST, lets_in);
            assert!(points.pauses(Section::String, &pending));
            pending.store(0, Ordering::SeqCst);
            assert!(!points.pauses(Section::String, &pending));
            // That is no stop for an interrupt.
            assert_eq!(stopped(&points), 0);
        }
    }

    #[test]
    fn what_masks_is_the_longest_time_between_two_points() {
        let points = Points::default();
        let begun = counter();
        points.begin(begun, true);
        let mut last = begun;
        let mut longest = 0;
        for _ in 0..100 {
            points.pass_at(counter());
            let now = points.since.load(Ordering::Relaxed);
            longest = longest.max(now - last);
            last = now;
        }
        assert!(points.end().0 >= longest);
        points.begin(counter(), true);
        assert!(points.longest.load(Ordering::Relaxed) == 0);
    }
}
