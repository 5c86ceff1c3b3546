//! The machine around the guest: a port that stops it, and a time limit.

use std::time::Instant;
use tollgate_platform::{BareMachine, GuestTime, StopRequest};

/// How long a case may run before it counts as endless, in nanoseconds.
const TIME_LIMIT: u64 = 2_000_000_000;

/// A machine that stops when the guest writes to port F4h, or after the time limit.
pub struct Bench {
    stop: Option<StopRequest>,
    started: Instant,
    /// The reason that the monitor gave when it last failed.
    pub complaint: String,
}

impl Default for Bench {
    fn default() -> Self {
        Self {
            stop: None,
            started: Instant::now(),
            complaint: String::new(),
        }
    }
}

impl Bench {
    /// Starts the time limit.
    pub fn start(&mut self) {
        self.started = Instant::now();
        self.stop = None;
    }
}

impl BareMachine for Bench {
    fn port_read(&mut self, _port: u16, _size: u8) -> u32 {
        u32::MAX
    }
    fn port_write(&mut self, port: u16, _size: u8, value: u32) {
        if port == 0xf4 {
            self.stop = Some(StopRequest::DebugExit(value as u8));
        }
    }
    fn now(&self) -> GuestTime {
        GuestTime(self.started.elapsed().as_nanos() as u64)
    }
    fn next_deadline(&self) -> Option<GuestTime> {
        Some(GuestTime(TIME_LIMIT))
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        let timed_out = self.now().0 >= TIME_LIMIT;
        self.stop
            .take()
            .or_else(|| timed_out.then_some(StopRequest::Quit))
    }
}
