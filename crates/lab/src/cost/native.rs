//! Events that a program can cause without a machine, timed by the program in `guests/nano-native.S`.

use super::CostError;
use super::bench::Machine;
use super::image::{Command, GuestMode, Loops};
use super::outcome::Outcome;
use super::qemu::values;
use crate::nameless_file::NamelessFile;
use std::fs::{File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

/// The assembled program.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/nano-native.bin"));
/// The events, in the program's order.
const EVENTS: [&str; 6] = [
    "no-op",
    "cpuid",
    "syscall-sysret",
    "call-return",
    "page-fault-iret",
    "divide-error-iret",
];

/// The loops of the program for this mode. Their entries are numbers that the program knows.
pub fn table(mode: GuestMode) -> Vec<Loops> {
    let lines = EVENTS.iter().zip(0u32..);
    lines
        .map(|(name, index)| Loops::new(name, mode, 2 * index, 2 * index + 1))
        .collect()
}

/// The host itself.
pub struct Native {
    program: File,
    tsc_khz: u64,
}

impl Native {
    /// Prepares the program.
    ///
    /// # Errors
    ///
    /// The host refuses a file.
    pub fn new(tsc_khz: u64) -> Result<Self, CostError> {
        let refused = |error: std::io::Error| CostError::Host(format!("a program: {error}"));
        let file = NamelessFile::with(PROGRAM).map_err(refused)?;
        std::fs::set_permissions(file.path(), Permissions::from_mode(0o700)).map_err(refused)?;
        // A file that is open for writing cannot be executed.
        let program = File::open(file.path()).map_err(refused)?;
        Ok(Self { program, tsc_khz })
    }
}

impl Machine for Native {
    fn tsc_khz(&self) -> u64 {
        self.tsc_khz
    }

    fn run(&mut self, what: &str, command: Command) -> Result<Outcome, CostError> {
        let arguments = [command.entry, command.count, command.repeat];
        let output = std::process::Command::new(format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            self.program.as_raw_fd()
        ))
        .args(arguments.map(|number| number.to_string()))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| CostError::Host(format!("a program: {error}")))?;
        let values = values(&output.stdout);
        if !output.status.success() || values.len() != command.count as usize {
            return Err(CostError::WorkNotDone(format!(
                "{what} (native): {}, {} values instead of {}",
                output.status,
                values.len(),
                command.count
            )));
        }
        Ok(Outcome {
            values,
            counted: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::bench::find;

    #[test]
    fn the_program_and_its_caller_have_the_same_events() {
        for (index, name) in EVENTS.iter().enumerate() {
            let mut text = name.as_bytes().to_vec();
            text.resize(20, 0);
            let at = PROGRAM.windows(20).position(|window| window == text);
            let first = PROGRAM
                .windows(20)
                .position(|window| window.starts_with(b"no-op\0"));
            let distance = at.unwrap() - first.unwrap();
            assert_eq!(distance, 32 * index, "{name}");
        }
    }

    #[test]
    fn every_event_happens_natively_as_often_as_it_is_asked_for() {
        let mut native = Native::new(1_000_000).unwrap();
        let table = table(GuestMode::Long);
        for name in EVENTS {
            let loops = find(&table, name, GuestMode::Long).unwrap();
            for (entry, count, repeat) in [(loops.single, 50, 1), (loops.batch, 3, 20)] {
                let command = Command {
                    entry,
                    count,
                    repeat,
                    ticks: 0,
                };
                let outcome = native.run(name, command).unwrap();
                assert_eq!(outcome.values.len(), count as usize);
                assert!(outcome.values.iter().all(|&cycles| cycles > 0), "{name}");
            }
        }
    }
}
