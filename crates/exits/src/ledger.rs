//! The ledger: the count of every exit, and how the vCPU spent its time.
//!
//! Counts are exact. Time is read from the time-stamp counter, which costs tens of cycles, as much
//! as a cheap exit; so exits and the runs of guest code after them are timed in samples:
//! [`crate::sampler`] chooses them. Long work (translating, sleeping in HLT) is always timed, and
//! guest code that runs long without an exit is not left to chance either: [`groups`].
//!
//! A host that runs other programs in between would spoil samples, and a spoiled sample counts many
//! times. So time in which the thread was not scheduled has its own account: wall time minus the
//! thread's processor time minus sleep. From a sample that took suspiciously long, the time newly
//! lost is subtracted; what was lost before is determined when a burst of samples starts.
//!
//! Time in neither guest code nor exits has accounts, too: functions that translated code calls
//! without an exit ([`fast_path_calls`]), guest code that was left for a signal, the start and the
//! end of each run, and the ledger's own work, including what it adds to the exits that are timed
//! ([`crate::disturbance`]).
//!
//! ```text
//! leave_guest   count(kind)   count(kind)    enter_guest       leave_guest
//!      |------------|--------------|-------------|------------------|
//!        first kind   first kind     second kind     guest code
//! ```

mod accounts;
mod elsewhere;
mod fast_path_calls;
mod fast_path_sampler;
mod groups;
mod interrupts;
mod report;
#[cfg(test)]
mod tests;

use crate::blame::{Blame, DeviceAddress, Place};
use crate::counter::counter;
use crate::disturbance::Disturbance;
use crate::latency::{Arrival, InterruptibleWork, Latency, Request};
use crate::sampler::{Due, Sampler};
use crate::trace::{Span, Tracer};
use crate::{ExitCounts, ExitKind};
use accounts::Sample;
use elsewhere::Elsewhere;
use fast_path_sampler::FastPathSampler;
use groups::{Group, Usual};

pub use accounts::{Accounts, FastPathMemo};
pub use elsewhere::OtherProcess;
pub use fast_path_calls::FastPathCall;
pub use report::{Cost, TimeShares};

/// Work that took this number of cycles may have been interrupted by the host: it is worth the
/// system call that answers this.
const SUSPICIOUSLY_LONG: u64 = 40_000;
/// Where every exit is timed, an exit of this number of cycles counts once: long exits are too rare
/// to be sampled.
const LONG: u64 = SUSPICIOUSLY_LONG;
/// The ledger's own work for one exit takes less than this number of cycles.
const LONGEST_ENTRY: u64 = 100_000;
/// An exit of this number of cycles was interrupted, whatever the host reports (the host itself may
/// be a virtual machine that was not scheduled).
const INTERRUPTED_BY_HOST: u64 = 500_000;

/// How much the ledger records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Detail {
    /// Both counts and times.
    #[default]
    Full,
    /// Only counts: for comparison, when the ledger's own cost is measured.
    CountsOnly,
}

/// The host's view of the thread's time, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostTime {
    /// Time that has passed.
    pub passed: u64,
    /// The processor time of this thread.
    pub on_processor: u64,
}

/// Number of samples that can wait to be added: a burst of exits that do two things each.
const PENDING_SAMPLES: usize = 64;

/// The ledger of a vCPU.
pub struct Ledger {
    accounts: Accounts,
    detail: Detail,
    host: fn() -> HostTime,
    elsewhere: Elsewhere,
    sampler: Sampler,
    disturbance: Disturbance,
    fast_path_sampler: FastPathSampler,
    /// The cost of two readings of the clock, which is subtracted from each measurement.
    clock_cost: u64,
    /// Whether the current exit is being timed.
    sampling: bool,
    /// Whether the current run of guest code is being timed.
    timing_guest: bool,
    /// The number of exits that the timed one stands for. Zero while warming up, and where an exit
    /// is timed only in case that it is long.
    weight: u64,
    /// Whether every exit and every stretch of guest code is timed at present.
    is_attentive: bool,
    group: Group,
    usual: Usual,
    mark: u64,
    /// Cycles since `mark` that belong to translation, devices or sleep.
    excluded: u64,
    current: Option<ExitKind>,
    /// The kind that was counted last.
    last: ExitKind,
    /// The instruction of the current exit.
    place: Place,
    /// The device that the current exit accessed last.
    device: Option<DeviceAddress>,
    /// Samples to be added between bursts, where the memory accesses for that disturb no sample.
    pending: Vec<Sample>,
    run_start: u64,
    run_start_host: HostTime,
    /// Whether the time until guest code is first entered is being measured.
    starting: bool,
    /// The part of `halted` that belongs to this run.
    run_halted: u64,
    /// The part of this run's waiting time that has been accounted for.
    waiting_seen: u64,
    /// When requests were last taken, and when `lost_lately` last looked.
    taken_at: (HostTime, u64),
    looked_at: (HostTime, u64),
    /// While there is a tracer, every exit is timed.
    tracer: Option<Box<Tracer>>,
}

