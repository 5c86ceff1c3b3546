//! Checks whether a run did its work: compares every counter with the computed one, and every hook
//! with the handler after it.

use super::expected::expected;
use super::report::{MonitorCounts, Report};
use super::{Mode, Setup, SmallSystemError, Workload};

/// The events of `flags`, in order.
const EVENTS: [&str; 4] = ["int-iret", "far-call", "cli-sti", "pushf-popf"];

/// Checks that a run did what `setup` requested.
///
/// # Errors
///
/// [`SmallSystemError::WrongWork`] with the first difference.
pub fn verify(setup: &Setup, report: &Report) -> Result<(), SmallSystemError> {
    let done = &report.done.counters;
    same("the workload", setup.workload.name(), &report.done.workload)?;
    let events: Vec<&str> = report.events.iter().map(|event| &*event.name).collect();
    let is_flags = matches!(setup.workload, Workload::Flags { .. });
    same(
        "events",
        if is_flags { &EVENTS[..] } else { &[] },
        &events[..],
    )?;
    let expected = expected(setup.workload, &report.events);
    same("the text", &expected.transcript, &report.transcript)?;
    for (what, expected, found) in [
        ("int21", expected.int21, done.int21),
        ("sectors", expected.sectors, done.sectors),
        ("typed", expected.typed, done.typed),
        ("printed", expected.printed, done.printed),
        ("bytes", expected.bytes, done.bytes),
        ("rounds", expected.rounds, done.rounds),
        ("checksum", expected.checksum, done.checksum),
        ("screen", expected.screen, done.screen),
        // The first and the last handler that hooked a vector counted the same calls.
        ("hook21", done.int21, done.hook21),
        ("hook16", done.int16, done.hook16),
        ("hook1c", done.int1c, done.hook1c),
        ("int1c", done.ticks, done.int1c),
        // The system polls for a key until one is available, then reads it.
        ("int16", done.polls + done.typed, done.int16),
        ("polls", done.idles + done.typed, done.polls),
    ] {
        same(what, &expected, &found)?;
    }
    if let Workload::Idle { ticks } = setup.workload {
        holds(done.ticks >= u64::from(ticks), "ticks", ticks, done.ticks)?;
    }
    match (&report.monitor, setup.mode) {
        (None, Mode::Real) => Ok(()),
        (Some(monitor), mode) if mode != Mode::Real => verify_monitor(mode, monitor, done.ticks),
        (monitor, _) => Err(wrong(
            "the monitor's line",
            format!(
                "one only in virtual-8086 modes, not in {}",
                setup.mode.name()
            ),
            if monitor.is_some() {
                "there"
            } else {
                "missing"
            }
            .to_owned(),
        )),
    }
}

/// Checks that in each mode the guest's monitor received the instructions that the processor leaves
/// to it, and no others.
fn verify_monitor(mode: Mode, monitor: &MonitorCounts, ticks: u64) -> Result<(), SmallSystemError> {
    let flag_instructions = [
        ("cli", monitor.cli),
        ("sti", monitor.sti),
        ("pushf", monitor.pushf),
        ("popf", monitor.popf),
        ("iret", monitor.iret),
    ];
    for (what, count) in flag_instructions {
        match mode {
            Mode::V86 => holds(count > 0, what, "more than 0", count)?,
            Mode::V86Iopl3 => same(what, &0, &count)?,
            // STI, POPF and IRET occur while an interrupt waits.
            Mode::V86Vme if what == "cli" || what == "pushf" => same(what, &0, &count)?,
            Mode::V86Vme | Mode::Real => {}
        }
    }
    if mode == Mode::V86Vme {
        same("int", &0, &monitor.int)?;
    } else {
        holds(monitor.int > 0, "int", "more than 0", monitor.int)?;
    }
    holds(monitor.irq >= ticks, "irq", ticks, monitor.irq)?;
    if mode == Mode::V86Iopl3 {
        same("eoi", &0, &monitor.eoi)?;
    } else {
        holds(monitor.eoi >= ticks, "eoi", ticks, monitor.eoi)?;
    }
    let deferred = monitor.deferred;
    holds(deferred <= monitor.irq, "deferred", monitor.irq, deferred)
}

fn same<T: PartialEq + std::fmt::Debug + ?Sized>(
    what: &str,
    expected: &T,
    found: &T,
) -> Result<(), SmallSystemError> {
    if expected == found {
        Ok(())
    } else {
        Err(wrong(what, format!("{expected:?}"), format!("{found:?}")))
    }
}

fn holds(
    condition: bool,
    what: &str,
    expected: impl ToString,
    found: u64,
) -> Result<(), SmallSystemError> {
    if condition {
        Ok(())
    } else {
        Err(wrong(what, expected.to_string(), found.to_string()))
    }
}

fn wrong(what: &str, expected: String, found: String) -> SmallSystemError {
    SmallSystemError::WrongWork {
        what: what.to_owned(),
        expected,
        found,
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::{Counters, Done};
    use super::*;

    const SETUP: Setup = Setup {
        workload: Workload::Mix { rounds: 2 },
        mode: Mode::Real,
        rate: None,
    };

    fn right() -> Report {
        let expected = expected(SETUP.workload, &[]);
        let (ticks, idles) = (7, 100);
        let polls = idles + expected.typed;
        Report {
            transcript: expected.transcript,
            done: Done {
                workload: "mix".to_owned(),
                counters: Counters {
                    ticks,
                    int1c: ticks,
                    hook1c: ticks,
                    int16: polls + expected.typed,
                    hook16: polls + expected.typed,
                    polls,
                    idles,
                    int21: expected.int21,
                    hook21: expected.int21,
                    sectors: expected.sectors,
                    typed: expected.typed,
                    printed: expected.printed,
                    bytes: expected.bytes,
                    rounds: expected.rounds,
                    checksum: expected.checksum,
                    screen: expected.screen,
                },
            },
            ..Report::default()
        }
    }

    #[test]
    fn right_work_is_accepted() {
        assert_eq!(verify(&SETUP, &right()), Ok(()));
    }

    #[test]
    fn a_hook_that_missed_one_call_is_found() {
        let changes: [fn(&mut Counters); 3] = [
            |counters| counters.hook16 -= 1,
            |counters| counters.hook1c -= 1,
            |counters| counters.hook21 -= 1,
        ];
        for (change, name) in changes.into_iter().zip(["hook16", "hook1c", "hook21"]) {
            let mut report = right();
            change(&mut report.done.counters);
            let error = verify(&SETUP, &report).unwrap_err();
            assert!(
                matches!(&error, SmallSystemError::WrongWork { what, .. } if what == name),
                "{error}"
            );
        }
    }

    #[test]
    fn wrong_results_and_less_work_are_found() {
        let changes: [fn(&mut Report); 5] = [
            |report| report.done.counters.checksum ^= 1,
            |report| report.done.counters.screen ^= 1,
            |report| report.done.counters.rounds -= 1,
            |report| report.transcript.truncate(100),
            |report| report.monitor = Some(MonitorCounts::default()),
        ];
        for change in changes {
            let mut report = right();
            change(&mut report);
            assert!(verify(&SETUP, &report).is_err(), "{:?}", report.done);
        }
    }
}
