//! What the adapter does to a frame before it is sent: it completes checksums, and splits a long TCP
//! segment (manual 317453, section 3.5).

use serde::{Deserialize, Serialize};
use tollgate_network::frame::{ETHERNET_HEADER, add, fold};

/// Where a checksum lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Checksum {
    /// The first byte that it covers.
    pub start: u8,
    /// The first of the two bytes that hold it.
    pub field: u8,
    /// The last byte that it covers; 0 for the end of the frame.
    pub end: u16,
}

impl Checksum {
    /// Completes the checksum of a frame, whose field holds a part of the sum.
    pub fn complete(self, frame: &mut [u8]) {
        let (start, field) = (usize::from(self.start), usize::from(self.field));
        let end = match self.end {
            0 => frame.len(),
            last => frame.len().min(usize::from(last) + 1),
        };
        if field + 2 > frame.len() || start >= end {
            return;
        }
        let sum = !fold(add(0, &frame[start..end]));
        // Zero would mean that a datagram has no checksum; FFFFh is the same number (RFC 768).
        let sum = if sum == 0 { 0xffff } else { sum };
        frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// What a context descriptor says about the frames that follow it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Context {
    /// The checksum of the IPv4 header.
    pub network: Checksum,
    /// The checksum of TCP or UDP.
    pub transport: Checksum,
    /// The frame carries TCP and not UDP.
    pub is_tcp: bool,
    /// The frame carries IPv4 and not IPv6.
    pub is_ipv4: bool,
    /// The size of all headers in bytes, for segments.
    pub header_bytes: u8,
    /// The number of payload bytes of a segment.
    pub segment_bytes: u16,
}

/// What the driver wants to have done to one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Wanted {
    pub network_checksum: bool,
    pub transport_checksum: bool,
    /// The frame is split.
    pub segments: bool,
    /// The tag of a VLAN that is put in.
    pub vlan: Option<u16>,
}

/// TCP flags that only the last segment has: FIN and PSH.
const LAST_FLAGS: u8 = 0b1001;

/// The frames that a frame of the driver becomes.
pub fn finish(frame: Vec<u8>, context: &Context, wanted: Wanted, vlan_type: u16) -> Vec<Vec<u8>> {
    let mut frames = match wanted.segments {
        true => split(&frame, context),
        false => vec![frame],
    };
    for frame in &mut frames {
        if wanted.transport_checksum {
            context.transport.complete(frame);
        }
        if wanted.network_checksum {
            context.network.complete(frame);
        }
        if let Some(tag) = wanted.vlan
            && frame.len() >= ETHERNET_HEADER
        {
            let tag = [vlan_type.to_be_bytes(), tag.to_be_bytes()].concat();
            frame.splice(12..12, tag);
        }
    }
    frames
}

/// Splits a frame into segments. One that makes no sense stays whole.
fn split(frame: &[u8], context: &Context) -> Vec<Vec<u8>> {
    let (header, payload) = match frame.split_at_checked(context.header_bytes.into()) {
        Some(parts) if context.segment_bytes != 0 => parts,
        _ => return vec![frame.to_vec()],
    };
    let size = usize::from(context.segment_bytes);
    let count = payload.len().div_ceil(size).max(1);
    let segment = |index: usize| {
        let start = index * size;
        let end = payload.len().min(start + size);
        let mut segment = [header, &payload[start..end]].concat();
        adjust(&mut segment, context, index, start, index + 1 == count);
        segment
    };
    (0..count).map(segment).collect()
}

/// Makes the headers of a segment those of a packet of its own: `index` segments and `offset` bytes
/// of the payload come before it.
fn adjust(segment: &mut [u8], context: &Context, index: usize, offset: usize, is_last: bool) {
    let network = usize::from(context.network.start);
    let transport = usize::from(context.transport.start);
    let length = segment.len();
    if context.is_ipv4 {
        change(segment, network + 2, |_| {
            length.saturating_sub(network) as u16
        });
        change(segment, network + 4, |id| id.wrapping_add(index as u16));
    } else {
        let payload = length.saturating_sub(network + 40);
        change(segment, network + 4, |_| payload as u16);
    }
    let transport_bytes = length.saturating_sub(transport);
    if context.is_tcp {
        if let Some(field) = segment.get_mut(transport + 4..transport + 8) {
            let bytes = [field[0], field[1], field[2], field[3]];
            let sequence = u32::from_be_bytes(bytes).wrapping_add(offset as u32);
            field.copy_from_slice(&sequence.to_be_bytes());
        }
        if let Some(flags) = segment.get_mut(transport + 13)
            && !is_last
        {
            *flags &= !LAST_FLAGS;
        }
    } else {
        change(segment, transport + 4, |_| transport_bytes as u16);
    }
    // The driver's part of the sum has no length, because only the adapter knows it.
    change(segment, context.transport.field.into(), |sum| {
        fold(u64::from(sum) + transport_bytes as u64)
    });
}

