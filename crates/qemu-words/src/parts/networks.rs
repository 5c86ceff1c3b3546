//! Networks: `-netdev`, `-nic` and `-net`.

use crate::build::Builder;
use crate::configuration::{AdapterModel, Forward, MachineKind, Network, NetworkBoot, NetworkKind};
use crate::key_values::KeyValues;
use crate::refusal::Refusal;
use std::net::IpAddr;

/// Keys of user networks whose usual values are accepted.
const USUAL: &[(&str, &[&str])] = &[
    (
        "net",
        &["10.0.2.0/24", "10.0.2.0", "10.0.2.0/255.255.255.0"],
    ),
    ("host", &["10.0.2.2"]),
    ("dns", &["10.0.2.3"]),
    ("dhcpstart", &["10.0.2.15"]),
    ("ipv4", &["on"]),
];

/// Keys of networks that make no difference.
const INDIFFERENT: &[&str] = &[
    "hostname",
    "domainname",
    "ipv6",
    "ipv6-net",
    "ipv6-host",
    "ipv6-dns",
    "ipv6-prefix",
    "ipv6-prefixlen",
    "vhost",
    "vhostforce",
    "vhost-force",
    "queues",
    "sndbuf",
    "vnet_hdr",
    "poll-us",
    "br",
    "helper",
    "id",
];

/// Reads the address of an adapter.
pub fn mac(text: &str) -> Result<[u8; 6], Refusal> {
    let wrong = || Refusal(format!("'{text}' is not a MAC address"));
    let parts: Vec<&str> = text.split([':', '-']).collect();
    let bytes: Result<Vec<u8>, _> = parts.iter().map(|it| u8::from_str_radix(it, 16)).collect();
    let bytes = bytes.map_err(|_| wrong())?;
    <[u8; 6]>::try_from(bytes).map_err(|_| wrong())
}

