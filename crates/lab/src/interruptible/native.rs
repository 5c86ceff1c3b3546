//! Runs the guest's program of the experiment `interruptible` on the host itself: how late its
//! threads are woken, and the cost of its processes.

use super::about::{FORK, PIPE};
use super::linux::{LATENCY, told};
use crate::experiment::Timed;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use tollgate_host_facts::processors::time_of_children;

/// The result on the host.
pub struct Native {
    /// By how many microseconds it was late: median, 99th percentile, longest.
    late: [f64; 3],
    /// Processor time of one event in microseconds.
    event: f64,
}

impl Native {
    /// Runs the program. `None` if the host does not permit it, or if the program cannot do this
    /// there.
    pub fn run(verb: &str, events: u64) -> Option<Self> {
        // The others execute programs at paths that only guests have.
        if ![FORK, PIPE].contains(&verb) {
            return None;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-lab-latency-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o700)
            .open(&path);
        let written = file.and_then(|mut file| file.write_all(LATENCY.wide));
        let before = time_of_children();
        let ran = written.and_then(|()| {
            Command::new(&path)
                .args([verb, &events.to_string()])
                .output()
        });
        let taken = time_of_children() - before;
        let _ = fs::remove_file(&path);
        let output = ran.ok().filter(|output| output.status.success())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let [_, p50, p99, max] = told(&text)?;
        Some(Self {
            late: [p50, p99, max].map(|nanoseconds| nanoseconds / 1e3),
            event: taken * 1e6 / events.max(1) as f64,
        })
    }

    /// Adds the result to what was measured in a guest.
    pub fn add_to(&self, timed: &mut Timed) {
        let [p50, p99, max] = self.late;
        for (name, value) in [
            ("p50", p50),
            ("p99", p99),
            ("max", max),
            ("event", self.event),
        ] {
            timed.values.insert(format!("native-{name}"), value);
        }
    }
}
