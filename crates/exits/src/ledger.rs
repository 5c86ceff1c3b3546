//! The ledger: every exit counted, and where the vCPU's time went.
//!
//! Counts are exact. Time is read from the time-stamp counter, which costs tens of
//! cycles, as much as a cheap exit; so exits and the runs of guest code behind them
//! are timed in samples: [`crate::sampler`] chooses them. Long work (translating, sleeping
//! in HLT) is always timed, and guest code that runs long without an exit is not left to
//! chance either: [`groups`].
//!
//! A host that runs other programs in between would spoil samples, and a spoiled sample
//! counts many times. So that time is an account of its own: wall time less the thread's
//! processor time less sleep. A sample that took suspiciously long gives up what was
//! newly lost there; what was lost before is looked at when a burst of samples begins.
//!
//! What is neither guest code nor an exit has accounts too: functions that translated code calls
//! without an exit ([`leaf_calls`]), guest code that was left for a signal, the start and the end of each run, and the books' own work, with what it adds to the
//! exits that are timed ([`crate::disturbance`]).
//!
//! ```text
//! leave_guest   count(kind)   count(kind)    enter_guest       leave_guest
//!      |------------|--------------|-------------|------------------|
//!        first kind   first kind     second kind     guest code
//! ```

mod accounts;
mod groups;
mod interrupts;
mod leaf_calls;
mod report;
#[cfg(test)]
mod tests;

use crate::blame::{Blame, DeviceAddress, Place};
use crate::counter::counter;
use crate::disturbance::Disturbance;
use crate::latency::{Arrival, Latency, Request, Section};
use crate::sampler::{Due, Sampler};
use crate::trace::{Span, Tracer};
use crate::{ExitCounts, ExitKind};
use groups::{Group, Usual};
use leaf_calls::LeafSampler;

pub use accounts::Accounts;
pub use leaf_calls::{LeafCall, LeafRecord};
pub use report::{Cost, TimeShares};

/// A piece of work that took so many cycles may have been interrupted by the host: worth
/// the system call that tells.
const SUSPICIOUSLY_LONG: u64 = 40_000;
/// An exit that takes so many cycles counts once where every exit is timed: its like are too few for
/// samples.
const LONG: u64 = SUSPICIOUSLY_LONG;
/// The books' own work for one exit is shorter.
const LONGEST_ENTRY: u64 = 100_000;
/// An exit that took so many cycles was interrupted, whatever the host says (which may be
/// a virtual machine that was not scheduled).
const INTERRUPTED_BY_HOST: u64 = 500_000;

/// How much the ledger records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Detail {
    /// Counts and time.
    #[default]
    Full,
    /// Counts only: the other arm when the ledger's own cost is measured.
    CountsOnly,
}

/// The host's view of the thread's time, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostTime {
    /// Time that passes.
    pub passed: u64,
    /// Time that this thread has had a processor.
    pub on_processor: u64,
}

/// One timed exit, not yet in the books.
struct Sample {
    kind: ExitKind,
    place: Place,
    device: Option<DeviceAddress>,
    cycles: u64,
    weight: u64,
}

/// Samples that wait to be entered in the books: a burst of exits that do two things each.
const PENDING_SAMPLES: usize = 64;

/// The vCPU's books.
pub struct Ledger {
    accounts: Accounts,
    detail: Detail,
    host: fn() -> HostTime,
    sampler: Sampler,
    disturbance: Disturbance,
    leaf_sampler: LeafSampler,
    /// What two readings of the clock cost, subtracted from each measurement.
    clock_cost: u64,
    /// The current exit is being timed.
    sampling: bool,
    /// The current run of guest code is being timed.
    timing_guest: bool,
    /// How many exits the one being timed stands for; zero while warming up, and where it is timed
    /// only in case that it is long.
    weight: u64,
    /// Every exit and every stretch of guest code is timed for now.
    is_attentive: bool,
    group: Group,
    usual: Usual,
    mark: u64,
    /// Cycles since `mark` that belong to translation, devices or sleep.
    excluded: u64,
    current: Option<ExitKind>,
    /// What was counted last.
    last: ExitKind,
    /// The instruction of the current exit.
    place: Place,
    /// The device that it accessed last.
    device: Option<DeviceAddress>,
    /// Entered between bursts, where the memory that this touches disturbs no sample.
    pending: Vec<Sample>,
    run_start: u64,
    run_start_host: HostTime,
    /// The time until guest code is first entered is being measured.
    starting: bool,
    /// Of `halted`, what belongs to this run.
    run_halted: u64,
    /// Waiting time of this run that has been looked at.
    waiting_seen: u64,
    /// When requests were last taken, and when that or something else was last looked at.
    taken_at: (HostTime, u64),
    looked_at: (HostTime, u64),
    /// While there is one, every exit is timed.
    tracer: Option<Box<Tracer>>,
}

