//! A rate: how long who takes something must rest so that it takes no more of it than the rate allows.
//!
//! Every second gives `rate` units. What is not taken is kept for a tenth of a second, so that short
//! bursts pass. What is taken in advance is a debt, which time pays.

use std::time::Duration;

/// For how long what is not taken is kept.
const KEPT: f64 = 0.1;

/// What may be taken now.
pub struct Bucket {
    rate: f64,
    level: f64,
}

impl Bucket {
    /// A rate in units per second, which is more than 0.
    pub fn new(rate: f64) -> Self {
        Self {
            rate,
            level: rate * KEPT,
        }
    }

    /// Takes units after some time has passed. Returns how long the rest must be.
    pub fn take(&mut self, passed: Duration, units: f64) -> Duration {
        let gained = self.level + passed.as_secs_f64() * self.rate;
        self.level = gained.min(self.rate * KEPT) - units;
        let debt = (-self.level).max(0.0);
        // A debt of centuries is as good as for ever.
        Duration::try_from_secs_f64(debt / self.rate).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENTH: Duration = Duration::from_millis(100);

    #[test]
    fn what_takes_less_than_the_rate_never_rests() {
        let mut bucket = Bucket::new(100.0);
        for _ in 0..1000 {
            assert_eq!(bucket.take(TENTH, 9.0), Duration::ZERO);
        }
    }

    #[test]
    fn what_takes_more_gets_the_rate_on_average() {
        let mut bucket = Bucket::new(100.0);
        let (mut time, mut taken) = (Duration::ZERO, 0.0);
        let mut rest = Duration::ZERO;
        while time < Duration::from_secs(100) {
            // It takes 300 in each second in which it does not rest.
            let passed = TENTH + rest;
            time += passed;
            taken += 30.0;
            rest = bucket.take(passed, 30.0);
        }
        let rate = taken / time.as_secs_f64();
        assert!((95.0..=105.0).contains(&rate), "{rate}");
    }

    #[test]
    fn what_was_not_taken_is_not_saved_for_long() {
        let mut bucket = Bucket::new(100.0);
        assert_eq!(bucket.take(Duration::from_secs(1000), 0.0), Duration::ZERO);
        let rest = bucket.take(Duration::ZERO, 60.0);
        assert_eq!(rest, Duration::from_millis(500));
    }
}
