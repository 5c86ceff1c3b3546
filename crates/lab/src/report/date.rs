//! Dates for people.

/// The date and time of this second since 1970, in UTC; "an unknown time" for 0.
pub(super) fn in_words(seconds: u64) -> String {
    if seconds == 0 {
        return "an unknown time".into();
    }
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant's algorithm: eras of 400 years begin on 1 March, so that the leap day is the last
    // day of its year.
    let day = days + 719_468;
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year}-{month:02}-{day_of_month:02} {:02}:{:02} UTC",
        second / 3600,
        second / 60 % 60
    )
}

/// When something was measured, and for how long: `from` and `until` in seconds since 1970.
pub(super) fn span_in_words(from: u64, until: u64) -> String {
    if from == 0 || from > until {
        return format!("until {}", in_words(until));
    }
    let minutes = (until - from).div_ceil(60);
    let duration = match (minutes / 60, minutes % 60) {
        (0, minutes) => format!("{minutes} min"),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    };
    format!(
        "from {} until {} ({duration})",
        in_words(from),
        in_words(until)
    )
}

#[cfg(test)]
mod tests {
    use super::{in_words, span_in_words};

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(in_words(0), "an unknown time");
        assert_eq!(in_words(86_399), "1970-01-01 23:59 UTC");
        assert_eq!(in_words(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(in_words(1_800_000_000), "2027-01-15 08:00 UTC");
    }

    #[test]
    fn a_span_has_both_ends_and_its_length() {
        assert_eq!(
            span_in_words(951_782_400, 951_786_420),
            "from 2000-02-29 00:00 UTC until 2000-02-29 01:07 UTC (1 h 7 min)"
        );
        assert_eq!(span_in_words(0, 951_782_400), "until 2000-02-29 00:00 UTC");
    }
}
