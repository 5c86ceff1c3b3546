//! What an experiment is, as plain data.

use super::LabError;
use tollgate_exits::ExitKind;
use tollgate_machine::boot::guest_hooks::GuestHooks;
use tollgate_machine::config::VmConfig;
use tollgate_machine::knobs::Assignment;

/// An experiment's description.
pub struct About {
    /// The word behind `tollgate lab`.
    pub name: &'static str,
    /// What it compares, in one line.
    pub one_line: &'static str,
    /// Which question it answers, in a few sentences: part of the help and of the table.
    pub question: &'static str,
    /// The study that it re-does.
    pub source: &'static str,
    /// What is compared; the first is the one that others are compared with.
    pub arms: &'static [Arm],
    /// What the guests do.
    pub workloads: &'static [Workload],
    /// The guests.
    pub guests: &'static [Guest],
    /// The kinds of exit that matter, in groups with a sum each.
    pub kinds: &'static [KindGroup],
    /// Arms that differ in a number alone, by which plots show them.
    pub numbers: Option<Numbers>,
}

/// Arms that differ in a number.
pub struct Numbers {
    /// What is counted.
    pub what: &'static str,
    /// An arm's name and its number, the least first.
    pub of_arms: &'static [(&'static str, u32)],
}

/// One variant: settings of the machine.
pub struct Arm {
    /// Its name: the knobs that it stands for.
    pub name: &'static str,
    /// Every knob of the experiment, with its value.
    pub settings: &'static [(&'static str, &'static str)],
    /// Everything derived from page tables is checked (`--verify-shadow`), which is no knob.
    pub checks: bool,
    /// The guest has handlers of ours before its programs (`--guest-hooks`), which is no knob.
    pub hooks: Option<GuestHooks>,
    /// The guests that can have it, by name; empty: all.
    pub guests: &'static [&'static str],
    /// What it stands for, in one line.
    pub what: &'static str,
}

impl Arm {
    /// `config` with this arm's settings.
    ///
    /// # Errors
    /// A knob or value is not known, which a test excludes for every experiment.
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

/// Something that guests do.
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// What it is, in one line.
    pub what: &'static str,
    /// What is compared between arms.
    pub metric: Metric,
    /// The arms that are of interest, by name; empty: all.
    pub arms: &'static [&'static str],
    /// The guests that can do it, by name; empty: all.
    pub guests: &'static [&'static str],
}

/// What is compared between arms. Less is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Metric {
    /// Seconds for the whole work.
    Seconds,
    /// One of the values that the sample carries.
    Value {
        /// Its name in [`super::Timed::values`].
        name: &'static str,
        /// Its unit.
        unit: &'static str,
    },
}

impl Metric {
    /// What it is called in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Seconds => "time",
            Self::Value { name, .. } => name,
        }
    }

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Seconds => "s",
            Self::Value { unit, .. } => unit,
        }
    }
}

/// A guest system.
pub struct Guest {
    /// Its name.
    pub name: &'static str,
    /// What it is, in one line.
    pub what: &'static str,
    /// It is not ours to give: the user supplies it as `--guest-image NAME=PATH`.
    pub needs_image: bool,
}

/// Kinds of exit that belong together.
pub struct KindGroup {
    /// What they are.
    pub title: &'static str,
    /// The kinds.
    pub kinds: &'static [ExitKind],
}
