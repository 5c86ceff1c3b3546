//! The host's time of day, from which the guest's clocks get theirs.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns universal time (UTC) in nanoseconds since 1970, which 64 bits hold until the year 2262.
pub fn universal(host: SystemTime) -> i64 {
    let nanoseconds =
        |duration: std::time::Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    match host.duration_since(UNIX_EPOCH) {
        Ok(since) => nanoseconds(since),
        Err(before) => -nanoseconds(before.duration()),
    }
}
