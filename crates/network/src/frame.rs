//! Ethernet frames, and what is left to do to them: checksums that are not complete yet,
//! segments that are not cut yet.

use std::num::NonZeroU16;

/// Bytes of an Ethernet header.
pub const ETHERNET_HEADER: usize = 14;
/// Bytes of a frame at most: a header and the largest IP packet.
pub const MAX_FRAME: usize = ETHERNET_HEADER + 65_535;

/// A TCP segment that is to be cut into several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segmentation {
    /// Bytes of payload of each.
    pub size: NonZeroU16,
    /// Bytes of all headers, Ethernet's to TCP's.
    pub header_bytes: u16,
    /// Over IPv6.
    pub is_ipv6: bool,
}

/// A checksum whose field holds that of the pseudo header only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartialChecksum {
    /// First byte of the frame that it covers; it goes to the end.
    pub start: u16,
    /// Where its field is, counted from `start`.
    pub offset: u16,
}

/// A frame on its way to the guest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Frame {
    /// The bytes, without check sequence.
    pub bytes: Vec<u8>,
    /// The checksum is to be completed.
    pub checksum: Option<PartialChecksum>,
    /// The segment is to be cut.
    pub segmentation: Option<Segmentation>,
}

impl Frame {
    /// A frame with nothing left to do.
    pub const fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            checksum: None,
            segmentation: None,
        }
    }

    /// Completes a checksum that is not.
    pub fn complete_checksum(&mut self) {
        let Some(PartialChecksum { start, offset }) = self.checksum.take() else {
            return;
        };
        let (start, field) = (usize::from(start), usize::from(start) + usize::from(offset));
        if field + 2 > self.bytes.len() {
            return;
        }
        // The field itself is part of the sum: it holds the pseudo header's.
        let sum = !fold(add(0, &self.bytes[start..]));
        // UDP says "none" by zero, which in ones' complement is FFFFh as well (RFC 768).
        let sum = if sum == 0 { 0xffff } else { sum };
        self.bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Adds 16-bit big-endian words to a sum; a missing last byte is zero (RFC 1071).
pub fn add(sum: u64, data: &[u8]) -> u64 {
    let words = data.chunks(2);
    words.fold(sum, |sum, word| {
        let low = word.get(1).copied().unwrap_or(0);
        sum + u64::from(u16::from_be_bytes([word[0], low]))
    })
}

/// Brings the carries back into 16 bits.
pub const fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_completed_as_rfc_1071_has_it() {
        // The example of RFC 1071, section 3: the words sum up to ddf2h.
        let words = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(add(0, &words)), 0xddf2);
        assert_eq!(
            fold(add(0, &words[..7])),
            fold(add(0, &[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0]))
        );
        let mut frame = Frame::new([&words[..], &[0, 0]].concat());
        frame.checksum = Some(PartialChecksum {
            start: 0,
            offset: 8,
        });
        frame.complete_checksum();
        assert_eq!(frame.bytes[8..], (!0xddf2u16).to_be_bytes());
        assert_eq!(frame.checksum, None);
    }

    #[test]
    fn a_field_outside_of_the_frame_is_left_alone() {
        let mut frame = Frame::new(vec![1, 2, 3]);
        for offset in [2, 3, 0xffff] {
            frame.checksum = Some(PartialChecksum { start: 0, offset });
            frame.complete_checksum();
            assert_eq!(frame.bytes, [1, 2, 3]);
        }
    }
}
