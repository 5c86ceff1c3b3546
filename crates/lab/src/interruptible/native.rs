//! Runs the guest's program of the experiment `interruptible` on the host itself: how late its
//! threads are woken, and the cost of its processes.

use super::host_folder::HostFolder;
use super::linux::{LATENCY, told};
use super::load::Load;
use super::native_load;
use crate::experiment::{LabError, Timed};
use std::path::Path;
use std::process::Command;
use tollgate_host_facts::processors::time_of_children;

/// The result on the host.
pub struct Native {
    /// How often the process waited.
    count: f64,
    /// By how many microseconds it was late: median, 99th percentile, longest.
    late: [f64; 3],
    /// Processor time of one event in microseconds.
    event: f64,
}

impl Native {
    /// Runs the program, next to a load if there is one; `guests` is the folder that `scripts/get-guests` has filled.
    /// `None` if the host does not permit it or lacks something, or if the program fails there.
    pub fn run(
        verb: &str,
        events: u64,
        load: Option<&Load>,
        guests: Option<&Path>,
    ) -> Option<Self> {
        let folder = HostFolder::new()?;
        folder.add_program(LATENCY.name, LATENCY.wide)?;
        if let Some(load) = load {
            native_load::prepare(load, guests, &folder, events)?;
        }
        let run = || {
            Command::new(folder.file(LATENCY.name))
                .args([verb, &events.to_string()])
                .output()
                .map_err(|error| LabError::Host(error.to_string()))
        };
        let before = time_of_children();
        let ran = match load {
            Some(load) => load.during(run),
            None => run(),
        };
        let taken = time_of_children() - before;
        let output = ran.ok().filter(|output| output.status.success())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let [count, p50, p99, max] = told(&text)?;
        Some(Self {
            count,
            late: [p50, p99, max].map(|nanoseconds| nanoseconds / 1e3),
            event: taken * 1e6 / events.max(1) as f64,
        })
    }

    /// Adds the result to what was measured in a guest.
    pub fn add_to(&self, timed: &mut Timed) {
        let [p50, p99, max] = self.late;
        for (name, value) in [
            ("count", self.count),
            ("p50", p50),
            ("p99", p99),
            ("max", max),
            ("event", self.event),
        ] {
            timed.values.insert(format!("native-{name}"), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::about::{DATABASE, EXEC, FORK, NETWORK, PIPE};
    use super::*;

    #[test]
    fn the_studys_programs_run_on_the_host() {
        for verb in [FORK, EXEC, PIPE] {
            let native = Native::run(verb, 200, None, None);
            let native = native.unwrap_or_else(|| panic!("{verb} did not run"));
            assert!(
                native.late[2] >= native.late[0] && native.event > 0.0,
                "{verb}"
            );
        }
    }

    #[test]
    fn a_load_runs_on_the_host_if_it_has_what_the_load_needs() {
        let run = |workload, guests| {
            let load = Load::of(workload).unwrap();
            Native::run("load", 200, load.as_ref(), guests)
        };
        assert!(run(NETWORK, None).is_some());
        assert!(run(DATABASE, None).is_none(), "no database");
        let nothing = Path::new("/nonexistent");
        assert!(run(DATABASE, Some(nothing)).is_none());
    }
}