impl Ledger {
    /// Makes an empty ledger. `host` returns the host's view of the calling thread's time; it may
    /// be a system call, and is called rarely.
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
            elsewhere: Elsewhere::default(),
            sampler: Sampler::new(),
            disturbance: Disturbance::default(),
            fast_path_sampler: FastPathSampler::default(),
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

    /// Times every exit from now on and passes it to `tracer`, for as long as it wants events. Must
    /// be called while the vCPU does not run.
    pub fn begin_trace(&mut self, tracer: Tracer) {
        self.sampler.set_every_exit(true);
        self.tracer = Some(Box::new(tracer));
    }

    /// Ends the trace, if there is one, after passing on its last events.
    pub fn end_trace(&mut self) {
        drop(self.take_tracer());
    }

    /// Passes the guest's SYSENTER_EIP, or LSTAR, to the trace, if there is one.
    pub fn note_system_call_entry(&self, entry: u64) {
        if let Some(tracer) = &self.tracer {
            tracer.set_system_call_entry(entry);
        }
    }

    /// Removes the tracer, so that it can be given to a new ledger.
    pub fn take_tracer(&mut self) -> Option<Tracer> {
        self.sampler.set_every_exit(false);
        self.tracer.take().map(|tracer| *tracer)
    }

    /// The instructions that the exits came from.
    pub fn blame(&self) -> &Blame {
        &self.accounts.blame
    }

    /// The sums of everything that was added until the last stop.
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// The exact counts.
    pub fn counts(&self) -> &ExitCounts {
        &self.accounts.counts
    }

    /// The cost of one kind of exit; `None` if none was timed.
    pub fn cost(&self, kind: ExitKind) -> Option<Cost> {
        self.accounts.cost(kind)
    }

    /// How the time was spent, up to the last stop.
    pub fn shares(&self) -> TimeShares {
        self.accounts.shares()
    }

    /// Guest code will run in this process, whose time counts as this thread's from now on.
    pub fn guest_runs_in(&mut self, process: OtherProcess) {
        self.elsewhere.runs_in(process);
    }

    /// The host's view of the time of this thread and of guest code in other processes.
    fn host_time(&self) -> HostTime {
        let thread = (self.host)();
        HostTime {
            on_processor: thread.on_processor + self.elsewhere.total(),
            ..thread
        }
    }

    /// The vCPU starts to run.
    pub fn start(&mut self) {
        self.run_start_host = self.host_time();
        self.run_start = counter();
        self.run_halted = 0;
        self.waiting_seen = 0;
        self.taken_at = (self.run_start_host, self.run_start);
        self.looked_at = self.taken_at;
        self.sampler.start(self.run_start);
        self.disturbance.is_not_alike();
        self.accounts.latency.start();
        // The time until the first guest code is measured, and that code too, since no exit stands
        // for it: both count once.
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

    /// Resets the state of the current sample: it has no kind yet.
    fn forget_sample(&mut self) {
        self.current = None;
        self.device = None;
        self.excluded = 0;
    }

    /// Notes that the vCPU stops running, and ends the last group.
    pub fn stop(&mut self) {
        self.enter_guest();
        self.timing_guest = false;
        let begin = counter();
        self.end_last_group(begin);
        self.enter_samples();
        let host = self.host_time();
        let now = counter();
        self.accounts.waiting += self.waiting_by(host, now);
        let ending = now.wrapping_sub(begin);
        // If it took longer, the thread was waiting.
        if ending < LONGEST_ENTRY {
            self.accounts.start_end += ending;
        }
        self.accounts.wall += now.wrapping_sub(self.run_start);
    }

    /// How long the thread was ready in this run without being scheduled, in cycles.
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

    /// Updates the waiting time, so that later losses can be distinguished from earlier ones. Worth
    /// calling where a microsecond does not matter. Returns the time.
    fn look_at_waiting(&mut self) -> u64 {
        let host = self.host_time();
        let now = counter();
        self.waiting_seen = self.waiting_by(host, now);
        now
    }

    /// The cycles of work that has just ended, without the time in which the thread was not
    /// scheduled.
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
        // Waiting that cannot belong to this work belongs to the work around it.
        self.waiting_seen += lost;
        cycles - lost
    }

    /// How long the thread had been ready in this run without being scheduled, before the host was
    /// asked.
    fn waiting_until_asked(&mut self) -> u64 {
        let begin = counter();
        let host = self.host_time();
        let now = counter();
        // The thread often loses its processor in this system call, which follows the work.
        let asking = match now.wrapping_sub(begin) {
            long @ LONGEST_ENTRY.. => long,
            _ => 0,
        };
        self.waiting_seen += asking;
        self.waiting_by(host, now).saturating_sub(asking)
    }