impl Ledger {
    /// Empty books. `host` tells what the calling thread has had of the host's time; it
    /// may be a system call, and is asked rarely.
    pub fn new(host: fn() -> HostTime, detail: Detail) -> Self {
        let clock_cost = (0..64)
            .map(|_| {
                let first = counter();
                counter().wrapping_sub(first)
            })
            .min()
            .unwrap_or(0);
        Self {
            accounts: Accounts::default(),
            detail,
            host,
            sampler: Sampler::new(),
            disturbance: Disturbance::default(),
            leaf_sampler: LeafSampler::default(),
            clock_cost,
            sampling: false,
            timing_guest: false,
            weight: 1,
            is_attentive: false,
            group: Group::default(),
            usual: Usual::default(),
            mark: 0,
            excluded: 0,
            current: None,
            last: ExitKind::LinkMiss,
            place: Place::default(),
            device: None,
            pending: Vec::with_capacity(PENDING_SAMPLES),
            run_start: 0,
            run_start_host: HostTime::default(),
            starting: false,
            run_halted: 0,
            waiting_seen: 0,
            taken_at: (HostTime::default(), 0),
            looked_at: (HostTime::default(), 0),
            tracer: None,
        }
    }

    /// From now on every exit is timed and handed to `tracer`, for as long as it is
    /// wanted. To be called while the vCPU does not run.
    pub fn begin_trace(&mut self, tracer: Tracer) {
        self.sampler.set_every_exit(true);
        self.tracer = Some(Box::new(tracer));
    }

    /// Ends a trace, if there is one: its last events are handed over.
    pub fn end_trace(&mut self) {
        drop(self.take_tracer());
    }

    /// Tells a trace, if there is one, the guest's SYSENTER_EIP, or LSTAR.
    pub fn note_system_call_entry(&self, entry: u64) {
        if let Some(tracer) = &self.tracer {
            tracer.set_system_call_entry(entry);
        }
    }

    /// Who was handed the trace, for books that are begun anew.
    pub fn take_tracer(&mut self) -> Option<Tracer> {
        self.sampler.set_every_exit(false);
        self.tracer.take().map(|tracer| *tracer)
    }

    /// Which instructions the exits came from.
    pub fn blame(&self) -> &Blame {
        &self.accounts.blame
    }

    /// Everything that was entered so far, up to the last stop.
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Exact counts.
    pub fn counts(&self) -> &ExitCounts {
        &self.accounts.counts
    }

    /// The vCPU begins to run.
    pub fn start(&mut self) {
        self.run_start_host = (self.host)();
        self.run_start = counter();
        self.run_halted = 0;
        self.waiting_seen = 0;
        self.taken_at = (self.run_start_host, self.run_start);
        self.looked_at = self.taken_at;
        self.sampler.start(self.run_start);
        self.disturbance.is_not_alike();
        self.accounts.latency.start();
        // The way to the first guest code is timed, and with it that code, for which no exit
        // stands: both count once.
        let is_traced = self.tracer.is_some();
        self.starting = self.detail == Detail::Full && !is_traced;
        self.sampling = self.starting;
        self.timing_guest = false;
        self.mark = self.run_start;
        self.forget_sample();
        self.weight = 1;
        self.is_attentive = self.detail == Detail::Full;
        self.begin_group(self.run_start, self.sampler.left_of_burst() > 0);
        if is_traced {
            self.begin_sample(self.run_start);
            self.mark = counter();
        }
    }

