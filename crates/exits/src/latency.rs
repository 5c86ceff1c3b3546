//! How long interrupts wait, and for what; always measured.
//!
//! An interrupt is due when its device requests it: when a deadline has passed, or another thread
//! has asked. Then it waits for the *host*, which must fire a timer, send a signal and run the
//! thread; for the *monitor*, which looks at requests only between two of the guest's instructions;
//! and for the *guest*, while its interrupt flag is clear.
//!
//! ```text
//! deadline      the thread is reached      a boundary        IF is set: the handler begins
//! |---- host -----------|----- monitor -----|------ guest ------|
//! ```
//!
//! Time in the monitor during which the thread was not scheduled counts for the host. The monitor's
//! time is attributed to the interruptible work that took most of it, or otherwise to the kind of
//! exit. If several interrupts wait together, the first is timed; the next one is taken to wait for
//! the guest since the delivery of the first.
//!
//! *Interruptible work* is the monitor's long pieces of work; statistics call each a section. Each
//! is timed whether or not an interrupt waits, and so is the longest part of it without a check for
//! interrupts: for that long, the monitor masks interrupts, or prolongs the time in which the guest
//! masks them.

use crate::ExitKind;
use crate::durations::DurationSet;

/// The times at which requests were made and taken, in cycles of the time-stamp counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Request {
    /// When another thread made the request; 0 if none did.
    pub asked: u64,
    /// When the vCPU's thread was notified; 0 if it found the request itself.
    pub heard: u64,
    /// The thread's processor time when it was notified, in nanoseconds; 0 if not known.
    pub on_processor: u64,
    /// When the vCPU's thread took the requests.
    pub taken: u64,
}

/// A kind of the monitor's work that can be long and asks at checkpoints whether to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InterruptibleWork {
    /// Translating a block, with what must be dropped to make room for it.
    Translate,
    /// A load of CR3 by an exit: dropping what the new space invalidates.
    LoadSpace,
    /// INVLPG and INVPCID by an exit.
    Invalidate,
    /// A string instruction that the monitor executes.
    String,
    /// A fault in a shadow window: mapping its page and the neighbouring ones.
    MapWindow,
    /// Comparing a shadow window that was set aside with the guest's page tables.
    CompareWindow,
    /// Mapping all known pages of a program in its shadow windows.
    FillWindows,
    /// Looking up code near a page that control has reached, and linking what leads there again.
    Link,
    /// The due work of devices.
    Devices,
}

impl InterruptibleWork {
    /// All kinds of it, in the order of statistics.
    pub const ALL: [Self; 9] = [
        Self::Translate,
        Self::LoadSpace,
        Self::Invalidate,
        Self::String,
        Self::MapWindow,
        Self::CompareWindow,
        Self::FillWindows,
        Self::Link,
        Self::Devices,
    ];

    /// The work that exits of this kind are; `None` if they are short.
    pub const fn of(kind: ExitKind) -> Option<Self> {
        match kind {
            ExitKind::Cr3Load => Some(Self::LoadSpace),
            ExitKind::Invlpg => Some(Self::Invalidate),
            ExitKind::StringInstruction => Some(Self::String),
            _ => None,
        }
    }

    /// The work's name in statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Translate => "translate",
            Self::LoadSpace => "load-space",
            Self::Invalidate => "invalidate",
            Self::String => "string",
            Self::MapWindow => "map-window",
            Self::CompareWindow => "compare-window",
            Self::FillWindows => "fill-windows",
            Self::Link => "link",
            Self::Devices => "devices",
        }
    }
}

/// Durations in cycles.
#[derive(Clone, Default, Debug)]
struct Record {
    durations: DurationSet,
    sum: u64,
    max: u64,
}

impl Record {
    fn add(&mut self, cycles: u64) {
        self.durations.add(cycles, 1);
        self.sum += cycles;
        self.max = self.max.max(cycles);
    }

