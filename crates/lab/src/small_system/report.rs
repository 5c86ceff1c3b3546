//! The output of the small system at its end, as values.

use super::SmallSystemError;
use serde::{Deserialize, Serialize};

/// The cost of one event, from the workload `flags`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// `int-iret`, `far-call`, `cli-sti` or `pushf-popf`.
    pub name: String,
    /// Cycles of the time-stamp counter for one event, without those of the empty loop.
    pub cycles: u64,
}

/// Makes a structure of counters and its parser from one list.
macro_rules! counters {
    ($(#[$what:meta])* $name:ident { $($(#[$doc:meta])* $field:ident),* $(,)? }) => {
        $(#[$what])*
        #[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
        pub struct $name {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl $name {
            /// Reads words of the form `KEY=VALUE`: all keys, in the order of the fields.
            fn read<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<Self, SmallSystemError> {
                Ok(Self { $($field: value_of(words.next(), stringify!($field))?,)* })
            }

            /// The keys and values of all counters.
            pub fn pairs(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field),)*]
            }
        }
    };
}

counters! {
    /// The counters of the `done` line.
    Counters {
        /// Handled interrupts IRQ 0.
        ticks,
        /// Calls of INT 1Ch that reached the base handler.
        int1c,
        /// Calls of INT 1Ch, as the resident hook counted them.
        hook1c,
        /// Calls of INT 16h that reached the base handler.
        int16,
        /// Calls of INT 16h, as the resident hook counted them.
        hook16,
        /// The calls of INT 16h with AH=1 in `int16`.
        polls,
        /// Calls of INT 28h.
        idles,
        /// Calls of INT 21h that reached the base handler.
        int21,
        /// Calls of INT 21h, as the resident hook counted them.
        hook21,
        /// Sectors that INT 13h read and wrote.
        sectors,
        /// Characters that INT 16h returned.
        typed,
        /// Characters printed through INT 10h.
        printed,
        /// Bytes read from and written to files.
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
    /// The work of the guest's monitor, in virtual-8086 modes.
    MonitorCounts {
        /// Emulated CLI instructions.
        cli,
        /// Emulated STI instructions.
        sti,
        /// Emulated PUSHF instructions.
        pushf,
        /// Emulated POPF instructions.
        popf,
        /// Emulated INT n instructions.
        int,
        /// Emulated IRET instructions.
        iret,
        /// Hardware interrupts taken.
        irq,
        /// The hardware interrupts among them that waited for the task's interrupt flag.
        deferred,
        /// Emulated end-of-interrupt commands (writes to port 20h).
        eoi,
    }
}

/// The `done` line of the output.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// The workload's name.
    pub workload: String,
    /// The counters in this line.
    pub counters: Counters,
}

/// The output of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Everything before the first `event` or `done` line, with CR LF.
    pub transcript: String,
    /// The events of the workload `flags`, in the order in which they were measured.
    pub events: Vec<Event>,
    /// The content of the `done` line.
    pub done: Done,
    /// The work of the guest's monitor, in virtual-8086 modes.
    pub monitor: Option<MonitorCounts>,
}

/// Parses the output of a run on the serial port.
///
/// # Errors
///
/// [`SmallSystemError::Refused`] if the guest reports it, [`SmallSystemError::Unreadable`] if there
/// is no valid `done` line.
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
