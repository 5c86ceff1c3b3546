//! Cuts the debugger's bytes into packets, and answers those that the crate gdbstub does not know.

use super::memory::Addresses;

/// The bytes of a packet that has not ended.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Packets {
    waiting: Vec<u8>,
}

/// The maximum size of a packet in bytes. A longer one is passed on in pieces, and refused.
const MOST_BYTES: usize = 64 << 10;

impl Packets {
    /// Takes a byte, and returns bytes that belong together: a whole packet, or a byte outside of
    /// packets.
    pub(super) fn take(&mut self, byte: u8) -> Option<Vec<u8>> {
        /// The begin of a packet, and what precedes the two digits of its checksum.
        const BEGIN: u8 = b'$';
        const END: u8 = b'#';
        if self.waiting.is_empty() && byte != BEGIN {
            return Some(vec![byte]);
        }
        self.waiting.push(byte);
        let length = self.waiting.len();
        let has_ended = length >= 4 && self.waiting[length - 3] == END;
        (has_ended || length == MOST_BYTES).then(|| std::mem::take(&mut self.waiting))
    }
}

/// Answers QEMU's packets about physical memory, or returns `None` for any other packet.
pub(super) fn answer(packet: &[u8], addresses: &mut Addresses) -> Option<&'static [u8]> {
    let body = packet
        .strip_prefix(b"$")?
        .split(|byte| *byte == b'#')
        .next()?;
    match body {
        b"qqemu.PhyMemMode" => Some(match addresses {
            Addresses::Linear => b"+$0#30",
            Addresses::Physical => b"+$1#31",
        }),
        b"Qqemu.PhyMemMode:0" => {
            *addresses = Addresses::Linear;
            Some(b"+$OK#9a")
        }
        b"Qqemu.PhyMemMode:1" => {
            *addresses = Addresses::Physical;
            Some(b"+$OK#9a")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_stay_together_and_other_bytes_come_alone() {
        let mut packets = Packets::default();
        let bytes = b"+$g#67\x03$qqemu.PhyMemMode#00-";
        let pieces: Vec<_> = bytes
            .iter()
            .filter_map(|byte| packets.take(*byte))
            .collect();
        let expected: [&[u8]; 5] = [b"+", b"$g#67", b"\x03", b"$qqemu.PhyMemMode#00", b"-"];
        assert_eq!(pieces, expected);
        let mut addresses = Addresses::default();
        assert_eq!(answer(&pieces[1], &mut addresses), None);
        assert_eq!(answer(&pieces[3], &mut addresses), Some(&b"+$0#30"[..]));
        assert_eq!(
            answer(b"$Qqemu.PhyMemMode:1#00", &mut addresses),
            Some(&b"+$OK#9a"[..])
        );
        assert_eq!(answer(&pieces[3], &mut addresses), Some(&b"+$1#31"[..]));
    }
}
