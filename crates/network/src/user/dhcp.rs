//! The DHCP server (RFC 2131): one lease, always the same.

use super::addresses::{DNS, GATEWAY, GUEST, PREFIX};
use super::neighbours::GATEWAY_MAC;
use super::packet;
use crate::options::NetworkBoot;
use smoltcp::wire::{
    DHCP_CLIENT_PORT, DHCP_SERVER_PORT, DhcpMessageType, DhcpOption, DhcpPacket, DhcpRepr,
    EthernetAddress, EthernetProtocol, Ipv4Address, Ipv4Cidr, UdpPacket,
};
use std::net::Ipv4Addr;

/// The duration of the lease in seconds.
const LEASE: u32 = 86_400;

/// Options that name what firmware loads (RFC 2132, 9.4 and 9.5).
const TFTP_SERVER_NAME: u8 = 66;
const BOOT_FILE_NAME: u8 = 67;
/// The place of the boot file's name in a message, before the options (RFC 2131, 2).
const BOOT_FILE: std::ops::Range<usize> = 108..236;

/// Returns the frame that answers a datagram, if the datagram is for the server. `boot` is what
/// firmware loads.
pub fn answer(
    mac: EthernetAddress,
    datagram: &[u8],
    destination: Ipv4Address,
    boot: &NetworkBoot,
) -> Option<Vec<u8>> {
    let datagram = UdpPacket::new_checked(datagram).ok()?;
    let is_for_us = datagram.dst_port() == DHCP_SERVER_PORT
        && (destination == Ipv4Addr::BROADCAST || destination == GATEWAY);
    if !is_for_us {
        return None;
    }
    let message = DhcpPacket::new_checked(datagram.payload()).ok()?;
    let message = DhcpRepr::parse(&message).ok()?;
    let mut reply = reply(&message)?;
    let names = [
        (TFTP_SERVER_NAME, &boot.server_name),
        (BOOT_FILE_NAME, &boot.file),
    ];
    let names = names.into_iter().filter_map(|(kind, name)| {
        let data = name.as_ref()?.as_bytes();
        Some(DhcpOption { kind, data })
    });
    let names: Vec<DhcpOption<'_>> = names.collect();
    let is_nak = reply.message_type == DhcpMessageType::Nak;
    if !is_nak {
        reply.additional_options = &names;
    }
    let mut bytes = vec![0; reply.buffer_len()];
    reply
        .emit(&mut DhcpPacket::new_unchecked(&mut bytes[..]))
        .ok()?;
    if let (Some(file), false) = (&boot.file, is_nak) {
        // It ends with a zero.
        let room = bytes.get_mut(BOOT_FILE)?;
        room.get_mut(..file.len())?.copy_from_slice(file.as_bytes());
    }
    // The client has no address yet, or loses the one that it has, so the answer is broadcast. Only
    // a client that sends from an address gets it there.
    let to = match reply.message_type {
        DhcpMessageType::Ack if !message.client_ip.is_unspecified() => message.client_ip,
        _ => Ipv4Addr::BROADCAST,
    };
    let from = (GATEWAY, DHCP_SERVER_PORT).into();
    let packet = packet::udp(from, (to, DHCP_CLIENT_PORT).into(), &bytes)?;
    let kind = EthernetProtocol::Ipv4;
    Some(packet::ethernet(GATEWAY_MAC, mac, kind, &packet))
}

fn reply<'a>(message: &DhcpRepr<'a>) -> Option<DhcpRepr<'a>> {
    let is_for_another = message
        .server_identifier
        .is_some_and(|server| server != GATEWAY);
    let wanted = match message.requested_ip {
        Some(wanted) => wanted,
        None => message.client_ip,
    };
    let message_type = match message.message_type {
        DhcpMessageType::Discover => DhcpMessageType::Offer,
        DhcpMessageType::Request if is_for_another => return None,
        DhcpMessageType::Request if wanted == GUEST => DhcpMessageType::Ack,
        DhcpMessageType::Request => DhcpMessageType::Nak,
        DhcpMessageType::Inform => DhcpMessageType::Ack,
        _ => return None,
    };
    let (is_nak, is_inform) = (
        message_type == DhcpMessageType::Nak,
        message.message_type == DhcpMessageType::Inform,
    );
    let gives_address = !is_nak && !is_inform;
    let tells = |value| (!is_nak).then_some(value);
    Some(DhcpRepr {
        message_type,
        transaction_id: message.transaction_id,
        secs: 0,
        client_hardware_address: message.client_hardware_address,
        client_ip: if is_inform {
            message.client_ip
        } else {
            Ipv4Addr::UNSPECIFIED
        },
        your_ip: if gives_address {
            GUEST
        } else {
            Ipv4Addr::UNSPECIFIED
        },
        server_ip: if is_nak {
            Ipv4Addr::UNSPECIFIED
        } else {
            GATEWAY
        },
        router: tells(GATEWAY),
        subnet_mask: tells(Ipv4Cidr::new(GUEST, PREFIX).netmask()),
        relay_agent_ip: message.relay_agent_ip,
        broadcast: message.broadcast,
        requested_ip: None,
        client_identifier: None,
        server_identifier: Some(GATEWAY),
        parameter_request_list: None,
        dns_servers: (!is_nak).then(|| [DNS].into_iter().collect()),
        max_size: None,
        lease_duration: gives_address.then_some(LEASE),
        renew_duration: None,
        rebind_duration: None,
        additional_options: &[],
    })
}
