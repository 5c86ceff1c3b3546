//! How long the guest takes to start, as its write to the boot timer says.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tollgate_machine::config::BootTimerOptions;

use crate::host;

/// What is measured from the request that starts the machine to the guest's first report.
pub struct BootTimer {
    begin: Instant,
    processor_begin: Duration,
    reported: Arc<OnceLock<Instant>>,
    event: Arc<OwnedFd>,
}

impl BootTimer {
    /// Begins, and returns what the machine's device needs.
    ///
    /// # Errors
    /// The host gives no descriptor.
    pub fn start() -> io::Result<(Self, BootTimerOptions)> {
        let event = Arc::new(host::event()?);
        let reported: Arc<OnceLock<Instant>> = Arc::default();
        let timer = Self {
            begin: Instant::now(),
            processor_begin: processor_time(),
            reported: Arc::clone(&reported),
            event: Arc::clone(&event),
        };
        let report = move || {
            if reported.set(Instant::now()).is_ok() {
                host::raise(event.as_fd());
            }
        };
        let options = BootTimerOptions {
            report: Some(Arc::new(report)),
        };
        Ok((timer, options))
    }

    /// A descriptor that is readable when the guest has reported.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// The line for the log, in Firecracker's form.
    pub fn line(&self) -> String {
        let end = self.reported.get().copied().unwrap_or_else(Instant::now);
        let elapsed = end.duration_since(self.begin);
        let used = processor_time().saturating_sub(self.processor_begin);
        format!(
            "Guest-boot-time = {:>6} us {} ms, {:>6} CPU us {} CPU ms",
            elapsed.as_micros(),
            elapsed.as_millis(),
            used.as_micros(),
            used.as_millis()
        )
    }
}

/// The processor time of this process.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}
