//! Measures one kind in one machine, with single events and in batches, in turns with the empty loop.

use super::image::{Command, GuestMode, Loops, MOST_SAMPLES};
use super::kinds::{self, Batch, Kind};
use super::outcome::Outcome;
use super::reading::Reading;
use super::{BatchContents, BatchResult, CostError, Options, Row};
use crate::experiment::Stop;
use crate::statistics::{Summary, distribution, median};

/// Kinds that take microseconds get the samples and repetitions divided by this.
const SLOW_DIVISOR: usize = 10;
/// Number of values of one command.
const CHUNK: usize = 2048;
/// Number of values of one command for kinds that take microseconds or wait.
const SLOW_CHUNK: usize = 256;
/// Repetitions before the first measured value, in which code is translated and pages are looked
/// up.
const WARM_UP: u32 = 16;
/// Nanoseconds from arming the timer to its deadline: much longer than arming takes.
const TIMER_TICKS: u32 = 50_000;

/// A machine in which the guest waits for commands.
pub(super) trait Machine {
    /// Runs a command; `what` is its name in error messages.
    ///
    /// # Errors
    ///
    /// The guest ended unexpectedly, reports fewer repetitions than requested, or was stopped.
    fn run(&mut self, what: &str, command: Command) -> Result<Outcome, CostError>;

    /// The frequency of the guest's time-stamp counter in kHz.
    fn tsc_khz(&self) -> u64;
}

/// The loop of this kind that runs in this mode.
pub(super) fn find<'a>(table: &'a [Loops], name: &str, mode: GuestMode) -> Option<&'a Loops> {
    table
        .iter()
        .find(|line| line.name == name && line.runs_in(mode))
}

/// The guest in one mode, and the state that all of its rows share.
pub(super) struct Bench<'a, M> {
    guest: M,
    mode: GuestMode,
    options: &'a Options,
    stop: &'a Stop,
    baseline: &'a Loops,
    invlpg: Option<&'a Loops>,
    /// The values of the empty loop for the row that was measured last.
    pub(super) no_op: Vec<u64>,
}

impl<'a, M: Machine> Bench<'a, M> {
    pub(super) fn new(
        guest: M,
        (options, stop): (&'a Options, &'a Stop),
        table: &'a [Loops],
        mode: GuestMode,
    ) -> Result<Self, CostError> {
        Ok(Self {
            guest,
            mode,
            options,
            stop,
            baseline: find(table, kinds::BASELINE, mode).ok_or_else(|| {
                CostError::WorkNotDone(format!("no empty loop for mode {}", mode.name()))
            })?,
            invlpg: find(table, kinds::INVLPG, mode),
            no_op: Vec::new(),
        })
    }

    /// The frequency of the guest's time-stamp counter in kHz.
    pub(super) fn tsc_khz(&self) -> u64 {
        self.guest.tsc_khz()
    }

    /// Runs a command, unless the experiment should stop.
    fn command(&mut self, what: &str, command: Command) -> Result<Outcome, CostError> {
        match self.stop.is_requested() {
            true => Err(CostError::Interrupted),
            false => self.guest.run(what, command),
        }
    }

    /// Measures one kind.
    pub(super) fn row(
        &mut self,
        kind: &Kind,
        loops: &Loops,
        pinned: bool,
    ) -> Result<Row, CostError> {
        let mut reading = Reading::new(kind, self.mode);
        let (raw, baseline) = self.singles(kind, loops, &mut reading)?;
        let values = self.net(kind, raw, baseline);
        let Some(single) = Summary::of(&values) else {
            return Err(CostError::WorkNotDone(format!("{}: no values", kind.name)));
        };
        Ok(Row {
            kind: kind.name.to_owned(),
            what: kind.what.to_owned(),
            mode: self.mode,
            pinned,
            baseline,
            single,
            batch: self.batches(kind, loops, &mut reading)?,
            exits_each: reading.exits_each(),
            counts: reading.counts(),
            distribution: distribution(&values),
        })
    }

    /// Times single events, in turns with the empty loop. Returns the values, and the median of the
    /// empty loop.
    fn singles(
        &mut self,
        kind: &Kind,
        loops: &Loops,
        reading: &mut Reading,
    ) -> Result<(Vec<u64>, u64), CostError> {
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
            self.command(&what, single(entry, WARM_UP as usize))?;
        }
        let (mut values, mut empty) = (Vec::with_capacity(wanted), Vec::new());
        while values.len() < wanted {
            let count = chunk.min(wanted - values.len());
            let nothing = single(self.baseline.single, count);
            empty.extend(self.command(kinds::BASELINE, nothing)?.values);
            let outcome = self.command(&what, single(loops.single, count))?;
            reading.check(&outcome, count as u64, &what)?;
            values.extend(outcome.values);
        }
        let baseline = median(&empty).unwrap_or(0);
        self.no_op = empty;
        Ok((values, baseline))
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
            self.command(&what, command(entry, WARM_UP))?;
        }
        let (mut values, mut empty) = (Vec::new(), Vec::new());
        for _ in 0..batches {
            let nothing = command(subtracted.batch, repeat);
            empty.extend(self.command(&subtracted.name, nothing)?.values);
            let outcome = self.command(&what, command(loops.batch, repeat))?;
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
