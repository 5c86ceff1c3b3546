//! Packets of GDB's remote serial protocol (GDB manual, appendix E).
//!
//! A packet is `$`, data, `#` and two hexadecimal digits: the sum of the data's bytes.
//! `}` escapes the byte after it (exclusive-or 20h); `*` repeats the byte before it.

/// The escape character.
const ESCAPE: u8 = b'}';
/// The value with which an escaped byte is combined by exclusive-or.
const ESCAPE_BIT: u8 = 0x20;
/// A run's length is its count character minus this.
const RUN_BIAS: u8 = 29;

/// Encodes data as a packet.
pub fn encode(data: &[u8]) -> Vec<u8> {
    let mut packet = vec![b'$'];
    for &byte in data {
        if matches!(byte, b'$' | b'#' | b'*' | ESCAPE) {
            packet.extend([ESCAPE, byte ^ ESCAPE_BIT]);
        } else {
            packet.push(byte);
        }
    }
    let sum = checksum(&packet[1..]);
    packet.extend(format!("#{sum:02x}").bytes());
    packet
}

fn checksum(data: &[u8]) -> u8 {
    data.iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte))
}

/// Decodes packets from a stream of bytes.
#[derive(Default)]
pub struct Decoder {
    bytes: Vec<u8>,
}

impl Decoder {
    /// Adds bytes that have arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The data of the next complete packet. Bytes before it (acknowledgements) and packets with a
    /// wrong checksum are ignored.
    pub fn next_packet(&mut self) -> Option<Vec<u8>> {
        loop {
            let start = self.bytes.iter().position(|&byte| byte == b'$')?;
            let length = self.bytes[start + 1..]
                .iter()
                .position(|&byte| byte == b'#')?;
            let end = start + 1 + length;
            let digits = self.bytes.get(end + 1..end + 3)?;
            let sum = std::str::from_utf8(digits)
                .ok()
                .and_then(|text| u8::from_str_radix(text, 16).ok());
            let body = &self.bytes[start + 1..end];
            let data = (sum == Some(checksum(body))).then(|| expand(body));
            self.bytes.drain(..end + 3);
            if data.is_some() {
                return data;
            }
        }
    }
}

/// Decodes escapes and runs.
fn expand(body: &[u8]) -> Vec<u8> {
    let mut data = Vec::with_capacity(body.len());
    let mut bytes = body.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            ESCAPE => data.extend(bytes.next().map(|byte| byte ^ ESCAPE_BIT)),
            b'*' => {
                let (last, count) = (data.last().copied(), bytes.next());
                if let (Some(last), Some(count)) = (last, count) {
                    let run = usize::from(count.saturating_sub(RUN_BIAS));
                    data.extend(std::iter::repeat_n(last, run));
                }
            }
            _ => data.push(byte),
        }
    }
    data
}

/// Encodes bytes as hexadecimal digits.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes hexadecimal digits; `None` if they are not pairs of digits.
pub fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| (byte as char).to_digit(16);
    digits
        .chunks(2)
        .map(|pair| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_carries_the_sum_of_its_bytes() {
        assert_eq!(encode(b"g"), b"$g#67");
        assert_eq!(encode(b""), b"$#00");
    }

    #[test]
    fn special_bytes_are_escaped_and_come_back() {
        let data = b"a$b#c}d*e";
        let mut decoder = Decoder::default();
        decoder.push(&encode(data));
        assert_eq!(decoder.next_packet().as_deref(), Some(&data[..]));
    }

    #[test]
    fn packets_may_arrive_in_pieces_behind_acknowledgements() {
        let mut decoder = Decoder::default();
        decoder.push(b"++$O");
        assert_eq!(decoder.next_packet(), None);
        decoder.push(b"K#9a$T05#b");
        assert_eq!(decoder.next_packet().as_deref(), Some(&b"OK"[..]));
        assert_eq!(decoder.next_packet(), None);
        decoder.push(b"9");
        assert_eq!(decoder.next_packet().as_deref(), Some(&b"T05"[..]));
    }

    #[test]
    fn runs_are_expanded() {
        assert_eq!(expand(b"0* 1"), b"00001");
        assert_eq!(expand(b"*"), b"");
    }

    #[test]
    fn a_packet_with_a_wrong_sum_is_dropped() {
        let mut decoder = Decoder::default();
        decoder.push(b"$OK#00$E01#a6");
        assert_eq!(decoder.next_packet().as_deref(), Some(&b"E01"[..]));
    }

    #[test]
    fn hexadecimal_digits_come_in_pairs() {
        assert_eq!(from_hex(b"00fF"), Some(vec![0, 255]));
        assert_eq!(from_hex(b"0"), None);
        assert_eq!(from_hex(b"xy"), None);
        assert_eq!(to_hex(&[0, 255]), "00ff");
    }
}
