//! Pictures of the screen, and the differences between two of them.

use std::ops::Range;

/// A picture: red, green and blue of each pixel, line by line from the top.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    width: u16,
    height: u16,
    pixels: Vec<u8>,
}

/// A part of a frame, in pixels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rectangle {
    pub x: u16,
    pub y: u16,
    pub width: u16,
    pub height: u16,
}

/// The size of a tile, which is the unit of comparison: its width in pixels and its height in
/// lines.
const TILE_WIDTH: u16 = 64;
const TILE_HEIGHT: u16 = 16;

impl Frame {
    /// The size of a pixel in bytes.
    pub const PIXEL_BYTES: usize = 3;

    /// Makes a picture with three bytes for each pixel. Returns `None` if it is empty or the number
    /// of bytes is wrong.
    pub fn new(width: u16, height: u16, pixels: Vec<u8>) -> Option<Self> {
        let bytes = usize::from(width) * usize::from(height) * Self::PIXEL_BYTES;
        (bytes > 0 && pixels.len() == bytes).then_some(Self {
            width,
            height,
            pixels,
        })
    }

    /// Makes a black picture.
    pub fn black(width: u16, height: u16) -> Self {
        let (width, height) = (width.max(1), height.max(1));
        let bytes = usize::from(width) * usize::from(height) * Self::PIXEL_BYTES;
        Self {
            width,
            height,
            pixels: vec![0; bytes],
        }
    }

    /// Returns the number of pixels in a line, and the number of lines.
    pub const fn size(&self) -> (u16, u16) {
        (self.width, self.height)
    }

    /// Returns the same picture in another size: cut, or with black added on the right and below.
    pub(crate) fn fitted(&self, width: u16, height: u16) -> Self {
        let mut fitted = Self::black(width, height);
        let common = self.width.min(width);
        for y in 0..self.height.min(height) {
            let (from, to) = (self.line(y, 0..common), fitted.line(y, 0..common));
            fitted.pixels[to].copy_from_slice(&self.pixels[from]);
        }
        fitted
    }

    /// Returns where the bytes of a part of a line are.
    fn line(&self, y: u16, columns: Range<u16>) -> Range<usize> {
        let start = usize::from(y) * usize::from(self.width);
        let at = |x: u16| (start + usize::from(x)) * Self::PIXEL_BYTES;
        at(columns.start)..at(columns.end)
    }

    /// Returns the pixels of a rectangle inside the frame, line by line.
    pub(crate) fn pixels(&self, part: Rectangle) -> impl Iterator<Item = [u8; 3]> {
        let columns = part.x..part.x + part.width;
        (part.y..part.y + part.height).flat_map(move |y| {
            let line = &self.pixels[self.line(y, columns.clone())];
            line.chunks_exact(Self::PIXEL_BYTES)
                .map(|pixel| [pixel[0], pixel[1], pixel[2]])
        })
    }

    /// Returns the rectangle of the whole frame.
    pub(crate) const fn whole(&self) -> Rectangle {
        Rectangle {
            x: 0,
            y: 0,
            width: self.width,
            height: self.height,
        }
    }

    /// Returns the part of a rectangle that lies inside the frame.
    pub(crate) fn clipped(&self, part: Rectangle) -> Option<Rectangle> {
        let (x, y) = (part.x.min(self.width), part.y.min(self.height));
        let clipped = Rectangle {
            x,
            y,
            width: part.width.min(self.width - x),
            height: part.height.min(self.height - y),
        };
        (clipped.width > 0 && clipped.height > 0).then_some(clipped)
    }

    /// Returns the parts of this frame that differ from an earlier one of the same size.
    pub(crate) fn changed_since(&self, earlier: &Self) -> Vec<Rectangle> {
        let mut changed: Vec<Rectangle> = Vec::new();
        for y in (0..self.height).step_by(TILE_HEIGHT.into()) {
            let height = TILE_HEIGHT.min(self.height - y);
            if !self.differs(earlier, y, height, 0..self.width) {
                continue;
            }
            // Adjacent tiles of this band are merged.
            let band = changed.len();
            for x in (0..self.width).step_by(TILE_WIDTH.into()) {
                let width = TILE_WIDTH.min(self.width - x);
                if !self.differs(earlier, y, height, x..x + width) {
                    continue;
                }
                match changed[band..].last_mut() {
                    Some(last) if last.x + last.width == x => last.width += width,
                    _ => changed.push(Rectangle {
                        x,
                        y,
                        width,
                        height,
                    }),
                }
            }
        }
        changed
    }

    fn differs(&self, earlier: &Self, y: u16, height: u16, columns: Range<u16>) -> bool {
        (y..y + height).any(|y| {
            let line = self.line(y, columns.clone());
            self.pixels[line.clone()] != earlier.pixels[line]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn rectangle(x: u16, y: u16, width: u16, height: u16) -> Rectangle {
        Rectangle {
            x,
            y,
            width,
            height,
        }
    }

    #[test]
    fn a_frame_has_all_its_pixels_or_is_none() {
        assert!(Frame::new(2, 2, vec![0; 12]).is_some());
        assert!(Frame::new(2, 2, vec![0; 11]).is_none());
        assert!(Frame::new(0, 2, vec![]).is_none());
    }

    #[test]
    fn only_what_has_changed_is_found() {
        let old = Frame::black(200, 40);
        assert!(old.changed_since(&old).is_empty());
        let mut new = old.clone();
        for (x, y) in [(0, 0), (63, 15), (70, 3), (199, 39)] {
            let at = new.line(y, x..x + 1);
            new.pixels[at].fill(1);
        }
        let expected = [rectangle(0, 0, 128, 16), rectangle(192, 32, 8, 8)];
        assert_eq!(new.changed_since(&old), expected);
    }

    #[test]
    fn a_rectangle_is_cut_to_the_frame() {
        let frame = Frame::black(100, 50);
        let cut = frame.clipped(rectangle(90, 40, 65_535, 65_535));
        assert_eq!(cut, Some(rectangle(90, 40, 10, 10)));
        assert_eq!(frame.clipped(rectangle(100, 0, 5, 5)), None);
        assert_eq!(frame.clipped(rectangle(65_535, 65_535, 1, 1)), None);
        assert_eq!(frame.clipped(rectangle(0, 0, 0, 5)), None);
    }

    #[test]
    fn another_size_keeps_what_both_have() {
        let frame = Frame::new(2, 1, vec![1, 2, 3, 4, 5, 6]).unwrap();
        let wider = frame.fitted(3, 2);
        let pixels: Vec<_> = wider.pixels(wider.whole()).flatten().collect();
        let black = [0; 12];
        assert_eq!(pixels, [&[1, 2, 3, 4, 5, 6][..], &black].concat());
        assert_eq!(wider.fitted(2, 1), frame);
    }
}