/// Reads `tcp|udp:[ADDR]:PORT-[GUEST]:PORT`.
fn forward(text: &str) -> Result<Forward, Refusal> {
    let wrong = || {
        Refusal(format!(
            "Invalid host forwarding rule '{text}': expected tcp|udp:[ADDR]:PORT-[GUEST]:PORT"
        ))
    };
    let (protocol, rest) = text.split_once(':').ok_or_else(wrong)?;
    let is_udp = match protocol {
        "" | "tcp" => false,
        "udp" => true,
        _ => return Err(wrong()),
    };
    let (host, guest) = rest.rsplit_once('-').ok_or_else(wrong)?;
    let end = |text: &str| -> Result<(Option<IpAddr>, u16), Refusal> {
        let (address, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let address = address.trim_start_matches('[').trim_end_matches(']');
        let address = match address {
            "" => None,
            "localhost" => Some(IpAddr::from([127, 0, 0, 1])),
            address => Some(address.parse().map_err(|_| wrong())?),
        };
        Ok((address, port.parse().map_err(|_| wrong())?))
    };
    let (host, host_port) = end(host)?;
    let (guest, guest_port) = end(guest)?;
    let guest = match guest {
        None => None,
        Some(IpAddr::V4(address)) if guest_port != 0 => Some(address),
        Some(_) => return Err(wrong()),
    };
    Ok(Forward {
        is_udp,
        host,
        host_port,
        guest,
        guest_port,
    })
}

/// A name that DHCP passes on.
fn passed_on(key: &str, name: String) -> Result<String, Refusal> {
    match name.len() <= 127 && !name.contains('\0') {
        true => Ok(name),
        false => Err(format!("{key}: a name has at most 127 bytes").into()),
    }
}

/// Reads what is at the other end of a cable.
fn kind(name: &str, list: &mut KeyValues) -> Result<NetworkKind, Refusal> {
    let kind = match name {
        "user" => {
            let forwards = list.all("hostfwd");
            let forwards = forwards
                .iter()
                .map(|it| forward(it))
                .collect::<Result<_, _>>()?;
            let restrict = list.switch("restrict")?.unwrap_or(false);
            for (key, values) in USUAL {
                if let Some(value) = list.take(key)
                    && !values.contains(&&*value)
                {
                    return Err(format!("{key}={value}: it is always {}", values[0]).into());
                }
            }
            let boot = NetworkBoot {
                tftp: list.take("tftp").map(Into::into),
                file: list
                    .take("bootfile")
                    .map(|it| passed_on("bootfile", it))
                    .transpose()?,
                server_name: (list.take("tftp-server-name"))
                    .map(|it| passed_on("tftp-server-name", it))
                    .transpose()?,
            };
            for key in ["guestfwd", "smb", "smbserver", "dnssearch"] {
                if list.take(key).is_some() {
                    return Err(format!("{key}: user networks do not have it").into());
                }
            }
            NetworkKind::User {
                forwards,
                restrict,
                boot,
            }
        }
        "tap" => match (list.take("fd"), list.take("ifname")) {
            (Some(number), _) => NetworkKind::Descriptor(descriptor(&number)?),
            (None, Some(name)) => {
                for key in ["script", "downscript"] {
                    if list
                        .take(key)
                        .is_some_and(|script| script != "no" && !script.is_empty())
                    {
                        return Err(format!("{key}: scripts are not run; give {key}=no").into());
                    }
                }
                NetworkKind::Tap(name)
            }
            (None, None) => return Err("give ifname= or fd=".into()),
        },
        "stream" | "socket" => {
            if list.switch("server")? == Some(true) || list.take("listen").is_some() {
                return Err("sockets of networks are clients here".into());
            }
            let fd = list.take("fd").or_else(|| match list.peek("addr.type") {
                Some("fd") => list.take("addr.str"),
                _ => None,
            });
            list.ignore(&["addr.type", "reconnect", "reconnect-ms"]);
            match (fd, list.take("addr.path")) {
                (Some(number), _) => NetworkKind::Descriptor(descriptor(&number)?),
                (None, Some(path)) => NetworkKind::Socket(path.into()),
                (None, None) => {
                    return Err("give a Unix socket (addr.type=unix,addr.path=) or fd=".into());
                }
            }
        }
        "bridge" | "hubport" | "l2tpv3" | "vde" | "vhost-user" | "vhost-vdpa" | "dgram"
        | "passt" | "af-xdp" => {
            return Err(
                format!("{name} networks are not there; user, tap, stream and socket are").into(),
            );
        }
        _ => return Err(format!("Parameter 'type' does not accept value '{name}'").into()),
    };
    list.ignore(INDIFFERENT);
    Ok(kind)
}

fn descriptor(text: &str) -> Result<i32, Refusal> {
    let number = text.parse().ok().filter(|number: &i32| *number >= 0);
    number.ok_or_else(|| format!("fd={text}: a descriptor is a number").into())
}

impl Builder {
    /// `-netdev`.
    pub fn netdev(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        self.has_network = true;
        let name = list.required("type")?;
        let id = list.required("id")?;
        let kind = kind(&name, &mut list)?;
        list.end()?;
        if self.netdevs.iter().any(|(known, _)| *known == id) {
            return Err(format!("Duplicate ID '{id}' for netdev").into());
        }
        self.netdevs.push((id, kind));
        Ok(())
    }

    /// Takes the network with this name, for the adapter that uses it.
    pub fn take_netdev(&mut self, id: &str) -> Option<NetworkKind> {
        let place = self.netdevs.iter().position(|(known, _)| known == id)?;
        Some(self.netdevs.remove(place).1)
    }

    /// Reads the model of an adapter that has no device of its own.
    fn model(&mut self, list: &mut KeyValues) -> AdapterModel {
        let model = match list.take("model").as_deref() {
            None => AdapterModel::OfBoard,
            Some("virtio" | "virtio-net-pci" | "virtio-net-device" | "virtio-net") => {
                AdapterModel::Virtio
            }
            Some("e1000" | "e1000-82540em") => AdapterModel::E1000,
            Some(model) => {
                self.warn(format!(
                    "there is no network adapter {model}; the board's own takes its place"
                ));
                AdapterModel::OfBoard
            }
        };
        list.ignore(&["name", "addr", "vectors", "netdev"]);
        model
    }

    /// Gives each adapter whose model is the board's that model: an E1000, as on QEMU's PCs, so that
    /// systems without virtio drivers have a network, and virtio where there is no PC.
    pub fn settle_models(&mut self) {
        let model = match self.config.machine {
            MachineKind::Pc | MachineKind::Q35 => AdapterModel::E1000,
            _ => AdapterModel::Virtio,
        };
        for network in &mut self.config.networks {
            if network.model == AdapterModel::OfBoard {
                network.model = model;
            }
        }
    }

    /// Gives a PC without a network option the user network that it has with QEMU.
    pub fn default_network(&mut self) {
        let is_pc = matches!(self.config.machine, MachineKind::Pc | MachineKind::Q35);
        if is_pc && !self.no_defaults && !self.has_network {
            self.config.networks.push(Network {
                kind: NetworkKind::User {
                    forwards: Vec::new(),
                    restrict: false,
                    boot: NetworkBoot::default(),
                },
                mac: None,
                netdev: None,
                model: AdapterModel::OfBoard,
            });
        }
    }

    /// `-nic`.
    pub fn nic(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        self.has_network = true;
        let name = list.required("type")?;
        if name == "none" {
            return list.end();
        }
        let mac = list.take("mac").or_else(|| list.take("macaddr"));
        let mac = mac.map(|text| self::mac(&text)).transpose()?;
        let model = self.model(&mut list);
        let kind = kind(&name, &mut list)?;
        list.end()?;
        self.config.networks.push(Network {
            kind,
            mac,
            model,
            netdev: None,
        });
        Ok(())
    }

    /// `-net`.
    pub fn net(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        self.has_network = true;
        match list.required("type")?.as_str() {
            "none" => list.end(),
            "nic" => {
                let mac = list
                    .take("macaddr")
                    .map(|text| self::mac(&text))
                    .transpose()?;
                let netdev = list.take("netdev");
                let model = self.model(&mut list);
                if let Some(id) = netdev {
                    let kind = self.take_netdev(&id);
                    let kind = kind.ok_or_else(|| Refusal(format!("netdev '{id}' not found")))?;
                    let netdev = Some(id);
                    (self.config.networks).push(Network {
                        kind,
                        mac,
                        model,
                        netdev,
                    });
                } else {
                    self.old_adapters.push((mac, model));
                }
                list.end()
            }
            name => {
                let kind = kind(name, &mut list)?;
                list.ignore(&["name"]);
                list.end()?;
                self.old_networks.push(kind);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwards_and_addresses_are_read() {
        let read = forward("tcp:127.0.0.1:2222-:22").unwrap();
        assert_eq!(
            (read.is_udp, read.host_port, read.guest_port),
            (false, 2222, 22)
        );
        assert_eq!(forward("udp::53-10.0.2.15:53").unwrap().guest_port, 53);
        assert_eq!(forward(":127.0.0.1:80-:8080").unwrap().host_port, 80);
        for bad in [
            "",
            "tcp::1",
            "tcp:1-2",
            "x::1-:2",
            "tcp::99999-:1",
            "tcp::1-[::1]:2",
        ] {
            assert!(forward(bad).is_err(), "{bad}");
        }
        assert_eq!(
            mac("52:54:00:12:34:56"),
            Ok([0x52, 0x54, 0, 0x12, 0x34, 0x56])
        );
        assert!(mac("52:54").is_err());
    }
}
