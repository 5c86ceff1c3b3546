//! The ledger: every exit counted, and where the vCPU's time went.
//!
//! Counts are exact. Time is read from the time-stamp counter, which costs tens of
//! cycles, as much as a cheap exit; so exits and the runs of guest code behind them
//! are timed in samples. The distance between samples adapts to the rate of exits: at
//! low rates every exit is timed, at high rates one in up to [`LONGEST_INTERVAL`], so
//! that timing never takes more than about one per cent of the whole. Long work
//! (translating, sleeping in HLT) is always timed.
//!
//! ```text
//! leave_guest   count(kind)   count(kind)    enter_guest       leave_guest
//!      |------------|--------------|-------------|------------------|
//!        first kind   first kind     second kind     guest code
//! ```

use crate::blame::{Blame, Place};
use crate::trace::{Span, Tracer};
use crate::{ExitCounts, ExitKind};
use hdrhistogram::Histogram;

/// At most one exit in so many is timed.
pub const LONGEST_INTERVAL: u32 = 64;
/// Cycles between samples that keep the cost of timing near one per cent.
const CYCLES_BETWEEN_SAMPLES: u64 = 10_000;
/// An exit that took so many cycles was interrupted by the host.
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
    /// In each kind of exit, devices and translation apart (estimated).
    pub exits: Vec<(ExitKind, u64)>,
}

