//! Reassembly of the guest's fragments (RFC 791, section 3.2, and RFC 8200, section 4.5).
//!
//! ```text
//!   fragment --> key: addresses, protocol, identification --> a partial packet
//!                                                              data, up to 64 KiB
//!                                                              one bit for each 8 bytes
//!   all bits of a known length are set --> the whole packet, as if it had never been cut
//! ```
//!
//! A hostile guest may send overlapping fragments, packets that are never complete, or very many
//! fragments. A fragment that overlaps another discards the packet of both (RFC 5722). A packet
//! that is not complete after [`TIMEOUT`] is discarded. If there are [`MAX_PARTIAL`] packets, the
//! oldest makes room for one more. So at most `MAX_PARTIAL` times 65 KiB are kept.

use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6Packet};
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The maximum number of incomplete packets.
const MAX_PARTIAL: usize = 64;
/// The maximum time until all fragments of a packet have arrived, as in Linux.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Fragments begin at multiples of this number of bytes.
const UNIT: usize = 8;
/// The maximum number of data bytes of a packet.
const MAX_DATA: usize = 65_535 - IPV4_HEADER;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
/// The size of the IPv6 fragment header in bytes.
const FRAGMENT_HEADER: usize = 8;

/// The fields that all fragments of one packet share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    source: IpAddr,
    destination: IpAddr,
    /// Used only for IPv4: in IPv6 the first fragment determines the protocol.
    protocol: u8,
    identification: u32,
}

/// One fragment.
struct Fragment<'a> {
    key: Key,
    /// The offset of its data in the packet's data.
    offset: usize,
    /// Whether other fragments follow.
    has_more: bool,
    /// The header of the whole packet if this is the first fragment.
    header: Vec<u8>,
    data: &'a [u8],
}

/// One bit for each unit of a packet's data.
struct Present([u64; WORDS]);

/// The number of 64-bit words for the bits of the longest packet.
const WORDS: usize = MAX_DATA.div_ceil(UNIT * 64);

impl Present {
    fn count(&self, units: std::ops::Range<usize>) -> usize {
        units
            .filter(|unit| self.0[unit / 64] >> (unit % 64) & 1 != 0)
            .count()
    }

    fn set(&mut self, units: std::ops::Range<usize>) {
        units.for_each(|unit| self.0[unit / 64] |= 1 << (unit % 64));
    }
}

/// A packet of which fragments are missing.
struct Partial {
    begun: Instant,
    /// The header of the first fragment, once it has arrived.
    header: Option<Vec<u8>>,
    data: Vec<u8>,
    present: Box<Present>,
    /// The number of bits of `present` that are set.
    units: usize,
    /// The length of the data, once the last fragment has arrived.
    length: Option<usize>,
}

/// The state of a packet after a fragment.
enum Outcome {
    Incomplete,
    Complete,
    /// The fragments contradict each other.
    Broken,
}

impl Partial {
    fn new(begun: Instant) -> Self {
        Self {
            begun,
            header: None,
            data: Vec::new(),
            present: Box::new(Present([0; WORDS])),
            units: 0,
            length: None,
        }
    }

    fn add(&mut self, fragment: Fragment<'_>) -> Outcome {
        let end = fragment.offset + fragment.data.len();
        let is_beyond_end = match (self.length, fragment.has_more) {
            (Some(length), true) => end > length,
            (Some(length), false) => end != length,
            (None, true) => false,
            (None, false) => end < self.data.len(),
        };
        if end > MAX_DATA || is_beyond_end {
            return Outcome::Broken;
        }
        let units = fragment.offset / UNIT..end.div_ceil(UNIT);
        match self.present.count(units.clone()) {
            0 => {}
            // A network may deliver a fragment twice.
            known if known == units.len() => return Outcome::Incomplete,
            _ => return Outcome::Broken,
        }
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        self.data[fragment.offset..end].copy_from_slice(fragment.data);
        self.units += units.len();
        self.present.set(units);
        if !fragment.has_more {
            self.length = Some(end);
        }
        if fragment.offset == 0 {
            self.header = Some(fragment.header);
        }
        match self.length {
            Some(length) if self.units == length.div_ceil(UNIT) => Outcome::Complete,
            _ => Outcome::Incomplete,
        }
    }

    /// Returns the packet, all fragments of which have arrived.
    fn whole(self) -> Option<Vec<u8>> {
        let mut packet = self.header?;
        let bytes = self.data.len() as u16;
        if packet[0] >> 4 == 4 {
            packet.extend(self.data);
            let mut header = Ipv4Packet::new_unchecked(&mut packet[..]);
            header.set_total_len(IPV4_HEADER as u16 + bytes);
            header.fill_checksum();
        } else {
            packet.extend(self.data);
            Ipv6Packet::new_unchecked(&mut packet[..]).set_payload_len(bytes);
        }
        Some(packet)
    }
}

