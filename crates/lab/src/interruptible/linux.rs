//! Linux with the program `guests/linux-latency.S`, alone or next to another guest.

use super::about::{DATABASE, DISK, EXEC, FORK, NETWORK, PIPE, is_pair};
use super::load::Load;
use super::native::Native;
use super::neighbour::Neighbour;
use crate::experiment::{Arm, Bench, LabError, Options, Stop, Timed};
use crate::linux_guest::{LinuxGuest, Program, Ran, System, guests_folder};
use std::path::Path;
use tollgate_exits::latency::Durations;
use tollgate_machine::config::VmConfig;

/// The program that measures latencies.
pub const LATENCY: Program = Program {
    name: "latency",
    narrow: include_bytes!(concat!(env!("OUT_DIR"), "/linux-latency.bin")),
    wide: include_bytes!(concat!(env!("OUT_DIR"), "/linux-latency-64.bin")),
};
/// Begins the names of values that say how long interrupts waited for one thing in the monitor.
pub const BEHIND: &str = "behind-";
/// The number of times that the process waited.
pub const WAITS: &str = "waits";
/// The program's argument for all loads.
const LOAD: &str = "load";
/// The program's argument for a workload.
fn verb(workload: &str) -> &'static str {
    match workload {
        EXEC => EXEC,
        PIPE => PIPE,
        DATABASE | NETWORK | DISK => LOAD,
        _ => FORK,
    }
}

/// The guest that is measured, and possibly a second one that runs at the same time.
pub struct Latencies {
    guest: LinuxGuest,
    neighbour: Option<Neighbour>,
    load: Option<Load>,
    verb: &'static str,
    events: u64,
    native: Option<Native>,
}

/// The command line that runs the program.
fn line(verb: &str, events: u64) -> String {
    format!("/lab/latency {verb} {events}")
}

impl Latencies {
    /// Boots the guests.
    ///
    /// # Errors
    ///
    /// A guest is missing or does not start its shell, or the host has too few processors.
    pub fn open(
        guest_name: &str,
        workload: &str,
        options: &Options,
        stop: &Stop,
    ) -> Result<Self, LabError> {
        let load = Load::of(workload)?;
        let system = match &load {
            Some(load) => load.system(guest_name, LATENCY, options)?,
            None => System::open(guest_name, &[LATENCY], options)?,
        };
        let verb = verb(workload);
        let events = match (&load, verb, options.quick) {
            (Some(load), ..) => load.events(options),
            (None, PIPE, false) => 60_000,
            (None, PIPE, true) => 3_000,
            (None, _, false) => 8_000,
            (None, _, true) => 400,
        };
        let config = load.as_ref().map_or_else(VmConfig::default, Load::config);
        let (guest, neighbour) = match is_pair(workload) {
            false => (LinuxGuest::boot(&system, &config, stop)?, None),
            true => {
                let line = line(verb, events);
                let (guest, other) = Neighbour::open(&system, workload, (&line, events), stop)?;
                (guest, Some(other))
            }
        };
        let guests = options.images.path(guest_name).map(Path::to_owned);
        let guests = guests.or_else(guests_folder);
        let mut bench = Self {
            native: Native::run(verb, events, load.as_ref(), guests.as_deref()),
            guest,
            neighbour,
            load,
            verb,
            events,
        };
        if let Some(load) = &bench.load {
            load.prepare(&mut bench.guest)?;
        }
        Ok(bench)
    }

    /// Runs the program in the measured guest with this many events, next to its load if there is
    /// one.
    fn run_alone(&mut self, events: u64) -> Result<Ran, LabError> {
        let line = line(self.verb, events);
        let Some(load) = &mut self.load else {
            return self.guest.run(&line);
        };
        load.before(&mut self.guest, events)?;
        let ran = load.during(|| self.guest.run(&line))?;
        load.check(&mut self.guest, events)?;
        Ok(ran)
    }
}

impl Bench for Latencies {
    fn is_on_calling_thread(&self) -> bool {
        false
    }

