//! The addresses of the user network and their meaning.

use super::resolver::Resolver;
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The guest's address as DHCP assigns it.
pub const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
/// The gateway, which for the guest is also the host's loopback address.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// The name server.
pub const DNS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
/// The number of bits of the network's prefix.
pub const PREFIX: u8 = 24;

/// The gateway's IPv6 address.
pub const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 2);
/// The gateway's link-local address, which advertises the network.
pub const GATEWAY6_LINK: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
/// The name server's IPv6 address.
pub const DNS6: Ipv6Addr = Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 3);
/// The network's prefix of 64 bits.
pub const NETWORK6: Ipv6Addr = Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0);

/// The port of name servers.
pub const DNS_PORT: u16 = 53;

/// The guest's addresses and their counterparts on the host.
pub struct Addresses {
    /// Whether the host, and so the guest, has IPv6.
    pub has_ipv6: bool,
    /// Whether the guest can reach other hosts. Tests stay on this one.
    pub has_world: bool,
    pub(super) resolver: RefCell<Resolver>,
}

impl Addresses {
    /// Determines the addresses from this host.
    pub fn of_host() -> Self {
        Self {
            has_ipv6: host_has_ipv6(),
            has_world: true,
            resolver: RefCell::new(Resolver::of_host()),
        }
    }

    #[cfg(test)]
    pub fn with_resolver(has_ipv6: bool, servers: &[SocketAddr]) -> Self {
        Self {
            has_ipv6,
            has_world: true,
            resolver: RefCell::new(Resolver::fixed(servers)),
        }
    }

    /// Returns the host's name servers, in the order in which they are asked.
    pub fn name_servers(&self) -> Vec<SocketAddr> {
        self.resolver.borrow_mut().servers().to_vec()
    }

    /// Returns the host's address for the guest's `address`, or `None` if it has none.
    pub fn outside(&self, address: SocketAddr) -> Option<SocketAddr> {
        let ip = address.ip();
        if is_gateway(ip) {
            let loopback: IpAddr = match ip {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            };
            return Some((loopback, address.port()).into());
        }
        if is_dns(ip) {
            return match address.port() {
                DNS_PORT => self.resolver.borrow_mut().servers().first().copied(),
                _ => None,
            };
        }
        let is_own = match ip {
            IpAddr::V4(ip) => ip.octets()[..3] == GATEWAY.octets()[..3],
            IpAddr::V6(ip) => ip.segments()[..4] == GATEWAY6.segments()[..4],
        };
        (self.has_world && is_of_one(ip) && !is_own).then_some(address)
    }

    /// Returns the guest's address for the host's `address`. A host name server is `name_server`
    /// for the guest.
    pub fn inside(&self, address: SocketAddr, name_server: Option<IpAddr>) -> SocketAddr {
        let ip = address.ip();
        // A name server on the loopback address is primarily the name server and not the gateway.
        if let Some(name_server) = name_server {
            return (name_server, DNS_PORT).into();
        }
        let inside: IpAddr = match ip {
            IpAddr::V4(ip) if ip.is_loopback() => GATEWAY.into(),
            IpAddr::V6(ip) if ip.is_loopback() => GATEWAY6.into(),
            other => other,
        };
        (inside, address.port()).into()
    }
}

/// Whether an address is the gateway's.
pub fn is_gateway(address: IpAddr) -> bool {
    address == GATEWAY || address == GATEWAY6 || address == GATEWAY6_LINK
}

/// Whether an address is the name server's.
pub fn is_dns(address: IpAddr) -> bool {
    address == DNS || address == DNS6
}

/// Whether an address is that of a single other host: not a group, not all hosts, and not the
/// sender.
pub fn is_of_one(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => {
            let is_zero = ip.octets()[0] == 0;
            // The host decides whether addresses from 240.0.0.0 on are hosts: Linux routes them
            // like all others.
            !(is_zero || ip.is_broadcast() || ip.is_multicast() || ip.is_loopback())
                && ip != Ipv4Addr::new(10, 0, 2, 255)
        }
        IpAddr::V6(ip) => {
            !(ip.is_multicast() || ip.is_loopback() || ip.is_unspecified())
                && ip.to_ipv4().is_none()
        }
    }
}

/// Whether the host has a route to the Internet by IPv6. Nothing is sent.
fn host_has_ipv6() -> bool {
    let anywhere = Ipv6Addr::new(0x2001, 0x4860, 0, 0, 0, 0, 0, 1);
    UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))
        .and_then(|socket| socket.connect((anywhere, 9)))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outside(address: &str) -> Option<String> {
        let addresses = Addresses::with_resolver(true, &["127.0.0.53:53".parse().unwrap()]);
        let outside = addresses.outside(address.parse().unwrap());
        outside.map(|address| address.to_string())
    }

    #[test]
    fn the_guest_reaches_the_loopback_the_resolver_and_the_world() {
        for (inside, expected) in [
            ("10.0.2.2:80", Some("127.0.0.1:80")),
            ("[fec0::2]:80", Some("[::1]:80")),
            ("10.0.2.3:53", Some("127.0.0.53:53")),
            ("10.0.2.3:80", None),
            ("192.0.2.1:80", Some("192.0.2.1:80")),
            ("10.0.2.99:80", None),
            ("10.0.2.255:80", None),
            ("127.0.0.1:80", None),
            ("0.0.0.0:80", None),
            ("240.0.0.1:80", Some("240.0.0.1:80")),
            ("255.255.255.255:80", None),
            ("224.0.0.251:5353", None),
            ("[::1]:80", None),
            ("[::ffff:127.0.0.1]:80", None),
            ("[::127.0.0.1]:80", None),
            ("[fec0::99]:80", None),
            ("[ff02::1]:80", None),
            ("[2001:db8::1]:80", Some("[2001:db8::1]:80")),
        ] {
            assert_eq!(outside(inside).as_deref(), expected, "{inside}");
        }
    }
}
