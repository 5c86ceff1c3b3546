//! Waiting for many descriptors: epoll, edge-triggered.

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Events taken at once.
const EVENTS: usize = 256;

/// What has become of a descriptor since it was last said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Readiness {
    /// The number that it was added with.
    pub token: u64,
    /// It may be read, or has an error that reading tells.
    pub readable: bool,
    /// It may be written, or has an error that writing tells.
    pub writable: bool,
}

/// Descriptors under watch. A closed one leaves by itself.
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    /// Watches a descriptor: it is said once whenever it becomes readable or writable.
    pub fn add(&self, descriptor: impl AsFd, token: u64) -> io::Result<()> {
        use epoll::EventFlags as Flags;
        let flags = Flags::IN | Flags::OUT | Flags::RDHUP | Flags::ET;
        epoll::add(
            &self.epoll,
            descriptor,
            epoll::EventData::new_u64(token),
            flags,
        )
    }

    /// Waits for something, at most this long; `None`: without limit.
    pub fn wait(&self, limit: Option<Duration>) -> Vec<Readiness> {
        use epoll::EventFlags as Flags;
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut events = Vec::with_capacity(EVENTS);
        // Interrupted or not: what was found is what there is.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), limit.as_ref());
        let broken = Flags::ERR | Flags::HUP;
        let readiness = events.iter().map(|event| {
            let flags = event.flags;
            Readiness {
                token: event.data.u64(),
                readable: flags.intersects(Flags::IN | Flags::RDHUP | broken),
                writable: flags.intersects(Flags::OUT | broken),
            }
        });
        readiness.collect()
    }
}