/// All packets of which fragments are missing.
#[derive(Default)]
pub struct Reassembly {
    partial: HashMap<Key, Partial>,
}

impl Reassembly {
    /// Whether there are no packets that could time out.
    pub fn is_empty(&self) -> bool {
        self.partial.is_empty()
    }

    /// Adds an IPv4 fragment, and returns the packet that it completes. `packet` has been checked,
    /// and ends where its header says.
    pub fn ipv4(&mut self, packet: &Ipv4Packet<&[u8]>, now: Instant) -> Option<Vec<u8>> {
        let mut header = packet.as_ref().get(..IPV4_HEADER)?.to_vec();
        let mut whole = Ipv4Packet::new_unchecked(&mut header[..]);
        // Options are dropped, because no code here reads them.
        whole.set_header_len(IPV4_HEADER as u8);
        whole.clear_flags();
        whole.set_frag_offset(0);
        self.add(
            Fragment {
                key: Key {
                    source: packet.src_addr().into(),
                    destination: packet.dst_addr().into(),
                    protocol: packet.next_header().into(),
                    identification: packet.ident().into(),
                },
                offset: packet.frag_offset().into(),
                has_more: packet.more_frags(),
                header,
                data: packet.payload(),
            },
            now,
        )
    }

    /// Adds an IPv6 fragment, and returns the packet that it completes.
    pub fn ipv6(&mut self, packet: &Ipv6Packet<&[u8]>, now: Instant) -> Option<Vec<u8>> {
        let (extension, data) = packet.payload().split_at_checked(FRAGMENT_HEADER)?;
        let place = u16::from_be_bytes([extension[2], extension[3]]);
        let mut header = packet.as_ref().get(..IPV6_HEADER)?.to_vec();
        let mut whole = Ipv6Packet::new_unchecked(&mut header[..]);
        whole.set_next_header(IpProtocol::from(extension[0]));
        let identification = [extension[4], extension[5], extension[6], extension[7]];
        self.add(
            Fragment {
                key: Key {
                    source: packet.src_addr().into(),
                    destination: packet.dst_addr().into(),
                    protocol: 0,
                    identification: u32::from_be_bytes(identification),
                },
                offset: usize::from(place & !7),
                has_more: place & 1 != 0,
                header,
                data,
            },
            now,
        )
    }

