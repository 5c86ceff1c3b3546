//! Runs one workload with a database.

use super::super::arms::ARMS;
use super::guest::{Acted, Counting, DatabaseGuest};
use super::paper::PROCESSOR;
use super::work::{Printed, WRITERS, expected, table};
use super::workloads::{Action, Task};
use crate::experiment::{Arm, Bench, Counted, LabError, Options, Stop, Timed};
use std::collections::BTreeMap;
use tollgate_exits::reading::Reading;

/// The rows of each writer in the table that a start reads.
const HELD: u64 = 1_000;
const QUICK_HELD: u64 = 500;

/// A booted guest with one workload.
pub struct DatabaseBench {
    guest: DatabaseGuest,
    name: String,
    task: Task,
    options: Options,
    /// The rows of each writer, and those that the prepared table has.
    rows: u64,
    held: u64,
}

/// The rows of each writer in a run.
fn rows(action: Action, quick: bool) -> u64 {
    let rows = match action {
        Action::Start => 10,
        Action::Jobs => 1_000,
        Action::Both => 500,
        Action::Compute => 20_000,
    };
    match (action, quick) {
        (Action::Start, _) | (_, false) => rows,
        (_, true) => rows / 5,
    }
}

impl DatabaseBench {
    /// Boots the guest and fills its database.
    ///
    /// # Errors
    ///
    /// It is missing, or does not do its work.
    pub fn open(guest: &str, task: Task, options: &Options, stop: &Stop) -> Result<Self, LabError> {
        let held = if options.quick { QUICK_HELD } else { HELD };
        Ok(Self {
            guest: DatabaseGuest::boot(guest, task, held, Counting::Off, options, stop)?,
            name: guest.to_owned(),
            task,
            options: options.clone(),
            rows: rows(task.action, options.quick),
            held,
        })
    }

    /// The number of events in a run.
    const fn events(&self) -> u64 {
        match self.task.action {
            Action::Start => 1,
            _ => self.rows * WRITERS,
        }
    }
}

/// Brings the database into the state that each run begins with, runs the action, and checks what
/// it did.
fn run(guest: &mut DatabaseGuest, task: Task, rows: u64, held: u64) -> Result<Acted, LabError> {
    let action = task.action;
    guest.act(&format!("reset-{}", action.name()), rows)?;
    let acted = guest.act(action.name(), rows)?;
    acted.printed.check(&expected(action, rows, held))?;
    acted.printed.paged(task)?;
    if matches!(action, Action::Jobs | Action::Both) {
        let check = guest.act("check", rows)?;
        check.printed.check(&[("work".into(), table(rows))])?;
    }
    Ok(acted)
}

impl Bench for DatabaseBench {
    fn count(&mut self, stop: &Stop) -> Result<Option<Counted>, LabError> {
        let (task, held) = (self.task, self.held);
        let counting = Counting::Instructions;
        let mut guest = DatabaseGuest::boot(&self.name, task, held, counting, &self.options, stop)?;
        guest.turn(&ARMS[0])?;
        let acted = run(&mut guest, task, self.rows, held)?;
        Ok(Some(Counted {
            executed: executed(&acted.ran.reading),
            instructions: acted.ran.reading.instructions,
            how: "in a run of its own with the first arm".into(),
        }))
    }

    fn is_on_calling_thread(&self) -> bool {
        false
    }

    fn measure(&mut self, arm: &Arm, _stop: &Stop) -> Result<Timed, LabError> {
        self.guest.turn(arm)?;
        let Acted { ran, printed } = run(&mut self.guest, self.task, self.rows, self.held)?;
        // Each change of a knob drops translated code, and other runs with the arm have none to make.
        let cycles = ran
            .processor_cycles()
            .saturating_sub(ran.reading.shares.translating);
        let mut timed = Timed::of_events(self.events(), cycles, &ran.reading);
        timed.work.insert("rows".to_owned(), self.rows * WRITERS);
        add_values(&mut timed, &ran.reading, &printed);
        timed.values.insert(PROCESSOR.into(), cycles as f64);
        Ok(timed)
    }
}

fn add_values(timed: &mut Timed, reading: &Reading, printed: &Printed) {
    timed.add_counts(&reading.space_loads);
    timed.add_counts(&reading.shadow_tables);
    let counts = printed.counts.iter();
    let counts: Vec<(&str, u64)> = counts.map(|(name, count)| (&**name, *count)).collect();
    timed.add_counts(&counts);
    timed
        .values
        .insert("disk-requests".into(), printed.requests() as f64);
}

/// How often the guest executes instructions of the kinds that matter here.
fn executed(reading: &Reading) -> BTreeMap<String, u64> {
    let sum = |counts: &[(&'static str, u64)], names: &[&str]| {
        let rows = counts.iter().filter(|(name, _)| names.contains(name));
        rows.map(|(_, count)| count).sum::<u64>()
    };
    let loads = ["kept", "same", "flushed", "missed", "compared"];
    let pages = ["page-inline", "page-selective", "page-full"];
    BTreeMap::from([
        ("cr3-load".into(), sum(&reading.space_loads, &loads)),
        ("invlpg".into(), sum(&reading.shadow_tables, &pages)),
    ])
}
