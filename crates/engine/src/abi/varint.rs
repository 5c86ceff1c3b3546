//! Numbers encoded in as few bytes as they need, for the packed tables of blocks: seven bits in a
//! byte, the lowest first; the highest bit is set in all bytes except the last.

/// Appends bytes to a buffer. They are gathered in a register first, since a processor stalls on a
/// copy of bytes that were just written one by one.
pub(crate) struct Packer<'a> {
    out: &'a mut [u8],
    at: usize,
    gathered: u64,
    bits: u32,
}

impl<'a> Packer<'a> {
    /// A packer that writes to `out` from the index `at` on. There must be room for seven bytes
    /// more than are put; bytes without room are dropped.
    pub(crate) fn new(out: &'a mut [u8], at: usize) -> Self {
        Self {
            out,
            at,
            gathered: 0,
            bits: 0,
        }
    }

    /// Puts one byte.
    #[inline]
    pub(crate) fn byte(&mut self, byte: u8) {
        self.gathered |= u64::from(byte) << self.bits;
        self.bits += 8;
        if self.bits == u64::BITS {
            self.write();
        }
    }

    /// Writes the gathered bytes to the buffer.
    #[inline]
    fn write(&mut self) {
        if let Some(place) = self.out[self.at..].first_chunk_mut() {
            *place = self.gathered.to_le_bytes();
            self.at += self.bits as usize / 8;
        }
        self.gathered = 0;
        self.bits = 0;
    }

    /// Puts a number.
    #[inline]
    pub(crate) fn put(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    /// Puts a number that may be negative: small ones of either sign are short.
    #[inline]
    pub(crate) fn put_signed(&mut self, value: i64) {
        self.put((value << 1 ^ value >> 63) as u64);
    }

    /// Writes the last bytes and returns the index after them.
    pub(crate) fn finish(mut self) -> usize {
        self.write();
        self.at
    }
}

/// Takes the number at the front. Returns `None` if no whole number is left.
#[inline]
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Takes a number that was put by [`Packer::put_signed`].
#[inline]
pub(crate) fn take_signed(bytes: &mut &[u8]) -> Option<i64> {
    let value = take(bytes)?;
    Some((value >> 1) as i64 ^ -((value & 1) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_what_is_taken() {
        let mut all = vec![0, 1, 0x7f, 0x80, 0x3fff, 0x4000, u64::MAX, 1 << 63];
        all.extend((0..64).map(|bit| 0x1234_5678_9abc_def1 >> bit));
        let mut bytes = vec![0; all.len() * 20 + 8];
        let mut packer = Packer::new(&mut bytes, 1);
        for &value in &all {
            packer.put(value);
            packer.put_signed(value as i64);
        }
        let end = packer.finish();
        bytes.truncate(end);
        let mut rest = &bytes[1..];
        for &value in &all {
            assert_eq!(take(&mut rest), Some(value));
            assert_eq!(take_signed(&mut rest), Some(value as i64));
        }
        assert_eq!(take(&mut rest), None);
        assert_eq!(take(&mut &[0x80][..]), None);
        assert_eq!(take(&mut &[0xff; 11][..]), None);
        let mut packer = Packer::new(&mut bytes, 0);
        packer.put_signed(-64);
        assert_eq!(packer.finish(), 1);
    }

    #[test]
    fn what_has_no_room_is_dropped() {
        let mut bytes = [0xff; 12];
        let mut packer = Packer::new(&mut bytes, 2);
        (0..20).for_each(|byte| packer.byte(byte));
        assert_eq!(packer.finish(), 10);
        assert_eq!(bytes, [0xff, 0xff, 0, 1, 2, 3, 4, 5, 6, 7, 0xff, 0xff]);
    }
}
