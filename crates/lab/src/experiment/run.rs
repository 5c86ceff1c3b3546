//! Takes the samples of an experiment.

use super::clock::Clock;
use super::origin::{build, seconds_since_1970};
use super::plan::Plan;
use super::results::{ArmDescription, CellOutcome, CellResult, Results};
use super::same_work::check_work;
use super::{Bench, Cell, Experiment, Journal, LabError, Options, Price, Sample, Stop, Timed};
use tollgate_host_facts::hardware_counters::HardwareCounters;
use tollgate_host_facts::processors::HostDescription;

/// Receives the progress of an experiment.
pub trait Observer {
    /// Reports that `done` of `total` samples are taken, and that `next` starts now.
    fn progress(&mut self, done: usize, total: usize, next: &str);
}

/// Runs an experiment on the calling thread, until it is done or `stop` is requested.
///
/// # Errors
///
/// A name in `options` is unknown. A cell that fails does not end the others; a host that refuses
/// something ends all of them: see [`Results::failures`].
pub fn run(
    experiment: &dyn Experiment,
    options: &Options,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Results, LabError> {
    resume(experiment, options, stop, observer, &mut Journal::none())
}

/// Runs what is not yet in the journal, and keeps there what is finished. The results contain
/// both.
///
/// # Errors
///
/// Those of [`run`].
pub fn resume(
    experiment: &dyn Experiment,
    options: &Options,
    stop: &Stop,
    observer: &mut dyn Observer,
    journal: &mut Journal,
) -> Result<Results, LabError> {
    let about = experiment.about();
    let plan = Plan::of(about, options)?;
    for (guest, path) in options.images.all() {
        experiment.check_image(guest, path)?;
    }
    let began_at = journal.began_at().unwrap_or_else(seconds_since_1970);
    let monitor = HardwareCounters::open();
    let mut run = Run {
        experiment,
        options,
        stop,
        observer,
        monitor: monitor.as_ref().ok(),
        planned: plan.samples(),
        clock: Clock::new(options.time),
        order: journal.last_order(),
        journal,
        taken: 0,
        passed: 0,
        prices: Vec::new(),
        refused: None,
    };
    let mut cells = Vec::new();
    for (index, cell) in plan.cells.iter().enumerate() {
        run.clock.begin_cell(plan.cells.len() - index);
        if stop.is_requested() || run.refused.is_some() {
            break;
        }
        let before = run.passed;
        cells.push(CellResult {
            guest: cell.guest.name.to_owned(),
            workload: cell.workload.name.to_owned(),
            metric: cell.workload.metric,
            contention: cell.workload.contention,
            outcome: run.cell(cell, &plan),
        });
        run.passed = before + plan.turns(cell).len();
    }
    let (taken, prices, refused) = (run.taken, run.prices, run.refused);
    let out_of_time = run.clock.has_left_something_out();
    let interrupted = stop.is_requested() && taken < plan.samples();
    let tsc_khz = cells
        .iter()
        .find_map(|cell| cell.samples().first())
        .map_or(0, |sample| sample.timed.ledger.tsc_khz);
    Ok(Results {
        experiment: about.name.to_owned(),
        about,
        host: HostDescription::here(tsc_khz),
        build: build(),
        guest_versions: Vec::new(),
        began_at,
        measured_at: seconds_since_1970(),
        no_hardware_monitor: monitor.err(),
        quick: options.quick,
        repetitions: options.repetitions.max(super::LEAST_REPETITIONS),
        planned: plan.samples(),
        finished: taken,
        interrupted,
        out_of_time,
        refused,
        arms: about.arms.iter().map(ArmDescription::from).collect(),
        prices,
        cells,
    })
}

/// Whether the prices of a guest are measured.
#[derive(PartialEq, Eq)]
enum Priced {
    Yes,
    No,
}

struct Run<'a> {
    experiment: &'a dyn Experiment,
    options: &'a Options,
    stop: &'a Stop,
    observer: &'a mut dyn Observer,
    monitor: Option<&'a HardwareCounters>,
    planned: usize,
    /// What is finished, also in earlier runs.
    journal: &'a mut Journal,
    /// The time that is left.
    clock: Clock,
    /// The number of the latest sample.
    order: usize,
    /// The number of samples taken, also in earlier runs.
    taken: usize,
    /// The number of samples taken, plus those that will not be taken because their cell is not
    /// run.
    passed: usize,
    prices: Vec<Price>,
    /// What the host refused; it makes no sense to continue.
    refused: Option<String>,
}

