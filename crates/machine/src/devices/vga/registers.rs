//! The registers of the VGA, which are accessed through index ports (IBM VGA Technical Reference;
//! FreeVGA).

use serde::{Deserialize, Serialize};

/// Registers of the sequencer.
pub mod sequencer {
    /// Clocking mode. Bit 5 turns the screen off.
    pub const CLOCKING: usize = 1;
    /// The planes that stores write.
    pub const MAP_MASK: usize = 2;
    /// The fonts of characters.
    pub const CHARACTER_MAP: usize = 3;
    /// Memory mode. Bit 3 enables chain-4.
    pub const MEMORY_MODE: usize = 4;
}

/// Registers of the graphics controller.
pub mod graphics {
    pub const SET_RESET: usize = 0;
    pub const ENABLE_SET_RESET: usize = 1;
    pub const COLOUR_COMPARE: usize = 2;
    pub const ROTATE: usize = 3;
    pub const READ_MAP: usize = 4;
    pub const MODE: usize = 5;
    pub const MISCELLANEOUS: usize = 6;
    pub const DO_NOT_CARE: usize = 7;
    pub const BIT_MASK: usize = 8;
}

/// Registers of the CRT controller.
pub mod crtc {
    pub const COLUMNS: usize = 0x01;
    pub const OVERFLOW: usize = 0x07;
    /// Bits 0 to 4: the first line of the first row. Bits 5 and 6: cells to the left.
    pub const PRESET_ROW_SCAN: usize = 0x08;
    pub const MAXIMUM_SCAN_LINE: usize = 0x09;
    pub const CURSOR_START: usize = 0x0a;
    pub const CURSOR_END: usize = 0x0b;
    pub const START_HIGH: usize = 0x0c;
    pub const CURSOR_HIGH: usize = 0x0e;
    /// Bit 7 protects registers 0 to 7.
    pub const PROTECT: usize = 0x11;
    pub const LINES: usize = 0x12;
    pub const OFFSET: usize = 0x13;
    pub const MODE: usize = 0x17;
    /// The screen is split after this line.
    pub const LINE_COMPARE: usize = 0x18;
}

/// Registers of the attribute controller after its palette.
pub mod attribute {
    pub const MODE: usize = 0x10;
    /// The number of pixels to the left.
    pub const PANNING: usize = 0x13;
    pub const COLOUR_SELECT: usize = 0x14;
}

/// Miscellaneous output.
pub mod output {
    /// The CRT controller is at 3D4h and not at 3B4h.
    pub const COLOUR: u8 = 1 << 0;
    /// The processor can access display memory.
    pub const MEMORY: u8 = 1 << 1;
}

/// Registers 0 to 7 of the CRT controller are protected.
const PROTECTED: u8 = 1 << 7;
/// The bit of the overflow register that is never protected.
const LINE_COMPARE: u8 = 1 << 4;

/// The registers of all parts of the VGA.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Registers {
    /// The miscellaneous output register.
    pub output: u8,
    /// The sequencer's registers.
    pub sequencer: [u8; 5],
    /// The graphics controller's registers.
    pub graphics: [u8; 9],
    /// The CRT controller's registers.
    pub crtc: [u8; 0x19],
    /// The attribute controller's registers: its palette, then the others.
    pub attribute: [u8; 0x15],
    /// The colours: red, green and blue with 6 bits each.
    pub palette: Vec<[u8; 3]>,
    /// The bits of a pixel that reach the palette.
    pub pixel_mask: u8,
    sequencer_index: u8,
    graphics_index: u8,
    crtc_index: u8,
    attribute_index: u8,
    /// Whether the attribute port expects data next.
    attribute_data: bool,
    palette_read: u16,
    palette_write: u16,
    palette_reads: bool,
    feature: u8,
}

impl Registers {
    /// The first port.
    pub const FIRST_PORT: u16 = 0x3b0;
    /// The last port.
    pub const LAST_PORT: u16 = 0x3df;

    /// Makes the registers in their state after power-up.
    pub fn new() -> Self {
        Self {
            palette: vec![[0; 3]; 256],
            pixel_mask: 0xff,
            ..Self::default()
        }
    }

    /// Whether a port of the CRT controller or of the status is at its other address now.
    fn is_elsewhere(&self, port: u16) -> bool {
        let colour = self.output & output::COLOUR != 0;
        match port {
            0x3b0..=0x3bf => colour,
            0x3d0..=0x3df => !colour,
            _ => false,
        }
    }

    /// Reads a port. `status` is input status 1, which depends on the time.
    pub fn read(&mut self, port: u16, status: u8) -> u8 {
        if self.is_elsewhere(port) {
            return 0xff;
        }
        match port {
            0x3c0 if self.attribute_data => 0,
            0x3c0 => self.attribute_index,
            0x3c1 => at(&self.attribute, self.attribute_index & 0x1f),
            // No interrupt is pending, and the display is a colour one.
            0x3c2 => 0x10,
            0x3c4 => self.sequencer_index,
            0x3c5 => at(&self.sequencer, self.sequencer_index),
            0x3c6 => self.pixel_mask,
            0x3c7 => {
                if self.palette_reads {
                    3
                } else {
                    0
                }
            }
            0x3c8 => (self.palette_write / 3) as u8,
            0x3c9 => self.read_palette(),
            0x3ca => self.feature,
            0x3cc => self.output,
            0x3ce => self.graphics_index,
            0x3cf => at(&self.graphics, self.graphics_index),
            0x3b4 | 0x3d4 => self.crtc_index,
            0x3b5 | 0x3d5 => at(&self.crtc, self.crtc_index),
            0x3ba | 0x3da => {
                self.attribute_data = false;
                status
            }
            _ => 0xff,
        }
    }

