//! The small system: a 16-bit guest of our own that resembles a DOS machine.
//!
//! Its source and its contract (command line, output) are in `guests/small-system.md`. [`run`]
//! starts a workload in a machine of this process, reads what the guest prints at its end, and
//! compares it with what [`expected`] computes here: a run that did not do its work is an error,
//! never a result.

mod console;
mod error;
pub mod expected;
mod report;
mod setup;
mod verify;

pub use error::SmallSystemError;
pub use report::{Counters, Done, Event, MonitorCounts, Report, parse};
pub use setup::{Mode, Setup, Workload};
pub use verify::verify;

use console::Recorder;

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use tollgate_exits::reading::Reading;
use tollgate_machine::config::VmConfig;
use tollgate_machine::vm::{BuildError, Consoles, RunOutcome, Vm};
use tollgate_machine::vm_handle::VmHandle;

/// The byte that the guest writes to isa-debug-exit after success.
const EXIT_SUCCESS: u8 = 0x10;
/// How long [`run`] waits for the end of a workload.
pub const RUN_LIMIT: Duration = Duration::from_secs(1800);

/// The multiboot image.
pub fn image() -> &'static [u8] {
    include_bytes!(concat!(env!("OUT_DIR"), "/small-system.bin"))
}

/// A finished run of the system.
#[derive(Clone, Debug)]
pub struct Run {
    /// The guest's verified report.
    pub report: Report,
    /// The ledger of the run.
    pub reading: Reading,
    /// Real time in seconds from the machine's first instruction to its last.
    pub seconds: f64,
}

/// Builds a machine with the system in it, as `config` says except for its kernel and command line.
/// The guest's output goes to `serial`.
///
/// # Errors
///
/// [`SmallSystemError::Build`] if the machine cannot be built.
pub fn build(
    setup: &Setup,
    config: &VmConfig,
    serial: Box<dyn Write + Send>,
    handle: &VmHandle,
) -> Result<Vm, SmallSystemError> {
    let failed = |error: &dyn fmt::Display| SmallSystemError::Build(error.to_string());
    let file = ImageFile::create()
        .map_err(|error| failed(&format!("cannot write the small system's image: {error}")))?;
    let config = VmConfig {
        kernel: file.path().to_owned(),
        initrd: None,
        append: setup.arguments(),
        ..config.clone()
    };
    let consoles = Consoles {
        serial,
        debug: Box::new(io::sink()),
    };
    Vm::build(&config, consoles, handle).map_err(|error: BuildError| failed(&error))
}

/// Runs a workload to its end on the calling thread, and verifies its results.
///
/// # Errors
///
/// [`SmallSystemError`]; also if the workload does not end within [`RUN_LIMIT`].
pub fn run(setup: &Setup, config: &VmConfig) -> Result<Run, SmallSystemError> {
    let handle = VmHandle::new();
    let recorder = match setup.workload {
        Workload::Echo { lines } => Recorder::typing(handle.clone(), expected::echo_lines(lines)),
        _ => Recorder::new(),
    };
    let mut vm = build(setup, config, Box::new(recorder.clone()), &handle)?;
    let started = Instant::now();
    let outcome = with_limit(&handle, RUN_LIMIT, || vm.run());
    let seconds = started.elapsed().as_secs_f64();
    let text = recorder.text();
    if outcome != RunOutcome::DebugExit(EXIT_SUCCESS) {
        let lines: Vec<&str> = text.lines().collect();
        if let Some(why) = lines.iter().find_map(|line| line.strip_prefix("error: ")) {
            return Err(SmallSystemError::Refused(why.to_owned()));
        }
        let tail = lines[lines.len().saturating_sub(5)..].join(" | ");
        let how = match outcome {
            RunOutcome::Quit => format!("it did not end within {} s", RUN_LIMIT.as_secs()),
            other => other.to_string(),
        };
        return Err(SmallSystemError::Ended(how, tail));
    }
    let report = parse(&text)?;
    verify(setup, &report)?;
    Ok(Run {
        report,
        reading: vm.reading(),
        seconds,
    })
}

/// Does `work`, and ends the machine if that takes too long.
fn with_limit<T>(handle: &VmHandle, limit: Duration, work: impl FnOnce() -> T) -> T {
    let (done, waiting) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if waiting.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                handle.quit();
            }
        });
        let result = work();
        drop(done);
        result
    })
}

/// The image as a file that exists as long as this value: a machine boots from files.
struct ImageFile(PathBuf);

impl ImageFile {
    fn create() -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("tollgate-small-system-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let opened = OpenOptions::new().write(true).create_new(true).open(&path);
            match opened {
                Ok(mut file) => {
                    let image_file = Self(path);
                    file.write_all(image())?;
                    return Ok(image_file);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ImageFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
