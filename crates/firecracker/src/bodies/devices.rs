//! Devices without a name: sockets, random numbers, the serial port.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::body::Body;
use super::limiter::{RateLimiter, TokenBucket, check_bucket, check_limiter};
use crate::fault::Fault;

/// Sockets between guest and host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vsock {
    /// The guest's number.
    pub guest_cid: u32,
    /// The socket on the host.
    pub uds_path: PathBuf,
    /// A name, which has no meaning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vsock_id: Option<String>,
}

impl Body for Vsock {
    fn check(&self) -> Result<(), Fault> {
        match self.guest_cid {
            3..=0xffff_fffe => Ok(()),
            _ => Err(Fault::field("guest_cid", "expected 3 to 4294967294")),
        }
    }
}

/// Random numbers of the host.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entropy {
    /// A limit, which is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limiter: Option<RateLimiter>,
}

impl Body for Entropy {
    fn check(&self) -> Result<(), Fault> {
        check_limiter("rate_limiter", self.rate_limiter.as_ref())
    }
}

/// The serial port.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Serial {
    /// The file that gets its output, instead of standard output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial_out_path: Option<PathBuf>,
    /// A limit, which is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limiter: Option<TokenBucket>,
}

impl Body for Serial {
    fn check(&self) -> Result<(), Fault> {
        check_bucket("rate_limiter", self.rate_limiter.as_ref())
    }
}
