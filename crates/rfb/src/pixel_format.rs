//! The format in which a viewer wants a pixel's colour (RFC 6143, 7.4).

/// A colour in the bytes of a viewer's format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pixel {
    bytes: [u8; 4],
    first: u8,
    count: u8,
}

impl Pixel {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.first.into()..usize::from(self.first + self.count)]
    }
}

/// A pixel format that can be produced, because its bits fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PixelFormat {
    bits: u8,
    depth: u8,
    is_big_endian: bool,
    /// Whether pixels are indices into a colour map, which is [`PixelFormat::MAP`].
    is_mapped: bool,
    /// For red, green and blue: the largest value, and the position of the lowest bit.
    parts: [(u16, u8); 3],
}

impl PixelFormat {
    /// The size of a format in a message, in bytes.
    pub const BYTES: usize = 16;

    /// The format that is offered first: 32 bits, blue in the lowest byte.
    pub const NATIVE: Self = Self {
        bits: 32,
        depth: 24,
        is_big_endian: false,
        is_mapped: false,
        parts: [(255, 16), (255, 8), (255, 0)],
    };

    /// The format of indices into the colour map: three bits of red and green, two of blue.
    const MAP: [(u16, u8); 3] = [(7, 5), (7, 2), (3, 0)];

    /// Reads a format. Returns `None` if it is impossible.
    pub fn read(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let most = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let [bits, depth, is_big_endian, is_true_colour] = [bytes[0], bytes[1], bytes[2], bytes[3]];
        let parts = match is_true_colour {
            0 => Self::MAP,
            _ => [
                (most(4), bytes[10]),
                (most(6), bytes[11]),
                (most(8), bytes[12]),
            ],
        };
        let fits = |(most, shift): (u16, u8)| {
            shift < bits && u64::from(most) << shift < 1 << bits && most > 0
        };
        (matches!(bits, 8 | 16 | 32) && parts.into_iter().all(fits)).then_some(Self {
            bits,
            depth,
            is_big_endian: is_big_endian != 0,
            is_mapped: is_true_colour == 0,
            parts,
        })
    }

    /// Returns the format as it appears in messages.
    pub fn write(&self) -> [u8; Self::BYTES] {
        let [red, green, blue] = self.parts;
        let most = [red, green, blue].map(|(most, _)| most.to_be_bytes());
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&[
            self.bits,
            self.depth,
            self.is_big_endian.into(),
            (!self.is_mapped).into(),
        ]);
        bytes[4..10].copy_from_slice(most.as_flattened());
        bytes[10..13].copy_from_slice(&[red.1, green.1, blue.1]);
        bytes
    }

    /// Returns the colours of the map if pixels are indices: red, green and blue with 16 bits each.
    pub fn colour_map(&self) -> Option<impl Iterator<Item = [u16; 3]>> {
        self.is_mapped.then(|| {
            (0..=255u16).map(|index| {
                Self::MAP.map(|(most, shift)| {
                    let part = u32::from((index >> shift) & most);
                    (part * u32::from(u16::MAX) / u32::from(most)) as u16
                })
            })
        })
    }

    fn value(&self, colour: [u8; 3]) -> u32 {
        let scaled = colour
            .iter()
            .zip(self.parts)
            .map(|(colour, (most, shift))| {
                // The value is rounded, so that white stays white.
                let scaled = (u32::from(*colour) * u32::from(most) + 127) / 255;
                scaled << shift
            });
        scaled.fold(0, |all, part| all | part)
    }

    /// Returns a colour in all of a pixel's bytes.
    pub fn pixel(&self, colour: [u8; 3]) -> Pixel {
        let value = self.value(colour);
        let count = self.bits / 8;
        let (bytes, first) = match self.is_big_endian {
            true => (value.to_be_bytes(), 4 - count),
            false => (value.to_le_bytes(), 0),
        };
        Pixel {
            bytes,
            first,
            count,
        }
    }

    /// Returns a colour in the fewer bytes that ZRLE uses (RFC 6143, 7.7.5: CPIXEL): three of four,
    /// if the fourth is always zero.
    pub fn short_pixel(&self, colour: [u8; 3]) -> Pixel {
        let pixel = self.pixel(colour);
        let used = self
            .parts
            .iter()
            .fold(0, |all, (most, shift)| all | u64::from(*most) << shift);
        if self.bits != 32 || self.depth > 24 || self.is_mapped {
            return pixel;
        }
        let is_low = used < 1 << 24;
        if !is_low && used & 0xff != 0 {
            return pixel;
        }
        Pixel {
            first: u8::from(is_low == self.is_big_endian),
            count: 3,
            ..pixel
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(bits: u8, is_big_endian: bool, parts: [(u16, u8); 3]) -> PixelFormat {
        PixelFormat {
            bits,
            depth: bits.min(24),
            is_big_endian,
            is_mapped: false,
            parts,
        }
    }

    #[test]
    fn a_format_is_read_as_it_is_written() {
        let native = PixelFormat::NATIVE;
        assert_eq!(PixelFormat::read(&native.write()), Some(native));
        let small = format(16, true, [(31, 11), (63, 5), (31, 0)]);
        assert_eq!(PixelFormat::read(&small.write()), Some(small));
    }

    #[test]
    fn formats_that_do_not_fit_are_none() {
        let mut bytes = PixelFormat::NATIVE.write();
        for (at, value) in [
            (0, 24),
            (0, 8),
            (0, 0),
            (10, 32),
            (10, 255),
            (10, 30),
            (5, 0),
        ] {
            let before = std::mem::replace(&mut bytes[at], value);
            assert_eq!(PixelFormat::read(&bytes), None, "{at}: {value}");
            bytes[at] = before;
        }
    }

    #[test]
    fn colours_are_scaled_and_stored_in_the_viewer_s_order() {
        let colour = [0xff, 0x80, 0x00];
        let native = PixelFormat::NATIVE;
        assert_eq!(native.pixel(colour).bytes(), [0x00, 0x80, 0xff, 0]);
        assert_eq!(native.short_pixel(colour).bytes(), [0x00, 0x80, 0xff]);
        let big = format(32, true, native.parts);
        assert_eq!(big.pixel(colour).bytes(), [0, 0xff, 0x80, 0x00]);
        assert_eq!(big.short_pixel(colour).bytes(), [0xff, 0x80, 0x00]);
        let high = format(32, false, [(255, 24), (255, 16), (255, 8)]);
        assert_eq!(high.short_pixel(colour).bytes(), [0x00, 0x80, 0xff]);
        let high_big = format(32, true, high.parts);
        assert_eq!(high_big.short_pixel(colour).bytes(), [0xff, 0x80, 0x00]);
        let sixteen = format(16, true, [(31, 11), (63, 5), (31, 0)]);
        assert_eq!(sixteen.pixel(colour).bytes(), [0xfc, 0x00]);
        assert_eq!(sixteen.short_pixel(colour).bytes(), [0xfc, 0x00]);
    }

    #[test]
    fn mapped_pixels_name_the_nearest_colour() {
        let mut bytes = PixelFormat::NATIVE.write();
        (bytes[0], bytes[3]) = (8, 0);
        let mapped = PixelFormat::read(&bytes).unwrap();
        let map: Vec<_> = mapped.colour_map().unwrap().collect();
        assert_eq!(map.len(), 256);
        for colour in [[0; 3], [255; 3], [255, 0, 0], [0, 0, 255]] {
            let index = mapped.pixel(colour).bytes()[0];
            assert_eq!(
                map[usize::from(index)],
                colour.map(|part| u16::from(part) * 257)
            );
        }
    }
}
