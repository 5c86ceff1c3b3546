//! Rate limiters: Tollgate has none, so one that would limit something is refused.

use serde::{Deserialize, Serialize};

use crate::fault::Fault;

/// A limit of bytes or operations.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenBucket {
    /// How much may be used at once.
    pub size: u64,
    /// How much may be used at once at the beginning, in addition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_time_burst: Option<u64>,
    /// The milliseconds after which an empty bucket is full.
    pub refill_time: u64,
}

/// Limits of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimiter {
    /// The limit of bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<TokenBucket>,
    /// The limit of operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<TokenBucket>,
}

const WHY: &str = "Tollgate does not limit rates; leave the limiter out, or give a size of 0, which \
                   means no limit";

/// Refuses a bucket that would limit something.
pub(super) fn check_bucket(field: &str, bucket: Option<&TokenBucket>) -> Result<(), Fault> {
    // The description says that a bucket without a size or a time limits nothing.
    match bucket.is_some_and(|bucket| bucket.size != 0 && bucket.refill_time != 0) {
        true => Err(Fault::field(field, WHY)),
        false => Ok(()),
    }
}

/// Refuses a limiter that would limit something.
pub(super) fn check_limiter(field: &str, limiter: Option<&RateLimiter>) -> Result<(), Fault> {
    let Some(limiter) = limiter else {
        return Ok(());
    };
    check_bucket(&format!("{field}.bandwidth"), limiter.bandwidth.as_ref())?;
    check_bucket(&format!("{field}.ops"), limiter.ops.as_ref())
}
