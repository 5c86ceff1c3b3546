//! `allow=` and `deny=` of a user network: which destinations the guest may reach.
//!
//! ```text
//!   any[:PORT]              every address that is not closed by default
//!   host[:PORT]             this host's loopback address, which the guest knows as 10.0.2.2
//!   dns                     the name server, for every name
//!   NAME[:PORT]             the addresses that our resolver has given for the name
//!   *.NAME[:PORT]           the same for every name that ends in .NAME
//!   ADDRESS[/BITS][:PORT]   addresses; with a port, those of IPv6 are in brackets
//! ```
//!
//! These are only the words and their meaning. `user::gate` decides with them.

mod name;

pub use name::{HostName, NamePattern};

use crate::user::addresses;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::str::FromStr;

/// The form of a rule, for messages.
pub const FORM: &str = "any, host, dns, a name, *.NAME, an address or ADDRESS/BITS, and [:PORT]";

/// The destinations that a rule is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// Every destination; as a permission, every one that is not closed by default.
    Any,
    /// The host's loopback address.
    Host,
    /// The name server, for every name.
    NameServer,
    /// The addresses of a block.
    Block(IpNet),
    /// The addresses of a name, or of names that end in the same way.
    Name(NamePattern),
}

/// A rule: destinations, and the only port of them that it is about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    /// The destinations that it is about.
    pub target: Target,
    /// The port of TCP and UDP. `None` is all ports, and echo requests.
    pub port: Option<NonZeroU16>,
}

/// What the guest may reach.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Rules {
    /// If there are any, everything else is refused.
    pub allow: Vec<Rule>,
    /// What is refused although it is allowed.
    pub deny: Vec<Rule>,
}

impl Rules {
    /// Returns rules that open everything, the host's loopback address too.
    pub fn open() -> Self {
        let allow = [Target::Any, Target::Host];
        let allow = allow.map(|target| Rule { target, port: None });
        Self {
            allow: allow.into(),
            deny: Vec::new(),
        }
    }

    /// Whether a whole range of addresses is open, and not only those of names.
    pub fn allow_addresses(&self) -> bool {
        let is_wide = |rule: &Rule| matches!(rule.target, Target::Any | Target::Block(_));
        self.allow.is_empty() || self.allow.iter().any(is_wide)
    }

    /// Checks rules that make sense only together.
    ///
    /// # Errors
    /// The reason, for a line that names the flag.
    pub fn validate(&self) -> Result<(), String> {
        for rule in &self.deny {
            let Target::Name(pattern) = &rule.target else {
                continue;
            };
            if rule.port.is_some() {
                return Err(format!(
                    "deny={rule}: a denied name has no port, because its addresses have other names; \
                     leave the port out, or deny an address"
                ));
            }
            if pattern.is_suffix() && self.allow_addresses() {
                return Err(format!(
                    "deny={rule}: the addresses of these names are unknown; it works only together \
                     with allow= for names"
                ));
            }
        }
        Ok(())
    }
}

impl Rule {
    /// Whether the rule is about a port. Echo requests have port 0.
    pub fn has_port(&self, port: u16) -> bool {
        self.port.is_none_or(|own| own.get() == port)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Any => write!(formatter, "any")?,
            Target::Host => write!(formatter, "host")?,
            Target::NameServer => write!(formatter, "dns")?,
            Target::Name(pattern) => write!(formatter, "{pattern}")?,
            Target::Block(block) => {
                let is_one = block.prefix_len() == block.max_prefix_len();
                let text = match is_one {
                    true => block.addr().to_string(),
                    false => block.to_string(),
                };
                match (block, self.port) {
                    (IpNet::V6(_), Some(_)) => write!(formatter, "[{text}]")?,
                    _ => write!(formatter, "{text}")?,
                }
            }
        }
        match self.port {
            Some(port) => write!(formatter, ":{port}"),
            None => Ok(()),
        }
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> Self {
        rule.to_string()
    }
}

impl TryFrom<String> for Rule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (place, port) = split_port(text)?;
        let target = match place {
            "" => return Err(format!("'{text}' names no destination; expected {FORM}")),
            "any" | "*" => Target::Any,
            "host" | "localhost" => Target::Host,
            "dns" => Target::NameServer,
            _ => match block(place)? {
                Some(block) => target_of_block(block)?,
                None => Target::Name(place.parse()?),
            },
        };
        if target == Target::NameServer
            && port.is_some_and(|port| port.get() != addresses::DNS_PORT)
        {
            return Err(format!("'{text}': the name server has no port but 53"));
        }
        Ok(Self { target, port })
    }
}

/// Separates a destination from its port.
fn split_port(text: &str) -> Result<(&str, Option<NonZeroU16>), String> {
    let (place, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (place, rest) = rest
                .split_once(']')
                .ok_or_else(|| format!("'{text}' has no ']'"))?;
            if !place.contains(':') {
                return Err(format!("'{text}': only IPv6 addresses are in brackets"));
            }
            match rest {
                "" => (place, None),
                _ => (place, Some(rest.strip_prefix(':').unwrap_or_default())),
            }
        }
        // With several colons it is an IPv6 address without a port.
        None => match text.split_once(':') {
            Some((place, port)) if !port.contains(':') => (place, Some(port)),
            _ => (text, None),
        },
    };
    let port = port.map(|port| {
        let is_number = port.bytes().all(|digit| digit.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_number);
        port.ok_or_else(|| format!("'{text}': a port is a number from 1 to 65535"))
    });
    Ok((place, port.transpose()?))
}

/// Parses an address or a block of addresses; `None` if the text is a name.
fn block(text: &str) -> Result<Option<IpNet>, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(Some(address.to_canonical().into()));
    }
    if let Ok(block) = text.parse::<IpNet>() {
        if block.trunc() != block {
            let right = block.trunc();
            return Err(format!(
                "'{text}' is no block of addresses; did you mean {right}?"
            ));
        }
        return Ok(Some(block));
    }
    // No name has a colon or a slash, or a number as its last part.
    let name = text.strip_suffix('.').unwrap_or(text);
    let last = name.rsplit('.').next().unwrap_or(name);
    let is_number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    if text.contains([':', '/']) || is_number {
        return Err(format!("'{text}' is no address; expected {FORM}"));
    }
    Ok(None)
}

/// Returns what a block of addresses is for the guest. The network's own addresses have names.
fn target_of_block(block: IpNet) -> Result<Target, String> {
    let is_one = block.prefix_len() == block.max_prefix_len();
    let address = block.addr();
    let is_loopback = address == IpAddr::from(Ipv4Addr::LOCALHOST)
        || address == IpAddr::from(Ipv6Addr::LOCALHOST);
    if is_one && (addresses::is_gateway(address) || is_loopback) {
        return Ok(Target::Host);
    }
    if is_one && addresses::is_dns(address) {
        return Ok(Target::NameServer);
    }
    if address.is_loopback() {
        return Err(format!(
            "'{block}' is the guest's own loopback address; this host's is named host"
        ));
    }
    Ok(Target::Block(block))
}

#[cfg(test)]
mod tests;
