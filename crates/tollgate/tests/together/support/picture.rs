//! Reads pictures of the screen from the files that Tollgate writes.

use std::io::Read;
use std::path::Path;

/// A picture: width, height, and red, green, blue of each pixel.
#[derive(PartialEq, Eq)]
pub struct Picture {
    pub width: usize,
    pub height: usize,
    pub pixels: Vec<[u8; 3]>,
}

impl Picture {
    /// A picture that is all black.
    pub fn black(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            pixels: vec![[0; 3]; width * height],
        }
    }

    pub fn set(&mut self, x: usize, y: usize, colour: [u8; 3]) {
        self.pixels[y * self.width + x] = colour;
    }

    /// The picture in a PNG file; `None` if there is none yet.
    pub fn read(path: &Path) -> Option<Self> {
        let file = std::fs::read(path).ok()?;
        let mut chunks = file.get(8..)?;
        let (mut size, mut stream) = (None, Vec::new());
        while chunks.len() >= 12 {
            let length = u32::from_be_bytes(chunks[..4].try_into().unwrap()) as usize;
            let content = &chunks[8..8 + length];
            match &chunks[4..8] {
                b"IHDR" => {
                    let number = |at: usize| {
                        u32::from_be_bytes(content[at..at + 4].try_into().unwrap()) as usize
                    };
                    size = Some((number(0), number(4)));
                }
                b"IDAT" => stream.extend_from_slice(content),
                _ => {}
            }
            chunks = &chunks[12 + length..];
        }
        let (width, height) = size?;
        let mut data = Vec::new();
        let mut decoder = flate2::read::ZlibDecoder::new(stream.as_slice());
        decoder.read_to_end(&mut data).unwrap();
        // The byte before each line names its filter, which is none.
        let data = &data[..height * (3 * width + 1)];
        let lines = data.chunks(3 * width + 1);
        let pixels = lines.flat_map(|line| line[1..].chunks(3).map(|it| [it[0], it[1], it[2]]));
        Some(Self {
            width,
            height,
            pixels: pixels.collect(),
        })
    }

    /// The first difference from another picture of its size.
    pub fn difference(&self, other: &Self) -> Option<String> {
        if (self.width, self.height) != (other.width, other.height) {
            return Some(format!("{} x {}", other.width, other.height));
        }
        let pairs = self.pixels.iter().zip(&other.pixels);
        let at = pairs.into_iter().position(|(a, b)| a != b)?;
        let (x, y) = (at % self.width, at / self.width);
        Some(format!(
            "{:?} at {x}, {y}, not {:?}",
            other.pixels[at], self.pixels[at]
        ))
    }
}
