//! The ledger: every exit counted, and where the vCPU's time went.
//!
//! Counts are exact. Time is read from the time-stamp counter, which costs tens of
//! cycles, as much as a cheap exit; so exits and the runs of guest code behind them
//! are timed in samples: [`crate::sampler`] chooses them. Long work (translating, sleeping
//! in HLT) is always timed.
//!
//! A host that runs other programs in between would spoil samples, and a spoiled sample
//! counts many times. So that time is an account of its own: wall time less the thread's
//! processor time less sleep. A sample that took suspiciously long gives up what was
//! newly lost there.
//!
//! ```text
//! leave_guest   count(kind)   count(kind)    enter_guest       leave_guest
//!      |------------|--------------|-------------|------------------|
//!        first kind   first kind     second kind     guest code
//! ```

use crate::blame::{Blame, Place};
use crate::counter::counter;
use crate::sampler::Sampler;
use crate::trace::{Span, Tracer};
use crate::{ExitCounts, ExitKind};
use hdrhistogram::Histogram;

/// A piece of work that took so many cycles may have been interrupted by the host: worth
/// the system call that tells.
const SUSPICIOUSLY_LONG: u64 = 40_000;
/// An exit that took so many cycles was interrupted, whatever the host says (which may be
/// a virtual machine that was not scheduled).
const INTERRUPTED_BY_HOST: u64 = 500_000;
/// Longest duration that histograms tell apart, in cycles.
const LONGEST_CYCLES: u64 = 1 << 40;

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

/// Where a vCPU's time goes, in cycles of the time-stamp counter.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TimeShares {
    /// From the start of the run to its end.
    pub wall: u64,
    /// In guest code (estimated).
    pub guest: u64,
    /// Translating (measured).
    pub translating: u64,
    /// In devices (estimated).
    pub devices: u64,
    /// Asleep in HLT (measured).
    pub halted: u64,
    /// Ready to run, while the host ran something else (measured).
    pub waiting: u64,
    /// In each kind of exit, devices and translation apart (estimated).
    pub exits: Vec<(ExitKind, u64)>,
}

impl TimeShares {
    /// Everything told apart, together.
    pub fn sum(&self) -> u64 {
        let exits: u64 = self.exits.iter().map(|exit| exit.1).sum();
        self.guest + self.translating + self.devices + self.halted + self.waiting + exits
    }

    /// Wall time less the sum: what is not accounted for, or negative, counted twice.
    pub fn remainder(&self) -> i64 {
        self.wall as i64 - self.sum() as i64
    }
}

/// One kind's costs, from its samples, in cycles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// How many exits were timed.
    pub samples: u64,
    /// Estimated total of all exits of this kind.
    pub total: u64,
    /// Median.
    pub p50: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Longest.
    pub max: u64,
}

/// One timed exit, not yet in the books.
struct Sample {
    kind: ExitKind,
    place: Place,
    cycles: u64,
    weight: u64,
}

/// Samples that wait to be entered in the books: a burst of exits that do two things each.
const PENDING_SAMPLES: usize = 64;

struct KindRecord {
    histogram: Histogram<u64>,
    total: u64,
}

