//! How long immediate answers are not tried after one was late.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An answer that takes longer is considered late. A busy host runs other programs for some
/// milliseconds.
const LATE: Duration = Duration::from_millis(20);

/// How long the threads answer after a late answer.
const PAUSE: Duration = Duration::from_millis(100);

/// The maximum of that time, which doubles if the next late answer comes soon. It is not longer,
/// because a host that has no processor for this thread makes answers late, too.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A late answer comes soon if fewer than this many pauses have passed since the last one.
const SOON: u32 = 10;

/// The time until which immediate answers are not tried.
#[derive(Debug, Default)]
pub(crate) struct Patience(Mutex<Option<Pause>>);

/// The last pause.
#[derive(Clone, Copy, Debug)]
struct Pause {
    length: Duration,
    end: Instant,
}

impl Patience {
    fn pause(&self) -> MutexGuard<'_, Option<Pause>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.pause().is_some_and(|pause| now < pause.end)
    }

    /// Records the times of an attempt at an immediate answer.
    pub(crate) fn note(&self, begun: Instant, ended: Instant) {
        if ended.saturating_duration_since(begun) <= LATE {
            return;
        }
        let mut last = self.pause();
        let length = match *last {
            Some(pause) if begun < pause.end + pause.length * SOON => pause.length * 2,
            _ => PAUSE,
        };
        let length = length.min(LONGEST_PAUSE);
        *last = Some(Pause {
            length,
            end: ended + length,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_answer_is_followed_by_a_pause_and_the_next_one_by_a_longer() {
        let patience = Patience::default();
        let start = Instant::now();
        patience.note(start, start + LATE);
        assert!(!patience.is_over(start + LATE));
        let mut now = start;
        for length in [PAUSE, PAUSE * 2, PAUSE * 4] {
            let begun = now;
            now += LATE * 2;
            patience.note(begun, now);
            assert!(patience.is_over(now + length / 2));
            now += length;
            assert!(!patience.is_over(now));
        }
        for _ in 0..20 {
            let begun = now;
            now += LATE * 2;
            patience.note(begun, now);
            now += LONGEST_PAUSE;
            assert!(!patience.is_over(now));
        }
        now += LONGEST_PAUSE * SOON;
        patience.note(now, now + LATE * 2);
        assert!(!patience.is_over(now + LATE * 2 + PAUSE));
    }
}
