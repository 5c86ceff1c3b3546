//! Which exits are timed, and how many exits each of them stands for.
//!
//! ```text
//! exits   . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . .
//!         |--- burst ---|       not timed        |-control-|--- burst ---|
//!          w w w t t t t                                    w w w t t t t
//! ```
//!
//! Timed exits come in bursts of successive ones. The first of a burst (`w`) only warm up: a single
//! timed exit would be slow, since neither caches nor branch predictors are prepared for the
//! timing. The more exits there are, the farther apart the bursts are. The exits before a burst
//! show what timing adds ([`crate::disturbance`]), if there are enough of them. Exits that are not
//! timed pass in groups, and the clock is read once after each group. The distance of bursts
//! changes rarely and by the rate over a long window, not by the last few exits: exits come in
//! clusters (a timer's tick is dozens of them, followed by a long pause), and a distance that
//! follows the cluster would always sample the same part of it.

/// At least one exit in this number is timed.
pub const LONGEST_INTERVAL: u32 = 512;
/// Timed exits in a burst, and exits in a control.
pub(crate) const BURST: u32 = 16;
/// Maximum number of exits between two readings of the clock.
pub(crate) const GROUP: u32 = BURST;
/// Exits before a burst that are timed but not used.
const WARM_UP: u32 = 3;
/// Cycles for each timed exit that keep the cost of timing near one per cent.
const CYCLES_PER_SAMPLE: u64 = 30_000;
/// Cycles over which the rate is measured: some ticks of a guest's timer.
const WINDOW: u64 = 40_000_000;
/// Number of timed exits that ends a window early, because the rate has risen a lot.
const CROWDED_WINDOW: u64 = 3 * WINDOW / CYCLES_PER_SAMPLE;

/// What the ledger does at an exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    /// A group of exits has passed, and the next one starts: the clock is read.
    Group,
    /// This exit is the first of a control: the clock is read, but the exit is not timed.
    Control,
    /// The exit is timed, and stands for this number of exits; for none if it only warms up.
    Timed(u64),
}

/// Chooses which exits are timed.
#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    /// One exit in this number is timed; a power of two.
    interval: u32,
    /// Number of exits up to and including the next one at which something is due.
    countdown: u32,
    /// Number of exits that follow that one before an event other than a group's end is due.
    more: u32,
    /// Whether that exit is the first of a control.
    is_control_next: bool,
    /// Number of exits of this burst that are still to come.
    burst: u32,
    random: u32,
    /// The number of exits by which the jitter delays the next burst.
    late: u32,
    window_start: u64,
    window_samples: u64,
    every_exit: bool,
}

impl Sampler {
    pub fn new() -> Self {
        Self {
            interval: 1,
            countdown: 1,
            more: 0,
            is_control_next: false,
            burst: 0,
            random: 0x9e37_79b9,
            late: 0,
            window_start: 0,
            window_samples: 0,
            every_exit: false,
        }
    }

    /// The vCPU starts to run.
    pub fn start(&mut self, now: u64) {
        self.window_start = now;
        self.window_samples = 0;
    }

    /// Sets whether every exit is timed, however many there are.
    pub fn set_every_exit(&mut self, every_exit: bool) {
        self.every_exit = every_exit;
        if every_exit {
            self.interval = 1;
            self.countdown = 1;
            self.more = 0;
            self.is_control_next = false;
            self.burst = 0;
        }
    }

    /// Stops timing exits.
    pub fn stop(&mut self) {
        self.countdown = u32::MAX;
    }

