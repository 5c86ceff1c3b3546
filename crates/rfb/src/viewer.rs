//! A viewer for tests, written from the protocol's specification and independent of the code under
//! test.

use crate::session::Session;
use flate2::{Decompress, FlushDecompress};

/// Reads the output of a session, and keeps the picture.
pub(crate) struct Viewer {
    pub width: usize,
    pub height: usize,
    /// Red, green and blue of each pixel.
    pub pixels: Vec<[u8; 3]>,
    /// Position, size and encoding of each rectangle since they were last cleared.
    pub rectangles: Vec<([u16; 4], i32)>,
    bytes: Vec<u8>,
    stream: Decompress,
    /// Decodes a pixel.
    pub pixel: fn(&[u8]) -> [u8; 3],
    pub pixel_bytes: usize,
    pub short_pixel: fn(&[u8]) -> [u8; 3],
    pub short_bytes: usize,
}

impl Viewer {
    pub fn new() -> Self {
        Self {
            width: 0,
            height: 0,
            pixels: Vec::new(),
            rectangles: Vec::new(),
            bytes: Vec::new(),
            stream: Decompress::new(true),
            pixel: |bytes| [bytes[2], bytes[1], bytes[0]],
            pixel_bytes: 4,
            short_pixel: |bytes| [bytes[2], bytes[1], bytes[0]],
            short_bytes: 3,
        }
    }

    pub fn resize(&mut self, width: usize, height: usize) {
        (self.width, self.height) = (width, height);
        self.pixels = vec![[1, 2, 3]; width * height];
    }

    /// Takes all output of the session.
    pub fn take(session: &mut Session) -> Vec<u8> {
        let bytes = session.output().to_vec();
        session.sent(bytes.len());
        bytes
    }

    fn next(&mut self, count: usize) -> Vec<u8> {
        assert!(self.bytes.len() >= count, "the session sent too little");
        self.bytes.drain(..count).collect()
    }

    fn word(&mut self) -> u16 {
        let bytes = self.next(2);
        u16::from_be_bytes([bytes[0], bytes[1]])
    }

    fn long(&mut self) -> u32 {
        let bytes = self.next(4);
        u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// Reads complete updates.
    pub fn read_updates(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        while !self.bytes.is_empty() {
            if self.bytes[0] == 1 {
                // A message with the colours of a map.
                let header = self.next(6);
                let count = u16::from_be_bytes([header[4], header[5]]);
                self.next(6 * usize::from(count));
                continue;
            }
            assert_eq!(self.next(2), [0, 0], "an update");
            for _ in 0..self.word() {
                self.read_rectangle();
            }
        }
    }

    fn read_rectangle(&mut self) {
        let place = [self.word(), self.word(), self.word(), self.word()];
        let encoding = self.long() as i32;
        self.rectangles.push((place, encoding));
        let [x, y, width, height] = place.map(usize::from);
        match encoding {
            0 => {
                let bytes = self.next(width * height * self.pixel_bytes);
                let pixels: Vec<_> = bytes.chunks(self.pixel_bytes).map(self.pixel).collect();
                self.draw(x, y, width, &pixels);
            }
            16 => {
                let count = self.long() as usize;
                let packed = self.next(count);
                let tiles = self.inflated(&packed);
                self.draw_tiles([x, y, width, height], &tiles);
            }
            -223 => self.resize(width, height),
            -257 | -258 => assert_eq!(place, [0; 4]),
            other => panic!("encoding {other} was not asked for"),
        }
    }

    fn inflated(&mut self, packed: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        let start = self.stream.total_in();
        loop {
            plain.reserve(1 << 16);
            let at = (self.stream.total_in() - start) as usize;
            let flush = FlushDecompress::Sync;
            let before = plain.len();
            let _ = self.stream.decompress_vec(&packed[at..], &mut plain, flush);
            if plain.len() == before {
                break;
            }
        }
        assert_eq!((self.stream.total_in() - start) as usize, packed.len());
        plain
    }

    fn draw_tiles(&mut self, [x, y, width, height]: [usize; 4], mut tiles: &[u8]) {
        let mut take = |count: usize| {
            let (head, tail) = tiles.split_at(count);
            tiles = tail;
            head
        };
        for top in (0..height).step_by(64) {
            for left in (0..width).step_by(64) {
                let (columns, lines) = ((width - left).min(64), (height - top).min(64));
                let colours = usize::from(take(1)[0]);
                let short = self.short_bytes;
                let pixels: Vec<[u8; 3]> = match colours {
                    0 => {
                        let bytes = take(columns * lines * short);
                        bytes.chunks(short).map(self.short_pixel).collect()
                    }
                    1 => vec![(self.short_pixel)(take(short)); columns * lines],
                    2..=16 => {
                        let palette = take(colours * short);
                        let palette: Vec<_> = palette.chunks(short).map(self.short_pixel).collect();
                        let bits = [1, 2, 4][usize::from(colours > 2) + usize::from(colours > 4)];
                        let mut pixels = Vec::new();
                        for _ in 0..lines {
                            let line = take((columns * bits).div_ceil(8));
                            pixels.extend((0..columns).map(|column| {
                                let shift = 8 - bits - column * bits % 8;
                                let index = line[column * bits / 8] >> shift & ((1 << bits) - 1);
                                palette[usize::from(index)]
                            }));
                        }
                        pixels
                    }
                    other => panic!("subencoding {other}"),
                };
                self.draw(x + left, y + top, columns, &pixels);
            }
        }
        assert!(tiles.is_empty(), "bytes are left");
    }

    fn draw(&mut self, x: usize, y: usize, width: usize, pixels: &[[u8; 3]]) {
        for (line, pixels) in pixels.chunks(width).enumerate() {
            let at = (y + line) * self.width + x;
            self.pixels[at..at + width].copy_from_slice(pixels);
        }
    }
}
