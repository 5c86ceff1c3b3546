//! The metadata service.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::body::Body;
use crate::fault::Fault;

/// How a guest asks the metadata service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum MetadataVersion {
    /// Requests need no token.
    #[default]
    V1,
    /// Each request needs the token of a session.
    V2,
}

/// Where a guest finds the metadata service, and in which form the service answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetadataConfig {
    /// How a guest asks.
    #[serde(default)]
    pub version: MetadataVersion,
    /// The network interfaces through which the service is reached.
    pub network_interfaces: Vec<String>,
    /// The address of the service.
    #[serde(default = "default_address")]
    pub ipv4_address: Ipv4Addr,
    /// Whether answers are text even if a client asks for JSON, as those of EC2 are.
    #[serde(default)]
    pub imds_compat: bool,
}

const fn default_address() -> Ipv4Addr {
    Ipv4Addr::new(169, 254, 169, 254)
}

impl Body for MetadataConfig {
    fn check(&self) -> Result<(), Fault> {
        if self.network_interfaces.is_empty() {
            let why = "The list of network interface IDs that allow for forwarding MMDS requests is empty.";
            return Err(Fault::field("network_interfaces", why));
        }
        // RFC 3927, section 2.1, reserves the first and the last 256 addresses.
        match self.ipv4_address.octets() {
            [169, 254, 1..=254, _] => Ok(()),
            _ => {
                let why = "The MMDS IPv4 address is not link local.";
                Err(Fault::field("ipv4_address", why))
            }
        }
    }
}