    /// What is timed next has no kind yet.
    fn forget_sample(&mut self) {
        self.current = None;
        self.device = None;
        self.excluded = 0;
    }

    /// The vCPU stops running.
    pub fn stop(&mut self) {
        self.enter_guest();
        self.timing_guest = false;
        let begin = counter();
        self.end_last_group(begin);
        self.enter_samples();
        let host = (self.host)();
        let now = counter();
        self.accounts.waiting += self.waiting_by(host, now);
        let ending = now.wrapping_sub(begin);
        // Longer, it was waiting.
        if ending < LONGEST_ENTRY {
            self.accounts.start_end += ending;
        }
        self.accounts.wall += now.wrapping_sub(self.run_start);
    }

    /// How long this run has been ready without a processor.
    fn waiting_by(&self, host: HostTime, now: u64) -> u64 {
        let passed = host.passed.saturating_sub(self.run_start_host.passed);
        let had = host
            .on_processor
            .saturating_sub(self.run_start_host.on_processor);
        let without = u128::from(passed.saturating_sub(had));
        let cycles = u128::from(now.wrapping_sub(self.run_start));
        let without = (without * cycles / u128::from(passed.max(1))) as u64;
        without.saturating_sub(self.run_halted)
    }

    /// Looks at the waiting time now, so that what is lost from here on can be told from
    /// what was lost before. Worth a call where a microsecond does not matter. Returns the time.
    fn look_at_waiting(&mut self) -> u64 {
        let host = (self.host)();
        let now = counter();
        self.waiting_seen = self.waiting_by(host, now);
        now
    }

    /// `cycles` of work that has just ended, without what the thread waited in it.
    #[inline]
    fn without_waiting(&mut self, cycles: u64) -> u64 {
        if cycles < SUSPICIOUSLY_LONG {
            cycles
        } else {
            self.without_waiting_slow(cycles)
        }
    }

    #[cold]
    fn without_waiting_slow(&mut self, cycles: u64) -> u64 {
        let seen = self.waiting_seen;
        let lost = self.waiting_until_asked().saturating_sub(seen);
        let lost = lost.min(cycles);
        // What this work cannot have lost belongs to that around it.
        self.waiting_seen += lost;
        cycles - lost
    }

    /// How long this run had been ready without a processor before the host was asked for that.
    fn waiting_until_asked(&mut self) -> u64 {
        let begin = counter();
        let host = (self.host)();
        let now = counter();
        // The processor is often lost in this system call, which is behind the work.
        let asking = match now.wrapping_sub(begin) {
            long @ LONGEST_ENTRY.. => long,
            _ => 0,
        };
        self.waiting_seen += asking;
        self.waiting_by(host, now).saturating_sub(asking)
    }

    /// `cycles` of work inside an exit, which ended at `end`, without what the thread waited in it.
    /// They are not the exit's, nor is asking the host.
    fn inside_exit(&mut self, cycles: u64, end: u64) -> u64 {
        self.excluded += cycles;
        if cycles < SUSPICIOUSLY_LONG {
            return cycles;
        }
        let cycles = self.without_waiting_slow(cycles);
        let asking = counter().wrapping_sub(end);
        self.excluded += asking;
        if asking < LONGEST_ENTRY {
            self.accounts.books += asking;
        }
        cycles
    }

    /// Counts an exit of the instruction at `place`; from here on time is its.
    #[inline]
    pub fn count(&mut self, kind: ExitKind, place: Place) {
        self.accounts.counts.count(kind);
        self.last = kind;
        if self.sampling {
            if self.current.is_some() || self.starting {
                let now = counter();
                let is_brief = self.close_kind(now);
                self.go_on(now, is_brief);
            }
            self.current = Some(kind);
            self.place = place;
        }
    }

    // The clock is read first and last, here and in `enter_guest`, so that the books'
    // own work lies outside what is timed.

