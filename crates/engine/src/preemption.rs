//! Checkpoints at which a long piece of the monitor's work stops because a request waits.
//!
//! The monitor looks at requests only between two guest instructions, so its work for one
//! instruction delays interrupts. *Interruptible work*, a piece of the monitor's work that can be
//! long, asks at its checkpoints whether to stop (`Checkpoints::stops`). If it stops, it ends with
//! what it has done so far, in a state as if no more had been intended; the interrupt is delivered
//! at the boundary of the instruction that the work is for. After the handler that
//! instruction begins again and has less to do, or the work is [resumed](Interruptible::Resume)
//! first. Each piece of work documents why it comes to an end.
//!
//! A stop costs time, and gains nothing while the guest's own flag holds interrupts off. So work
//! continues past a checkpoint if interrupts are off, and until it has run for the *break-even*:
//! the time from a checkpoint to the handler's first instruction, as measured at the last
//! deliveries.
//!
//! ```text
//! begin        break-even      request    checkpoint
//!   |--- no stops ---|------------|-----------| handler ... return |--- what is left ---|
//! ```

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use tollgate_exits::counter::counter;
use tollgate_exits::latency::InterruptibleWork;

/// Cycles after which work stops whose length the guest chooses: some hundred microseconds.
const LONGEST: u64 = 1_000_000;
/// The value of the break-even, in cycles, before it was measured.
const FIRST_BREAK_EVEN: u64 = 3_000;
/// Each delivery changes the break-even by one part in this number.
const STEPS: u64 = 32;

/// How interruptible work reacts to requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interruptible {
    /// The work is done to its end.
    Off,
    /// The work stops at the next checkpoint. The rest is done when it is needed again.
    #[default]
    Restart,
    /// The work stops at the next checkpoint. The rest is done when the guest has returned from the
    /// handler to the instruction that the work is for, before that instruction begins again.
    Resume,
}

impl Interruptible {
    const ALL: [Self; 3] = [Self::Off, Self::Restart, Self::Resume];
}

/// How often one kind of work stopped and was resumed.
#[derive(Debug, Default)]
struct Happened {
    /// How often the work stopped.
    stopped: AtomicU64,
    /// How often the work was resumed.
    resumed: AtomicU64,
}

/// The checkpoints of one vCPU's interruptible work. One piece of work runs at a time, on the
/// vCPU's thread.
#[derive(Debug)]
pub struct Checkpoints {
    /// The index in [`Interruptible::ALL`] of how work reacts to requests.
    choice: AtomicU8,
    /// Whether the guest allows interrupts.
    lets_in: AtomicBool,
    /// Whether the current piece of work has stopped.
    has_stopped: AtomicBool,
    /// Cycles for which a piece of work must have run before it stops.
    break_even: AtomicU64,
    /// When requests were last taken; 0 if the result of that is already known.
    taken: AtomicU64,
    /// When the current piece of work began.
    begun: AtomicU64,
    /// When work last passed a checkpoint at which it could have stopped, or began.
    since: AtomicU64,
    /// The longest time between two checkpoints of the current work.
    longest: AtomicU64,
    /// The number of checkpoints that were passed.
    passed: AtomicU64,
    /// For tests: a request is made at every checkpoint whose number is a multiple of this; 0: at
    /// none.
    forced: AtomicU64,
    happened: [Happened; InterruptibleWork::ALL.len()],
    /// How many pieces of work stopped without the guest returning to them.
    dropped: AtomicU64,
}

/// A piece of work that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndedWork {
    /// The longest time between two checkpoints, in cycles.
    pub longest: u64,
    /// Whether the guest allowed interrupts during the work.
    pub lets_in: bool,
}

impl Default for Checkpoints {
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

/// For how many other pieces of work a piece that has given up is remembered.
const MOST_OTHERS: u32 = 16;

/// Which piece of work has stopped without a result.
///
/// When this work is asked for again it is done to its end; otherwise interrupts in quick
/// succession could keep the guest from making progress. Until then no other work gives up. But
/// after `MOST_OTHERS` others the work is forgotten, since the guest's scheduler may have switched
/// to another task.
#[derive(Debug)]
pub struct GivenUp<T>(Option<(T, u32)>);

impl<T> Default for GivenUp<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: PartialEq> GivenUp<T> {
    /// Whether a piece of work that begins may give up. Callers must not ask this for work that
    /// could not stop.
    pub fn may_give_up(&mut self, work: &T) -> bool {
        match &mut self.0 {
            None => return true,
            Some((given_up, _)) if given_up == work => self.0 = None,
            Some((_, others)) if *others < MOST_OTHERS => *others += 1,
            Some(_) => self.0 = None,
        }
        false
    }

