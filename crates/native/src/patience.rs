//! How long the monitor waits for a program that it has kicked.
//!
//! A program can block the kick's signal, or sleep in the stub's own waiting. On a busy host an
//! honest one may also be late, which must not kill it; so the limits are generous, and one of them
//! counts only time in which it ran.

use crate::processor_time::ProcessorClock;
use std::time::{Duration, Instant};

/// How much processor time a program may use after a kick.
const KICKED_PROCESSOR_TIME: Duration = Duration::from_secs(2);
/// How long a program may take to react to a kick.
const KICKED_TIME: Duration = Duration::from_secs(20);

/// How long a program that was kicked may take.
pub struct Patience {
    since: Instant,
    clock: ProcessorClock,
    processor_time: Duration,
}

impl Patience {
    pub fn new(clock: ProcessorClock) -> Self {
        Self {
            since: Instant::now(),
            clock,
            processor_time: clock.now(),
        }
    }

    pub fn is_over(&self) -> bool {
        let used = self.clock.now().saturating_sub(self.processor_time);
        used > KICKED_PROCESSOR_TIME || self.since.elapsed() > KICKED_TIME
    }
}
