//! Dates of the Gregorian calendar, seconds since 1970, and the forms in which the clock's
//! registers hold them.

/// The number of seconds in a day.
pub(super) const DAY: i64 = 86_400;

/// A calendar date and time, in UTC or whatever the clock is set to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DateTime {
    pub(super) year: i64,
    /// The month, 1 to 12.
    pub(super) month: i64,
    /// The day, 1 to 31.
    pub(super) day: i64,
    pub(super) hour: i64,
    pub(super) minute: i64,
    pub(super) second: i64,
}

const fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

const fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the days from 1 January of year 1 to 1 January of `year`.
const fn days_before_year(year: i64) -> i64 {
    let past = year - 1;
    past * 365 + past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400)
}

const UNIX_EPOCH: i64 = days_before_year(1970);

impl DateTime {
    /// Returns the date and time `seconds` after the beginning of 1970.
    pub(super) fn from_seconds(seconds: i64) -> Self {
        let days = seconds.div_euclid(DAY) + UNIX_EPOCH;
        let in_day = seconds.rem_euclid(DAY);
        // 146,097 days are 400 years; the estimate is off by one at most.
        let mut year = (days.saturating_mul(400)).div_euclid(146_097) + 1;
        while days_before_year(year) > days {
            year -= 1;
        }
        while days_before_year(year + 1) <= days {
            year += 1;
        }
        let mut day = days - days_before_year(year);
        let mut month = 1;
        while day >= days_in_month(year, month) {
            day -= days_in_month(year, month);
            month += 1;
        }
        Self {
            year,
            month,
            day: day + 1,
            hour: in_day / 3600,
            minute: in_day / 60 % 60,
            second: in_day % 60,
        }
    }

    /// Returns the seconds since the beginning of 1970. Fields out of range carry over into the
    /// next ones.
    pub(super) fn to_seconds(self) -> i64 {
        let months = self.month - 1;
        let year = self.year + months.div_euclid(12);
        let month = months.rem_euclid(12) + 1;
        let days_of_months: i64 = (1..month).map(|month| days_in_month(year, month)).sum();
        let days = days_before_year(year) - UNIX_EPOCH + days_of_months + self.day - 1;
        days * DAY + self.hour * 3600 + self.minute * 60 + self.second
    }

    /// Returns the day of the week, 0 (Sunday) to 6, at `seconds` after the beginning of 1970.
    pub(super) fn weekday(seconds: i64) -> i64 {
        (seconds.div_euclid(DAY) + 4).rem_euclid(7)
    }
}

/// The number format of the registers: register B's DM and 24/12 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Format {
    pub(super) binary: bool,
    pub(super) hours_24: bool,
}

/// The bit of the hours register that means p.m. in 12-hour form.
const PM: u8 = 0x80;

impl Format {
    /// Converts a number from 0 to 99 to the form in a register.
    pub(super) fn encode(self, value: i64) -> u8 {
        let value = value.rem_euclid(100) as u8;
        if self.binary {
            value
        } else {
            (value / 10) << 4 | (value % 10)
        }
    }

    /// Returns the number in a register; digits above 9 count with their value.
    pub(super) fn decode(self, register: u8) -> i64 {
        if self.binary {
            i64::from(register)
        } else {
            i64::from(register >> 4) * 10 + i64::from(register & 0xF)
        }
    }

    /// Converts an hour from 0 to 23 to the form in the hours register.
    pub(super) fn encode_hour(self, hour: i64) -> u8 {
        if self.hours_24 {
            return self.encode(hour);
        }
        let register = self.encode((hour + 11) % 12 + 1);
        if hour >= 12 { register | PM } else { register }
    }

    /// Returns the hour in the hours register.
    pub(super) fn decode_hour(self, register: u8) -> i64 {
        if self.hours_24 {
            return self.decode(register);
        }
        let hour = self.decode(register & !PM) % 12;
        if register & PM != 0 { hour + 12 } else { hour }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments_convert_both_ways() {
        for (seconds, (year, month, day, hour, minute, second), weekday) in [
            (0, (1970, 1, 1, 0, 0, 0), 4),
            (951_782_400, (2000, 2, 29, 0, 0, 0), 2),
            (1_709_251_199, (2024, 2, 29, 23, 59, 59), 4),
            (4_107_542_400, (2100, 3, 1, 0, 0, 0), 1),
            (-1, (1969, 12, 31, 23, 59, 59), 3),
        ] {
            let moment = DateTime {
                year,
                month,
                day,
                hour,
                minute,
                second,
            };
            assert_eq!(DateTime::from_seconds(seconds), moment);
            assert_eq!(moment.to_seconds(), seconds);
            assert_eq!(DateTime::weekday(seconds), weekday);
        }
    }

    #[test]
    fn every_day_of_eight_centuries_converts_both_ways() {
        for day in 0..292_194 {
            let seconds = (day - 146_097) * DAY + 12_345;
            assert_eq!(DateTime::from_seconds(seconds).to_seconds(), seconds);
        }
    }

    #[test]
    fn hours_have_a_12_hour_form() {
        let bcd_12 = Format {
            binary: false,
            hours_24: false,
        };
        for (hour, register) in [(0, 0x12), (1, 0x01), (11, 0x11), (12, 0x92), (23, 0x91)] {
            assert_eq!(bcd_12.encode_hour(hour), register);
            assert_eq!(bcd_12.decode_hour(register), hour);
        }
    }

    #[test]
    fn extreme_times_do_not_overflow() {
        for seconds in [i64::MIN / 1_000_000_000, i64::MAX / 1_000_000_000] {
            assert_eq!(DateTime::from_seconds(seconds).to_seconds(), seconds);
        }
    }
}