    /// Notes that a piece of work has given up.
    pub fn give_up(&mut self, work: T) {
        self.0 = Some((work, 0));
    }
}

/// How often work stopped for requests, and whether it was resumed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stops {
    /// How often each kind of work stopped.
    pub stopped: Vec<(&'static str, u64)>,
    /// How often each kind of work was resumed where it had stopped.
    pub resumed: Vec<(&'static str, u64)>,
    /// How many pieces of work could have been resumed, but the guest did not return to them.
    pub dropped: u64,
    /// Cycles for which a piece of work must have run before it stops.
    pub break_even: u64,
}

impl Checkpoints {
    /// How work reacts to requests.
    pub fn interruptible(&self) -> Interruptible {
        Interruptible::ALL[usize::from(self.choice.load(Ordering::Relaxed))]
    }

    /// Sets how work reacts to requests from now on.
    pub fn set_interruptible(&self, choice: Interruptible) {
        self.choice.store(choice as u8, Ordering::Relaxed);
    }

    /// Makes a request at every checkpoint whose number is a multiple of `every` from now on, and
    /// lets work stop there however briefly it has run. 0 ends this.
    pub fn force(&self, every: u64) {
        self.forced.store(every, Ordering::Relaxed);
    }

    /// Begins a piece of work at this reading of the counter; `lets_in` says whether the guest
    /// allows interrupts.
    #[inline]
    pub fn begin(&self, now: u64, lets_in: bool) {
        self.lets_in.store(lets_in, Ordering::Relaxed);
        self.has_stopped.store(false, Ordering::Relaxed);
        self.begun.store(now, Ordering::Relaxed);
        self.since.store(now, Ordering::Relaxed);
        self.longest.store(0, Ordering::Relaxed);
    }

    /// Notes that the work passes a checkpoint at which it could stop.
    #[inline]
    fn pass_at(&self, now: u64) {
        let masked = now.saturating_sub(self.since.load(Ordering::Relaxed));
        self.longest.fetch_max(masked, Ordering::Relaxed);
        self.since.store(now, Ordering::Relaxed);
    }

    /// Ends the piece of work.
    pub fn end(&self) -> EndedWork {
        self.pass_at(counter());
        EndedWork {
            longest: self.longest.load(Ordering::Relaxed),
            lets_in: self.lets_in.load(Ordering::Relaxed),
        }
    }

    /// Whether the work stops at this checkpoint, if it can stop and a request waits (`pending`).
    #[inline]
    pub(crate) fn stops(&self, work: InterruptibleWork, pending: &AtomicU32) -> bool {
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
            let happened = &self.happened[work as usize];
            happened.stopped.fetch_add(1, Ordering::Relaxed);
        }
        stops
    }

    /// Whether work whose length the guest chooses stops at this checkpoint. If the work has run
    /// for [`LONGEST`] it stops although it otherwise could not, since the request may be for more
    /// than an interrupt.
    #[inline]
    pub(crate) fn pauses(&self, work: InterruptibleWork, pending: &AtomicU32) -> bool {
        if self.stops(work, pending) {
            return true;
        }
        pending.load(Ordering::Relaxed) != 0 && {
            let run = counter().saturating_sub(self.begun.load(Ordering::Relaxed));
            run >= LONGEST
        }
    }

    /// Whether the current work can stop at all.
    #[inline]
    pub fn may_stop(&self) -> bool {
        self.choice.load(Ordering::Relaxed) != Interruptible::Off as u8
            && self.lets_in.load(Ordering::Relaxed)
    }

    /// Whether the current work, or the work that ended last, has stopped at a checkpoint.
    #[inline]
    pub fn has_stopped(&self) -> bool {
        self.has_stopped.load(Ordering::Relaxed)
    }

    /// Counts that a piece of work is resumed where it had stopped.
    pub fn resume(&self, work: InterruptibleWork) {
        let happened = &self.happened[work as usize];
        happened.resumed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts that a piece of work that could have been resumed will not be.
    pub fn drop_one(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the devices have done what was due: the monitor's way to the handler begins here.
    #[inline]
    pub fn requests_taken(&self) {
        self.taken.store(counter(), Ordering::Relaxed);
    }

    /// Notes that the requests that were taken did not lead to a delivery.
    #[inline]
    pub fn nothing_delivered(&self) {
        self.taken.store(0, Ordering::Relaxed);
    }

    /// Notes that an interrupt has been delivered, and moves the break-even towards the median of
    /// the time that a delivery takes.
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

    /// How often work stopped, and what became of it.
    pub fn what_stopped(&self) -> Stops {
        let rows = |count: fn(&Happened) -> &AtomicU64| {
            let count = |work: &InterruptibleWork| {
                let happened = &self.happened[*work as usize];
                (work.name(), count(happened).load(Ordering::Relaxed))
            };
            InterruptibleWork::ALL.iter().map(count).collect()
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

    fn stopped(checkpoints: &Checkpoints) -> u64 {
        let stops = checkpoints.what_stopped();
        stops.stopped.iter().map(|row| row.1).sum()
    }

    /// Checkpoints at which work stops immediately.
    fn dividing() -> Checkpoints {
        let checkpoints = Checkpoints::default();
        checkpoints.set_interruptible(Interruptible::Restart);
        checkpoints.begin(0, true);
        checkpoints
    }

    #[test]
    fn work_stops_only_if_it_can_and_something_is_asked() {
        let (checkpoints, pending) = (Checkpoints::default(), AtomicU32::new(1));
        checkpoints.begin(0, true);
        assert!(!checkpoints.stops(InterruptibleWork::Translate, &pending));
        for choice in [Interruptible::Restart, Interruptible::Resume] {
            checkpoints.set_interruptible(choice);
            assert_eq!(checkpoints.interruptible(), choice);
            checkpoints.begin(0, true);
            // The work may check again while it ends.
            assert!(checkpoints.stops(InterruptibleWork::Translate, &pending));
            assert!(checkpoints.stops(InterruptibleWork::Translate, &pending));
        }
        pending.store(0, Ordering::SeqCst);
        assert!(!checkpoints.stops(InterruptibleWork::Translate, &pending));
        assert_eq!(stopped(&checkpoints), 2);
        let stops = checkpoints.what_stopped();
        assert!(stops.stopped.contains(&("translate", 2)));
    }

    #[test]
    fn work_does_not_stop_while_the_guest_holds_interrupts_off() {
        let (checkpoints, pending) = (dividing(), AtomicU32::new(1));
        checkpoints.begin(0, false);
        assert!(!checkpoints.stops(InterruptibleWork::Translate, &pending));
        assert!(!checkpoints.end().lets_in);
        checkpoints.begin(0, true);
        assert!(checkpoints.stops(InterruptibleWork::Translate, &pending));
        assert!(checkpoints.end().lets_in);
    }

    #[test]
    fn work_stops_when_it_has_run_for_the_break_even() {
        let (checkpoints, pending) = (dividing(), AtomicU32::new(1));
        checkpoints.break_even.store(u64::MAX, Ordering::Relaxed);
        checkpoints.begin(counter(), true);
        assert!(!checkpoints.stops(InterruptibleWork::Translate, &pending));
        checkpoints.break_even.store(0, Ordering::Relaxed);
        assert!(checkpoints.stops(InterruptibleWork::Translate, &pending));
    }

    #[test]
    fn the_break_even_follows_what_deliveries_take() {
        let checkpoints = Checkpoints::default();
        // A delivery whose start is unknown does not change the break-even.
        checkpoints.delivered();
        assert_eq!(checkpoints.what_stopped().break_even, FIRST_BREAK_EVEN);
        checkpoints.taken.store(1, Ordering::Relaxed);
        checkpoints.delivered();
        let more = checkpoints.what_stopped().break_even;
        assert!(more > FIRST_BREAK_EVEN && more < FIRST_BREAK_EVEN * 11 / 10);
        for _ in 0..10_000 {
            checkpoints.taken.store(u64::MAX, Ordering::Relaxed);
            checkpoints.delivered();
        }
        assert!(checkpoints.what_stopped().break_even <= STEPS);
    }

    #[test]
    fn requests_can_be_forced_at_every_other_point() {
        let (checkpoints, pending) = (dividing(), AtomicU32::new(0));
        checkpoints.break_even.store(u64::MAX, Ordering::Relaxed);
        checkpoints.force(2);
        let stops = [0; 6].map(|_| {
            pending.store(0, Ordering::SeqCst);
            checkpoints.stops(InterruptibleWork::MapWindow, &pending)
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
        // Work 1 is never asked for again.
        for _ in 0..=MOST_OTHERS {
            assert!(!given_up.may_give_up(&2));
        }
        assert!(given_up.may_give_up(&2));
    }

    #[test]
    fn work_as_long_as_the_guest_likes_stops_at_last() {
        for (choice, lets_in) in [(Interruptible::Off, true), (Interruptible::Restart, false)] {
            let (checkpoints, pending) = (Checkpoints::default(), AtomicU32::new(1));
            checkpoints.set_interruptible(choice);
            checkpoints.begin(counter(), lets_in);
            assert!(!checkpoints.pauses(InterruptibleWork::String, &pending));
            checkpoints.begin(counter() - LONGEST, lets_in);
            assert!(checkpoints.pauses(InterruptibleWork::String, &pending));
            pending.store(0, Ordering::SeqCst);
            assert!(!checkpoints.pauses(InterruptibleWork::String, &pending));
            // This stop is not for an interrupt, so it is not counted.
            assert_eq!(stopped(&checkpoints), 0);
        }
    }

    #[test]
    fn what_masks_is_the_longest_time_between_two_points() {
        let checkpoints = Checkpoints::default();
        let begun = counter();
        checkpoints.begin(begun, true);
        let mut last = begun;
        let mut longest = 0;
        for _ in 0..100 {
            checkpoints.pass_at(counter());
            let now = checkpoints.since.load(Ordering::Relaxed);
            longest = longest.max(now - last);
            last = now;
        }
        assert!(checkpoints.end().longest >= longest);
        checkpoints.begin(counter(), true);
        assert!(checkpoints.longest.load(Ordering::Relaxed) == 0);
    }
}