    fn add(&mut self, fragment: Fragment<'_>, now: Instant) -> Option<Vec<u8>> {
        let bytes = fragment.data.len();
        if bytes == 0 || fragment.has_more && !bytes.is_multiple_of(UNIT) {
            return None;
        }
        let key = fragment.key;
        if self.partial.len() >= MAX_PARTIAL && !self.partial.contains_key(&key) {
            let oldest = self.partial.iter().min_by_key(|(_, partial)| partial.begun);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.partial.remove(&oldest);
            }
        }
        let partial = self.partial.entry(key);
        let partial = partial.or_insert_with(|| Partial::new(now));
        match partial.add(fragment) {
            Outcome::Incomplete => None,
            Outcome::Complete => self.partial.remove(&key)?.whole(),
            Outcome::Broken => {
                self.partial.remove(&key);
                None
            }
        }
    }

    /// Discards packets whose fragments have not arrived in time.
    pub fn expire(&mut self, now: Instant) {
        self.partial
            .retain(|_, partial| now.saturating_duration_since(partial.begun) < TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet;
    use super::*;
    use tollgate_test_support::Random;

    fn datagram(bytes: usize) -> Vec<u8> {
        let data: Vec<u8> = (0..bytes).map(|n| (n / 251 + n) as u8).collect();
        let (from, to) = ("10.0.2.15:4000", "192.0.2.1:53");
        packet::udp(from.parse().unwrap(), to.parse().unwrap(), &data).unwrap()
    }

    fn datagram6(bytes: usize) -> Vec<u8> {
        let (from, to) = ("[fec0::15]:4000", "[2001:db8::1]:53");
        packet::udp(from.parse().unwrap(), to.parse().unwrap(), &vec![7; bytes]).unwrap()
    }

    fn give(reassembly: &mut Reassembly, fragment: &[u8], now: Instant) -> Option<Vec<u8>> {
        match fragment[0] >> 4 {
            4 => reassembly.ipv4(&Ipv4Packet::new_checked(fragment).unwrap(), now),
            _ => reassembly.ipv6(&Ipv6Packet::new_checked(fragment).unwrap(), now),
        }
    }

    /// Makes a fragment of one unit or more: its offset, its size, whether others follow, and the
    /// byte that fills it.
    fn piece(number: u16, offset: usize, bytes: usize, has_more: bool, fill: u8) -> Vec<u8> {
        let (from, to) = ("10.0.2.15".parse().unwrap(), "10.0.2.2".parse().unwrap());
        let mut bytes = packet::ip(from, to, IpProtocol::Udp, bytes, 64, |data| data.fill(fill));
        let mut header = Ipv4Packet::new_unchecked(&mut bytes[..]);
        header.set_ident(number);
        header.clear_flags();
        header.set_more_frags(has_more);
        header.set_frag_offset(offset as u16);
        bytes
    }

    #[test]
    fn fragments_in_any_order_become_the_packet() {
        let mut random = Random::new(1);
        let now = Instant::now();
        for packet in [
            datagram(1473),
            datagram(65_507),
            datagram6(1453),
            datagram6(60_000),
        ] {
            let mut reassembly = Reassembly::default();
            let mut fragments = packet::fragments(&packet, 9);
            for last in (1..fragments.len()).rev() {
                fragments.swap(last, random.below(last + 1));
            }
            let (last, others) = fragments.split_last().unwrap();
            for fragment in others {
                assert_eq!(give(&mut reassembly, fragment, now), None);
                // The network repeats a fragment.
                assert_eq!(give(&mut reassembly, fragment, now), None);
            }
            let whole = give(&mut reassembly, last, now).unwrap();
            assert!(reassembly.is_empty());
            let header = if whole[0] >> 4 == 4 {
                IPV4_HEADER
            } else {
                IPV6_HEADER
            };
            assert!(whole[header..] == packet[header..]);
            assert_eq!(whole.len(), packet.len());
            assert_eq!(whole[header - 8..header], packet[header - 8..header]);
        }
    }

    #[test]
    fn a_fragment_that_overlaps_discards_the_packet() {
        let now = Instant::now();
        for hostile in [
            piece(1, 8, 16, true, 2),
            piece(1, 0, 32, true, 2),
            piece(1, 0, 8, false, 2),
            piece(1, 65_512, 24, true, 2),
            piece(1, 65_512, 9, false, 2),
        ] {
            let mut reassembly = Reassembly::default();
            assert_eq!(give(&mut reassembly, &piece(1, 0, 16, true, 1), now), None);
            assert_eq!(give(&mut reassembly, &hostile, now), None);
            assert!(reassembly.is_empty(), "{hostile:?}");
        }
        // A last fragment sets the length, which no other fragment may exceed or change.
        for hostile in [piece(1, 40, 8, true, 2), piece(1, 32, 16, false, 2)] {
            let mut reassembly = Reassembly::default();
            assert_eq!(give(&mut reassembly, &piece(1, 32, 5, false, 1), now), None);
            assert_eq!(give(&mut reassembly, &hostile, now), None);
            assert!(reassembly.is_empty(), "{hostile:?}");
        }
    }

    #[test]
    fn odd_and_empty_fragments_are_ignored() {
        let now = Instant::now();
        let mut reassembly = Reassembly::default();
        for odd in [
            piece(1, 0, 0, true, 1),
            piece(1, 8, 0, false, 1),
            piece(1, 0, 9, true, 1),
        ] {
            assert_eq!(give(&mut reassembly, &odd, now), None);
            assert!(reassembly.is_empty());
        }
    }

    #[test]
    fn a_flood_of_fragments_keeps_few_packets_and_not_for_long() {
        const FLOOD: u16 = 1000;
        let now = Instant::now();
        let mut reassembly = Reassembly::default();
        for number in 0..FLOOD {
            // The highest offset takes the most memory.
            let flood = piece(number, 65_504, 8, true, 1);
            let now = now + Duration::from_micros(number.into());
            assert_eq!(give(&mut reassembly, &flood, now), None);
        }
        assert_eq!(reassembly.partial.len(), MAX_PARTIAL);
        // The newest packets are still present, and can be completed.
        let later = now + Duration::from_secs(1);
        let newest = reassembly
            .partial
            .keys()
            .map(|key| key.identification)
            .min();
        assert_eq!(newest, Some(u32::from(FLOOD) - MAX_PARTIAL as u32));
        let mut whole = None;
        for offset in (0..65_504).step_by(8) {
            assert_eq!(whole, None);
            whole = give(
                &mut reassembly,
                &piece(FLOOD - 1, offset, 8, true, 1),
                later,
            );
        }
        assert_eq!(whole, None);
        let whole = give(
            &mut reassembly,
            &piece(FLOOD - 1, 65_512, 3, false, 1),
            later,
        );
        assert_eq!(whole.unwrap().len(), 65_535);
        reassembly.expire(now + TIMEOUT + Duration::from_secs(1));
        assert!(reassembly.is_empty());
    }
}
