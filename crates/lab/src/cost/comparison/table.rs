//! Formats the comparison of machines as tables for people.

use super::machines::TOLLGATE;
use super::{Comparison, Finding, Line, Measured};
use crate::cost::kinds;
use std::fmt::Write;

/// Explains how the figures may be read; part of every output.
const HONESTY: &str = "Tollgate's exits are calls inside one process, and QEMU's translator calls helpers inside one: neither \
crosses a\nprotection boundary, so neither is a measure of a hardware exit, and no ratio is printed. Comparable is the total time\n\
for the same work, which is the column `us per 1000`.";

/// The nanobenchmarks of Adams and Agesen (2006): their names, and the kind that stands for each.
pub const NANOBENCHMARKS: [(&str, &str); 7] = [
    ("syscall", "syscall-sysret"),
    ("in", "port-in"),
    ("cr8wr", "cr8-write"),
    ("callret", "call-return"),
    ("pgfault", "page-fault-iret"),
    ("divzero", "divide-error-iret"),
    ("ptemod", "page-table-write"),
];

/// The tables of pinned and unpinned machines, and that of the nanobenchmarks.
pub fn table(comparison: &Comparison) -> String {
    let mut text = format!("{}\n{HONESTY}\n", comparison.host);
    if !comparison.is_complete {
        text.push_str("INTERRUPTED: only what was finished is shown.\n");
    }
    text.push_str("\nThe machines, which took turns:\n");
    for machine in &comparison.machines {
        let not_run = machine.not_run.as_ref();
        let not_run = not_run.map_or_else(String::new, |why| format!(" -- not run: {why}"));
        let processor = machine.processor.map(|model| format!("; -cpu {model}"));
        let processor = processor.unwrap_or_default();
        let (name, what) = (machine.name, &machine.what);
        let _ = writeln!(text, "  {name:<9} {what}{processor}{not_run}");
    }
    for pinned in [true, false] {
        let has_lines = comparison.lines.iter().any(|line| line.pinned == pinned);
        if has_lines {
            text.push_str(&part(comparison, pinned));
        }
    }
    text.push_str(&nanobenchmarks(comparison));
    text.push_str(STANDS_FOR);
    text
}

const STANDS_FOR: &str = "
What stands for what:
  null-hypercall    the study's marked call. In KVM it is a hypercall that KVM does not know (VMCALL, on AMD's processors
                    VMMCALL), so KVM's handler returns an error at once; QEMU's translator has none.
  cpuid, port-out   exits everywhere but where a fast path takes them: here cpuid and port-out need no exit, in the
                    translator both call a helper, in KVM both are exits. Port 80h has no device in any of them.
  syscall-sysret    natively and in Linux it contains the kernel's path (getppid); in the bare guest only SYSCALL and SYSRET.
  page-fault-iret, divide-error-iret
                    natively a signal, its handler and its return; in the guest an exception, its handler and IRET.
  page-table-write  one store to a live page-table entry; page-table-use adds INVLPG and a read, as a kernel would.
A batch is many events between two readings, so it is not limited by the counter's steps. The empty loop is subtracted.
";

fn part(comparison: &Comparison, pinned: bool) -> String {
    let mut text = match pinned {
        true => format!("\npinned to host processor {}\n", comparison.pinned_to),
        false => "\nnot pinned\n".to_owned(),
    };
    let _ = writeln!(
        text,
        "{:<18} {:<9} {:>9} {:>10} {:>8} {:>8} {:>8} {:>8} {:>10} {:>8} {:>6}  each round",
        "cycles", "", "batch", "us", "single", "single", "single", "single", "single", "", "exits",
    );
    let _ = writeln!(
        text,
        "{:<18} {:<9} {:>9} {:>10} {:>8} {:>8} {:>8} {:>8} {:>10} {:>8} {:>6}  (batch median)",
        "kind",
        "machine",
        "median",
        "per 1000",
        "min",
        "p50",
        "p95",
        "p99",
        "max",
        "samples",
        "each"
    );
    let mut last = "";
    for line in comparison.lines.iter().filter(|line| line.pinned == pinned) {
        let kind = if line.kind == last { "" } else { line.kind };
        last = line.kind;
        let _ = match &line.finding {
            Finding::None(why) => writeln!(text, "{kind:<18} {:<9} {why}", line.machine),
            Finding::Measured(measured) => {
                writeln!(text, "{kind:<18} {}", figures(comparison, line, measured))
            }
        };
    }
    text
}