    /// Guest code was just left.
    #[inline]
    pub fn leave_guest(&mut self) {
        let due = self.sampler.is_due();
        if self.timing_guest || due {
            let now = counter();
            if due && self.sampler.is_passing() && self.passes_quickly(now) {
                return;
            }
            let is_brief = self.leave_guest_timed(now, due);
            self.go_on(now, is_brief);
            self.disturbance.begin_control(self.mark);
        }
    }

    /// Timing goes on here; since `now` the books were at work, for a few instructions if that
    /// `is_brief`.
    #[inline]
    fn go_on(&mut self, now: u64, is_brief: bool) {
        if is_brief {
            self.mark = now;
            self.accounts.books += self.clock_cost;
        } else {
            self.mark_from(now);
        }
    }

    #[inline]
    fn mark_from(&mut self, now: u64) {
        self.mark = counter();
        let cycles = self.mark.wrapping_sub(now) + self.clock_cost;
        // Longer, the thread has lost its processor, as it often does in the system call that asks
        // what it has had of one. That is known as waiting already.
        if cycles < LONGEST_ENTRY {
            self.accounts.books += cycles;
        } else {
            self.mark = self.look_at_waiting();
        }
    }

    /// Whether that was brief.
    #[cold]
    fn leave_guest_timed(&mut self, now: u64, due: bool) -> bool {
        let mut is_brief = !due;
        if self.timing_guest {
            let cycles = self.elapsed(now);
            self.excluded = 0;
            is_brief &= cycles < SUSPICIOUSLY_LONG;
            let cycles = self.without_waiting(cycles);
            self.enter_stretch(cycles);
            self.timing_guest = false;
        }
        self.weight = 0;
        if due {
            self.begin_sample(now);
        } else if self.group.is_burst {
            self.disturbance.end_burst();
            self.end_group(now);
            self.enter_samples();
            self.begin_group(now, false);
            is_brief = false;
        }
        if self.is_attentive && !self.sampling {
            self.sampling = true;
            self.forget_sample();
        }
        is_brief
    }

    fn begin_sample(&mut self, now: u64) {
        if self.detail == Detail::CountsOnly {
            self.sampler.stop();
            return;
        }
        if self.tracer.as_ref().is_some_and(|t| !t.is_wanted()) {
            self.end_trace();
        }
        let begins_burst = self.sampler.begins_burst();
        let begins_group = begins_burst || self.sampler.left_of_burst() == 0;
        if begins_group {
            self.end_group(now);
        }
        if begins_burst {
            self.disturbance.end_control(now, self.clock_cost);
            self.look_at_waiting();
        }
        let due = self.sampler.begin(now);
        if begins_group {
            self.begin_group(now, begins_burst);
        }
        match due {
            Due::Group => return,
            Due::Control => {
                if !self.is_attentive {
                    self.disturbance.ask_for_control();
                }
                return;
            }
            Due::Timed(weight) => self.weight = weight,
        }
        if self.weight > 0 {
            self.disturbance.begin_exit();
        }
        self.sampling = true;
        self.forget_sample();
    }

    /// What was done since `mark` would have taken so long untimed; the rest is the books'.
    fn elapsed(&mut self, now: u64) -> u64 {
        let cycles = now
            .wrapping_sub(self.mark)
            .saturating_sub(self.clock_cost)
            .saturating_sub(self.excluded);
        let undisturbed = self.disturbance.undisturbed(cycles);
        self.accounts.books += cycles - undisturbed;
        undisturbed
    }

    /// Guest code is about to be entered.
    #[inline]
    pub fn enter_guest(&mut self) {
        if self.sampling {
            let now = counter();
            let is_brief = self.close_kind(now);
            self.sampling = false;
            self.timing_guest = true;
            self.go_on(now, is_brief);
        }
    }