/// Changes a 16-bit field of a frame, if it is there.
fn change(frame: &mut [u8], place: usize, new: impl FnOnce(u16) -> u16) {
    if let Some(field) = frame.get_mut(place..place + 2) {
        let value = new(u16::from_be_bytes([field[0], field[1]]));
        field.copy_from_slice(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with the headers of Ethernet, IPv4 and TCP without options, as a driver leaves it, and
    /// its context.
    fn long_frame(payload: usize, segment_bytes: u16) -> (Vec<u8>, Context) {
        let mut frame = vec![0; 54];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[18..20].copy_from_slice(&[0x12, 0xff]);
        frame[23] = 6;
        frame[26..34].copy_from_slice(&[10, 0, 2, 15, 10, 0, 2, 2]);
        frame[38..42].copy_from_slice(&0xffff_fff0_u32.to_be_bytes());
        frame[46] = 0x50;
        frame[47] = 0x19;
        let pseudo = add(6, &[10, 0, 2, 15, 10, 0, 2, 2]);
        frame[50..52].copy_from_slice(&fold(pseudo).to_be_bytes());
        frame.extend((0..payload).map(|index| index as u8));
        let context = Context {
            network: Checksum {
                start: 14,
                field: 24,
                end: 33,
            },
            transport: Checksum {
                start: 34,
                field: 50,
                end: 0,
            },
            is_tcp: true,
            is_ipv4: true,
            header_bytes: 54,
            segment_bytes,
        };
        (frame, context)
    }

    const ALL: Wanted = Wanted {
        network_checksum: true,
        transport_checksum: true,
        segments: true,
        vlan: None,
    };

    #[test]
    fn a_long_segment_becomes_packets_that_are_right_by_themselves() {
        let (frame, context) = long_frame(3000, 1400);
        let payload = frame[54..].to_vec();
        let frames = finish(frame, &context, ALL, 0);
        assert_eq!(
            frames.iter().map(Vec::len).collect::<Vec<_>>(),
            [1454, 1454, 254]
        );
        let mut together: Vec<u8> = Vec::new();
        for (index, frame) in frames.iter().enumerate() {
            let word = |place: usize| u16::from_be_bytes([frame[place], frame[place + 1]]);
            assert_eq!(usize::from(word(16)), frame.len() - 14);
            assert_eq!(word(18), 0x12ff_u16.wrapping_add(index as u16));
            assert_eq!(fold(add(0, &frame[14..34])), 0xffff, "IPv4's checksum");
            let tcp = &frame[34..];
            let pseudo = add(6 + tcp.len() as u64, &frame[26..34]);
            assert_eq!(fold(add(pseudo, tcp)), 0xffff, "TCP's checksum");
            let sequence = u32::from_be_bytes([frame[38], frame[39], frame[40], frame[41]]);
            assert_eq!(sequence, 0xffff_fff0_u32.wrapping_add(1400 * index as u32));
            assert_eq!(frame[47], if index == 2 { 0x19 } else { 0x10 });
            together.extend(&frame[54..]);
        }
        assert_eq!(together, payload);
    }

    #[test]
    fn contexts_that_make_no_sense_do_no_harm() {
        let (frame, sensible) = long_frame(100, 10);
        for context in [
            Context {
                header_bytes: 255,
                ..sensible
            },
            Context {
                segment_bytes: 0,
                ..sensible
            },
            Context {
                header_bytes: 0,
                ..sensible
            },
            Context {
                transport: Checksum {
                    start: 255,
                    field: 255,
                    end: 3,
                },
                ..sensible
            },
            Context {
                network: Checksum {
                    start: 200,
                    field: 254,
                    end: 1,
                },
                ..sensible
            },
            Context {
                is_ipv4: false,
                is_tcp: false,
                ..sensible
            },
        ] {
            let frames = finish(frame.clone(), &context, ALL, 0x8100);
            assert!(frames.len() <= frame.len());
        }
    }

    #[test]
    fn a_tag_is_put_in_after_the_addresses() {
        let (frame, context) = long_frame(4, 1400);
        let wanted = Wanted {
            vlan: Some(0x2005),
            ..Wanted::default()
        };
        let frames = finish(frame.clone(), &context, wanted, 0x8100);
        assert_eq!(frames[0][12..18], [0x81, 0, 0x20, 5, 8, 0]);
        assert_eq!(frames[0].len(), frame.len() + 4);
    }
}