fn figures(comparison: &Comparison, line: &Line, measured: &Measured) -> String {
    let single = &measured.row.single;
    let cycles = measured.cycles();
    let micros = comparison.nanoseconds(cycles);
    let exits = match line.machine == TOLLGATE {
        true => format!("{:.1}", measured.row.exits_each),
        false => "-".to_owned(),
    };
    let rounds: Vec<String> = measured.rounds.iter().map(|it| places(*it)).collect();
    format!(
        "{:<9} {:>9} {micros:>10.1} {:>8} {:>8} {:>8} {:>8} {:>10} {:>8} {exits:>6}  {}",
        line.machine,
        places(cycles),
        single.min,
        single.p50,
        single.p95,
        single.p99,
        single.max,
        single.count,
        rounds.join(" ")
    )
}

/// Cycles with one decimal where that matters.
fn places(cycles: f64) -> String {
    match cycles < 100.0 {
        true => format!("{cycles:.1}"),
        false => format!("{cycles:.0}"),
    }
}

/// The seven events in the form of their study: cycles of one operation.
fn nanobenchmarks(comparison: &Comparison) -> String {
    let has = |kind: &str| comparison.lines.iter().any(|line| line.kind == kind);
    if !NANOBENCHMARKS.iter().all(|(_, kind)| has(kind)) {
        return String::new();
    }
    let mut text = String::from(
        "\nThe seven nanobenchmarks of Adams and Agesen (2006): cycles of one operation, pinned, medians of batches\n",
    );
    let names: Vec<&str> = comparison.machines.iter().map(|it| it.name).collect();
    let _ = write!(text, "{:<9} {:<18}", "name", "kind here");
    for name in &names {
        let _ = write!(text, " {name:>13}");
    }
    text.push('\n');
    for (name, kind) in NANOBENCHMARKS {
        let _ = write!(text, "{name:<9} {kind:<18}");
        for machine in &names {
            let cell = match comparison.line(kind, machine, true).map(|it| &it.finding) {
                Some(Finding::Measured(measured)) => places(measured.cycles()),
                Some(Finding::None(why)) => short(why).to_owned(),
                None => "-".to_owned(),
            };
            let _ = write!(text, " {cell:>13}");
        }
        text.push('\n');
    }
    text.push_str("What happens in each:\n");
    for kind in kinds::KINDS.iter() {
        if NANOBENCHMARKS.iter().any(|(_, name)| *name == kind.name) {
            let _ = writeln!(text, "  {:<18} {}", kind.name, kind.what);
        }
    }
    text
}

/// The reason without its details.
fn short(why: &str) -> &str {
    why.split(':').next().unwrap_or(why)
}

impl Measured {
    /// The cycles of one event: from batches, which have the finer resolution, if there are any.
    pub fn cycles(&self) -> f64 {
        match &self.row.batch {
            Some(batch) => batch.median,
            None => self.row.single.p50 as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::result::tests::comparison;
    use super::super::run::KINDS;
    use super::*;

    #[test]
    fn every_nanobenchmark_is_compared() {
        for (name, kind) in NANOBENCHMARKS {
            assert!(KINDS.contains(&kind), "{name}");
        }
    }

    #[test]
    fn a_machine_without_the_event_has_its_reason_and_no_figure() {
        let text = table(&comparison());
        assert!(
            text.contains("kvm       -accel kvm -- not run: no /dev/kvm"),
            "{text}"
        );
        assert!(text.contains("null-hypercall     tollgate "), "{text}");
        assert!(
            text.contains("qemu      none: TCG has no hypercalls"),
            "{text}"
        );
        assert!(text.contains("kvm       not run: no /dev/kvm"), "{text}");
        assert!(!text.contains('%'), "{text}");
        assert!(!text.contains("seven"), "{text}");
    }
}
