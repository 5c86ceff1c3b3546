//! Ethernet addresses: the network's own, which the guest requests by ARP (RFC 826) and neighbour
//! discovery (RFC 4861), and the guest's, which are learned.

use super::addresses::{self, Addresses, DNS, DNS6, GATEWAY, GATEWAY6, GATEWAY6_LINK, NETWORK6};
use super::packet;
use crate::options::MacAddress;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::time::Duration;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetProtocol, Icmpv6Packet, Icmpv6Repr,
    IpProtocol, Ipv6Packet, NdiscNeighborFlags, NdiscPrefixInfoFlags, NdiscPrefixInformation,
    NdiscRepr, NdiscRouterFlags,
};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// The gateway and every address beyond it, as in QEMU.
pub const GATEWAY_MAC: EthernetAddress = EthernetAddress([0x52, 0x55, 10, 0, 2, 2]);
/// The name server.
const DNS_MAC: EthernetAddress = EthernetAddress([0x52, 0x55, 10, 0, 2, 3]);
/// The maximum number of the guest's addresses that are remembered.
const MAX_LEARNED: usize = 256;
/// How long the guest may use the network after an advertisement, in seconds.
const ADVERTISED: u64 = 86_400;
/// The hop limit of neighbour discovery.
const ON_LINK: u8 = 255;
/// All nodes on the link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The Ethernet address of each IP address.
pub struct Neighbours {
    /// The adapter's address, for IP addresses that have not sent anything yet.
    adapter: EthernetAddress,
    learned: HashMap<IpAddr, EthernetAddress>,
}

impl Neighbours {
    pub fn new(adapter: MacAddress) -> Self {
        Self {
            adapter: EthernetAddress(adapter.0),
            learned: HashMap::new(),
        }
    }

    /// Records that the guest has sent from this address.
    pub fn learn(&mut self, address: IpAddr, mac: EthernetAddress) {
        if self.learned.len() < MAX_LEARNED || self.learned.contains_key(&address) {
            self.learned.insert(address, mac);
        }
    }

    /// Returns the Ethernet address of one of the guest's IP addresses.
    pub fn mac(&self, address: IpAddr) -> EthernetAddress {
        self.learned.get(&address).copied().unwrap_or(self.adapter)
    }

    /// Returns the frame for an IP packet.
    pub fn frame(&self, packet: &[u8], addresses: &Addresses) -> Option<Vec<u8>> {
        let (kind, to): (_, IpAddr) = match packet.first()? >> 4 {
            4 => {
                let to: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
                (EthernetProtocol::Ipv4, to.into())
            }
            6 if addresses.has_ipv6 => {
                let to: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
                (EthernetProtocol::Ipv6, to.into())
            }
            _ => return None,
        };
        Some(packet::ethernet(GATEWAY_MAC, self.mac(to), kind, packet))
    }

    /// Returns the frame that answers an ARP packet, if it asks for one of the network's addresses.
    pub fn arp(&mut self, payload: &[u8]) -> Option<Vec<u8>> {
        let request = ArpRepr::parse(&ArpPacket::new_checked(payload).ok()?).ok()?;
        let ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: mac,
            source_protocol_addr: address,
            target_protocol_addr: wanted,
            ..
        } = request
        else {
            return None;
        };
        if mac.is_unicast() && addresses::is_of_one(address.into()) {
            self.learn(address.into(), mac);
        }
        let own = match wanted {
            GATEWAY => GATEWAY_MAC,
            DNS => DNS_MAC,
            _ => return None,
        };
        if operation != ArpOperation::Request || !mac.is_unicast() {
            return None;
        }
        let reply = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Reply,
            source_hardware_addr: own,
            source_protocol_addr: wanted,
            target_hardware_addr: mac,
            target_protocol_addr: address,
        };
        let mut bytes = vec![0; reply.buffer_len()];
        reply.emit(&mut ArpPacket::new_unchecked(&mut bytes[..]));
        Some(packet::ethernet(own, mac, EthernetProtocol::Arp, &bytes))
    }

    /// Returns the frame that answers a solicitation for routers, or for one of the network's
    /// addresses.
    pub fn solicited(
        &mut self,
        mac: EthernetAddress,
        packet: &Ipv6Packet<&[u8]>,
    ) -> Option<Vec<u8>> {
        let message = Icmpv6Packet::new_checked(packet.payload()).ok()?;
        let (source, destination) = (packet.src_addr(), packet.dst_addr());
        // The adapter may still have to complete the checksum.
        let ignored = ChecksumCapabilities::ignored();
        let repr = Icmpv6Repr::parse(&source, &destination, &message, &ignored).ok()?;
        let Icmpv6Repr::Ndisc(solicitation) = repr else {
            return None;
        };
        if packet.hop_limit() != ON_LINK {
            return None;
        }
        if addresses::is_of_one(source.into()) {
            self.learn(source.into(), mac);
        }
        let (from, own, reply) = match solicitation {
            NdiscRepr::RouterSolicit { .. } => (GATEWAY6_LINK, GATEWAY_MAC, advertisement()),
            NdiscRepr::NeighborSolicit { target_addr, .. } => {
                let own = match target_addr {
                    GATEWAY6 | GATEWAY6_LINK => GATEWAY_MAC,
                    DNS6 => DNS_MAC,
                    _ => return None,
                };
                let reply = NdiscRepr::NeighborAdvert {
                    flags: NdiscNeighborFlags::SOLICITED
                        | NdiscNeighborFlags::OVERRIDE
                        | NdiscNeighborFlags::ROUTER,
                    target_addr,
                    lladdr: Some(own.into()),
                };
                (target_addr, own, reply)
            }
            _ => return None,
        };
        // A sender without an address gets the answer to all nodes.
        let to = if source.is_unspecified() {
            ALL_NODES
        } else {
            source
        };
        let reply = Icmpv6Repr::Ndisc(reply);
        let answer = packet::ip(
            from.into(),
            to.into(),
            IpProtocol::Icmpv6,
            reply.buffer_len(),
            ON_LINK,
            |buffer| {
                let mut message = Icmpv6Packet::new_unchecked(buffer);
                reply.emit(&from, &to, &mut message, &ChecksumCapabilities::default());
            },
        );
        Some(packet::ethernet(own, mac, EthernetProtocol::Ipv6, &answer))
    }
}

/// Returns the gateway's advertisement of the network.
fn advertisement() -> NdiscRepr<'static> {
    NdiscRepr::RouterAdvert {
        hop_limit: 64,
        flags: NdiscRouterFlags::empty(),
        router_lifetime: Duration::from_secs(1800),
        reachable_time: Duration::ZERO,
        retrans_time: Duration::ZERO,
        lladdr: Some(GATEWAY_MAC.into()),
        mtu: Some(packet::MTU as u32),
        prefix_info: Some(NdiscPrefixInformation {
            prefix_len: 64,
            flags: NdiscPrefixInfoFlags::ON_LINK | NdiscPrefixInfoFlags::ADDRCONF,
            valid_lifetime: Duration::from_secs(ADVERTISED),
            preferred_lifetime: Duration::from_secs(ADVERTISED),
            prefix: NETWORK6,
        }),
    }
}
