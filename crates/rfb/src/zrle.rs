//! The encoding ZRLE (RFC 6143, 7.7.6): tiles of few colours are encoded in few bits, and
//! everything passes through one zlib stream for each session.

use crate::frame::{Frame, Rectangle};
use crate::pixel_format::{Pixel, PixelFormat};
use flate2::{Compress, Compression, FlushCompress};

/// The width and height of a tile in pixels.
const TILE: u16 = 64;
/// The maximum number of colours in a packed palette.
const MOST_COLOURS: usize = 16;
/// The subencodings of a tile. For a palette it is the number of colours.
const RAW: u8 = 0;
const ONE_COLOUR: u8 = 1;

/// The zlib stream of a session.
pub(crate) struct Zrle(Compress);

impl Zrle {
    pub fn new() -> Self {
        Self(Compress::new(Compression::fast(), true))
    }

    /// Appends a rectangle of a frame to a message: the length of the data, and the data.
    pub fn append(
        &mut self,
        frame: &Frame,
        part: Rectangle,
        format: &PixelFormat,
        to: &mut Vec<u8>,
    ) {
        let mut tiles = Vec::new();
        for y in (0..part.height).step_by(TILE.into()) {
            for x in (0..part.width).step_by(TILE.into()) {
                let tile = Rectangle {
                    x: part.x + x,
                    y: part.y + y,
                    width: TILE.min(part.width - x),
                    height: TILE.min(part.height - y),
                };
                append_tile(frame, tile, format, &mut tiles);
            }
        }
        let start = to.len();
        to.extend([0; 4]);
        self.compress(&tiles, to);
        let length = (to.len() - start - 4) as u32;
        to[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }

    /// Appends bytes of the stream, up to a point where the viewer can decode all of them.
    fn compress(&mut self, mut bytes: &[u8], to: &mut Vec<u8>) {
        loop {
            to.reserve(bytes.len() / 2 + 1024);
            let before = self.0.total_in();
            // This fails only with invalid parameters.
            let _ = self.0.compress_vec(bytes, to, FlushCompress::Sync);
            bytes = &bytes[(self.0.total_in() - before) as usize..];
            // If anything were left to write, it would have filled the rest of the buffer.
            if bytes.is_empty() && to.len() < to.capacity() {
                return;
            }
        }
    }
}

fn append_tile(frame: &Frame, tile: Rectangle, format: &PixelFormat, to: &mut Vec<u8>) {
    let Some((colours, indices)) = palette(frame, tile) else {
        to.push(RAW);
        for colour in frame.pixels(tile) {
            to.extend(format.short_pixel(colour).bytes());
        }
        return;
    };
    let bits = match colours.len() {
        0..=1 => 0,
        2 => 1,
        3..=4 => 2,
        _ => 4,
    };
    to.push(colours.len() as u8);
    debug_assert!(colours.len() != 1 || to.last() == Some(&ONE_COLOUR));
    let pixels: Vec<Pixel> = (colours.iter())
        .map(|colour| format.short_pixel(*colour))
        .collect();
    for pixel in pixels {
        to.extend(pixel.bytes());
    }
    if bits == 0 {
        return;
    }
    // Each line begins with a new byte, and the leftmost pixel is in the highest bits.
    for line in indices.chunks(tile.width.into()) {
        for group in line.chunks(8 / bits) {
            let packed = group.iter().enumerate().fold(0, |byte, (place, index)| {
                byte | index << (8 - bits * (place + 1))
            });
            to.push(packed);
        }
    }
}

/// Returns the colours of a tile, and the index of each pixel's colour. Returns `None` if there are
/// too many colours.
fn palette(frame: &Frame, tile: Rectangle) -> Option<(Vec<[u8; 3]>, Vec<u8>)> {
    let mut colours: Vec<[u8; 3]> = Vec::with_capacity(MOST_COLOURS);
    let mut indices = Vec::with_capacity(usize::from(TILE) * usize::from(TILE));
    let mut last = 0;
    for colour in frame.pixels(tile) {
        if colours.get(last) != Some(&colour) {
            last = match colours.iter().position(|known| *known == colour) {
                Some(known) => known,
                None if colours.len() == MOST_COLOURS => return None,
                None => {
                    colours.push(colour);
                    colours.len() - 1
                }
            };
        }
        indices.push(last as u8);
    }
    Some((colours, indices))
}
