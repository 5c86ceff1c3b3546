//! Linux with the program `guests/linux-latency.S`, alone or next to another guest.

use super::about::{EXEC, FORK, ONE_CORE, PIPE, is_pair};
use super::native::Native;
use crate::experiment::{Arm, Bench, LabError, Options, Stop, Timed};
use crate::linux_guest::{LinuxGuest, Program, Ran, System};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use tollgate_exits::latency::Durations;
use tollgate_host_facts::processors::Affinity;
use tollgate_machine::config::VmConfig;

/// The program that measures latencies.
pub const LATENCY: Program = Program {
    name: "latency",
    narrow: include_bytes!(concat!(env!("OUT_DIR"), "/linux-latency.bin")),
    wide: include_bytes!(concat!(env!("OUT_DIR"), "/linux-latency-64.bin")),
};
/// Makes a file whose content must not change, and its checksum.
const CANARY: &str = "dd if=/dev/urandom of=/canary bs=64k count=32 2>/dev/null; \
                      sha256sum /canary > /canary.sum";
const CHECK_CANARY: &str = "sha256sum -c /canary.sum > /dev/null";

/// The program's argument for a workload.
fn verb(workload: &str) -> &'static str {
    match workload {
        EXEC => EXEC,
        PIPE => PIPE,
        _ => FORK,
    }
}

/// The guest that is measured, and possibly a second one that runs at the same time.
pub struct Latencies {
    guest: LinuxGuest,
    other: Option<LinuxGuest>,
    verb: &'static str,
    events: u64,
    native: Option<Native>,
}

/// Boots a guest whose machine may use only these processors.
fn boot(system: &System, pinned: Option<&Affinity>, stop: &Stop) -> Result<LinuxGuest, LabError> {
    let refused = |error| LabError::Host(format!("sched_setaffinity: {error}"));
    let Some(affinity) = pinned else {
        return LinuxGuest::boot(system, &VmConfig::default(), stop);
    };
    // The machine's thread inherits the affinity of this one.
    let before = Affinity::current().map_err(refused)?;
    affinity.apply().map_err(refused)?;
    let guest = LinuxGuest::boot(system, &VmConfig::default(), stop);
    before.apply().map_err(refused)?;
    guest
}

/// The processors of the two machines.
fn places(workload: &str) -> Result<[Affinity; 2], LabError> {
    let current = Affinity::current().map_err(|error| LabError::Host(error.to_string()))?;
    let processors = current.processors();
    let (first, second) = match (processors.as_slice(), workload) {
        ([only, ..], ONE_CORE) => (*only, *only),
        ([first, second, ..], _) => (*first, *second),
        _ => return Err(LabError::NotRun("this host has one processor".into())),
    };
    match [first, second].map(Affinity::only) {
        [Some(first), Some(second)] => Ok([first, second]),
        _ => Err(LabError::Host("a processor's number is too large".into())),
    }
}

impl Latencies {
    /// Boots the guests.
    ///
    /// # Errors
    ///
    /// A guest is missing or does not start its shell, or the host has too few processors.
    pub fn open(
        guest: &str,
        workload: &str,
        options: &Options,
        stop: &Stop,
    ) -> Result<Self, LabError> {
        let system = System::open(guest, &[LATENCY], options)?;
        let places = match is_pair(workload) {
            true => Some(places(workload)?),
            false => None,
        };
        let of = |index: usize| places.as_ref().map(|places| &places[index]);
        let verb = verb(workload);
        let events = match verb {
            PIPE => 60_000,
            _ => 8_000,
        };
        let events = if options.quick { events / 20 } else { events };
        let mut bench = Self {
            guest: boot(&system, of(0), stop)?,
            other: match is_pair(workload) {
                true => Some(boot(&system, of(1), stop)?),
                false => None,
            },
            verb,
            events,
            native: Native::run(verb, events),
        };
        if let Some(other) = &mut bench.other {
            bench.guest.run(CANARY)?;
            other.run(CANARY)?;
        }
        Ok(bench)
    }

    fn line(&self, events: u64) -> String {
        format!("/lab/latency {} {events}", self.verb)
    }
}

impl Bench for Latencies {
    fn is_on_calling_thread(&self) -> bool {
        false
    }

    fn measure(&mut self, arm: &Arm, _stop: &Stop) -> Result<Timed, LabError> {
        self.guest.turn(arm)?;
        // The first run includes translation, so it is not timed.
        self.guest.run(&self.line((self.events / 10).max(1)))?;
        let line = self.line(self.events);
        let ran = match &mut self.other {
            None => self.guest.run(&line)?,
            Some(other) => {
                other.turn(arm)?;
                let ran = side_by_side(&mut self.guest, other, &line, self.verb)?;
                self.guest.run(CHECK_CANARY)?;
                other.run(CHECK_CANARY)?;
                ran
            }
        };
        let mut timed = Timed::of_events(self.events, ran.processor_cycles(), &ran.reading);
        timed.work.insert("events".to_owned(), self.events);
        add_lateness(&mut timed, &ran)?;
        add_waits(&mut timed, &ran);
        if let Some(native) = &self.native {
            native.add_to(&mut timed);
        }
        Ok(timed)
    }
}

impl Drop for Latencies {
    fn drop(&mut self) {
        // One guest is ended; the other must continue.
        if self.other.take().is_some() {
            let goes_on = self.guest.run(CHECK_CANARY);
            debug_assert!(goes_on.is_ok());
        }
    }
}

/// Runs the line in one guest while the other does the same work repeatedly.
fn side_by_side(
    guest: &mut LinuxGuest,
    other: &mut LinuxGuest,
    line: &str,
    verb: &str,
) -> Result<Ran, LabError> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let busy = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                other.run(&format!("/lab/latency {verb} 200"))?;
            }
            Ok(())
        });
        let ran = guest.run(line);
        done.store(true, Ordering::SeqCst);
        let failed = || LabError::Host("a thread failed".into());
        busy.join().unwrap_or_else(|_| Err(failed()))?;
        ran
    })
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
    timed.values.insert("waits".to_owned(), count);
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
        assert_eq!([EXEC, PIPE, ONE_CORE].map(verb), [EXEC, PIPE, FORK]);
        assert!(is_pair(ONE_CORE) && !is_pair(FORK));
    }
}