    /// Writes a port.
    pub fn write(&mut self, port: u16, value: u8) {
        if self.is_elsewhere(port) {
            return;
        }
        match port {
            0x3c0 => self.write_attribute(value),
            0x3c2 => self.output = value,
            0x3c4 => self.sequencer_index = value & 7,
            0x3c5 => put(&mut self.sequencer, self.sequencer_index, value),
            0x3c6 => self.pixel_mask = value,
            0x3c7 => {
                self.palette_read = 3 * u16::from(value);
                self.palette_reads = true;
            }
            0x3c8 => {
                self.palette_write = 3 * u16::from(value);
                self.palette_reads = false;
            }
            0x3c9 => self.write_palette(value),
            0x3ce => self.graphics_index = value & 0xf,
            0x3cf => put(&mut self.graphics, self.graphics_index, value),
            0x3b4 | 0x3d4 => self.crtc_index = value & 0x1f,
            0x3b5 | 0x3d5 => self.write_crtc(value),
            0x3ba | 0x3da => self.feature = value & 0x10,
            _ => {}
        }
    }

    fn write_attribute(&mut self, value: u8) {
        if self.attribute_data {
            let index = self.attribute_index & 0x1f;
            // The processor cannot change the palette while the display uses it.
            if index >= 0x10 || self.attribute_index & 0x20 == 0 {
                put(&mut self.attribute, index, value);
            }
        } else {
            self.attribute_index = value & 0x3f;
        }
        self.attribute_data = !self.attribute_data;
    }

    fn write_crtc(&mut self, value: u8) {
        let index = self.crtc_index;
        let protects = self.crtc[crtc::PROTECT] & PROTECTED != 0;
        match usize::from(index) {
            crtc::OVERFLOW if protects => {
                let old = self.crtc[crtc::OVERFLOW];
                self.crtc[crtc::OVERFLOW] = old & !LINE_COMPARE | value & LINE_COMPARE;
            }
            0..=7 if protects => {}
            _ => put(&mut self.crtc, index, value),
        }
    }

    fn read_palette(&mut self) -> u8 {
        let place = self.palette_read % 768;
        self.palette_read = (place + 1) % 768;
        self.palette
            .get(usize::from(place / 3))
            .map_or(0, |colour| colour[usize::from(place % 3)])
    }

    fn write_palette(&mut self, value: u8) {
        let place = self.palette_write % 768;
        self.palette_write = (place + 1) % 768;
        if let Some(colour) = self.palette.get_mut(usize::from(place / 3)) {
            colour[usize::from(place % 3)] = value;
        }
    }

    /// Whether the registers of a saved state have the right number.
    pub fn is_valid(&self) -> bool {
        self.palette.len() == 256
    }

    /// Returns the first cell that is displayed.
    pub fn start(&self) -> usize {
        self.word(crtc::START_HIGH)
    }

    /// Returns the cell of the cursor.
    pub fn cursor(&self) -> usize {
        self.word(crtc::CURSOR_HIGH)
    }

    fn word(&self, high: usize) -> usize {
        usize::from(self.crtc[high]) << 8 | usize::from(self.crtc[high + 1])
    }

    /// Returns the number of displayed lines.
    pub fn lines(&self) -> usize {
        let overflow = usize::from(self.crtc[crtc::OVERFLOW]);
        let high = (overflow >> 1 & 1) << 8 | (overflow >> 6 & 1) << 9;
        (usize::from(self.crtc[crtc::LINES]) | high) + 1
    }

    /// Returns the last line before a split.
    pub fn line_compare(&self) -> usize {
        let [overflow, maximum, low] =
            [crtc::OVERFLOW, crtc::MAXIMUM_SCAN_LINE, crtc::LINE_COMPARE]
                .map(|register| usize::from(self.crtc[register]));
        low | (overflow >> 4 & 1) << 8 | (maximum >> 6 & 1) << 9
    }

    /// Whether the screen shows the contents of memory.
    pub fn is_on(&self) -> bool {
        const SCREEN_OFF: u8 = 1 << 5;
        const PALETTE_IN_USE: u8 = 1 << 5;
        self.sequencer[sequencer::CLOCKING] & SCREEN_OFF == 0
            && self.attribute_index & PALETTE_IN_USE != 0
    }

    /// Whether the mode has characters and not pixels.
    pub fn is_text(&self) -> bool {
        self.graphics[graphics::MISCELLANEOUS] & 1 == 0
    }
}

fn at(registers: &[u8], index: u8) -> u8 {
    registers.get(usize::from(index)).copied().unwrap_or(0)
}

fn put(registers: &mut [u8], index: u8, value: u8) {
    if let Some(register) = registers.get_mut(usize::from(index)) {
        *register = value;
    }
}
