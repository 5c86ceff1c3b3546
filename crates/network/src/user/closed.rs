//! Addresses that are closed to the guest unless a rule opens just them: this host's loopback
//! address, and the addresses of the link, where clouds keep the credentials of their machines.

use super::addresses;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closed {
    /// It is this host's loopback address.
    Loopback,
    /// It is in this block of addresses of the link, or of a cloud's services for its machines.
    Link(IpNet),
}

/// Link-local addresses (RFC 3927), with the metadata service of most clouds at 169.254.169.254.
const LINK4: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16);
/// Link-local addresses (RFC 4291, section 2.5.6).
const LINK6: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10);

/// Services of clouds for their machines, which are not at a link-local address: Azure, Alibaba,
/// Oracle.
const SERVICES4: [Ipv4Net; 3] = [
    Ipv4Net::new_assert(Ipv4Addr::new(168, 63, 129, 16), 32),
    Ipv4Net::new_assert(Ipv4Addr::new(100, 100, 100, 200), 32),
    Ipv4Net::new_assert(Ipv4Addr::new(192, 0, 0, 192), 32),
];
/// The same over IPv6: Amazon (fd00:ec2::254 and its neighbours), Google.
const SERVICES6: [Ipv6Net; 2] = [
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0), 64),
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), 128),
];

/// Addresses that contain one of IPv4 (RFC 6052, section 2.1; RFC 3056).
const NAT64: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);
const SIX_TO_FOUR: u16 = 0x2002;

/// Returns why an address of the guest's view is closed; `None` if it is open.
pub fn closed(address: IpAddr) -> Option<Closed> {
    if addresses::is_gateway(address) {
        return Some(Closed::Loopback);
    }
    match (address, contained(address)) {
        (IpAddr::V4(address), _) => closed4(address),
        // A translator or relay delivers it to the address that it contains. Only a rule for exactly
        // this address opens it.
        (address, Some(contained)) if is_closed_or_own(contained) => {
            Some(Closed::Link(address.into()))
        }
        (IpAddr::V6(address), _) => {
            let blocks = [LINK6].into_iter().chain(SERVICES6);
            blocks_with(blocks, &address).map(|block| Closed::Link(block.into()))
        }
    }
}

fn closed4(address: Ipv4Addr) -> Option<Closed> {
    let mut blocks = [LINK4].into_iter().chain(SERVICES4);
    let block = blocks.find(|block| block.contains(&address))?;
    Some(Closed::Link(block.into()))
}

fn blocks_with(mut blocks: impl Iterator<Item = Ipv6Net>, address: &Ipv6Addr) -> Option<Ipv6Net> {
    blocks.find(|block| block.contains(address))
}

fn is_closed_or_own(address: Ipv4Addr) -> bool {
    let is_own = address.is_loopback() || address.is_unspecified();
    is_own || closed4(address).is_some()
}

/// Returns the IPv4 address that an IPv6 address contains.
pub fn contained(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(address) = address else {
        return None;
    };
    let bytes = address.octets();
    let four = |from: usize| Ipv4Addr::from([0, 1, 2, 3].map(|index| bytes[from + index]));
    if let Some(mapped) = address.to_ipv4_mapped() {
        return Some(mapped);
    }
    if NAT64.contains(&address) {
        return Some(four(12));
    }
    (address.segments()[0] == SIX_TO_FOUR).then(|| four(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_closed(address: &str) -> bool {
        closed(address.parse().unwrap()).is_some()
    }

    #[test]
    fn the_hosts_loopback_and_the_link_are_closed_in_every_form() {
        for address in [
            "10.0.2.2",
            "fec0::2",
            "fe80::2",
            "169.254.169.254",
            "169.254.0.1",
            "fe80::1",
            "febf::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "168.63.129.16",
            "100.100.100.200",
            "192.0.0.192",
            "::ffff:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b::127.0.0.1",
            "2002:a9fe:a9fe::1",
            "2002:7f00:1::",
        ] {
            assert!(is_closed(address), "{address}");
        }
    }

    #[test]
    fn other_addresses_are_open() {
        for address in [
            "192.0.2.1",
            "10.0.2.3",
            "10.1.2.3",
            "169.253.255.255",
            "169.255.0.0",
            "2001:db8::1",
            "fec0::1",
            "fd00::1",
            "64:ff9b::192.0.2.1",
            "2002:c000:201::1",
        ] {
            assert!(!is_closed(address), "{address}");
        }
    }
}
