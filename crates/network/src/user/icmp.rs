//! ICMP errors: those that report to the guest that its packet did not arrive (RFC 792, RFC 4443),
//! and the guest's own reports of closed ports.

use super::{addresses, packet};
use crate::frame::{add, fold};
use rustix::io::Errno;
use smoltcp::wire::{IpProtocol, Ipv4Packet};
use std::net::{IpAddr, SocketAddr};

/// The size of an ICMP error's header in bytes.
const HEADER: usize = 8;
/// The maximum size of an ICMPv4 error packet in bytes (RFC 1812, section 4.3.2.3).
const IPV4_BYTES: usize = 576;
/// The maximum size of an ICMPv6 error packet in bytes (RFC 4443, section 2.4 (c)).
const IPV6_BYTES: usize = 1280;
/// "Destination unreachable" of ICMPv4.
const UNREACHABLE: u8 = 3;
const HOP_LIMIT: u8 = 64;

/// Why a packet did not arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreachable {
    /// The host has no route to the network.
    Network,
    /// The network has no such host.
    Host,
    /// No socket has the port.
    Port,
    /// The host or a firewall forbids it.
    Prohibited,
    /// The packet is longer than a network on the way accepts, and must not be fragmented.
    TooLong {
        /// The size in bytes of the longest packet that passes.
        mtu: u16,
    },
}

impl Unreachable {
    /// Converts an error of the host's `connect` or `send`. Returns `None` if the error does not
    /// concern the delivery, or if the guest will notice it by a timeout.
    pub const fn of_errno(error: Errno) -> Option<Self> {
        match error {
            Errno::CONNREFUSED => Some(Self::Port),
            Errno::NETUNREACH | Errno::NETDOWN | Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT => {
                Some(Self::Network)
            }
            // The route has the type "blackhole", or the host connects nothing to this address.
            Errno::INVAL => Some(Self::Network),
            Errno::HOSTUNREACH | Errno::HOSTDOWN => Some(Self::Host),
            Errno::PERM | Errno::ACCESS => Some(Self::Prohibited),
            _ => None,
        }
    }

    /// Returns type, code, and the last four bytes of the ICMPv4 header.
    const fn header4(self) -> (u8, u8, u32) {
        match self {
            Self::Network => (UNREACHABLE, 0, 0),
            Self::Host => (UNREACHABLE, 1, 0),
            Self::Port => (UNREACHABLE, 3, 0),
            Self::TooLong { mtu } => (UNREACHABLE, 4, mtu as u32),
            Self::Prohibited => (UNREACHABLE, 13, 0),
        }
    }

    /// Returns type, code, and the last four bytes of the ICMPv6 header.
    const fn header6(self) -> (u8, u8, u32) {
        match self {
            Self::Network => (1, 0, 0),
            Self::Prohibited => (1, 1, 0),
            Self::Host => (1, 3, 0),
            Self::Port => (1, 4, 0),
            Self::TooLong { mtu } => (2, 0, mtu as u32),
        }
    }
}

/// Returns the packet that reports to the guest why its packet `original` did not arrive. Returns
/// `None` if `original` was sent to all hosts or to a group, because there is no such report then
/// (RFC 1122, section 3.2.2).
pub fn unreachable(
    reason: Unreachable,
    (guest, destination): (IpAddr, IpAddr),
    original: &[u8],
) -> Option<Vec<u8>> {
    if !addresses::is_of_one(guest) || !addresses::is_of_one(destination) {
        return None;
    }
    // The host without the port reports that error; the gateway reports all others.
    let reporter = match (reason, destination) {
        (Unreachable::Port, _) => destination,
        (_, IpAddr::V4(_)) => addresses::GATEWAY.into(),
        (_, IpAddr::V6(_)) => addresses::GATEWAY6.into(),
    };
    let is_ipv4 = guest.is_ipv4();
    let ((kind, code, rest), room, protocol) = match is_ipv4 {
        true => (reason.header4(), IPV4_BYTES - 20, IpProtocol::Icmp),
        false => (reason.header6(), IPV6_BYTES - 40, IpProtocol::Icmpv6),
    };
    let quoted = &original[..original.len().min(room - HEADER)];
    let bytes = HEADER + quoted.len();
    let mut error = packet::ip(reporter, guest, protocol, bytes, HOP_LIMIT, |message| {
        message[..2].copy_from_slice(&[kind, code]);
        message[4..8].copy_from_slice(&rest.to_be_bytes());
        message[8..].copy_from_slice(quoted);
    });
    let start = error.len() - bytes;
    let mut sum = add(0, &error[start..]);
    if !is_ipv4 {
        // The pseudo header: addresses, length, next header (RFC 8200, section 8.1).
        sum = add(sum + bytes as u64 + 58, &error[8..40]);
    }
    error[start + 2..start + 4].copy_from_slice(&(!fold(sum)).to_be_bytes());
    Some(error)
}

