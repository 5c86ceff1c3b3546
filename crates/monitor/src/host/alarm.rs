//! When the vCPU's host timer fires: at the machine's earliest deadline.

use crate::host::facts;
use crate::host::timer::HostTimer;
use std::io;
use std::sync::Arc;
use tollgate_engine::requests::Requests;
use tollgate_platform::GuestTime;

/// Shortest setting of the host timer, in nanoseconds. A guest that asks for interrupts
/// faster than signals can be taken must still get on between two of them.
const SHORTEST_TIMER: u64 = 20_000;

/// The host timer of a vCPU that runs, and what it is set to.
#[derive(Default)]
pub(crate) struct Alarm {
    /// No later deadline needs the timer set again.
    armed: Option<GuestTime>,
    timer: Option<HostTimer>,
}

impl Alarm {
    /// Makes the timer, for the calling thread; its signal's handler makes a request.
    ///
    /// # Errors
    /// The host refused a timer.
    pub fn start(&mut self, requests: Arc<Requests>) -> io::Result<()> {
        self.timer = Some(HostTimer::new(requests)?);
        facts::sleep_exactly();
        Ok(())
    }

    /// Drops the timer.
    pub fn stop(&mut self) {
        *self = Self::default();
    }

    /// The timer may have fired, or its deadline may have gone.
    pub fn forget(&mut self) {
        self.armed = None;
    }

    /// Has the timer fire at `deadline`, unless it fires earlier already. `now` is only asked
    /// for if it must be set.
    #[inline]
    pub fn set(&mut self, deadline: GuestTime, now: impl FnOnce() -> GuestTime) {
        if self.armed.is_some_and(|armed| armed <= deadline) {
            return;
        }
        self.armed = Some(deadline);
        if let Some(timer) = &mut self.timer {
            timer.arm(deadline.since(now()).max(SHORTEST_TIMER));
        }
    }

    /// How long a processor that is halted now need sleep at most, in nanoseconds, if the
    /// timer's signal ends the sleep too.
    pub fn sleep_until(&mut self, deadline: GuestTime, now: impl Fn() -> GuestTime) -> u64 {
        self.set(deadline, &now);
        match deadline.since(now()) {
            // The timer is set to no less than this, and need not be on time.
            near if near < 2 * SHORTEST_TIMER => near,
            _ => u64::MAX,
        }
    }
}
