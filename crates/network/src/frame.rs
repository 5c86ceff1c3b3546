//! Ethernet frames, and the work that is left to do on them: partial checksums that must be
//! completed, and segments that must be split.

use std::num::NonZeroU16;

/// The size of an Ethernet header in bytes.
pub const ETHERNET_HEADER: usize = 14;
/// The maximum size of a frame in bytes: a header and the largest IP packet.
pub const MAX_FRAME: usize = ETHERNET_HEADER + 65_535;

/// A TCP segment that must be split into several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segmentation {
    /// The number of payload bytes of each segment.
    pub size: NonZeroU16,
    /// The size of all headers in bytes, from Ethernet's to TCP's.
    pub header_bytes: u16,
    /// Whether the segment is carried by IPv6.
    pub is_ipv6: bool,
}

/// A checksum whose field contains only the checksum of the pseudo header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartialChecksum {
    /// The first byte of the frame that the checksum covers. It extends to the end.
    pub start: u16,
    /// The offset of the checksum field from `start`.
    pub offset: u16,
}

/// A frame on its way to the guest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Frame {
    /// The bytes, without the frame check sequence.
    pub bytes: Vec<u8>,
    /// The checksum that must be completed.
    pub checksum: Option<PartialChecksum>,
    /// How the segment must be split.
    pub segmentation: Option<Segmentation>,
}

impl Frame {
    /// Makes a complete frame.
    pub const fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            checksum: None,
            segmentation: None,
        }
    }

    /// Completes a partial checksum.
    pub fn complete_checksum(&mut self) {
        let Some(PartialChecksum { start, offset }) = self.checksum.take() else {
            return;
        };
        let (start, field) = (usize::from(start), usize::from(start) + usize::from(offset));
        if field + 2 > self.bytes.len() {
            return;
        }
        // The field itself is part of the sum: it contains the pseudo header's.
        let sum = !fold(add(0, &self.bytes[start..]));
        // In UDP zero means no checksum. FFFFh is the same value in ones' complement (RFC 768).
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

/// Folds the carries into 16 bits.
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
        // The example of RFC 1071, section 3, where the sum of the words is ddf2h.
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
