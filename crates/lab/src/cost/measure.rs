//! Makes the measurements of `tollgate cost`, by mode and pinning, in batches and as single events,
//! and checks that the ledger counted the exits that the guest reports.

use super::guest::{self, AROUND_A_COMMAND, Command, Guest, Loops, MOST_SAMPLES, Outcome};
use super::kinds::{self, Batch, Expected, KINDS, Kind};
use super::{
    BatchContents, BatchResult, CheckedCount, CostError, GuestMode, Observer, Options, Report, Row,
};
use crate::statistics::{Summary, clock_step, distribution, median};
use tollgate_host_facts::processors::{Affinity, HostDescription, current_processor};

/// Kinds that take microseconds get the samples and repetitions divided by this.
const SLOW_DIVISOR: usize = 10;
/// Number of values of one command: few enough that an interruption is noticed soon.
const CHUNK: usize = 2048;
/// Number of values of one command for kinds that take microseconds or wait.
const SLOW_CHUNK: usize = 256;
/// Repetitions before the first measured value, in which code is translated and pages are looked
/// up.
const WARM_UP: u32 = 16;
/// Nanoseconds from arming the timer to its deadline: much longer than arming takes.
const TIMER_TICKS: u32 = 50_000;

/// Restores the set of processors on which the thread may run.
struct Unpinned(Affinity);

impl Drop for Unpinned {
    fn drop(&mut self) {
        // This was allowed before. If it fails now, there is no caller to report it to.
        let _ = self.0.apply();
    }
}

/// Runs the experiment on the calling thread.
///
/// # Errors
///
/// An unknown kind, a host that refuses resources, or a guest that did not do its work. An
/// interruption is not an error: the report then says that it is not complete.
pub fn run(options: &Options, observer: &mut dyn Observer) -> Result<Report, CostError> {
    for name in &options.kinds {
        if !KINDS.iter().any(|kind| kind.name == name) {
            return Err(CostError::UnknownKind(name.clone()));
        }
    }
    let refused = |error: std::io::Error| CostError::Host(format!("processor affinity: {error}"));
    let unpinned = Unpinned(Affinity::current().map_err(refused)?);
    let processor = options.processor.unwrap_or_else(current_processor);
    let pinned = Affinity::only(processor)
        .ok_or_else(|| CostError::Host(format!("there is no processor {processor}")))?;

    let table = guest::table();
    let passes: Vec<(bool, GuestMode)> = [true, false]
        .into_iter()
        .flat_map(|is_pinned| GuestMode::ALL.map(|mode| (is_pinned, mode)))
        .filter(|(_, mode)| options.modes.is_empty() || options.modes.contains(mode))
        .collect();
    let total = passes
        .iter()
        .map(|&(_, mode)| chosen(options, &table, mode).len())
        .sum();

    let mut report: Option<Report> = None;
    let mut done = 0;
    for (is_pinned, mode) in passes {
        let kinds = chosen(options, &table, mode);
        if kinds.is_empty() {
            continue;
        }
        let affinity = if is_pinned { &pinned } else { &unpinned.0 };
        affinity.apply().map_err(refused)?;
        let mut bench = Bench::start(options, &table, mode)?;
        let report = report.get_or_insert_with(|| Report {
            // The host must be described before the thread is pinned, which leaves one processor.
            host: HostDescription {
                processors: unpinned.0.processors().len(),
                ..HostDescription::here(bench.guest.tsc_khz())
            },
            pinned_to: processor,
            tsc_step: 0,
            is_complete: false,
            rows: Vec::new(),
        });
        for (kind, loops) in kinds {
            if observer.is_interrupted() {
                return Ok(report.clone());
            }
            let pinning = if is_pinned { "pinned" } else { "unpinned" };
            observer.progress(
                done,
                total,
                &format!("{} ({}, {pinning})", kind.name, mode.name()),
            );
            match bench.row(kind, loops, is_pinned, observer)? {
                Some(row) => report.rows.push(row),
                None => return Ok(report.clone()),
            }
            if report.tsc_step == 0 {
                report.tsc_step = clock_step(&distribution(&bench.no_op));
            }
            done += 1;
        }
    }
    let mut report = report.ok_or(CostError::NothingChosen)?;
    report.is_complete = true;
    Ok(report)
}