impl Run<'_> {
    fn cell(&mut self, cell: &Cell, plan: &Plan) -> CellOutcome {
        if plan.lacks_image(cell) {
            let (name, what) = (cell.guest.name, cell.guest.what);
            return CellOutcome::NotRun(format!(
                "no image: --guest-image {name}=FILE gives it ({what})"
            ));
        }
        match self.measured(cell, plan) {
            Ok(outcome) => outcome,
            Err(LabError::NotRun(why)) => CellOutcome::NotRun(why),
            Err(LabError::Interrupted) => CellOutcome::NONE,
            Err(LabError::Host(why)) => {
                self.refused = Some(why);
                CellOutcome::NONE
            }
            Err(error) => {
                // If this cannot be kept, the next line cannot either.
                let _ = self.journal.keep_failure(cell);
                CellOutcome::Failed(error.to_string())
            }
        }
    }

    fn measured(&mut self, cell: &Cell, plan: &Plan) -> Result<CellOutcome, LabError> {
        let name = format!("{}, {}", cell.guest.name, cell.workload.name);
        let mut samples = self.journal.samples(cell, &plan.arms(cell));
        let mut counted = self.journal.counted(cell).cloned();
        self.taken += samples.len();
        self.passed += samples.len();
        let is_taken = |(repetition, arm): &(u32, &super::Arm)| {
            let mut samples = samples.iter();
            samples.any(|sample| sample.repetition == *repetition && sample.arm == arm.name)
        };
        let turns = plan.turns(cell).into_iter();
        let turns: Vec<(u32, &super::Arm)> = turns.filter(|turn| !is_taken(turn)).collect();
        if turns.is_empty() {
            self.price_as_kept(cell);
            return Ok(CellOutcome::Measured { counted, samples });
        }
        if self.clock.is_over() {
            return Err(LabError::NotRun(
                "the time that was given was over; --resume measures it".into(),
            ));
        }
        self.tell(&format!("{name}: getting ready"));
        let mut bench = self.experiment.open(cell, self.options, self.stop)?;
        self.price(cell, plan)?;
        self.tell(&format!("{name}: counting"));
        // A machine that is opened again counts again, so that it is in the same state as one that
        // is opened for the first time.
        if let Some(found) = bench.count(self.stop)?
            && counted.is_none()
            && !self.stop.is_requested()
        {
            self.keep(|journal| journal.keep_counted(cell, &found))?;
            counted = Some(found);
        }
        let mut round = 0;
        for (repetition, arm) in turns {
            // A round is not ended in its middle.
            if repetition != round && self.clock.ends_cell_before(repetition) {
                break;
            }
            round = repetition;
            self.tell(&format!("{} {name}, repetition {repetition}", arm.name));
            match self.timed(&mut *bench, arm) {
                Ok((timed, hardware)) => {
                    self.taken += 1;
                    self.passed += 1;
                    self.order += 1;
                    samples.push(Sample {
                        arm: arm.name.to_owned(),
                        repetition,
                        order: self.order,
                        timed,
                        hardware,
                    });
                }
                Err(LabError::Interrupted) => break,
                Err(LabError::Host(why)) => {
                    self.refused = Some(why);
                    break;
                }
                Err(error) => return Err(error),
            }
            check_work(&samples)?;
            if let Some(sample) = samples.last()
                && let Err(LabError::Host(why)) =
                    self.keep(|journal| journal.keep_sample(cell, sample))
            {
                self.refused = Some(why);
                break;
            }
        }
        Ok(CellOutcome::Measured { counted, samples })
    }

    fn keep(
        &mut self,
        keep: impl FnOnce(&mut Journal) -> Result<(), String>,
    ) -> Result<(), LabError> {
        keep(self.journal).map_err(LabError::Host)
    }

    fn timed(
        &mut self,
        bench: &mut dyn Bench,
        arm: &super::Arm,
    ) -> Result<
        (
            Timed,
            Option<tollgate_host_facts::hardware_counters::HardwareCounts>,
        ),
        LabError,
    > {
        if self.stop.is_requested() {
            return Err(LabError::Interrupted);
        }
        let monitor = self.monitor.filter(|_| bench.is_on_calling_thread());
        let before = monitor.map(HardwareCounters::read);
        let timed = bench.measure(arm, self.stop);
        let after = monitor.map(HardwareCounters::read);
        if self.stop.is_requested() {
            // Whatever the result is, the run was interrupted.
            return Err(LabError::Interrupted);
        }
        let hardware = match (before, after) {
            (Some(before), Some(after)) => Some(after.since(&before)),
            _ => None,
        };
        Ok((timed?, hardware))
    }

    /// Measures the prices of a guest before its first cell.
    fn price(&mut self, cell: &Cell, plan: &Plan) -> Result<(), LabError> {
        let guest = cell.guest;
        if self.price_as_kept(cell) == Priced::Yes {
            return Ok(());
        }
        let mut all = Vec::new();
        for arm in plan.arms(cell) {
            self.tell(&format!("{} {}: what exits cost", arm.name, guest.name));
            let prices = self
                .experiment
                .prices(guest, arm, self.options, self.stop)?;
            all.extend(prices);
        }
        if self.stop.is_requested() {
            return Err(LabError::Interrupted);
        }
        self.keep(|journal| journal.keep_prices(guest.name, &all))?;
        self.prices.extend(all);
        Ok(())
    }

    /// Takes the prices of a cell's guest from the journal, unless that was done already.
    fn price_as_kept(&mut self, cell: &Cell) -> Priced {
        let guest = cell.guest.name;
        if self.prices.iter().any(|price| price.guest == guest) {
            return Priced::Yes;
        }
        let Some(kept) = self.journal.prices(guest) else {
            return Priced::No;
        };
        self.prices.extend_from_slice(kept);
        Priced::Yes
    }

    fn tell(&mut self, next: &str) {
        self.observer.progress(self.passed, self.planned, next);
    }
}
