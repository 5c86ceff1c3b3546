//! The alarm registers of the real-time clock: a time of day, of which any part may be unspecified.

use super::calendar::{DAY, Format};

/// A value with both upper bits set matches everything.
const DO_NOT_CARE: u8 = 0xC0;

/// The three alarm registers as written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Alarm {
    pub(super) second: u8,
    pub(super) minute: u8,
    pub(super) hour: u8,
    pub(super) format: Format,
}

const fn matches(register: u8, encoded: u8) -> bool {
    register & DO_NOT_CARE == DO_NOT_CARE || register == encoded
}

impl Alarm {
    fn matches_second(&self, second: i64) -> bool {
        matches(self.second, self.format.encode(second))
    }

    fn matches_minute(&self, minute: i64) -> bool {
        matches(self.minute, self.format.encode(minute))
    }

    fn matches_hour(&self, hour: i64) -> bool {
        matches(self.hour, self.format.encode_hour(hour))
    }

    /// Returns the first second after `seconds` (both since 1970) at which the alarm goes off, or
    /// `None` if the registers hold no time of day.
    pub(super) fn next_after(&self, seconds: i64) -> Option<i64> {
        // The search covers the rest of this minute, then the rest of this hour, then a whole day.
        let first_second = (0..60).find(|&second| self.matches_second(second))?;
        let first_minute = (0..60).find(|&minute| self.matches_minute(minute))?;
        let start = seconds.checked_add(1)?;
        let in_day = start.rem_euclid(DAY);
        let midnight = start.checked_sub(in_day)?;
        let (hour, minute, second) = (in_day / 3600, in_day / 60 % 60, in_day % 60);
        let at = |hour: i64, minute: i64, second: i64| {
            midnight.checked_add(hour * 3600 + minute * 60 + second)
        };

        if self.matches_hour(hour) {
            if self.matches_minute(minute)
                && let Some(found) = (second..60).find(|&second| self.matches_second(second))
            {
                return at(hour, minute, found);
            }
            if let Some(found) = (minute + 1..60).find(|&minute| self.matches_minute(minute)) {
                return at(hour, found, first_second);
            }
        }
        let found = (hour + 1..=hour + 24).find(|&hour| self.matches_hour(hour % 24))?;
        at(found, first_minute, first_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BCD: Format = Format {
        binary: false,
        hours_24: true,
    };

    fn alarm(hour: u8, minute: u8, second: u8) -> Alarm {
        Alarm {
            second,
            minute,
            hour,
            format: BCD,
        }
    }

    const fn time(hour: i64, minute: i64, second: i64) -> i64 {
        hour * 3600 + minute * 60 + second
    }

    #[test]
    fn a_full_time_of_day_comes_once_a_day() {
        let alarm = alarm(0x12, 0x34, 0x56);
        assert_eq!(alarm.next_after(0), Some(time(12, 34, 56)));
        assert_eq!(
            alarm.next_after(time(12, 34, 56)),
            Some(DAY + time(12, 34, 56))
        );
        assert_eq!(alarm.next_after(time(12, 34, 55)), Some(time(12, 34, 56)));
    }

    #[test]
    fn open_parts_match_everything() {
        assert_eq!(alarm(0xFF, 0xC0, 0xFF).next_after(17), Some(18));
        assert_eq!(
            alarm(0xFF, 0xFF, 0x05).next_after(time(1, 59, 5)),
            Some(time(2, 0, 5))
        );
        assert_eq!(
            alarm(0xFF, 0x10, 0x05).next_after(time(23, 10, 5)),
            Some(DAY + time(0, 10, 5))
        );
    }

    #[test]
    fn impossible_times_never_come() {
        assert_eq!(alarm(0x25, 0, 0).next_after(0), None);
        assert_eq!(alarm(0, 0x60, 0).next_after(0), None);
        assert_eq!(alarm(0, 0, 0x7F).next_after(0), None);
    }
}
