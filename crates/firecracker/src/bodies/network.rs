//! Network interfaces.

use serde::{Deserialize, Serialize};

use super::body::{Body, check_id};
use super::limiter::{RateLimiter, check_limiter};
use crate::fault::Fault;

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkInterface {
    /// Its name in requests.
    pub iface_id: String,
    /// The host's interface, or a network of Tollgate's.
    pub host_dev_name: String,
    /// The guest's address on the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_mac: Option<String>,
    /// The largest packet that the guest is told, which is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// A limit, which is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_rate_limiter: Option<RateLimiter>,
    /// A limit, which is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_rate_limiter: Option<RateLimiter>,
}

impl Body for NetworkInterface {
    fn check(&self) -> Result<(), Fault> {
        check_id("iface_id", &self.iface_id)?;
        if self.mtu.is_some() {
            let why = "Tollgate's adapters do not tell the guest an MTU; set it in the guest";
            return Err(Fault::field("mtu", why));
        }
        check_limiter("rx_rate_limiter", self.rx_rate_limiter.as_ref())?;
        check_limiter("tx_rate_limiter", self.tx_rate_limiter.as_ref())
    }
}

/// A change of an interface's limits.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkUpdate {
    /// Its name in requests.
    pub iface_id: String,
    /// A limit, which is refused.
    pub rx_rate_limiter: Option<RateLimiter>,
    /// A limit, which is refused.
    pub tx_rate_limiter: Option<RateLimiter>,
}

impl Body for NetworkUpdate {
    fn check(&self) -> Result<(), Fault> {
        check_limiter("rx_rate_limiter", self.rx_rate_limiter.as_ref())?;
        check_limiter("tx_rate_limiter", self.tx_rate_limiter.as_ref())
    }
}