    /// The difference to `before`, an earlier state of this record.
    fn since(&self, before: &Self) -> Self {
        let Some(durations) = self.durations.since(&before.durations) else {
            // `before` is not an earlier state of this record.
            return Self::default();
        };
        let mut max = self.max;
        if self.max == before.max {
            // The longest duration may belong to `before`, so the rest's maximum is only known by
            // its bucket.
            max = max.min(durations.longest().unwrap_or(max));
        }
        Self {
            sum: self.sum.saturating_sub(before.sum),
            max,
            durations,
        }
    }

    fn row(&self, name: &'static str) -> Option<Durations> {
        let histogram = self.durations.histogram();
        if histogram.is_empty() {
            return None;
        }
        // The end of a bucket may lie above all durations in it.
        let at = |quantile| histogram.value_at_quantile(quantile).min(self.max);
        Some(Durations {
            name,
            count: histogram.len(),
            cycles: self.sum,
            p50: at(0.50),
            p99: at(0.99),
            p999: at(0.999),
            max: self.max,
        })
    }
}

/// Statistics of one set of durations, in cycles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Durations {
    /// What was timed.
    pub name: &'static str,
    /// The number of durations.
    pub count: u64,
    /// The sum of the durations.
    pub cycles: u64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Longest.
    pub max: u64,
}

/// What kept an interrupt waiting in the monitor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Masker {
    /// Interruptible work of the monitor.
    Work(InterruptibleWork),
    /// The work at an exit of this kind.
    Exit(ExitKind),
}

/// The parts of a wait that have ended, in cycles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub host: u64,
    pub monitor: u64,
    pub masker: Masker,
    /// The time at which the instruction boundary was reached.
    pub at: u64,
}

/// An interrupt that waits for the guest.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    since: u64,
    arrival: Option<Arrival>,
}

/// The interruptible work that ended last.
#[derive(Clone, Copy, Debug)]
struct Ended {
    work: InterruptibleWork,
    begin: u64,
    end: u64,
}

/// How long interrupts waited.
#[derive(Clone, Debug)]
pub struct Latency {
    /// A request that was taken, while its outcome is not known yet.
    arrival: Option<Arrival>,
    waiting: Option<Waiting>,
    ended: Option<Ended>,
    to_handler: Record,
    host: Record,
    monitor: Record,
    guest: Record,
    by_exit: Vec<Record>,
    masked_by: Vec<Record>,
    whole: Vec<Record>,
    masked: Vec<Record>,
    within: Vec<Record>,
}

impl Default for Latency {
    fn default() -> Self {
        let records = |count| vec![Record::default(); count];
        Self {
            arrival: None,
            waiting: None,
            ended: None,
            to_handler: Record::default(),
            host: Record::default(),
            monitor: Record::default(),
            guest: Record::default(),
            by_exit: records(ExitKind::ALL.len()),
            masked_by: records(InterruptibleWork::ALL.len()),
            whole: records(InterruptibleWork::ALL.len()),
            masked: records(InterruptibleWork::ALL.len()),
            within: records(InterruptibleWork::ALL.len()),
        }
    }
}

