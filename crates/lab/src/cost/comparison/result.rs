//! The result of a comparison of machines.

use crate::cost::Row;
use serde::Serialize;
use tollgate_host_facts::processors::HostDescription;

/// What one machine did with one kind of event.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// It was measured.
    Measured(Box<Measured>),
    /// The machine has no such event, or cannot be made to cause it: why.
    None(String),
}

/// The figures of one kind in one machine.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Measured {
    /// All rounds together.
    pub row: Row,
    /// For each round, the cycles of one event: the median of its batches.
    pub rounds: Vec<f64>,
}

/// One line of the comparison: a kind in a machine, pinned or not.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Line {
    /// The kind's name.
    pub kind: &'static str,
    /// What happens between the readings of the clock.
    pub what: &'static str,
    /// The guest's mode.
    pub mode: &'static str,
    /// The machine's name.
    pub machine: &'static str,
    /// Whether the machine was pinned to one host processor.
    pub pinned: bool,
    /// The figures, or why there are none.
    pub finding: Finding,
}

/// A machine that took part, or could not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Participant {
    /// The machine's name.
    pub name: &'static str,
    /// What it is.
    pub what: String,
    /// QEMU's name for its model of processor.
    pub processor: Option<&'static str>,
    /// Why it did not run.
    pub not_run: Option<String>,
}

/// The result of the comparison.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// A description of the host.
    pub host: HostDescription,
    /// The host processor on which pinned lines ran.
    pub pinned_to: usize,
    /// Whether everything that was requested was measured.
    pub is_complete: bool,
    /// The machines, Tollgate first.
    pub machines: Vec<Participant>,
    /// The lines, in the order of the output.
    pub lines: Vec<Line>,
}

impl Comparison {
    /// Converts cycles to nanoseconds.
    pub fn nanoseconds(&self, cycles: f64) -> f64 {
        cycles * 1e6 / self.host.tsc_khz.max(1) as f64
    }

    /// The line of a kind in a machine.
    pub fn line(&self, kind: &str, machine: &str, pinned: bool) -> Option<&Line> {
        self.lines
            .iter()
            .find(|line| line.kind == kind && line.machine == machine && line.pinned == pinned)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::cost::comparison::merge::merged;
    use crate::cost::comparison::merge::tests::row;

    /// A comparison of one kind, which only Tollgate has.
    pub fn comparison() -> Comparison {
        let line = |machine, finding| Line {
            kind: "null-hypercall",
            what: "VMCALL",
            mode: "64-bit",
            machine,
            pinned: true,
            finding,
        };
        let participant = |name, what: &str, not_run: Option<&str>| Participant {
            name,
            what: what.into(),
            processor: None,
            not_run: not_run.map(str::to_owned),
        };
        let rounds = [row(&[1, 2, 2], 10.0), row(&[2, 9], 30.0)];
        let measured = Finding::Measured(Box::new(merged(&rounds).unwrap()));
        Comparison {
            host: HostDescription::here(2_000_000),
            pinned_to: 0,
            is_complete: true,
            machines: vec![
                participant("tollgate", "here", None),
                participant("qemu", "TCG", None),
                participant("kvm", "-accel kvm", Some("no /dev/kvm")),
            ],
            lines: vec![
                line("tollgate", measured),
                line("qemu", Finding::None("none: TCG has no hypercalls".into())),
                line("kvm", Finding::None("not run: no /dev/kvm".into())),
            ],
        }
    }
}
