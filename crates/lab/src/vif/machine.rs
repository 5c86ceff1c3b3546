//! Runs the small system once; the run can be ended from outside.

use crate::experiment::{LabError, Stop};
use crate::small_system::{self, Report, Setup, SmallSystemError};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use tollgate_exits::reading::Reading;
use tollgate_machine::config::VmConfig;
use tollgate_machine::vm::RunOutcome;
use tollgate_machine::vm_handle::VmHandle;

/// The outcome after the guest has done its work: the byte that it writes to isa-debug-exit.
pub const DONE: RunOutcome = RunOutcome::DebugExit(0x10);

/// Size of guest RAM: the small system needs little.
const MEMORY: u64 = 16 << 20;

/// The machine that all arms are variants of.
pub fn base_config() -> VmConfig {
    VmConfig {
        memory_bytes: MEMORY,
        code_cache_bytes: 16 << 20,
        ..VmConfig::default()
    }
}

/// The guest's output; clones share it.
#[derive(Clone, Default)]
pub struct Printed(Arc<Mutex<Vec<u8>>>);

impl Printed {
    /// The output so far.
    pub fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut printed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        printed.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A run that has ended and was verified.
pub struct Ended {
    /// The guest's report.
    pub report: Report,
    /// The ledger of the run.
    pub reading: Reading,
}

impl Ended {
    /// Time in seconds from the machine's first instruction to its last.
    pub fn seconds(&self) -> f64 {
        self.reading.shares.wall as f64 / (self.reading.tsc_khz.max(1) as f64 * 1000.0)
    }
}

/// Runs the small system to its end, and checks its results.
///
/// # Errors
///
/// It ended unexpectedly, or its results are wrong; the run was interrupted.
pub fn run(setup: &Setup, config: &VmConfig, stop: &Stop) -> Result<Ended, LabError> {
    let (handle, printed) = (VmHandle::new(), Printed::default());
    let mut vm = small_system::build(setup, config, Box::new(printed.clone()), &handle)
        .map_err(lab_error)?;
    let outcome = stop.while_running(&handle, || vm.run());
    let report = checked(setup, outcome, &printed.text())?;
    Ok(Ended {
        report,
        reading: vm.reading(),
    })
}

/// Parses the guest's output, if it ended well and did its work.
///
/// # Errors
///
/// It did not, or the run was interrupted.
pub fn checked(setup: &Setup, outcome: RunOutcome, printed: &str) -> Result<Report, LabError> {
    if outcome == RunOutcome::Quit {
        return Err(LabError::Interrupted);
    }
    if let Some(refused) = refused(&outcome) {
        return Err(refused);
    }
    let parsed = small_system::parse(printed);
    if let Err(refused @ SmallSystemError::Refused(_)) = parsed {
        return Err(lab_error(refused));
    }
    if outcome != DONE {
        let lines: Vec<&str> = printed.lines().collect();
        let last = lines[lines.len().saturating_sub(3)..].join(" | ");
        return Err(LabError::WorkNotDone(format!(
            "its end: {outcome}; it printed last: {last}"
        )));
    }
    let report = parsed.map_err(lab_error)?;
    small_system::verify(setup, &report).map_err(lab_error)?;
    Ok(report)
}

/// The error, if the machine ended because the host refused something.
pub fn refused(outcome: &RunOutcome) -> Option<LabError> {
    match outcome {
        RunOutcome::Stopped(why) => why
            .strip_prefix("the host refused ")
            .map(|what| LabError::Host(what.to_owned())),
        _ => None,
    }
}

fn lab_error(error: SmallSystemError) -> LabError {
    match error {
        SmallSystemError::Build(why) => LabError::Host(why),
        SmallSystemError::Refused(why) => LabError::NotRun(why),
        other => LabError::WorkNotDone(other.to_string()),
    }
}
