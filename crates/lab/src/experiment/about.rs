//! The description of an experiment, as plain data.

use super::{EVENT, LabError};
use tollgate_exits::ExitKind;
use tollgate_machine::boot::guest_hooks::GuestHooks;
use tollgate_machine::config::VmConfig;
use tollgate_machine::knobs::Assignment;

/// An experiment's description.
pub struct About {
    /// The name on the command line, after `tollgate lab`.
    pub name: &'static str,
    /// What it compares, in one line.
    pub one_line: &'static str,
    /// The question that it answers, in a few sentences: part of the help and of the table.
    pub question: &'static str,
    /// The study that it repeats.
    pub source: &'static str,
    /// The arms that are compared; the others are compared with the first.
    pub arms: &'static [Arm],
    /// The workloads of the guests.
    pub workloads: &'static [Workload],
    /// The guest systems.
    pub guests: &'static [Guest],
    /// The kinds of exit that matter, in groups whose sums are shown.
    pub kinds: &'static [KindGroup],
    /// The arms that differ only in a number, by which plots show them.
    pub numbers: Option<Numbers>,
    /// The workloads that differ only in a number, by which plots show them.
    pub by_workload: Option<WorkloadNumbers>,
}

/// Workloads that differ in a number: the arms are compared by it.
pub struct WorkloadNumbers {
    /// What the number counts.
    pub what: &'static str,
    /// The kinds of these workloads: a name, and the workloads' names and numbers, in ascending
    /// order of the numbers, which are at least 1.
    pub kinds: &'static [(&'static str, &'static [(&'static str, u32)])],
}

/// Arms that differ in a number.
pub struct Numbers {
    /// What the number counts.
    pub what: &'static str,
    /// The arms' names and numbers, in ascending order of the numbers.
    pub of_arms: &'static [(&'static str, u32)],
    /// Other arms that differ in the same number: a name of the series, and the arms.
    pub others: &'static [(&'static str, &'static [(&'static str, u32)])],
}

/// One variant: settings of the machine.
pub struct Arm {
    /// The arm's name: the knobs that it stands for.
    pub name: &'static str,
    /// Every knob of the experiment, with its value.
    pub settings: &'static [(&'static str, &'static str)],
    /// Whether everything derived from page tables is checked (`--verify-shadow`), which is not a
    /// knob.
    pub checks: bool,
    /// The handlers of ours that the guest has before its programs (`--guest-hooks`), which are not
    /// a knob.
    pub hooks: Option<GuestHooks>,
    /// The names of the guests that can use this arm; if empty, all.
    pub guests: &'static [&'static str],
    /// A description of the arm in one line.
    pub what: &'static str,
}

impl Arm {
    /// An arm for all guests that consists of nothing but these settings.
    pub const fn new(
        name: &'static str,
        settings: &'static [(&'static str, &'static str)],
        what: &'static str,
    ) -> Self {
        Self {
            name,
            settings,
            checks: false,
            hooks: None,
            guests: &[],
            what,
        }
    }

    /// `config` with this arm's settings.
    ///
    /// # Errors
    ///
    /// A knob or value is unknown, which a test excludes for every experiment.
    pub fn config(&self, config: &VmConfig) -> Result<VmConfig, LabError> {
        let mut config = config.clone();
        for (knob, value) in self.settings {
            Assignment::of(knob, value)
                .map_err(|error| LabError::Host(error.to_string()))?
                .apply(&mut config);
        }
        config.verify_shadow |= self.checks;
        config.fw_cfg_files.extend(self.hooks.map(GuestHooks::file));
        Ok(config)
    }
}

/// A workload of guests.
#[derive(Clone, Copy)]
pub struct Workload {
    /// The workload's name.
    pub name: &'static str,
    /// A description in one line.
    pub what: &'static str,
    /// The value that is compared between arms.
    pub metric: Metric,
    /// The names of the arms that are relevant; if empty, all.
    pub arms: &'static [&'static str],
    /// The names of the guests that can run the workload; if empty, all.
    pub guests: &'static [&'static str],
    /// What the measured machine waits for when it could run.
    pub contention: Contention,
}

/// What a machine waits for when its guest could run and the host runs something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contention {
    /// Other programs on the host, which spoil the measurement.
    OtherPrograms,
    /// The workload's own machines on the same processor: the wait is what the workload is about.
    OwnMachines,
}

impl Workload {
    /// A workload of all guests, with all arms, that is compared by its whole time.
    pub const fn of_time(name: &'static str, what: &'static str) -> Self {
        Self {
            name,
            what,
            metric: Metric::Seconds,
            arms: &[],
            guests: &[],
            contention: Contention::OtherPrograms,
        }
    }

    /// A workload of all guests, with all arms, that is compared by the cycles of one event.
    pub const fn of_events(name: &'static str, what: &'static str) -> Self {
        Self {
            metric: Metric::Value {
                name: EVENT,
                unit: "cycles",
            },
            ..Self::of_time(name, what)
        }
    }

    /// The workload on these guests only.
    pub const fn on(self, guests: &'static [&'static str]) -> Self {
        Self { guests, ..self }
    }

    /// The workload with several machines on one processor of the host.
    pub const fn on_one_processor(self) -> Self {
        Self {
            contention: Contention::OwnMachines,
            ..self
        }
    }

    /// The workload with these arms only.
    pub const fn with(self, arms: &'static [&'static str]) -> Self {
        Self { arms, ..self }
    }
}

/// The value that is compared between arms. Less is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Metric {
    /// Seconds for the whole workload.
    Seconds,
    /// A value that each sample contains.
    Value {
        /// The value's name in [`super::Timed::values`].
        name: &'static str,
        /// The value's unit.
        unit: &'static str,
    },
}

impl Metric {
    /// The metric's name in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Seconds => "time",
            Self::Value { name, .. } => name,
        }
    }

    /// The metric's unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Seconds => "s",
            Self::Value { unit, .. } => unit,
        }
    }
}

/// A guest system.
pub struct Guest {
    /// The guest's name.
    pub name: &'static str,
    /// A description in one line.
    pub what: &'static str,
    /// We cannot distribute the guest: the user supplies it as `--guest-image NAME=PATH`.
    pub needs_image: bool,
}

/// A group of related kinds of exit.
pub struct KindGroup {
    /// The title of the group.
    pub title: &'static str,
    /// The kinds in the group.
    pub kinds: &'static [ExitKind],
}