impl Latency {
    /// The difference to `before`, an earlier state of this value.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let each = |now: &[Record], before: &[Record]| {
            let pairs = now.iter().zip(before);
            pairs.map(|(now, before)| now.since(before)).collect()
        };
        Self {
            arrival: None,
            waiting: None,
            ended: None,
            to_handler: self.to_handler.since(&before.to_handler),
            host: self.host.since(&before.host),
            monitor: self.monitor.since(&before.monitor),
            guest: self.guest.since(&before.guest),
            by_exit: each(&self.by_exit, &before.by_exit),
            masked_by: each(&self.masked_by, &before.masked_by),
            whole: each(&self.whole, &before.whole),
            masked: each(&self.masked, &before.masked),
            within: each(&self.within, &before.within),
        }
    }

    /// Forgets interrupts that were waiting before, because time may have been stopped.
    pub(crate) fn start(&mut self) {
        (self.arrival, self.waiting, self.ended) = (None, None, None);
    }

    /// Counts a piece of interruptible work that took `cycles` of the thread's processor time, of which the longest
    /// piece without a check for requests took `piece`. `lets_in` says that the guest allowed
    /// interrupts.
    pub(crate) fn interruptible_work(
        &mut self,
        work: InterruptibleWork,
        (begin, end): (u64, u64),
        (cycles, piece): (u64, u64),
        lets_in: bool,
    ) {
        self.whole[work as usize].add(cycles);
        let pieces = match lets_in {
            true => &mut self.masked,
            false => &mut self.within,
        };
        pieces[work as usize].add(piece.min(cycles));
        self.ended = Some(Ended { work, begin, end });
    }

    /// What took most of the time between these two moments, if it was not interruptible: work at an
    /// exit of this kind.
    pub(crate) fn masker(&self, heard: u64, now: u64, kind: ExitKind) -> Masker {
        let share = |ended: &Ended| ended.end.min(now).saturating_sub(ended.begin.max(heard));
        match &self.ended {
            Some(ended) if share(ended) > now.saturating_sub(heard) / 2 => Masker::Work(ended.work),
            _ => Masker::Exit(kind),
        }
    }

    /// A request has been taken at a boundary.
    pub(crate) fn arrive(&mut self, arrival: Arrival) {
        self.arrival = Some(arrival);
    }

    /// Notes whether interrupts wait for the guest at this boundary.
    #[inline]
    pub(crate) fn interrupts_wait(&mut self, waits: bool, now: impl FnOnce() -> u64) {
        if !waits {
            self.waiting = None;
        } else if self.waiting.is_none() {
            self.waiting = Some(Waiting {
                since: self.arrival.map_or_else(now, |arrival| arrival.at),
                arrival: self.arrival,
            });
        }
        self.arrival = None;
    }

    /// A waiting interrupt is delivered.
    pub(crate) fn delivered(&mut self, now: u64) {
        let Some(waiting) = self.waiting.take() else {
            return;
        };
        let guest = now.saturating_sub(waiting.since);
        let (mut host, mut monitor) = (0, 0);
        if let Some(arrival) = waiting.arrival {
            (host, monitor) = (arrival.host, arrival.monitor);
            let record = match arrival.masker {
                Masker::Exit(kind) => &mut self.by_exit[kind as usize],
                Masker::Work(work) => &mut self.masked_by[work as usize],
            };
            record.add(monitor);
        }
        self.host.add(host);
        self.monitor.add(monitor);
        self.guest.add(guest);
        self.to_handler.add(host + monitor + guest);
    }

    /// How long delivered interrupts waited: in total (`to-handler`), then for `host`, `guest` and
    /// `monitor`.
    pub fn waits(&self) -> Vec<Durations> {
        let named = [
            ("to-handler", &self.to_handler),
            ("host", &self.host),
            ("guest", &self.guest),
            ("monitor", &self.monitor),
        ];
        let rows = named.into_iter();
        rows.filter_map(|(name, record)| record.row(name)).collect()
    }

    /// What in the monitor they waited for: interruptible work, or work at a kind of exit. Longest sum
    /// first.
    pub fn maskers(&self) -> Vec<Durations> {
        let work = InterruptibleWork::ALL.iter().map(|work| work.name());
        let exits = ExitKind::ALL.iter().map(|kind| kind.name());
        let named = (work.zip(&self.masked_by)).chain(exits.zip(&self.by_exit));
        let mut rows: Vec<_> = named
            .filter_map(|(name, record)| record.row(name))
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.cycles));
        rows
    }

    /// How long the monitor's interruptible work took.
    pub fn durations(&self) -> Vec<Durations> {
        Self::by_work(&self.whole)
    }

    /// How long interruptible work masked interrupts: for each piece of it the longest time between two
    /// points at which it can stop. Runs while the guest held interrupts off are not included.
    pub fn masked(&self) -> Vec<Durations> {
        Self::by_work(&self.masked)
    }

    /// Like [`Self::masked`], for work that ran while the guest had interrupts disabled. Such work
    /// delays no interrupt, and never stops early.
    pub fn within(&self) -> Vec<Durations> {
        Self::by_work(&self.within)
    }

    fn by_work(records: &[Record]) -> Vec<Durations> {
        let named = InterruptibleWork::ALL.iter().zip(records);
        named
            .filter_map(|(work, record)| record.row(work.name()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(host: u64, monitor: u64, masker: Masker) -> Arrival {
        Arrival {
            host,
            monitor,
            masker,
            at: 1_000,
        }
    }

    fn row(rows: &[Durations], name: &str) -> (u64, u64, u64) {
        let row = rows.iter().find(|row| row.name == name).unwrap();
        (row.count, row.cycles, row.max)
    }

    #[test]
    fn a_wait_is_told_apart_by_whom() {
        let mut latency = Latency::default();
        latency.arrive(arrival(300, 70, Masker::Exit(ExitKind::Cpuid)));
        latency.interrupts_wait(true, || unreachable!());
        // The guest's interrupt flag is clear; more interrupts may arrive in the meantime.
        latency.arrive(arrival(9, 9, Masker::Exit(ExitKind::Msr)));
        latency.interrupts_wait(true, || unreachable!());
        latency.delivered(1_500);
        let waits = latency.waits();
        assert_eq!(row(&waits, "to-handler"), (1, 870, 870));
        assert_eq!(row(&waits, "host"), (1, 300, 300));
        assert_eq!(row(&waits, "monitor"), (1, 70, 70));
        assert_eq!(row(&waits, "guest"), (1, 500, 500));
        let maskers = latency.maskers();
        assert_eq!(maskers.len(), 1);
        assert_eq!(row(&maskers, "cpuid"), (1, 70, 70));
    }

    #[test]
    fn what_was_before_can_be_taken_off() {
        let mut latency = Latency::default();
        let wait = |latency: &mut Latency, cycles| {
            latency.interrupts_wait(true, || 0);
            latency.delivered(cycles);
        };
        wait(&mut latency, 5_000);
        let before = latency.clone();
        wait(&mut latency, 70);
        wait(&mut latency, 30);
        let since = latency.since(&before).waits();
        assert_eq!(row(&since, "guest"), (2, 100, 70));
        assert!(latency.since(&latency).waits().is_empty());
    }

    #[test]
    fn what_waits_behind_another_waits_for_the_guest() {
        let mut latency = Latency::default();
        latency.interrupts_wait(true, || 100);
        latency.delivered(100);
        latency.interrupts_wait(true, || 110);
        latency.delivered(400);
        assert_eq!(row(&latency.waits(), "guest"), (2, 290, 290));
        assert!(latency.maskers().is_empty());
    }

    #[test]
    fn a_request_that_nothing_comes_of_is_forgotten() {
        let mut latency = Latency::default();
        latency.arrive(arrival(300, 70, Masker::Exit(ExitKind::Cpuid)));
        latency.interrupts_wait(false, || unreachable!());
        latency.interrupts_wait(true, || 5_000);
        latency.delivered(5_010);
        assert_eq!(row(&latency.waits(), "to-handler"), (1, 10, 10));
        // An interrupt that was withdrawn is not counted when the next one is delivered.
        latency.interrupts_wait(true, || 6_000);
        latency.interrupts_wait(false, || unreachable!());
        latency.delivered(7_000);
        assert_eq!(row(&latency.waits(), "to-handler"), (1, 10, 10));
    }

    #[test]
    fn interruptible_work_is_to_blame_if_it_took_most_of_the_time() {
        let mut latency = Latency::default();
        let masker = |latency: &Latency| latency.masker(1_000, 2_000, ExitKind::LinkMiss);
        let exit = Masker::Exit(ExitKind::LinkMiss);
        assert_eq!(masker(&latency), exit);
        latency.interruptible_work(InterruptibleWork::Translate, (100, 900), (800, 800), true);
        assert_eq!(masker(&latency), exit);
        latency.interruptible_work(
            InterruptibleWork::Translate,
            (500, 1_501),
            (1_001, 70),
            true,
        );
        assert_eq!(masker(&latency), Masker::Work(InterruptibleWork::Translate));
        latency.interruptible_work(
            InterruptibleWork::Translate,
            (1_501, 1_511),
            (10, 10),
            false,
        );
        assert_eq!(row(&latency.durations(), "translate"), (3, 1_811, 1_001));
        assert_eq!(row(&latency.masked(), "translate"), (2, 870, 800));
        assert_eq!(row(&latency.within(), "translate"), (1, 10, 10));
    }
}