impl TimeShares {
    /// Everything told apart, together.
    pub fn sum(&self) -> u64 {
        let exits: u64 = self.exits.iter().map(|exit| exit.1).sum();
        self.guest + self.translating + self.devices + self.halted + exits
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

struct KindRecord {
    histogram: Histogram<u64>,
    total: u64,
}

/// The vCPU's books.
pub struct Ledger {
    counts: ExitCounts,
    detail: Detail,
    clock: fn() -> u64,
    /// What two readings of the clock cost, subtracted from each measurement.
    clock_cost: u64,
    interval: u32,
    countdown: u32,
    random: u32,
    /// The current exit is being timed.
    sampling: bool,
    /// The current run of guest code is being timed.
    timing_guest: bool,
    weight: u64,
    mark: u64,
    last_sample: u64,
    /// Cycles since `mark` that belong to translation, devices or sleep.
    excluded: u64,
    current: Option<ExitKind>,
    /// The instruction of the current exit.
    place: Place,
    kinds: Vec<Option<Box<KindRecord>>>,
    guest: u64,
    translating: u64,
    devices: u64,
    halted: u64,
    wall: u64,
    run_start: u64,
    blame: Blame,
    /// While there is one, every exit is timed.
    tracer: Option<Box<Tracer>>,
}

impl Ledger {
    /// Empty books that read time from `clock` (a time-stamp counter).
    pub fn new(clock: fn() -> u64, detail: Detail) -> Self {
        let clock_cost = (0..64)
            .map(|_| {
                let first = clock();
                clock().wrapping_sub(first)
            })
            .min()
            .unwrap_or(0);
        Self {
            counts: ExitCounts::default(),
            detail,
            clock,
            clock_cost,
            interval: 1,
            countdown: 1,
            random: 0x9e37_79b9,
            sampling: false,
            timing_guest: false,
            weight: 1,
            mark: 0,
            last_sample: 0,
            excluded: 0,
            current: None,
            place: Place::default(),
            kinds: ExitKind::ALL.iter().map(|_| None).collect(),
            guest: 0,
            translating: 0,
            devices: 0,
            halted: 0,
            wall: 0,
            run_start: 0,
            blame: Blame::default(),
            tracer: None,
        }
    }

    /// From now on every exit is timed and handed to `tracer`, for as long as it is
    /// wanted. To be called while the vCPU does not run.
    pub fn begin_trace(&mut self, tracer: Tracer) {
        self.interval = 1;
        self.countdown = 1;
        self.tracer = Some(Box::new(tracer));
    }

    /// Ends a trace, if there is one: its last events are handed over.
    pub fn end_trace(&mut self) {
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
        self.run_start = (self.clock)();
        self.last_sample = self.run_start.wrapping_sub(2 * CYCLES_BETWEEN_SAMPLES);
        self.sampling = false;
        self.timing_guest = false;
        if self.tracer.is_some() {
            self.begin_sample(self.run_start);
        }
    }

    /// The vCPU stops running.
    pub fn stop(&mut self) {
        self.enter_guest();
        self.timing_guest = false;
        self.wall += (self.clock)().wrapping_sub(self.run_start);
    }

    /// Counts an exit of the instruction at `place`; from here on time is its.
    #[inline]
    pub fn count(&mut self, kind: ExitKind, place: Place) {
        self.counts.count(kind);
        if self.sampling {
            self.switch(kind, place);
        }
    }

    /// Guest code was just left.
    #[inline]
    pub fn leave_guest(&mut self) {
        self.countdown = self.countdown.wrapping_sub(1);
        if self.timing_guest || self.countdown == 0 {
            self.leave_guest_timed();
        }
    }

    fn leave_guest_timed(&mut self) {
        let now = (self.clock)();
        if self.timing_guest {
            self.guest += self.elapsed(now) * self.weight;
            self.timing_guest = false;
        }
        if self.countdown == 0 {
            self.begin_sample(now);
        }
    }

    fn begin_sample(&mut self, now: u64) {
        if self.detail == Detail::CountsOnly {
            self.countdown = u32::MAX;
            return;
        }
        let passed = now.wrapping_sub(self.last_sample);
        self.last_sample = now;
        if self.tracer.as_ref().is_some_and(|t| !t.is_wanted()) {
            self.tracer = None;
        }
        if self.tracer.is_some() {
            self.interval = 1;
        } else if passed < CYCLES_BETWEEN_SAMPLES {
            self.interval = (self.interval * 2).min(LONGEST_INTERVAL);
        } else if passed > CYCLES_BETWEEN_SAMPLES * 4 {
            self.interval = (self.interval / 2).max(1);
        }
        // A jitter of mean zero keeps samples from falling in step with the guest's loops.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        let half = self.interval / 2;
        self.countdown = self.interval - half + self.random % (2 * half + 1);
        self.weight = u64::from(self.interval);
        self.sampling = true;
        self.current = None;
        self.excluded = 0;
        self.mark = (self.clock)();
    }

    fn elapsed(&self, now: u64) -> u64 {
        now.wrapping_sub(self.mark)
            .saturating_sub(self.clock_cost)
            .saturating_sub(self.excluded)
    }

    #[cold]
    fn switch(&mut self, kind: ExitKind, place: Place) {
        self.blame.add(kind, place, self.weight);
        if self.current.is_some() {
            let now = (self.clock)();
            self.close_kind(now);
            self.mark = (self.clock)();
        }
        self.current = Some(kind);
        self.place = place;
    }

    fn close_kind(&mut self, now: u64) {
        let cycles = self.elapsed(now);
        // No exit's own work takes so long: the host ran something else in between. That
        // happened once, not to every exit that this one stands for.
        let weight = if cycles < INTERRUPTED_BY_HOST {
            self.weight
        } else {
            1
        };
        self.excluded = 0;
        if let Some(tracer) = &mut self.tracer {
            let whole = now.wrapping_sub(self.mark);
            tracer.exit(self.current, self.mark, whole, self.place);
        }
        if let Some(kind) = self.current {
            let record = self.kinds[kind as usize].get_or_insert_with(|| {
                Box::new(KindRecord {
                    histogram: Histogram::new_with_bounds(1, LONGEST_CYCLES, 2)
                        .expect("the bounds are constants that the histogram accepts"),
                    total: 0,
                })
            });
            record.histogram.saturating_record(cycles.max(1));
            record.total += cycles * weight;
        }
    }

    /// Guest code is about to be entered.
    #[inline]
    pub fn enter_guest(&mut self) {
        if self.sampling {
            self.enter_guest_timed();
        }
    }

    #[cold]
    fn enter_guest_timed(&mut self) {
        let now = (self.clock)();
        self.close_kind(now);
        self.sampling = false;
        self.timing_guest = true;
        self.excluded = 0;
        self.mark = (self.clock)();
    }

    /// Times a piece of translation work.
    pub fn translate<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = (self.clock)();
        let result = work();
        let cycles = (self.clock)().wrapping_sub(start);
        self.translating += cycles;
        self.excluded += cycles;
        self.trace_inside(Span::Translating, cycles);
        result
    }

    /// A sleep in HLT has taken this many cycles.
    pub fn slept(&mut self, cycles: u64) {
        self.halted += cycles;
        self.excluded += cycles;
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
        self.devices += cycles * self.weight;
        self.excluded += cycles;
        self.trace_inside(Span::Device, cycles);
    }

    /// Traces work that ends now.
    fn trace_inside(&mut self, span: Span, cycles: u64) {
        if let Some(tracer) = &mut self.tracer {
            tracer.inside(span, (self.clock)().wrapping_sub(cycles), cycles);
        }
    }

    /// The clock of this ledger.
    pub fn now(&self) -> u64 {
        (self.clock)()
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
    use std::cell::Cell;

    thread_local! {
        static TIME: Cell<u64> = const { Cell::new(0) };
    }

    fn pass(cycles: u64) {
        TIME.set(TIME.get() + cycles);
    }

    fn ledger() -> Ledger {
        TIME.set(1000);
        Ledger::new(|| TIME.get(), Detail::Full)
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
        for _ in 0..100_000 {
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
        assert!(samples < 5000, "{samples}");
        assert_eq!(ledger.counts().get(ExitKind::Cli), 100_000);
        let off = shares.remainder().unsigned_abs() as f64 / shares.wall as f64;
        assert!(off < 0.02, "{off}");
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
        assert!(ledger.cost(ExitKind::Cli).unwrap().samples < 5000);
    }

    #[test]
    fn counts_only_reads_no_clock() {
        let mut ledger = Ledger::new(|| TIME.get(), Detail::CountsOnly);
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
