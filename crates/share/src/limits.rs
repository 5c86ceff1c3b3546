//! The number of descriptors that all shares of the process may have open.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of descriptors that are left for the rest of the process, if its limit permits.
const RESERVED: u64 = 256;
/// The maximum, whatever the host permits.
const MOST: u64 = 1 << 20;

static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Returns how many descriptors all shares may have. The first call raises the process's soft limit
/// to the hard one.
pub fn descriptors() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        // If this fails, the limit stays unchanged.
        let _ = setrlimit(Resource::Nofile, raised);
        let now = getrlimit(Resource::Nofile)
            .current
            .unwrap_or(MOST)
            .min(MOST);
        (now - RESERVED.min(now / 2)) as usize
    })
}

/// Returns how many descriptors all shares have open.
pub fn open() -> usize {
    OPEN.load(Ordering::Relaxed)
}

/// A descriptor that is counted.
#[derive(Debug)]
pub struct CountedFd(OwnedFd);

impl CountedFd {
    /// Counts a descriptor until it is dropped.
    pub fn new(fd: OwnedFd) -> Self {
        OPEN.fetch_add(1, Ordering::Relaxed);
        Self(fd)
    }
}

impl Drop for CountedFd {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsFd for CountedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
