//! Waits for many descriptors with edge-triggered epoll.

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// The number of events that are taken together.
const EVENTS: usize = 256;

/// What has become possible at a descriptor since the last report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Readiness {
    /// The number that it was added with.
    pub token: u64,
    /// The descriptor can be read, or has an error that reading returns.
    pub readable: bool,
    /// The descriptor can be written, or has an error that writing returns.
    pub writable: bool,
}

/// The watched descriptors. A closed one is removed automatically.
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    /// Watches a descriptor. It is reported once each time it becomes readable or writable.
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

    /// Waits for an event, at most this long; `None` waits without limit.
    pub fn wait(&self, limit: Option<Duration>) -> Vec<Readiness> {
        use epoll::EventFlags as Flags;
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut events = Vec::with_capacity(EVENTS);
        // If the wait was interrupted, the events that were found still count.
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
