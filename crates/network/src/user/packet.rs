//! Makes the packets that user networking sends to the guest.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, IpRepr, Ipv4Packet, Ipv6Packet,
    UdpPacket, UdpRepr,
};
use std::net::{IpAddr, SocketAddr};

/// The maximum size in bytes of an IP packet in the guest's network.
pub const MTU: usize = 1500;
const HOP_LIMIT: u8 = 64;
/// The size of a UDP header in bytes.
const UDP_HEADER: usize = 8;

/// Makes an Ethernet frame with this payload.
pub fn ethernet(
    source: EthernetAddress,
    destination: EthernetAddress,
    kind: EthernetProtocol,
    payload: &[u8],
) -> Vec<u8> {
    let mut bytes = vec![0; EthernetFrame::<&[u8]>::buffer_len(payload.len())];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes);
    frame.set_src_addr(source);
    frame.set_dst_addr(destination);
    frame.set_ethertype(kind);
    frame.payload_mut().copy_from_slice(payload);
    bytes
}

/// Makes an IP packet of this protocol, whose payload `fill` writes. Both addresses must be of one
/// family, and the payload with its header must be shorter than 64 KiB.
pub fn ip(
    source: IpAddr,
    destination: IpAddr,
    protocol: IpProtocol,
    bytes: usize,
    hop_limit: u8,
    fill: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let repr = IpRepr::new(
        source.into(),
        destination.into(),
        protocol,
        bytes,
        hop_limit,
    );
    let mut packet = vec![0; repr.buffer_len()];
    repr.emit(&mut packet[..], &ChecksumCapabilities::default());
    fill(&mut packet[repr.header_len()..]);
    packet
}

/// Makes a UDP datagram as one IP packet. Returns `None` if the addresses are not of one family or
/// the datagram is too long.
pub fn udp(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Option<Vec<u8>> {
    let fits = payload.len() <= 65_535 - 20 - UDP_HEADER;
    if source.is_ipv4() != destination.is_ipv4() || !fits {
        return None;
    }
    let repr = UdpRepr {
        src_port: source.port(),
        dst_port: destination.port(),
    };
    let bytes = UDP_HEADER + payload.len();
    let (from, to) = (source.ip(), destination.ip());
    Some(ip(from, to, IpProtocol::Udp, bytes, HOP_LIMIT, |buffer| {
        let mut datagram = UdpPacket::new_unchecked(buffer);
        repr.emit(
            &mut datagram,
            &from.into(),
            &to.into(),
            payload.len(),
            |room| room.copy_from_slice(payload),
            &ChecksumCapabilities::default(),
        );
    }))
}

/// Splits an IP packet without options into fragments of at most [`MTU`] bytes (RFC 791, section
/// 3.2, and RFC 8200, section 4.5). `identification` distinguishes the fragments of one packet from
/// those of others.
pub fn fragments(packet: &[u8], identification: u32) -> Vec<Vec<u8>> {
    match packet[0] >> 4 {
        4 => fragments4(packet, identification as u16),
        _ => fragments6(packet, identification),
    }
}

fn fragments4(packet: &[u8], identification: u16) -> Vec<Vec<u8>> {
    const HEADER: usize = 20;
    // Fragments begin at multiples of eight.
    const PIECE: usize = (MTU - HEADER) / 8 * 8;
    let (header, payload) = packet.split_at(HEADER);
    let count = payload.len().div_ceil(PIECE);
    let pieces = payload.chunks(PIECE).enumerate();
    pieces
        .map(|(index, piece)| {
            let mut bytes = [header, piece].concat();
            let total = bytes.len() as u16;
            let mut fragment = Ipv4Packet::new_unchecked(&mut bytes[..]);
            fragment.set_total_len(total);
            fragment.set_ident(identification);
            fragment.clear_flags();
            fragment.set_more_frags(index + 1 < count);
            fragment.set_frag_offset((index * PIECE) as u16);
            fragment.fill_checksum();
            bytes
        })
        .collect()
}

fn fragments6(packet: &[u8], identification: u32) -> Vec<Vec<u8>> {
    const HEADER: usize = 40;
    const FRAGMENT_HEADER: usize = 8;
    const PIECE: usize = (MTU - HEADER - FRAGMENT_HEADER) / 8 * 8;
    let (header, payload) = packet.split_at(HEADER);
    let count = payload.len().div_ceil(PIECE);
    let pieces = payload.chunks(PIECE).enumerate();
    pieces
        .map(|(index, piece)| {
            let place = (index * PIECE) as u16 | u16::from(index + 1 < count);
            let mut extension = vec![Ipv6Packet::new_unchecked(packet).next_header().into(), 0];
            extension.extend(place.to_be_bytes());
            extension.extend(identification.to_be_bytes());
            let mut bytes = [header, &extension, piece].concat();
            let payload_bytes = (bytes.len() - HEADER) as u16;
            let mut fragment = Ipv6Packet::new_unchecked(&mut bytes[..]);
            fragment.set_payload_len(payload_bytes);
            fragment.set_next_header(IpProtocol::Ipv6Frag);
            bytes
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::wire::IpAddress;

    #[test]
    fn datagrams_have_right_checksums_over_both_versions() {
        let v4 = udp(
            "192.0.2.1:53".parse().unwrap(),
            "10.0.2.15:4000".parse().unwrap(),
            b"answer",
        );
        let v4 = v4.unwrap();
        let packet = Ipv4Packet::new_checked(&v4[..]).unwrap();
        assert!(packet.verify_checksum());
        let datagram = UdpPacket::new_checked(packet.payload()).unwrap();
        let (from, to) = (packet.src_addr().into(), packet.dst_addr().into());
        assert!(datagram.verify_checksum(&from, &to));
        assert_eq!(datagram.payload(), b"answer");
        let v6 = udp(
            "[2001:db8::1]:53".parse().unwrap(),
            "[fec0::15]:4000".parse().unwrap(),
            b"odd",
        );
        let v6 = v6.unwrap();
        let packet = Ipv6Packet::new_checked(&v6[..]).unwrap();
        let datagram = UdpPacket::new_checked(packet.payload()).unwrap();
        let (from, to): (IpAddress, IpAddress) =
            (packet.src_addr().into(), packet.dst_addr().into());
        assert!(datagram.verify_checksum(&from, &to));
        let mixed = udp(
            "192.0.2.1:53".parse().unwrap(),
            "[fec0::15]:4000".parse().unwrap(),
            b"",
        );
        assert_eq!(mixed, None);
    }

    #[test]
    fn long_datagrams_come_in_fragments() {
        let payload: Vec<u8> = (0..5000u32).map(|n| n as u8).collect();
        let packet = udp(
            "192.0.2.1:53".parse().unwrap(),
            "10.0.2.15:4000".parse().unwrap(),
            &payload,
        );
        let packet = packet.unwrap();
        let mut whole = vec![0; packet.len() - 20];
        let pieces = fragments(&packet, 7);
        assert_eq!(pieces.len(), 4);
        for (index, piece) in pieces.iter().enumerate() {
            assert!(piece.len() <= MTU);
            let piece = Ipv4Packet::new_checked(&piece[..]).unwrap();
            assert!(piece.verify_checksum());
            assert_eq!(piece.ident(), 7);
            assert_eq!(piece.more_frags(), index < 3);
            let start = usize::from(piece.frag_offset());
            whole[start..start + piece.payload().len()].copy_from_slice(piece.payload());
        }
        assert_eq!(whole, packet[20..]);
    }
}