    fn measure(&mut self, arm: &Arm, _stop: &Stop) -> Result<Timed, LabError> {
        self.guest.turn(arm)?;
        // The first run includes translation, so it is not timed.
        self.run_alone((self.events / 10).max(16))?;
        let ran = match &mut self.neighbour {
            None => self.run_alone(self.events)?,
            Some(neighbour) => {
                let line = line(self.verb, self.events);
                neighbour.beside(&mut self.guest, arm, &line)?
            }
        };
        let mut timed = Timed::of_events(self.events, ran.processor_cycles(), &ran.reading);
        timed.work.insert("events".to_owned(), self.events);
        add_lateness(&mut timed, &ran)?;
        add_waits(&mut timed, &ran);
        timed.add_counts(&ran.reading.shadow_tables);
        if let Some(native) = &self.native {
            native.add_to(&mut timed);
        }
        if let Some(neighbour) = &self.neighbour {
            neighbour.add_to(&mut timed);
        }
        Ok(timed)
    }
}

/// The output of the program: how often it waited, and by how many nanoseconds it was late: the
/// median, the 99th percentile and the longest.
pub fn told(text: &str) -> Option<[f64; 4]> {
    let numbers = text.split_whitespace().map(|word| word.parse().ok());
    let numbers: Vec<f64> = numbers.collect::<Option<_>>()?;
    numbers.try_into().ok()
}

/// Adds how late the program was, from its output.
fn add_lateness(timed: &mut Timed, ran: &Ran) -> Result<(), LabError> {
    let Some([count, p50, p99, max]) = told(&ran.output) else {
        let text = format!("the program did not print how late it was: {}", ran.output);
        return Err(LabError::WorkNotDone(text));
    };
    timed.values.insert(WAITS.to_owned(), count);
    for (name, nanoseconds) in [("p50", p50), ("p99", p99), ("max", max)] {
        let name = format!("process-{name}");
        timed.values.insert(name, nanoseconds / 1e3);
    }
    Ok(())
}

/// Adds how long interrupts waited, how long the monitor masked them, and the cost of stopping.
fn add_waits(timed: &mut Timed, ran: &Ran) {
    let reading = &ran.reading;
    let microseconds = |cycles: u64| cycles as f64 * 1e3 / reading.tsc_khz.max(1) as f64;
    let mut add = |what: &str, row: &Durations| {
        let values = [
            ("count", row.count as f64),
            ("sum", microseconds(row.cycles)),
            ("p50", microseconds(row.p50)),
            ("p99", microseconds(row.p99)),
            ("p999", microseconds(row.p999)),
            ("max", microseconds(row.max)),
        ];
        for (name, value) in values {
            timed.values.insert(format!("{what}-{name}"), value);
        }
    };
    for row in &reading.interrupts.waits {
        add(row.name, row);
    }
    for row in &reading.interrupts.maskers {
        add(&format!("{BEHIND}{}", row.name), row);
    }
    for row in &reading.interrupts.masked {
        add(&format!("masked-{}", row.name), row);
    }
    for row in &reading.interrupts.within {
        add(&format!("within-{}", row.name), row);
    }
    for (what, counts) in [
        ("stops", &reading.interrupts.stops),
        ("resumed", &reading.interrupts.resumed),
    ] {
        for (name, count) in counts {
            timed.values.insert(format!("{what}-{name}"), *count as f64);
        }
    }
    let break_even = microseconds(reading.interrupts.break_even);
    timed.values.insert("break-even".to_owned(), break_even);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_tells_is_four_numbers() {
        assert_eq!(
            told("129 28548 88025 102231 \n"),
            Some([129.0, 28_548.0, 88_025.0, 102_231.0])
        );
        for other in ["", "129 28548 88025", "1 2 3 4 5", "sh: 1 2 3 not found"] {
            assert_eq!(told(other), None, "{other}");
        }
    }

    #[test]
    fn each_workload_has_its_program() {
        use crate::interruptible::about::ONE_CORE;
        assert_eq!([EXEC, PIPE, ONE_CORE].map(verb), [EXEC, PIPE, FORK]);
        assert_eq!([DATABASE, NETWORK, DISK].map(verb), [LOAD; 3]);
        assert!(is_pair(ONE_CORE) && !is_pair(FORK));
    }
}