fn chosen<'a>(
    options: &Options,
    table: &'a [Loops],
    mode: GuestMode,
) -> Vec<(&'static Kind, &'a Loops)> {
    KINDS
        .iter()
        .filter(|kind| {
            options.kinds.is_empty() || options.kinds.iter().any(|name| name == kind.name)
        })
        .filter_map(|kind| Some((kind, find(table, kind.name, mode)?)))
        .collect()
}

fn find<'a>(table: &'a [Loops], name: &str, mode: GuestMode) -> Option<&'a Loops> {
    table
        .iter()
        .find(|line| line.name == name && line.runs_in(mode))
}

/// The exits that were expected and those that were counted so far.
struct Reading {
    expected: &'static [Expected],
    mode: GuestMode,
    counts: Vec<CheckedCount>,
    /// The number of repetitions so far, and of all their exits.
    repetitions: u64,
    exits: u64,
}

impl Reading {
    fn new(kind: &Kind, mode: GuestMode) -> Self {
        let counts = kind.expected.iter().map(|expected| CheckedCount {
            kind: expected.kind.name().to_owned(),
            expected: 0,
            counted: 0,
            at_least: expected.at_least,
        });
        Self {
            expected: kind.expected,
            mode,
            counts: counts.collect(),
            repetitions: 0,
            exits: 0,
        }
    }

    /// Checks one command's exits for `repetitions`; `what` is for error messages.
    fn check(&mut self, outcome: &Outcome, repetitions: u64, what: &str) -> Result<(), CostError> {
        self.repetitions += repetitions;
        self.exits += outcome.total();
        for (rule, sum) in self.expected.iter().zip(&mut self.counts) {
            let around = AROUND_A_COMMAND
                .iter()
                .find(|(kind, _)| *kind == rule.kind)
                .map_or(0, |(_, count)| *count);
            let each = match self.mode {
                GuestMode::Ring3 | GuestMode::LongRing3 => rule.each + rule.in_ring_3,
                GuestMode::Long => rule.each + rule.in_64_bit,
                GuestMode::Real => rule.each + rule.in_real_mode,
                _ => rule.each,
            };
            let expected = each * repetitions + rule.once;
            let fast_paths = match rule.or_fast_path {
                true => outcome.fast_paths(rule.kind),
                false => 0,
            };
            let counted = (outcome.exits(rule.kind) + fast_paths).saturating_sub(around);
            let early = counted.saturating_sub(expected);
            let counted = match early <= rule.first {
                true => counted - early,
                false => counted,
            };
            let agrees = counted == expected || (rule.at_least && counted > expected);
            if !agrees {
                return Err(CostError::WorkNotDone(format!(
                    "{what}: expected {expected} exits of kind {}, the ledger counted \
                     {counted} (all exits: {})",
                    rule.kind.name(),
                    outcome.all_exits()
                )));
            }
            sum.expected += expected;
            sum.counted += counted;
        }
        Ok(())
    }
}

/// The guest in one mode, and the state that all of its rows share.
struct Bench<'a> {
    guest: Guest,
    mode: GuestMode,
    options: &'a Options,
    baseline: &'a Loops,
    invlpg: Option<&'a Loops>,
    /// The values of the empty loop for the row that was measured last.
    no_op: Vec<u64>,
}

impl<'a> Bench<'a> {
    fn start(options: &'a Options, table: &'a [Loops], mode: GuestMode) -> Result<Self, CostError> {
        Ok(Self {
            guest: Guest::start(mode)?,
            mode,
            options,
            baseline: find(table, kinds::BASELINE, mode).ok_or_else(|| {
                CostError::WorkNotDone(format!("no empty loop for mode {}", mode.name()))
            })?,
            invlpg: find(table, kinds::INVLPG, mode),
            no_op: Vec::new(),
        })
    }

    /// Measures one kind; `None` if interrupted.
    fn row(
        &mut self,
        kind: &Kind,
        loops: &Loops,
        pinned: bool,
        observer: &mut dyn Observer,
    ) -> Result<Option<Row>, CostError> {
        let mut reading = Reading::new(kind, self.mode);
        let Some((raw, baseline)) = self.singles(kind, loops, &mut reading, observer)? else {
            return Ok(None);
        };
        let values = self.net(kind, raw, baseline);
        let Some(single) = Summary::of(&values) else {
            return Err(CostError::WorkNotDone(format!("{}: no values", kind.name)));
        };
        Ok(Some(Row {
            kind: kind.name.to_owned(),
            what: kind.what.to_owned(),
            mode: self.mode,
            pinned,
            baseline,
            single,
            batch: self.batches(kind, loops, &mut reading)?,
            exits_each: reading.exits as f64 / reading.repetitions.max(1) as f64,
            counts: reading.counts,
            distribution: distribution(&values),
        }))
    }