/// Returns the port of the guest that an ICMPv4 message of the guest reports as closed for UDP.
pub fn closed_port(guest: IpAddr, message: &[u8]) -> Option<SocketAddr> {
    let [UNREACHABLE, 3, ..] = message else {
        return None;
    };
    let quoted = message.get(HEADER..)?;
    let header_bytes = usize::from(*quoted.first()? & 15) * 4;
    let ports = quoted.get(header_bytes..header_bytes + 4)?;
    let header = Ipv4Packet::new_unchecked(quoted.get(..20)?);
    let is_to_guest = header_bytes >= 20
        && header.version() == 4
        && header.next_header() == IpProtocol::Udp
        && IpAddr::from(header.dst_addr()) == guest;
    is_to_guest.then(|| (guest, u16::from_be_bytes([ports[2], ports[3]])).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{Icmpv4DstUnreachable, Icmpv4Packet};
    use smoltcp::wire::{Icmpv6Packet, Icmpv6Repr, Ipv6Packet};

    fn original(from: &str, to: &str, bytes: usize) -> (Vec<u8>, (IpAddr, IpAddr)) {
        let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let packet = packet::udp(from, to, &vec![7; bytes]).unwrap();
        (packet, (from.ip(), to.ip()))
    }

    #[test]
    fn errors_of_ipv4_quote_the_packet_with_right_checksums() {
        for (reason, expected, reporter) in [
            (
                Unreachable::Port,
                Icmpv4DstUnreachable::PortUnreachable,
                "192.0.2.1",
            ),
            (
                Unreachable::Network,
                Icmpv4DstUnreachable::NetUnreachable,
                "10.0.2.2",
            ),
            (
                Unreachable::Host,
                Icmpv4DstUnreachable::HostUnreachable,
                "10.0.2.2",
            ),
            (
                Unreachable::Prohibited,
                Icmpv4DstUnreachable::CommProhibited,
                "10.0.2.2",
            ),
            (
                Unreachable::TooLong { mtu: 1400 },
                Icmpv4DstUnreachable::FragRequired,
                "10.0.2.2",
            ),
        ] {
            for bytes in [1, 1472, 65_507] {
                let (original, ends) = original("10.0.2.15:4000", "192.0.2.1:9", bytes);
                let error = unreachable(reason, ends, &original).unwrap();
                assert!(error.len() <= IPV4_BYTES);
                let ip = Ipv4Packet::new_checked(&error[..]).unwrap();
                assert!(ip.verify_checksum());
                assert_eq!(ip.src_addr().to_string(), reporter);
                assert_eq!(IpAddr::from(ip.dst_addr()), ends.0);
                let message = Icmpv4Packet::new_checked(ip.payload()).unwrap();
                assert!(message.verify_checksum());
                assert_eq!(Icmpv4DstUnreachable::from(message.msg_code()), expected);
                let quoted = &ip.payload()[8..];
                assert_eq!(quoted, &original[..quoted.len()]);
                assert!(quoted.len() >= 28);
            }
        }
        let (original, ends) = original("10.0.2.15:4000", "192.0.2.1:9", 10);
        let error = unreachable(Unreachable::TooLong { mtu: 1400 }, ends, &original).unwrap();
        assert_eq!(error[24..28], 1400u32.to_be_bytes());
    }

    #[test]
    fn errors_of_ipv6_quote_the_packet_with_right_checksums() {
        for (reason, kind) in [
            (Unreachable::Port, (1, 4)),
            (Unreachable::Network, (1, 0)),
            (Unreachable::Host, (1, 3)),
            (Unreachable::Prohibited, (1, 1)),
            (Unreachable::TooLong { mtu: 1400 }, (2, 0)),
        ] {
            let (original, ends) = original("[fec0::15]:4000", "[2001:db8::1]:9", 1451);
            let error = unreachable(reason, ends, &original).unwrap();
            assert!(error.len() <= IPV6_BYTES);
            let ip = Ipv6Packet::new_checked(&error[..]).unwrap();
            let message = Icmpv6Packet::new_checked(ip.payload()).unwrap();
            assert_eq!((message.msg_type().into(), message.msg_code()), kind);
            let checks = ChecksumCapabilities::default();
            Icmpv6Repr::parse(&ip.src_addr(), &ip.dst_addr(), &message, &checks).unwrap();
        }
    }

    #[test]
    fn packets_to_groups_and_to_all_are_not_answered() {
        for to in ["224.0.0.251:5353", "255.255.255.255:9", "10.0.2.255:9"] {
            let (original, ends) = original("10.0.2.15:4000", to, 5);
            assert_eq!(
                unreachable(Unreachable::Port, ends, &original),
                None,
                "{to}"
            );
        }
    }

    #[test]
    fn the_guests_own_errors_name_its_port() {
        let (original, (from, guest)) = original("192.0.2.1:53", "10.0.2.15:4000", 30);
        let error = unreachable(Unreachable::Port, (from, guest), &original).unwrap();
        let message = &error[20..];
        let port = Some("10.0.2.15:4000".parse().unwrap());
        assert_eq!(closed_port(guest, message), port);
        // A message about another address, or a truncated one, is ignored.
        assert_eq!(closed_port(from, message), None);
        for bytes in 0..HEADER + 24 {
            assert_eq!(closed_port(guest, &message[..bytes]), None);
        }
        let other = unreachable(Unreachable::Host, (from, guest), &original).unwrap();
        assert_eq!(closed_port(guest, &other[20..]), None);
    }
}
