//! The cell of display memory at which the CRT controller begins each line: start address, panning,
//! and split screens.
//!
//! After the line in the line compare register, the display begins again at cell 0, whatever the
//! start address is (IBM VGA Technical Reference, CRT controller registers 08h, 18h; attribute
//! controller registers 10h, 13h).

use super::Vga;
use super::registers::{attribute, crtc, graphics, sequencer};

/// A displayed line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Line {
    /// The cell with the first pixels or the first character of the line.
    pub cell: usize,
    /// The number of the line within its characters.
    pub row_scan: usize,
    /// The number of pixels by which the line is moved to the left.
    pub panning: usize,
}

/// The state of the counters at a line.
struct Counted {
    /// The number of lines since the address counter was loaded.
    line: usize,
    /// The value that the address counter was loaded with.
    start: usize,
    /// Whether the line follows the split.
    is_split: bool,
    panning: usize,
}

impl Vga {
    /// Returns the number of cells from one row to the next.
    pub(super) fn pitch(&self) -> usize {
        2 * usize::from(self.registers.crtc[crtc::OFFSET])
    }

    pub(super) fn character_height(&self) -> usize {
        usize::from(self.registers.crtc[crtc::MAXIMUM_SCAN_LINE] & 0x1f) + 1
    }

    /// Returns the width of a character in dots.
    pub(super) fn character_width(&self) -> usize {
        const EIGHT_WIDE: u8 = 1;
        match self.registers.sequencer[sequencer::CLOCKING] & EIGHT_WIDE {
            0 => 9,
            _ => 8,
        }
    }

    pub(super) fn is_256_colour(&self) -> bool {
        const SHIFT_256: u8 = 1 << 6;
        self.registers.graphics[graphics::MODE] & SHIFT_256 != 0
    }

    /// Returns how often a line of pixels is shown.
    pub(super) fn repeated_lines(&self) -> usize {
        const DOUBLE: u8 = 1 << 7;
        let maximum = self.registers.crtc[crtc::MAXIMUM_SCAN_LINE];
        let double = if maximum & DOUBLE != 0 { 2 } else { 1 };
        match self.is_cga() {
            // The counter that would repeat a line selects its bank instead.
            true => double,
            false => self.character_height() * double,
        }
    }

    /// Whether the row scan counter's lowest bit is address bit 13, as in CGA's modes.
    fn is_cga(&self) -> bool {
        self.registers.crtc[crtc::MODE] & 1 == 0
    }

    /// Returns a line of a text mode.
    pub(super) fn text_line(&self, line: usize) -> Line {
        let dots = match (
            self.character_width(),
            self.registers.attribute[attribute::PANNING] & 0xf,
        ) {
            (8, value) => value & 7,
            // With 9 dots, the value 8 stands for no movement.
            (_, value @ 0..8) => value + 1,
            _ => 0,
        };
        let counted = self.counted(line, 1, dots.into());
        let preset = match counted.is_split {
            false => usize::from(self.registers.crtc[crtc::PRESET_ROW_SCAN] & 0x1f),
            true => 0,
        };
        let (line, height) = (counted.line + preset, self.character_height());
        Line {
            cell: counted.start + line / height * self.pitch(),
            row_scan: line % height,
            panning: counted.panning,
        }
    }

    /// Returns a line of pixels in a mode whose pixels are in the planes.
    pub(super) fn pixel_line(&self, line: usize) -> Line {
        const BYTE_MODE: u8 = 1 << 6;
        let pixels = self.registers.attribute[attribute::PANNING] & 7;
        let pixels = match self.is_256_colour() {
            // Two dots form a pixel.
            true => pixels / 2,
            false => pixels,
        };
        let counted = self.counted(line, self.repeated_lines(), pixels.into());
        let line = counted.line;
        let offset = match self.is_cga() {
            false => line * self.pitch(),
            true => {
                let bank = match self.registers.crtc[crtc::MODE] & BYTE_MODE {
                    // 8 KiB are 1000h cells in a mode where a cell has two bytes.
                    0 => 0x1000,
                    _ => 0x2000,
                };
                let lines = self.character_height();
                line / lines * self.pitch() + line % lines % 2 * bank
            }
        };
        Line {
            cell: counted.start + offset,
            row_scan: 0,
            panning: counted.panning,
        }
    }

    /// Returns the state of the counters at a line, if each line is displayed `repeats` times.
    /// These registers neither split nor pan a mode of the frame buffer extension.
    fn counted(&self, line: usize, repeats: usize, panning: usize) -> Counted {
        const PANNING_ENDS_AT_SPLIT: u8 = 1 << 5;
        let registers = &self.registers;
        let first_behind = registers.line_compare() / repeats + 1;
        let is_extension = self.dispi.is_enabled();
        let is_split = line >= first_behind && !is_extension;
        let ends = registers.attribute[attribute::MODE] & PANNING_ENDS_AT_SPLIT != 0;
        let (bytes, panning) = match is_extension || is_split && ends {
            true => (0, 0),
            false => (
                usize::from(registers.crtc[crtc::PRESET_ROW_SCAN] >> 5 & 3),
                panning,
            ),
        };
        match is_split {
            true => Counted {
                line: line - first_behind,
                start: bytes,
                is_split,
                panning,
            },
            false => Counted {
                line,
                start: registers.start() + bytes,
                is_split,
                panning,
            },
        }
    }
}