    /// The cycles of work inside an exit that ended at `end`, without the time in which the thread
    /// was not scheduled. Neither they nor the call to the host count as the exit's time.
    fn inside_exit(&mut self, cycles: u64, end: u64) -> u64 {
        self.excluded += cycles;
        if cycles < SUSPICIOUSLY_LONG {
            return cycles;
        }
        let cycles = self.without_waiting_slow(cycles);
        let asking = counter().wrapping_sub(end);
        self.excluded += asking;
        if asking < LONGEST_ENTRY {
            self.accounts.own_cost += asking;
        }
        cycles
    }

    /// Counts an exit of the instruction at `place`; the time from here on is attributed to it.
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

    // The clock is read first and last, here and in `enter_guest`, so that the ledger's own work is
    // not part of the measured interval.

    /// Guest code has just been left.
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

    /// Starts the next interval here. The ledger has worked since `now`, for only a few
    /// instructions if `is_brief`.
    #[inline]
    fn go_on(&mut self, now: u64, is_brief: bool) {
        if is_brief {
            self.mark = now;
            self.accounts.own_cost += self.clock_cost;
        } else {
            self.mark_from(now);
        }
    }

    #[inline]
    fn mark_from(&mut self, now: u64) {
        self.mark = counter();
        let cycles = self.mark.wrapping_sub(now) + self.clock_cost;
        // If it took longer, the thread lost its processor, as often happens in the system call
        // that asks for its processor time. Such time already counts as waiting.
        if cycles < LONGEST_ENTRY {
            self.accounts.own_cost += cycles;
        } else {
            self.mark = self.look_at_waiting();
        }
    }

    /// Returns whether the ledger's work was brief.
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

    /// What the work since `mark` would have taken without being timed; the rest is the ledger's
    /// time.
    fn elapsed(&mut self, now: u64) -> u64 {
        let cycles = now
            .wrapping_sub(self.mark)
            .saturating_sub(self.clock_cost)
            .saturating_sub(self.excluded);
        let undisturbed = self.disturbance.undisturbed(cycles);
        self.accounts.own_cost += cycles - undisturbed;
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

    /// Returns whether the ledger's work was brief.
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
            // Guest code was left only for a signal: no exit has been counted.
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

    /// Adds the samples to the accounts.
    #[cold]
    fn enter_samples(&mut self) {
        for sample in self.pending.drain(..) {
            // No exit takes that long by itself. Whatever happened, it happened once and not to
            // every exit that this one stands for.
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

    /// Does work of the ledger itself during an exit.
    pub fn aside(&mut self, work: impl FnOnce()) {
        let start = counter();
        work();
        let cycles = counter().wrapping_sub(start);
        self.disturbance.is_not_alike();
        self.excluded += cycles;
        // If it took longer, the thread was waiting.
        if cycles < LONGEST_ENTRY {
            self.accounts.own_cost += cycles;
        }
    }

    /// Sleeps in HLT. Going to sleep and waking up belong to the exit. The caller calls
    /// [`Self::request_taken`] next, before anything else is timed, so that no sample contains the
    /// host's delay in ending the sleep.
    pub fn sleep(&mut self, sleep: impl FnOnce()) {
        self.disturbance.is_not_alike();
        let (before, begin) = (self.host_time(), counter());
        sleep();
        let (after, end) = (self.host_time(), counter());
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

    /// Whether device calls should be timed now.
    #[inline]
    pub fn is_sampling(&self) -> bool {
        self.sampling
    }

    /// The exit that is being timed accesses this device.
    #[inline]
    pub fn at_device(&mut self, device: DeviceAddress) {
        self.device = Some(device);
    }

    /// A device call of the exit that is being timed took this number of cycles.
    pub fn in_devices(&mut self, cycles: u64) {
        let cycles = cycles.saturating_sub(self.clock_cost);
        self.disturbance.inside(cycles);
        let had = self.inside_exit(cycles, counter());
        let weight = self.piece_of_exit(had);
        self.accounts.devices += had * weight;
        self.trace_inside(Span::Device, cycles);
    }

    /// The exit that was counted last has emptied tables of whole spaces for this number of
    /// cycles. They remain part of the exit's time.
    #[inline]
    pub fn purged(&mut self, cycles: u64) {
        // If it took longer, the thread lost its processor.
        if cycles < INTERRUPTED_BY_HOST && self.detail == Detail::Full {
            self.accounts.purging[self.last as usize] += cycles;
        }
    }

    /// Adds work that ends now to the trace.
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
