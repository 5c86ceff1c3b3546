//! Timer interrupts that were due while the guest was not running.
//!
//! A real processor is always there to take the 8254's next interrupt. This one may have been
//! stopped for several periods, because the host ran other programs. The controllers remember only
//! one edge, and the guest would miss the time of the others. Linux, which checks at boot that
//! ticks arrive, then stops with "IO-APIC + timer doesn't work". So edges that coincided are
//! delivered later, one at a time:
//!
//! ```text
//!   8254    |    |    |    |    |    |      four edges while the guest is away
//!   guest   |                   |-|-|-|-|   and the three lost ones soon after
//! ```

use serde::{Deserialize, Serialize};
use tollgate_platform::GuestTime;

/// Nanoseconds between two interrupts that are delivered late. That is enough time for a handler,
/// and short enough to catch up with 1,000 interrupts per second.
const SPACING: u64 = 250_000;

/// The maximum number of interrupts that are remembered: those of one second at the rate of most
/// kernels. If a guest was stopped for longer, the other interrupts are lost.
const MOST: u64 = 256;

/// The interrupts that still must be delivered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostTicks {
    count: u64,
    /// The earliest time of the next one.
    due: GuestTime,
}

impl LostTicks {
    /// Records `edges` edges that came together: the first one is delivered now, the others later.
    pub fn saw(&mut self, edges: u64, now: GuestTime) {
        if edges > 0 {
            self.count = self.count.saturating_add(edges - 1).min(MOST);
            self.due = now.after(SPACING);
        }
    }

    /// Takes one late interrupt if it can be delivered now. Returns whether it did.
    pub fn take(&mut self, now: GuestTime) -> bool {
        let is_due = self.count > 0 && self.due <= now;
        if is_due {
            self.count -= 1;
            self.due = now.after(SPACING);
        }
        is_due
    }

    /// Returns when [`LostTicks::take`] next returns true.
    pub fn next_deadline(&self) -> Option<GuestTime> {
        (self.count > 0).then_some(self.due)
    }

    /// Forgets all late interrupts because the guest has set the timer again.
    pub fn forget(&mut self) {
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_that_come_one_by_one_leave_nothing_to_make_up_for() {
        let mut lost = LostTicks::default();
        for millisecond in 0..10 {
            let now = GuestTime(millisecond * 1_000_000);
            lost.saw(1, now);
            assert_eq!(lost.next_deadline(), None);
            assert!(!lost.take(now.after(SPACING)));
        }
    }

    #[test]
    fn lost_edges_come_later_with_a_space_between_them() {
        let mut lost = LostTicks::default();
        lost.saw(3, GuestTime(0));
        for _ in 0..2 {
            let due = lost.next_deadline().unwrap();
            assert!(!lost.take(GuestTime(due.0 - 1)));
            assert!(lost.take(due));
        }
        assert_eq!(lost.next_deadline(), None);
    }

    #[test]
    fn an_edge_of_the_timer_keeps_its_distance_too() {
        let mut lost = LostTicks::default();
        lost.saw(2, GuestTime(0));
        lost.saw(1, GuestTime(SPACING - 1));
        assert!(!lost.take(GuestTime(SPACING)));
        assert!(lost.take(GuestTime(2 * SPACING)));
    }

    #[test]
    fn a_long_absence_is_made_up_for_in_part_only() {
        let mut lost = LostTicks::default();
        lost.saw(u64::MAX, GuestTime(0));
        lost.saw(u64::MAX, GuestTime(0));
        let made_up = (1..)
            .take_while(|n| lost.take(GuestTime(n * SPACING)))
            .count();
        assert_eq!(made_up as u64, MOST);
    }

    #[test]
    fn a_timer_set_anew_owes_nothing() {
        let mut lost = LostTicks::default();
        lost.saw(5, GuestTime(0));
        lost.forget();
        assert_eq!(lost.next_deadline(), None);
        assert!(!lost.take(GuestTime(u64::MAX)));
    }
}