    /// Counts an exit. Returns whether [`Self::begin`] must be called for it.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        self.countdown = self.countdown.wrapping_sub(1);
        self.countdown == 0
    }

    /// Whether the next exit at which something is due starts a burst.
    pub fn begins_burst(&self) -> bool {
        self.burst == 0 && !self.is_control_next && self.more == 0
    }

    /// Whether what is due next is only that one untimed group ends and another one starts.
    #[inline]
    pub fn is_passing(&self) -> bool {
        self.more > 0 || self.is_control_next
    }

    /// Number of exits of the present burst that will still be timed: zero from the last one on.
    pub fn left_of_burst(&self) -> u32 {
        self.burst
    }

    /// Number of exits up to and including the next one at which something is due.
    pub fn exits_to_next(&self) -> u32 {
        self.countdown
    }

    /// Something is due after this number of exits; until then, only groups of them end.
    fn pass(&mut self, exits: u32) {
        self.countdown = exits.min(GROUP);
        self.more = exits - self.countdown;
    }

    /// Says what the ledger must do at this exit, at which something is due.
    pub fn begin(&mut self, now: u64) -> Due {
        if self.more > 0 {
            self.pass(self.more);
            return Due::Group;
        }
        if self.is_control_next {
            self.is_control_next = false;
            self.countdown = BURST;
            return Due::Control;
        }
        if self.burst == 0 {
            self.begin_burst(now);
        }
        self.burst -= 1;
        self.countdown = 1;
        if self.burst == 0 {
            let exits = self.exits_to_next_burst();
            // A control right after a burst would be disturbed by the work of adding the burst to
            // the accounts.
            self.is_control_next = exits > BURST + WARM_UP;
            self.pass(match self.is_control_next {
                true => exits - BURST,
                false => exits,
            });
        }
        if self.burst >= BURST {
            return Due::Timed(0);
        }
        self.window_samples += 1;
        Due::Timed(u64::from(self.interval))
    }

    fn begin_burst(&mut self, now: u64) {
        let passed = now.wrapping_sub(self.window_start);
        if passed >= WINDOW || self.window_samples >= CROWDED_WINDOW {
            self.change_interval(passed);
            self.start(now);
        }
        let warm_up = if self.interval == 1 { 0 } else { WARM_UP };
        self.burst = BURST + warm_up;
    }

    fn change_interval(&mut self, passed: u64) {
        if self.every_exit {
            return;
        }
        let affordable = (passed / CYCLES_PER_SAMPLE).max(1);
        while self.window_samples > affordable && self.interval < LONGEST_INTERVAL {
            self.interval *= 2;
            self.window_samples /= 2;
        }
        while self.window_samples * 4 < affordable && self.interval > 1 {
            self.interval /= 2;
            self.window_samples *= 2;
        }
    }

    /// The number of exits until the next burst, such that a burst stands for `BURST * interval` of
    /// them on average. A jitter keeps bursts from falling in step with the guest's loops. It moves
    /// each burst within the exits that it stands for, and not the following bursts, so the numbers
    /// that bursts stand for add up to the number of exits.
    fn exits_to_next_burst(&mut self) -> u32 {
        if self.interval == 1 {
            self.late = 0;
            return 1;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        let between = BURST * (self.interval - 1) - WARM_UP + 1;
        let was_late = self.late;
        self.late = self.random % between;
        (between + self.late).saturating_sub(was_late).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The weights of the timed exits among `count`, each `cycles` after the last.
    fn weights(sampler: &mut Sampler, now: &mut u64, count: u64, cycles: u64) -> Vec<u64> {
        let mut weights = Vec::new();
        for _ in 0..count {
            *now += cycles;
            if sampler.is_due()
                && let Due::Timed(weight) = sampler.begin(*now)
            {
                weights.push(weight);
            }
        }
        weights
    }

    #[test]
    fn rare_exits_are_all_timed() {
        let mut sampler = Sampler::new();
        let mut now = 0;
        sampler.start(now);
        let weights = weights(&mut sampler, &mut now, 10_000, 2 * CYCLES_PER_SAMPLE);
        assert!(weights.len() == 10_000 && weights.iter().all(|&weight| weight == 1));
    }

    #[test]
    fn weights_add_up_to_the_exits() {
        for cycles in [20, 200, 2_000, 8_000] {
            let mut sampler = Sampler::new();
            let mut now = 0;
            sampler.start(now);
            let weights = weights(&mut sampler, &mut now, 3_000_000, cycles);
            let sum: u64 = weights.iter().sum();
            assert!((2_985_000..3_015_000).contains(&sum), "{cycles}: {sum}");
            let affordable = now / CYCLES_PER_SAMPLE + CROWDED_WINDOW;
            let least = 3_000_000 / u64::from(LONGEST_INTERVAL);
            assert!(
                (weights.len() as u64) < (affordable + least) * 5 / 4,
                "{cycles}"
            );
        }
    }

    #[test]
    fn exits_that_come_in_clusters_are_met_in_proportion() {
        let mut sampler = Sampler::new();
        let mut now = 0;
        sampler.start(now);
        let mut slow = 0;
        for exit in 0..3_000_000_u64 {
            // A timer's tick: forty quick exits, then a long pause.
            let is_slow = exit % 40 == 39;
            now += if is_slow { 9_000_000 } else { 500 };
            if sampler.is_due()
                && let Due::Timed(weight) = sampler.begin(now)
            {
                slow += weight * u64::from(is_slow);
            }
        }
        let expected = 3_000_000 / 40;
        assert!(slow.abs_diff(expected) < expected / 50, "{slow}");
    }

    #[test]
    fn a_control_comes_right_before_a_burst_and_is_as_long() {
        let mut sampler = Sampler::new();
        let (mut now, mut controls, mut since) = (0, 0, None);
        sampler.start(now);
        for _ in 0..1_000_000 {
            now += 300;
            since = since.map(|exits: u32| exits + 1);
            if !sampler.is_due() {
                continue;
            }
            let begins_burst = sampler.begins_burst();
            match sampler.begin(now) {
                Due::Control => since = Some(0),
                Due::Timed(_) if since.is_some() => {
                    assert!(begins_burst);
                    assert_eq!(since.take(), Some(BURST));
                    controls += 1;
                }
                Due::Timed(_) | Due::Group => {}
            }
        }
        assert!(controls > 100, "{controls}");
    }

    #[test]
    fn on_demand_every_exit_is_timed() {
        let mut sampler = Sampler::new();
        let mut now = 0;
        sampler.start(now);
        weights(&mut sampler, &mut now, 1_000_000, 10);
        sampler.set_every_exit(true);
        let weights = weights(&mut sampler, &mut now, 1_000_000, 10);
        assert!(weights.len() == 1_000_000 && weights.iter().all(|&weight| weight == 1));
    }
}
