//! What the small system prints at its end, as values.

use super::SmallSystemError;
use serde::{Deserialize, Serialize};

/// What one event costs, from the workload `flags`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// `int-iret`, `far-call`, `cli-sti` or `pushf-popf`.
    pub name: String,
    /// Cycles of the time-stamp counter for one, the empty loop subtracted.
    pub cycles: u64,
}

/// Makes a structure of counters and its reader from one list.
macro_rules! counters {
    ($(#[$what:meta])* $name:ident { $($(#[$doc:meta])* $field:ident),* $(,)? }) => {
        $(#[$what])*
        #[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
        pub struct $name {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl $name {
            /// Reads `KEY=VALUE` words: all keys, in the order of the fields.
            fn read<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<Self, SmallSystemError> {
                Ok(Self { $($field: value_of(words.next(), stringify!($field))?,)* })
            }

            /// Its keys and values.
            pub fn pairs(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field),)*]
            }
        }
    };
}

counters! {
    /// The `done` line's counters.
    Counters {
        /// IRQ 0 handled.
        ticks,
        /// Calls of INT 1Ch that reached the base handler.
        int1c,
        /// The same, as the resident hook saw it.
        hook1c,
        /// Calls of INT 16h that reached the base handler.
        int16,
        /// The same, as the resident hook saw it.
        hook16,
        /// Calls of INT 16h with AH=1 among them.
        polls,
        /// Calls of INT 28h.
        idles,
        /// Calls of INT 21h that reached the base handler.
        int21,
        /// The same, as the resident hook saw it.
        hook21,
        /// Sectors that INT 13h moved.
        sectors,
        /// Characters that INT 16h gave out.
        typed,
        /// Characters printed through INT 10h.
        printed,
        /// Bytes that files gave and took.
        bytes,
        /// Rounds, lines, or events of each kind completed.
        rounds,
        /// CRC-16 of the results.
        checksum,
        /// CRC-16 of the text page.
        screen,
    }
}

counters! {
    /// What the guest's monitor did, in virtual-8086 modes.
    MonitorCounts {
        /// CLI emulated.
        cli,
        /// STI emulated.
        sti,
        /// PUSHF emulated.
        pushf,
        /// POPF emulated.
        popf,
        /// INT n emulated.
        int,
        /// IRET emulated.
        iret,
        /// Hardware interrupts taken.
        irq,
        /// Of them, those that waited for the task's interrupt flag.
        deferred,
        /// Ends of interrupt (port 20h) emulated.
        eoi,
    }
}

/// The `done` line.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// The workload's name.
    pub workload: String,
    /// Its counters.
    pub counters: Counters,
}

/// What a run printed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Everything before the first `event` or `done` line, with CR LF.
    pub transcript: String,
    /// From `flags`, in the order of measuring.
    pub events: Vec<Event>,
    /// The `done` line.
    pub done: Done,
    /// In virtual-8086 modes.
    pub monitor: Option<MonitorCounts>,
}

/// Reads what a run printed on the serial port.
///
/// # Errors
/// [`SmallSystemError::Refused`] if the guest says so, [`SmallSystemError::Unreadable`] if
/// there is no well-formed `done` line.
pub fn parse(console: &str) -> Result<Report, SmallSystemError> {
    let mut report = Report::default();
    let mut lines = console.split_inclusive('\n');
    let mut done = None;
    for line in lines.by_ref() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("error:") => {
                let why = words.collect::<Vec<_>>().join(" ");
                return Err(SmallSystemError::Refused(why));
            }
            Some("event") => report.events.push(read_event(words)?),
            Some("done") => {
                done = Some(read_done(words)?);
                break;
            }
            _ if report.events.is_empty() => report.transcript.push_str(line),
            _ => return Err(unreadable(format!("unexpected line '{}'", line.trim_end()))),
        }
    }
    report.done = done.ok_or_else(|| unreadable("no 'done' line".to_owned()))?;
    for line in lines {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("monitor") if report.monitor.is_none() => {
                report.monitor = Some(MonitorCounts::read(&mut words)?);
                expect_end(words)?;
            }
            _ => return Err(unreadable(format!("unexpected line '{}'", line.trim_end()))),
        }
    }
    Ok(report)
}

fn read_event<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<Event, SmallSystemError> {
    let name = words.next().unwrap_or_default().to_owned();
    let cycles = words.next().and_then(|word| word.parse().ok());
    let cycles = cycles.ok_or_else(|| unreadable(format!("no cycles of event '{name}'")))?;
    expect_end(words)?;
    Ok(Event { name, cycles })
}

fn read_done<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<Done, SmallSystemError> {
    let workload = words.next().unwrap_or_default().to_owned();
    let counters = Counters::read(&mut words)?;
    expect_end(words)?;
    Ok(Done { workload, counters })
}

fn value_of(word: Option<&str>, key: &str) -> Result<u64, SmallSystemError> {
    word.and_then(|word| word.split_once('='))
        .filter(|(name, _)| *name == key)
        .and_then(|(_, value)| value.parse().ok())
        .ok_or_else(|| unreadable(format!("{key} is missing: '{}'", word.unwrap_or_default())))
}

fn expect_end<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<(), SmallSystemError> {
    match words.next() {
        None => Ok(()),
        Some(word) => Err(unreadable(format!("unexpected word '{word}'"))),
    }
}

fn unreadable(why: String) -> SmallSystemError {
    SmallSystemError::Unreadable(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: &str = "done mix ticks=1 int1c=1 hook1c=1 int16=9 hook16=9 polls=5 idles=1 \
                        int21=4 hook21=4 sectors=5 typed=6 printed=7 bytes=8 rounds=9 \
                        checksum=10 screen=11\r\n";
    const MONITOR: &str =
        "monitor cli=1 sti=2 pushf=3 popf=4 int=5 iret=6 irq=7 deferred=1 eoi=7\r\n";

    #[test]
    fn text_events_counters_and_monitor_are_told_apart() {
        let text = format!("A>calc\r\n12 \r\nevent cli-sti 98\r\n{DONE}{MONITOR}");
        let report = parse(&text).unwrap();
        assert_eq!(report.transcript, "A>calc\r\n12 \r\n");
        assert_eq!(report.events[0].cycles, 98);
        assert_eq!(report.done.workload, "mix");
        assert_eq!(report.done.counters.screen, 11);
        assert_eq!(report.monitor.unwrap().iret, 6);
    }

    #[test]
    fn a_run_without_its_done_line_is_no_result() {
        let cut = &DONE[..DONE.len() - 12];
        for text in ["", "A>exit\r\n", cut, &format!("{DONE}more\r\n")] {
            let error = parse(text).unwrap_err();
            assert!(
                matches!(error, SmallSystemError::Unreadable(_)),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn what_the_guest_refuses_is_told() {
        let error = parse("error: this processor has no CR4.VME\r\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the small system refuses: this processor has no CR4.VME"
        );
    }
}
