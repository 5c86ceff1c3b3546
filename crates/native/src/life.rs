//! Whether a process lives, why it is gone, and its end with its owner.

use crate::exit::Death;
use crate::kicker::KickState;
use crate::spawn;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// A process as its parent sees it. It is killed and reaped when this is dropped.
pub struct Life {
    process: Arc<KickState>,
    death: Option<Death>,
    is_reaped: bool,
}

impl Life {
    pub const fn new(process: Arc<KickState>) -> Self {
        Self {
            process,
            death: None,
            is_reaped: false,
        }
    }

    /// Why it is gone, if that is known.
    pub const fn death(&self) -> Option<Death> {
        self.death
    }

    /// Looks whether it still lives.
    pub fn look(&mut self) -> Result<(), Death> {
        if let Some(death) = self.death {
            return Err(death);
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let death = match waitid(WaitId::PidFd(self.process.process.as_fd()), options) {
            Ok(None) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(Some(status)) => match status.terminating_signal() {
                Some(signal) => Death::Signal(signal),
                None => Death::Ended(status.exit_status().unwrap_or_default()),
            },
            // Another part of the program has reaped it.
            Err(_) => Death::Ended(0),
        };
        self.is_reaped = true;
        self.death = Some(death);
        Err(death)
    }

    /// Ends the process for this reason, unless it ended for one of its own.
    pub fn lose(&mut self, death: Death) -> Death {
        if let Err(death) = self.look() {
            return death;
        }
        if death == Death::Inconsistent {
            // When the pipe or a task is gone, the rest of the process follows shortly.
            std::thread::sleep(Duration::from_millis(1));
            if let Err(death) = self.look() {
                return death;
            }
        }
        self.death = Some(death);
        self.kill();
        death
    }

    fn kill(&mut self) {
        if !self.is_reaped {
            let _ = pidfd_send_signal(&self.process.process, Signal::KILL);
            let _ = spawn::reap(&self.process.process);
            self.is_reaped = true;
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.kill();
    }
}
