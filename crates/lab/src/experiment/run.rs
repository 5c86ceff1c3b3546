//! Takes the samples of an experiment.

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
    let monitor = HardwareCounters::open();
    let mut run = Run {
        experiment,
        options,
        stop,
        observer,
        monitor: monitor.as_ref().ok(),
        planned: plan.samples(),
        order: journal.last_order(),
        journal,
        taken: 0,
        passed: 0,
        prices: Vec::new(),
        refused: None,
    };
    let mut cells = Vec::new();
    for cell in &plan.cells {
        if stop.is_requested() || run.refused.is_some() {
            break;
        }
        let before = run.passed;
        cells.push(CellResult {
            guest: cell.guest.name.to_owned(),
            workload: cell.workload.name.to_owned(),
            metric: cell.workload.metric,
            outcome: run.cell(cell, &plan),
        });
        run.passed = before + plan.turns(cell).len();
    }
    let (taken, prices, refused) = (run.taken, run.prices, run.refused);
    let interrupted = stop.is_requested() && taken < plan.samples();
    let tsc_khz = cells
        .iter()
        .find_map(|cell| cell.samples().first())
        .map_or(0, |sample| sample.timed.ledger.tsc_khz);
    Ok(Results {
        experiment: about.name.to_owned(),
        about,
        host: HostDescription::here(tsc_khz),
        no_hardware_monitor: monitor.err(),
        quick: options.quick,
        repetitions: options.repetitions.max(super::LEAST_REPETITIONS),
        planned: plan.samples(),
        finished: taken,
        interrupted,
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
        for (repetition, arm) in turns {
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

#[cfg(test)]
mod tests {
    use super::super::test_experiment::{Scripted, Silent};
    use super::*;
    use crate::experiment::{GuestImages, Verdict};

    fn arms_in_order(results: &Results, cell: usize) -> Vec<&str> {
        let samples = results.cells[cell].samples().iter();
        samples.map(|sample| sample.arm.as_str()).collect()
    }

    #[test]
    fn every_cell_is_measured_with_all_arms_in_turns() {
        let experiment = Scripted::default();
        let results = run(&experiment, &Options::quick(), &Stop::new(), &mut Silent).unwrap();
        assert_eq!(arms_in_order(&results, 0), ["a", "b", "a", "b", "a", "b"]);
        assert_eq!(arms_in_order(&results, 1), ["a", "b", "a", "b", "a", "b"]);
        assert_eq!((results.planned, results.finished), (12, 12));
        assert!(!results.interrupted && results.failures().is_empty());
        let cell = results.cell("ours", "spin").unwrap();
        assert_eq!(cell.comparison("b").unwrap().verdict, Verdict::Less);
        assert_eq!(cell.comparison("a"), None);
        assert_eq!(cell.counted().unwrap().executed["cli"], 7);
        // Prices are measured once for each guest, not for each of its cells.
        assert_eq!(results.prices("ours", "a").len(), 1);
    }

    #[test]
    fn a_guest_without_its_image_is_not_run_and_with_it_is() {
        let experiment = Scripted::default();
        let results = run(&experiment, &Options::quick(), &Stop::new(), &mut Silent).unwrap();
        let theirs = results.cell("theirs", "spin").unwrap();
        let why = "no image: --guest-image theirs=FILE gives it (someone else's)";
        assert_eq!(theirs.outcome, CellOutcome::NotRun(why.into()));
        let options = Options {
            images: GuestImages::of([("theirs".into(), "os.img".into())]),
            ..Options::quick()
        };
        let results = run(&experiment, &options, &Stop::new(), &mut Silent).unwrap();
        assert_eq!(results.cell("theirs", "spin").unwrap().samples().len(), 6);
    }

    #[test]
    fn an_interruption_keeps_what_is_finished_and_says_how_much_that_is() {
        let experiment = Scripted {
            interrupted_in_run: Some(4),
            ..Scripted::default()
        };
        let results = run(&experiment, &Options::quick(), &Stop::new(), &mut Silent).unwrap();
        // The fourth run was interrupted, so it does not count.
        assert_eq!(arms_in_order(&results, 0), ["a", "b", "a"]);
        assert_eq!(results.cells.len(), 1);
        assert!(results.interrupted);
        assert_eq!((results.planned, results.finished), (12, 3));
    }

    #[test]
    fn work_that_differs_between_runs_fails_the_cell_and_no_other() {
        let experiment = Scripted {
            lazy_in_run: Some(4),
            ..Scripted::default()
        };
        let results = run(&experiment, &Options::quick(), &Stop::new(), &mut Silent).unwrap();
        assert_eq!(
            results.failures(),
            [
                "ours, spin: no result: the guest did not do its work: repetition 2 with b did \
                 other work than repetition 1 with a: rounds 99 instead of 100"
            ]
        );
        assert_eq!(results.cells[1].samples().len(), 6);
    }

    #[test]
    fn a_host_that_refuses_ends_the_experiment_and_what_is_finished_is_kept() {
        let experiment = Scripted {
            refused_in_run: Some(4),
            ..Scripted::default()
        };
        let results = run(&experiment, &Options::quick(), &Stop::new(), &mut Silent).unwrap();
        assert_eq!(arms_in_order(&results, 0), ["a", "b", "a"]);
        assert_eq!(results.cells.len(), 1);
        assert!(!results.interrupted);
        assert_eq!(results.failures(), ["the host refused: no timer"]);
    }

    #[test]
    fn a_guest_that_fails_is_no_result_but_a_reason() {
        let experiment = Scripted {
            fails_in_run: Some(1),
            ..Scripted::default()
        };
        let results = run(&experiment, &Options::quick(), &Stop::new(), &mut Silent).unwrap();
        assert!(results.failures()[0].contains("the guest fell asleep"));
        assert!(results.cells[0].samples().is_empty());
    }
}
