//! The options of a network.

use crate::inner_service::InnerService;
use crate::rules::Rules;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of an Ethernet adapter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// Returns the default address of a machine's adapter `index`, as in QEMU.
    pub const fn of_adapter(index: u8) -> Self {
        Self([0x52, 0x54, 0, 0x12, 0x34, 0x56u8.wrapping_add(index)])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(formatter, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

impl FromStr for MacAddress {
    type Err = String;

    /// Parses six bytes of two hexadecimal digits, separated by colons. The address must be that of
    /// one adapter, not of a group.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a MAC address such as 52:54:00:12:34:56");
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2);
            let part = part.ok_or_else(wrong)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        if parts.next().is_some() {
            return Err(wrong());
        }
        if bytes[0] & 1 != 0 || bytes == [0; 6] {
            return Err(format!("'{text}' is the address of a group, or is zero"));
        }
        Ok(Self(bytes))
    }
}

/// The protocol of a forwarded port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Connections.
    #[default]
    Tcp,
    /// Datagrams.
    Udp,
}

/// A port of the host that is forwarded to the guest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostForward {
    /// TCP or UDP.
    #[serde(default)]
    pub transport: Transport,
    /// The address at which the host listens. Port 0 selects a free one.
    pub host: SocketAddr,
    /// The guest's address. `None` is the address that the guest gets by DHCP.
    pub guest_address: Option<Ipv4Addr>,
    /// The guest's port.
    pub guest_port: u16,
}

/// The options of user networking.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct UserOptions {
    /// The ports of the host that are forwarded to the guest.
    pub forwards: Vec<HostForward>,
    /// Whether the guest can reach nothing outside. Forwarded ports work nevertheless.
    pub restrict: bool,
    /// What the guest may reach otherwise.
    #[serde(default)]
    pub rules: Rules,
    /// Whether refused destinations are shown while the machine runs.
    #[serde(default)]
    pub refusal_lines: RefusalLines,
    /// What firmware finds to load.
    #[serde(default)]
    pub boot: NetworkBoot,
}

/// What a user network offers to firmware that boots from it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NetworkBoot {
    /// The folder whose files the gateway serves by TFTP.
    pub tftp: Option<PathBuf>,
    /// The name of the file that DHCP names: the program that firmware loads.
    pub file: Option<String>,
    /// The name of the TFTP server that DHCP names. Firmware uses the gateway's address otherwise.
    pub server_name: Option<String>,
}

impl NetworkBoot {
    /// The maximum size of a name in bytes.
    pub const MAX_NAME_BYTES: usize = 127;
}

/// Whether each destination that is refused for the first time is shown as a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RefusalLines {
    /// They are only recorded.
    #[default]
    Hidden,
    /// They are shown too.
    Shown,
}

/// The kind of network at the other end of the cable.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkKind {
    /// A network in this process.
    User(UserOptions),
    /// A stream socket at this path that carries frames, each preceded by its length.
    Socket(PathBuf),
    /// The program passt, which is started for the network.
    Passt,
    /// A tap interface of the host, by its name.
    Tap(String),
    /// A descriptor that this process was started with: a tap, or a socket that preserves frame
    /// boundaries.
    Descriptor(RawFd),
}

/// The kind of adapter that the guest finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdapterModel {
    /// A virtio device, the fastest, for which the guest needs a driver.
    #[default]
    Virtio,
    /// Intel's 82540EM on the PCI bus, which most systems know.
    E1000,
}

/// An adapter and its network.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NetworkOptions {
    /// The kind of network.
    pub kind: NetworkKind,
    /// The kind of adapter.
    #[serde(default)]
    pub model: AdapterModel,
    /// The adapter's address. `None` is [`MacAddress::of_adapter`].
    pub mac: Option<MacAddress>,
    /// A service of this process that the guest reaches through the adapter. It belongs to no saved
    /// configuration.
    #[serde(skip)]
    pub inner_service: Option<InnerService>,
}

impl NetworkOptions {
    /// Makes a network whose adapter has the default address.
    pub const fn new(kind: NetworkKind) -> Self {
        Self {
            kind,
            model: AdapterModel::Virtio,
            mac: None,
            inner_service: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_have_addresses_of_their_own() {
        let first: MacAddress = "52:54:00:12:34:56".parse().unwrap();
        assert_eq!(first, MacAddress::of_adapter(0));
        assert_eq!(MacAddress::of_adapter(1).to_string(), "52:54:00:12:34:57");
        for wrong in [
            "",
            "52:54:00:12:34",
            "52:54:00:12:34:56:78",
            "52:54:00:12:34:5g",
            "525:4:00:12:34:56",
            "53:54:00:12:34:56",
            "00:00:00:00:00:00",
            "ff:ff:ff:ff:ff:ff",
        ] {
            assert!(wrong.parse::<MacAddress>().is_err(), "{wrong}");
        }
    }
}
