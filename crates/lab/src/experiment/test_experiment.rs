//! An experiment for tests with two arms, of which b takes half the time.

use super::{
    About, Arm, Bench, Cell, Counted, Experiment, Guest, KindGroup, LabError, Metric, Observer,
    Options, Price, Sample, Section, Stop, Timed, Workload,
};
use std::cell::Cell as Counter;
use std::path::Path;
use std::rc::Rc;
use tollgate_exits::ExitKind;
use tollgate_exits::ledger::{Cost, TimeShares};
use tollgate_exits::reading::{KindReading, Reading};

pub(crate) static ABOUT: About = About {
    name: "made-up",
    one_line: "two settings of nothing",
    question: "Does half the time take half the time?",
    source: "A. Nobody, \"On Nothing\"",
    arms: &[
        Arm {
            name: "a",
            settings: &[("vif", "off")],
            checks: false,
            hooks: None,
            guests: &[],
            what: "as it is",
        },
        Arm {
            name: "b",
            settings: &[("vif", "on")],
            checks: false,
            hooks: None,
            guests: &[],
            what: "in half the time",
        },
    ],
    workloads: &[
        Workload::of_time("spin", "goes round"),
        Workload {
            metric: Metric::Value {
                name: "latency",
                unit: "us",
            },
            ..Workload::of_time("count", "counts").on(&["ours"])
        },
    ],
    guests: &[
        Guest {
            name: "ours",
            what: "ours",
            needs_image: false,
        },
        Guest {
            name: "theirs",
            what: "someone else's",
            needs_image: true,
        },
    ],
    kinds: &[
        KindGroup {
            title: "sensitive",
            kinds: &[ExitKind::Cli, ExitKind::Sti],
        },
        KindGroup {
            title: "I/O",
            kinds: &[ExitKind::PortIn],
        },
    ],
    numbers: None,
    by_workload: None,
};

/// Runs are numbered from 1 in the order in which they are made.
#[derive(Default)]
pub(crate) struct Scripted {
    pub interrupted_in_run: Option<u32>,
    pub lazy_in_run: Option<u32>,
    pub fails_in_run: Option<u32>,
    pub refused_in_run: Option<u32>,
    pub runs: Rc<Counter<u32>>,
}

impl Experiment for Scripted {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn open(&self, _: &Cell, _: &Options, _: &Stop) -> Result<Box<dyn Bench>, LabError> {
        Ok(Box::new(Scripted {
            runs: Rc::clone(&self.runs),
            ..*self
        }))
    }

    fn check_image(&self, _: &str, _: &Path) -> Result<(), LabError> {
        Ok(())
    }

    fn prices(
        &self,
        guest: &Guest,
        arm: &Arm,
        _: &Options,
        _: &Stop,
    ) -> Result<Vec<Price>, LabError> {
        let price = Price::of(guest.name, arm.name, "cli", vec![39.0, 40.0, 99.0]);
        Ok(price.into_iter().collect())
    }

    fn sections(&self, _: &super::Results) -> Vec<Section> {
        vec![Section {
            title: "what stands for what".into(),
            columns: vec!["there".into(), "here".into()],
            rows: vec![vec!["nothing".into(), "nothing".into()]],
            notes: vec!["nothing is nothing".into()],
        }]
    }
}

impl Bench for Scripted {
    fn count(&mut self, _: &Stop) -> Result<Option<Counted>, LabError> {
        Ok(Some(Counted {
            executed: [("cli".to_owned(), 7)].into(),
            instructions: Some(1000),
            how: "by hand".into(),
        }))
    }

    fn measure(&mut self, arm: &Arm, stop: &Stop) -> Result<Timed, LabError> {
        let run = self.runs.get() + 1;
        self.runs.set(run);
        if self.interrupted_in_run == Some(run) {
            stop.request();
        }
        if self.fails_in_run == Some(run) {
            return Err(LabError::WorkNotDone("the guest fell asleep".into()));
        }
        if self.refused_in_run == Some(run) {
            return Err(LabError::Host("no timer".into()));
        }
        let wall = if arm.name == "a" { 1000 } else { 500 };
        let mut timed = sample(arm.name, run, 10, wall / 5, wall).timed;
        let done = if self.lazy_in_run == Some(run) {
            99
        } else {
            100
        };
        timed.work.insert("rounds".into(), done);
        timed.values.insert("latency".into(), timed.seconds * 2.0);
        Ok(timed)
    }
}

/// A run that took `wall` cycles, of which `cycles` for `cli` exits of kind CLI.
pub(crate) fn sample(arm: &str, repetition: u32, cli: u64, cycles: u64, wall: u64) -> Sample {
    let cost = Cost {
        samples: cli,
        total: cycles,
        p50: cycles / cli.max(1),
        p95: cycles,
        p99: cycles,
        max: cycles,
    };
    let reading = Reading {
        tsc_khz: 1000,
        shares: TimeShares {
            wall,
            guest: wall - cycles,
            exits: vec![(ExitKind::Cli, cycles)],
            ..TimeShares::default()
        },
        kinds: vec![KindReading {
            kind: ExitKind::Cli,
            count: cli,
            cost: Some(cost),
        }],
        blame: Vec::new(),
        spaces: Vec::new(),
        programs: Vec::new(),
        given_up: Vec::new(),
        system_call_entry: 0,
        settings: Vec::new(),
        settings_changed: false,
        instructions: None,
        host_code: None,
        fast_paths: Vec::new(),
        space_loads: Vec::new(),
        shadow_tables: Vec::new(),
        instruction_cache: Vec::new(),
        instruction_steps: Vec::new(),
        share_requests: Vec::new(),
        interrupts: Default::default(),
        devices: Vec::new(),
    };
    Sample {
        arm: arm.to_owned(),
        repetition,
        order: repetition as usize,
        timed: Timed::new(wall as f64 / 1e6, &reading),
        hardware: None,
    }
}

/// An observer that ignores everything.
pub(crate) struct Silent;

impl Observer for Silent {
    fn progress(&mut self, _: usize, _: usize, _: &str) {}
}
