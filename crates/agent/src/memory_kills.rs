//! Counts the processes that the kernel has killed for lack of memory.
//!
//! The kernel counts them in /proc/vmstat (proc(5)), which is long. But each time it also writes to
//! its log, so the log says whether the counter must be read.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

const O_NONBLOCK: i32 = 0o4000;
/// The size of the longest record of the log in bytes, and more.
const RECORD: usize = 8192;
/// Words of the kernel's line about a process that it has killed.
const KILLED: &[u8] = b"Killed process";

/// A watch on the kernel's log.
pub struct MemoryKills(Option<File>);

impl MemoryKills {
    /// Watches from now on. Where the kernel has no log, the counter is read in any case.
    pub fn watch() -> Self {
        let log = File::options()
            .read(true)
            .custom_flags(O_NONBLOCK)
            .open("/dev/kmsg");
        let at_end = log.and_then(|mut log| log.seek(SeekFrom::End(0)).map(|_| log));
        Self(at_end.ok())
    }

    /// Returns the number of processes that were killed since the guest's start.
    pub fn count(self) -> u32 {
        if !self.may_have_been() {
            return 0;
        }
        let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// Whether the log says that a process was killed, or does not say that none was.
    fn may_have_been(self) -> bool {
        let Some(mut log) = self.0 else {
            return true;
        };
        let mut record = [0; RECORD];
        loop {
            match log.read(&mut record) {
                Ok(length) => {
                    let mut parts = record[..length].windows(KILLED.len());
                    if parts.any(|part| part == KILLED) {
                        return true;
                    }
                }
                // Each read returns one record; now there is none left.
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Records were overwritten before they were read.
                Err(_) => return true,
            }
        }
    }
}
