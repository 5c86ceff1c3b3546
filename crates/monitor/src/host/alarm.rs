//! Sets the vCPU's host timer to the machine's earliest deadline.

use crate::host::facts;
use crate::host::timer::HostTimer;
use std::io;
use std::sync::Arc;
use tollgate_engine::requests::Requests;
use tollgate_platform::GuestTime;

/// Shortest setting of the host timer, in nanoseconds. A guest that asks for interrupts faster than
/// the host can deliver signals must still make progress between two of them.
const SHORTEST_TIMER: u64 = 20_000;

/// The host timer of a running vCPU, and the deadline that the timer is set to.
#[derive(Default)]
pub(crate) struct Alarm {
    /// The deadline that the timer is set to. A later deadline does not need the timer to be set
    /// again.
    armed: Option<GuestTime>,
    timer: Option<HostTimer>,
}

impl Alarm {
    /// Creates the timer for the calling thread. The handler of its signal makes a request.
    ///
    /// # Errors
    /// The host refused a timer.
    pub fn start(&mut self, requests: Arc<Requests>) -> io::Result<()> {
        self.timer = Some(HostTimer::new(requests)?);
        facts::sleep_exactly();
        Ok(())
    }

    /// Deletes the timer.
    pub fn stop(&mut self) {
        *self = Self::default();
    }

    /// Forgets the timer's setting, because the timer may have fired or its deadline may no longer
    /// exist.
    pub fn forget(&mut self) {
        self.armed = None;
    }

    /// Sets the timer to fire at `deadline`, unless it will fire earlier. `now` is called only if
    /// the timer must be set.
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

    /// The longest time that a halted processor may sleep from now on, in nanoseconds, given that
    /// the timer's signal ends the sleep as well.
    pub fn sleep_until(&mut self, deadline: GuestTime, now: impl Fn() -> GuestTime) -> u64 {
        self.set(deadline, &now);
        match deadline.since(now()) {
            // The timer is never set to less than this, and may fire late.
            near if near < 2 * SHORTEST_TIMER => near,
            _ => u64::MAX,
        }
    }
}