    /// Times single events, in turns with the empty loop. Returns the values, and the median of the
    /// empty loop.
    fn singles(
        &mut self,
        kind: &Kind,
        loops: &Loops,
        reading: &mut Reading,
        observer: &mut dyn Observer,
    ) -> Result<Option<(Vec<u64>, u64)>, CostError> {
        let (wanted, chunk) = if kind.is_slow {
            (self.options.samples.div_ceil(SLOW_DIVISOR), SLOW_CHUNK)
        } else {
            (self.options.samples, CHUNK)
        };
        let wanted = wanted.max(1);
        let what = format!("{} ({}, one by one)", kind.name, self.mode.name());
        let single = |entry, count: usize| Command {
            entry,
            count: count.min(MOST_SAMPLES) as u32,
            repeat: 1,
            ticks: TIMER_TICKS,
        };
        for entry in [loops.single, self.baseline.single] {
            self.guest.run(&what, single(entry, WARM_UP as usize))?;
        }
        let (mut values, mut empty) = (Vec::with_capacity(wanted), Vec::new());
        while values.len() < wanted {
            if observer.is_interrupted() {
                return Ok(None);
            }
            let count = chunk.min(wanted - values.len());
            let outcome = self
                .guest
                .run(kinds::BASELINE, single(self.baseline.single, count))?;
            empty.extend(outcome.values);
            let outcome = self.guest.run(&what, single(loops.single, count))?;
            reading.check(&outcome, count as u64, &what)?;
            values.extend(outcome.values);
        }
        let baseline = median(&empty).unwrap_or(0);
        self.no_op = empty;
        Ok(Some((values, baseline)))
    }

    /// The values without the time of the empty loop and, for deadlines, of the wait.
    fn net(&self, kind: &Kind, values: Vec<u64>, baseline: u64) -> Vec<u64> {
        let wait = if kind.after_deadline {
            u64::from(TIMER_TICKS) * self.guest.tsc_khz() / 1_000_000
        } else {
            0
        };
        let net = |value: u64| value.saturating_sub(baseline).saturating_sub(wait);
        values.into_iter().map(net).collect()
    }

    /// Times batches, in turns with those of the loop that is subtracted.
    fn batches(
        &mut self,
        kind: &Kind,
        loops: &Loops,
        reading: &mut Reading,
    ) -> Result<Option<BatchResult>, CostError> {
        let subtracted = match kind.batch {
            Batch::None => return Ok(None),
            Batch::AfterInvlpg => self.invlpg.unwrap_or(self.baseline),
            Batch::Event | Batch::Whole => self.baseline,
        };
        let what = format!("{} ({}, batches)", kind.name, self.mode.name());
        let divisor = if kind.is_slow { SLOW_DIVISOR } else { 1 };
        let repeat = self.options.repeat.div_ceil(divisor).max(1) as u32;
        let batches = self.options.batches.clamp(1, MOST_SAMPLES);
        let command = |entry, repeat| Command {
            entry,
            count: 1,
            repeat,
            ticks: TIMER_TICKS,
        };
        for entry in [loops.batch, subtracted.batch] {
            self.guest.run(&what, command(entry, WARM_UP))?;
        }
        let (mut values, mut empty) = (Vec::new(), Vec::new());
        for _ in 0..batches {
            let outcome = self
                .guest
                .run(&subtracted.name, command(subtracted.batch, repeat))?;
            empty.extend(outcome.values);
            let outcome = self.guest.run(&what, command(loops.batch, repeat))?;
            reading.check(&outcome, u64::from(repeat), &what)?;
            values.extend(outcome.values);
        }
        let each = f64::from(repeat);
        let baseline = median(&empty).unwrap_or(0) as f64 / each;
        let net = |cycles: f64| (cycles / each - baseline).max(0.0);
        let mean = values.iter().sum::<u64>() as f64 / values.len().max(1) as f64;
        Ok(Some(BatchResult {
            batches: values.len() as u64,
            repeat: u64::from(repeat),
            mean: net(mean),
            median: net(median(&values).unwrap_or(0) as f64),
            baseline,
            contents: match kind.batch {
                Batch::Whole => BatchContents::WithPreparation,
                _ => BatchContents::EventOnly,
            },
        }))
    }
}