    /// Whether that was brief.
    #[cold]
    fn close_kind(&mut self, now: u64) -> bool {
        let cycles = self.elapsed(now);
        let mut is_brief = self.weight == 0 && cycles < SUSPICIOUSLY_LONG;
        let cycles = self.without_waiting(cycles);
        self.excluded = 0;
        let device = self.device.take();
        if let Some(tracer) = &mut self.tracer {
            let whole = now.wrapping_sub(self.mark);
            tracer.exit(self.current, self.mark, whole, self.place);
            is_brief = false;
        }
        if self.starting {
            self.starting = false;
            self.accounts.start_end += cycles;
            return false;
        }
        let weight = self.piece_of_exit(cycles);
        match self.current {
            _ if weight == 0 => {}
            // A signal, which came alone: nobody has counted anything.
            None => self.accounts.signals += cycles * weight,
            Some(kind) => {
                self.pending.push(Sample {
                    kind,
                    place: self.place,
                    device,
                    cycles,
                    weight,
                });
                if self.pending.len() == PENDING_SAMPLES {
                    self.enter_samples();
                }
            }
        }
        is_brief
    }

    /// Enters what was sampled in the books.
    #[cold]
    fn enter_samples(&mut self) {
        for sample in self.pending.drain(..) {
            // No exit's own work takes so long. Whatever happened, it happened once, not
            // to every exit that this one stands for.
            let times = if sample.cycles < INTERRUPTED_BY_HOST {
                sample.weight
            } else {
                1
            };
            self.accounts.enter(&sample, times);
        }
    }

    /// Times a piece of translation work.
    pub fn translate<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = counter();
        let result = work();
        let end = counter();
        let cycles = end.wrapping_sub(start);
        self.disturbance.is_not_alike();
        self.accounts.translating += self.inside_exit(cycles, end);
        self.trace_inside(Span::Translating, cycles);
        result
    }

    /// Does work that is the books' own, amid an exit.
    pub fn aside(&mut self, work: impl FnOnce()) {
        let start = counter();
        work();
        let cycles = counter().wrapping_sub(start);
        self.disturbance.is_not_alike();
        self.excluded += cycles;
        // Longer, it was waiting.
        if cycles < LONGEST_ENTRY {
            self.accounts.books += cycles;
        }
    }

    /// Sleeps in HLT. Going to sleep and waking up belong to the exit. [`Self::request_taken`]
    /// comes next, before anything else is timed: how late the host has ended the sleep is no
    /// sample's.
    pub fn sleep(&mut self, sleep: impl FnOnce()) {
        self.disturbance.is_not_alike();
        let (before, begin) = ((self.host)(), counter());
        sleep();
        let (after, end) = ((self.host)(), counter());
        let whole = end.wrapping_sub(begin);
        let passed = after.passed.saturating_sub(before.passed);
        let had = after.on_processor.saturating_sub(before.on_processor);
        let asleep = u128::from(passed.saturating_sub(had)) * u128::from(whole);
        let asleep = (asleep / u128::from(passed.max(1))) as u64;
        self.accounts.halted += asleep;
        self.run_halted += asleep;
        self.excluded += asleep;
        self.trace_inside(Span::Asleep, whole);
    }

    /// Whether device calls are to be timed now.
    #[inline]
    pub fn is_sampling(&self) -> bool {
        self.sampling
    }

    /// The exit being timed accesses a device here.
    #[inline]
    pub fn at_device(&mut self, device: DeviceAddress) {
        self.device = Some(device);
    }

    /// A device call of the exit being timed took this many cycles.
    pub fn in_devices(&mut self, cycles: u64) {
        let cycles = cycles.saturating_sub(self.clock_cost);
        self.disturbance.inside(cycles);
        let had = self.inside_exit(cycles, counter());
        let weight = self.piece_of_exit(had);
        self.accounts.devices += had * weight;
        self.trace_inside(Span::Device, cycles);
    }

    /// Traces work that ends now.
    fn trace_inside(&mut self, span: Span, cycles: u64) {
        if let Some(tracer) = &mut self.tracer {
            tracer.inside(span, counter().wrapping_sub(cycles), cycles);
        }
    }

    /// The clock of this ledger, in cycles.
    pub fn now(&self) -> u64 {
        counter()
    }
}