/// The vCPU's books.
pub struct Ledger {
    counts: ExitCounts,
    detail: Detail,
    host: fn() -> HostTime,
    sampler: Sampler,
    /// What two readings of the clock cost, subtracted from each measurement.
    clock_cost: u64,
    /// The current exit is being timed.
    sampling: bool,
    /// The current run of guest code is being timed.
    timing_guest: bool,
    /// How many exits the one being timed stands for; zero while warming up.
    weight: u64,
    mark: u64,
    /// Cycles since `mark` that belong to translation, devices or sleep.
    excluded: u64,
    current: Option<ExitKind>,
    /// The instruction of the current exit.
    place: Place,
    /// Entered between bursts, where the memory that this touches disturbs no sample.
    pending: Vec<Sample>,
    kinds: Vec<Option<Box<KindRecord>>>,
    guest: u64,
    translating: u64,
    devices: u64,
    halted: u64,
    waiting: u64,
    wall: u64,
    run_start: u64,
    run_start_host: HostTime,
    /// Of `halted`, what belongs to this run.
    run_halted: u64,
    /// Waiting time of this run that has been looked at.
    waiting_seen: u64,
    blame: Blame,
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
            counts: ExitCounts::default(),
            detail,
            host,
            sampler: Sampler::new(),
            clock_cost,
            sampling: false,
            timing_guest: false,
            weight: 1,
            mark: 0,
            excluded: 0,
            current: None,
            place: Place::default(),
            pending: Vec::with_capacity(PENDING_SAMPLES),
            kinds: ExitKind::ALL.iter().map(|_| None).collect(),
            guest: 0,
            translating: 0,
            devices: 0,
            halted: 0,
            waiting: 0,
            wall: 0,
            run_start: 0,
            run_start_host: HostTime::default(),
            run_halted: 0,
            waiting_seen: 0,
            blame: Blame::default(),
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
        self.sampler.set_every_exit(false);
        self.tracer = None;
    }

    /// Which instructions the exits came from.
    pub fn blame(&self) -> &Blame {
        &self.blame
    }

    /// Exact counts.
    pub fn counts(&self) -> &ExitCounts {
        &self.counts
    }

    /// The vCPU begins to run.
    pub fn start(&mut self) {
        self.run_start_host = (self.host)();
        self.run_start = counter();
        self.run_halted = 0;
        self.waiting_seen = 0;
        self.sampler.start(self.run_start);
        self.sampling = false;
        self.timing_guest = false;
        if self.tracer.is_some() {
            self.begin_sample(self.run_start);
            self.mark = counter();
        }
    }

    /// The vCPU stops running.
    pub fn stop(&mut self) {
        self.enter_guest();
        self.timing_guest = false;
        self.enter_samples();
        let now = counter();
        self.wall += now.wrapping_sub(self.run_start);
        self.waiting += self.waiting_in_run(now);
    }

    /// How long this run has been ready without a processor.
    fn waiting_in_run(&self, now: u64) -> u64 {
        let host = (self.host)();
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
    /// what was lost before. Worth a call where a microsecond does not matter.
    pub fn look_at_waiting(&mut self) {
        if self.detail == Detail::Full {
            self.waiting_seen = self.waiting_in_run(counter());
        }
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
        let waiting = self.waiting_in_run(counter());
        let lost = waiting.saturating_sub(self.waiting_seen);
        self.waiting_seen = waiting;
        cycles.saturating_sub(lost)
    }

    /// Counts an exit of the instruction at `place`; from here on time is its.
    #[inline]
    pub fn count(&mut self, kind: ExitKind, place: Place) {
        self.counts.count(kind);
        if self.sampling {
            if self.current.is_some() {
                self.close_kind(counter());
                self.mark = counter();
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
            self.leave_guest_timed(now, due);
            self.mark = counter();
        }
    }

    #[cold]
    fn leave_guest_timed(&mut self, now: u64, due: bool) {
        if self.timing_guest {
            let cycles = self.elapsed(now);
            self.guest += self.without_waiting(cycles) * self.weight;
            self.timing_guest = false;
        }
        if due {
            self.begin_sample(now);
        } else {
            self.enter_samples();
        }
    }

    fn begin_sample(&mut self, now: u64) {
        if self.detail == Detail::CountsOnly {
            self.sampler.stop();
            return;
        }
        if self.tracer.as_ref().is_some_and(|t| !t.is_wanted()) {
            self.end_trace();
        }
        self.weight = self.sampler.begin(now);
        self.sampling = true;
        self.current = None;
        self.excluded = 0;
    }

    fn elapsed(&self, now: u64) -> u64 {
        now.wrapping_sub(self.mark)
            .saturating_sub(self.clock_cost)
            .saturating_sub(self.excluded)
    }

    /// Guest code is about to be entered.
    #[inline]
    pub fn enter_guest(&mut self) {
        if self.sampling {
            let now = counter();
            self.close_kind(now);
            self.sampling = false;
            self.timing_guest = true;
            self.mark = counter();
        }
    }

    #[cold]
    fn close_kind(&mut self, now: u64) {
        let cycles = self.elapsed(now);
        let cycles = self.without_waiting(cycles);
        self.excluded = 0;
        if let Some(tracer) = &mut self.tracer {
            let whole = now.wrapping_sub(self.mark);
            tracer.exit(self.current, self.mark, whole, self.place);
        }
        if let (Some(kind), 1..) = (self.current, self.weight) {
            self.pending.push(Sample {
                kind,
                place: self.place,
                cycles,
                weight: self.weight,
            });
            if self.pending.len() == PENDING_SAMPLES {
                self.enter_samples();
            }
        }
    }

    /// Enters what was sampled in the books.
    #[cold]
    fn enter_samples(&mut self) {
        for sample in self.pending.drain(..) {
            self.blame.add(sample.kind, sample.place, sample.weight);
            // No exit's own work takes so long. Whatever happened, it happened once, not
            // to every exit that this one stands for.
            let weight = if sample.cycles < INTERRUPTED_BY_HOST {
                sample.weight
            } else {
                1
            };
            let record = self.kinds[sample.kind as usize].get_or_insert_with(|| {
                Box::new(KindRecord {
                    histogram: Histogram::new_with_bounds(1, LONGEST_CYCLES, 2)
                        .expect("the bounds are constants that the histogram accepts"),
                    total: 0,
                })
            });
            record.histogram.saturating_record(sample.cycles.max(1));
            record.total += sample.cycles * weight;
        }
    }

    /// Times a piece of translation work.
    pub fn translate<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = counter();
        let result = work();
        let cycles = counter().wrapping_sub(start);
        self.excluded += cycles;
        self.translating += self.without_waiting(cycles);
        self.trace_inside(Span::Translating, cycles);
        result
    }

    /// A sleep in HLT has taken this many cycles.
    pub fn slept(&mut self, cycles: u64) {
        self.halted += cycles;
        self.run_halted += cycles;
        self.excluded += cycles;
        self.look_at_waiting();
        self.trace_inside(Span::Asleep, cycles);
    }

    /// Whether device calls are to be timed now.
    #[inline]
    pub fn is_sampling(&self) -> bool {
        self.sampling
    }

    /// A device call of the exit being timed took this many cycles.
    pub fn in_devices(&mut self, cycles: u64) {
        let cycles = cycles.saturating_sub(self.clock_cost);
        self.excluded += cycles;
        self.devices += self.without_waiting(cycles) * self.weight;
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

    /// What one kind of exit costs; `None` if none was timed.
    pub fn cost(&self, kind: ExitKind) -> Option<Cost> {
        let record = self.kinds[kind as usize].as_deref()?;
        let at = |quantile| record.histogram.value_at_quantile(quantile);
        Some(Cost {
            samples: record.histogram.len(),
            total: record.total,
            p50: at(0.50),
            p95: at(0.95),
            p99: at(0.99),
            max: record.histogram.max(),
        })
    }

    /// Where the time went, up to the last stop.
    pub fn shares(&self) -> TimeShares {
        TimeShares {
            wall: self.wall,
            guest: self.guest,
            translating: self.translating,
            devices: self.devices,
            halted: self.halted,
            waiting: self.waiting,
            exits: ExitKind::ALL
                .iter()
                .filter_map(|&kind| Some((kind, self.kinds[kind as usize].as_deref()?.total)))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter::TIME;
    use std::cell::Cell;

    thread_local! {
        static LOST: Cell<u64> = const { Cell::new(0) };
    }

    fn host_time() -> HostTime {
        HostTime {
            passed: TIME.get() / 2,
            on_processor: (TIME.get() - LOST.get()) / 2,
        }
    }

    fn pass(cycles: u64) {
        TIME.set(TIME.get() + cycles);
    }

    /// Time passes without a processor.
    fn wait(cycles: u64) {
        LOST.set(LOST.get() + cycles);
        pass(cycles);
    }

    fn ledger() -> Ledger {
        TIME.set(1000);
        LOST.set(0);
        Ledger::new(host_time, Detail::Full)
    }

    #[test]
    fn time_is_told_apart_and_adds_up() {
        let mut ledger = ledger();
        ledger.start();
        for _ in 0..100 {
            ledger.leave_guest();
            ledger.count(ExitKind::Cli, Place::default());
            pass(300);
            ledger.count(ExitKind::InterruptDelivered, Place::default());
            pass(700);
            ledger.translate(|| pass(5000));
            ledger.enter_guest();
            pass(100_000);
        }
        ledger.leave_guest();
        ledger.stop();
        let shares = ledger.shares();
        assert_eq!(shares.guest, 100 * 100_000);
        assert_eq!(shares.translating, 100 * 5000);
        assert_eq!(
            shares.exits,
            vec![
                (ExitKind::Cli, 30_000),
                (ExitKind::InterruptDelivered, 70_000)
            ]
        );
        assert_eq!(shares.remainder(), 0);
        assert_eq!(ledger.cost(ExitKind::Cli).unwrap().samples, 100);
    }

    #[test]
    fn frequent_exits_are_sampled_and_scaled() {
        let mut ledger = ledger();
        ledger.start();
        for _ in 0..1_000_000 {
            ledger.leave_guest();
            ledger.count(ExitKind::Cli, Place::default());
            pass(100);
            ledger.enter_guest();
            pass(50);
        }
        ledger.leave_guest();
        ledger.stop();
        let shares = ledger.shares();
        let samples = ledger.cost(ExitKind::Cli).unwrap().samples;
        assert!(samples < 20_000, "{samples}");
        assert_eq!(ledger.counts().get(ExitKind::Cli), 1_000_000);
        let off = shares.remainder().unsigned_abs() as f64 / shares.wall as f64;
        assert!(off < 0.02, "{off}");
    }

    #[test]
    fn time_that_the_host_gave_to_others_spoils_no_sample() {
        let mut ledger = ledger();
        ledger.start();
        for round in 0..200_000 {
            ledger.leave_guest();
            ledger.count(ExitKind::Cli, Place::default());
            pass(100);
            if round % 64 == 0 {
                ledger.translate(|| pass(300));
            }
            // Samples and others alike are struck, in exits and in guest code.
            if round % 501 == 0 {
                wait(300_000);
            }
            if round % 5000 == 0 {
                ledger.look_at_waiting();
            }
            ledger.enter_guest();
            pass(50);
            if round % 507 == 0 {
                wait(200_000);
            }
        }
        ledger.leave_guest();
        ledger.stop();
        let shares = ledger.shares();
        assert!(shares.waiting.abs_diff(LOST.get()) < 10);
        let exits = shares.exits[0].1 as f64;
        assert!((exits / 20e6 - 1.0).abs() < 0.02, "{exits}");
        let guest = shares.guest as f64;
        assert!((guest / 10e6 - 1.0).abs() < 0.02, "{guest}");
    }

    #[test]
    fn sleep_is_not_waiting() {
        let mut ledger = ledger();
        ledger.start();
        ledger.leave_guest();
        ledger.count(ExitKind::Halt, Place::default());
        wait(70_000);
        ledger.slept(70_000);
        pass(100);
        ledger.enter_guest();
        pass(900);
        ledger.leave_guest();
        ledger.stop();
        let shares = ledger.shares();
        assert_eq!((shares.halted, shares.waiting), (70_000, 0));
        assert_eq!(shares.exits, vec![(ExitKind::Halt, 100)]);
        assert_eq!(shares.remainder(), 0);
    }

    #[test]
    fn a_trace_has_every_exit_with_its_time() {
        let mut ledger = ledger();
        let (tracer, events) = crate::trace::channel();
        ledger.begin_trace(tracer);
        ledger.start();
        ledger.count(ExitKind::InterruptDelivered, Place::default());
        pass(7);
        ledger.enter_guest();
        for _ in 0..1000 {
            pass(50);
            ledger.leave_guest();
            ledger.count(ExitKind::Cli, Place::default());
            pass(100);
            ledger.count(ExitKind::Halt, Place::default());
            pass(20);
            ledger.slept(20);
            ledger.enter_guest();
        }
        ledger.stop();
        ledger.end_trace();
        let mut traced = Vec::new();
        while let Some(batch) = events.next_batch() {
            traced.extend(
                batch
                    .into_iter()
                    .map(|e| (e.span, e.start - 1000, e.cycles)),
            );
        }
        assert_eq!(traced.len(), 3001);
        let expected = [
            (Span::Exit(ExitKind::InterruptDelivered), 0, 7),
            (Span::Exit(ExitKind::Cli), 57, 100),
            (Span::Exit(ExitKind::Halt), 157, 20),
            (Span::Asleep, 157, 20),
            (Span::Exit(ExitKind::Cli), 227, 100),
        ];
        assert_eq!(traced[..5], expected);
    }

    #[test]
    fn a_trace_that_nobody_wants_ends() {
        let mut ledger = ledger();
        let (tracer, events) = crate::trace::channel();
        ledger.begin_trace(tracer);
        ledger.start();
        events.stop();
        for _ in 0..100_000 {
            ledger.enter_guest();
            pass(10);
            ledger.leave_guest();
            ledger.count(ExitKind::Cli, Place::default());
            pass(10);
        }
        ledger.stop();
        assert!(ledger.cost(ExitKind::Cli).unwrap().samples < 10_000);
    }

    #[test]
    fn counts_only_reads_no_clock() {
        let mut ledger = Ledger::new(host_time, Detail::CountsOnly);
        ledger.start();
        for _ in 0..10 {
            ledger.leave_guest();
            ledger.count(ExitKind::Sti, Place::default());
            ledger.enter_guest();
        }
        assert_eq!(ledger.counts().get(ExitKind::Sti), 10);
        assert!(ledger.cost(ExitKind::Sti).is_none());
    }
}
