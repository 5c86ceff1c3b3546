//! The frame buffer extension of Bochs (its "VBE display interface", ids B0C0h to B0C5h), with
//! which VGA firmware sets the modes of VESA's BIOS extension.

use serde::{Deserialize, Serialize};

/// The size of display memory in bytes.
pub const VIDEO_BYTES: u64 = 16 << 20;
/// The size of a bank in bytes.
const BANK_BYTES: u32 = 0x1_0000;
/// The maximum size of a picture.
const MOST_WIDTH: u16 = 2560;
const MOST_HEIGHT: u16 = 1600;
const MOST_DEPTH: u16 = 32;

mod index {
    pub const ID: u16 = 0;
    pub const WIDTH: u16 = 1;
    pub const HEIGHT: u16 = 2;
    pub const DEPTH: u16 = 3;
    pub const ENABLE: u16 = 4;
    pub const BANK: u16 = 5;
    pub const VIRTUAL_WIDTH: u16 = 6;
    pub const VIRTUAL_HEIGHT: u16 = 7;
    pub const X: u16 = 8;
    pub const Y: u16 = 9;
    pub const MEMORY: u16 = 10;
}

const ENABLED: u16 = 1 << 0;
const CAPABILITIES: u16 = 1 << 1;
const EIGHT_BIT_PALETTE: u16 = 1 << 5;
const KEEP_MEMORY: u16 = 1 << 7;

/// The id of the newest interface.
const NEWEST_ID: u16 = 0xb0c5;
const OLDEST_ID: u16 = 0xb0c0;

/// The interface's registers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dispi {
    index: u16,
    id: u16,
    width: u16,
    height: u16,
    depth: u16,
    enable: u16,
    bank: u16,
    virtual_width: u16,
    x: u16,
    y: u16,
}

impl Default for Dispi {
    fn default() -> Self {
        Self {
            index: 0,
            id: NEWEST_ID,
            width: 0,
            height: 0,
            depth: 8,
            enable: 0,
            bank: 0,
            virtual_width: 0,
            x: 0,
            y: 0,
        }
    }
}

/// A display mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode {
    /// The number of pixels in a line.
    pub width: usize,
    /// The number of lines.
    pub height: usize,
    /// The bits of a pixel: 4, 8, 15, 16, 24 or 32.
    pub depth: u16,
    /// The number of bytes from one line to the next.
    pub pitch: usize,
    /// The offset of the first pixel.
    pub start: usize,
}

impl Dispi {
    /// The index port. The data ports follow it.
    pub const INDEX_PORT: u16 = 0x1ce;
    /// The ports of the data register.
    pub const DATA_PORTS: [u16; 2] = [0x1cf, 0x1d0];

    /// Reads a port.
    pub fn read(&self, port: u16) -> u16 {
        if port == Self::INDEX_PORT {
            return self.index;
        }
        let most = self.enable & CAPABILITIES != 0;
        match self.index {
            index::ID => self.id,
            index::WIDTH if most => MOST_WIDTH,
            index::HEIGHT if most => MOST_HEIGHT,
            index::DEPTH if most => MOST_DEPTH,
            index::WIDTH => self.width,
            index::HEIGHT => self.height,
            index::DEPTH => self.depth,
            index::ENABLE => self.enable,
            index::BANK => self.bank,
            index::VIRTUAL_WIDTH => self.virtual_width,
            index::VIRTUAL_HEIGHT => self.virtual_height(),
            index::X => self.x,
            index::Y => self.y,
            index::MEMORY => (VIDEO_BYTES / u64::from(BANK_BYTES)) as u16,
            _ => 0,
        }
    }

    /// Writes a port. Returns whether display memory must be cleared.
    pub fn write(&mut self, port: u16, value: u16) -> bool {
        if port == Self::INDEX_PORT {
            self.index = value;
            return false;
        }
        match self.index {
            index::ID if (OLDEST_ID..=NEWEST_ID).contains(&value) => self.id = value,
            index::WIDTH if value <= MOST_WIDTH && value.is_multiple_of(8) => self.width = value,
            index::HEIGHT if value <= MOST_HEIGHT => self.height = value,
            index::DEPTH if matches!(value, 4 | 8 | 15 | 16 | 24 | 32) => self.depth = value,
            index::DEPTH if value == 0 => self.depth = 8,
            index::ENABLE => return self.set_enable(value),
            index::BANK if u64::from(value) < VIDEO_BYTES / u64::from(BANK_BYTES) => {
                self.bank = value;
            }
            index::VIRTUAL_WIDTH if value >= self.width => self.virtual_width = value,
            index::X => self.x = value,
            index::Y => self.y = value,
            _ => {}
        }
        false
    }

    fn set_enable(&mut self, value: u16) -> bool {
        let begins = value & ENABLED != 0 && self.enable & ENABLED == 0;
        self.enable = value;
        if begins {
            self.virtual_width = self.width;
            (self.x, self.y, self.bank) = (0, 0, 0);
        }
        begins && value & KEEP_MEMORY == 0
    }

    /// Returns the bytes from one line to the next, over all planes. With 4 bits per pixel, each of
    /// the four planes holds one bit of a pixel.
    fn pitch(&self) -> usize {
        let width = usize::from(self.virtual_width.max(self.width));
        match self.depth {
            4 => width / 2,
            depth => width * usize::from(depth.div_ceil(8)),
        }
    }

    fn virtual_height(&self) -> u16 {
        let lines = VIDEO_BYTES as usize / self.pitch().max(1);
        u16::try_from(lines).unwrap_or(u16::MAX)
    }

    /// Whether the extension's mode is active and not the VGA's.
    pub fn is_enabled(&self) -> bool {
        self.enable & ENABLED != 0
    }

    /// Whether the colours of the palette have 8 bits and not 6.
    pub fn has_wide_palette(&self) -> bool {
        self.enable & EIGHT_BIT_PALETTE != 0
    }

    /// Returns the offset of the bank in the window at A0000h.
    pub fn bank_offset(&self) -> u64 {
        u64::from(self.bank) * u64::from(BANK_BYTES)
    }

    /// Returns the mode if it is one with pixels.
    pub fn mode(&self) -> Option<Mode> {
        let pixel = usize::from(self.depth.div_ceil(8));
        let pitch = self.pitch();
        (self.is_enabled() && self.width > 0 && self.height > 0).then(|| Mode {
            width: self.width.into(),
            height: self.height.into(),
            depth: self.depth,
            pitch,
            start: usize::from(self.y) * pitch + usize::from(self.x) * pixel,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(dispi: &mut Dispi, index: u16, value: u16) -> bool {
        dispi.write(Dispi::INDEX_PORT, index);
        dispi.write(Dispi::DATA_PORTS[0], value)
    }

    #[test]
    fn a_mode_is_set_and_memory_cleared_unless_it_is_to_be_kept() {
        let mut dispi = Dispi::default();
        assert_eq!(dispi.mode(), None);
        for (index, value) in [(1, 800), (2, 600), (3, 32)] {
            assert!(!set(&mut dispi, index, value));
        }
        assert!(set(&mut dispi, 4, 0x41));
        let mode = dispi.mode().unwrap();
        assert_eq!((mode.width, mode.height, mode.pitch), (800, 600, 3200));
        set(&mut dispi, 9, 10);
        assert_eq!(dispi.mode().unwrap().start, 32_000);
        assert!(!set(&mut dispi, 4, 0x41), "it was on");
        set(&mut dispi, 4, 0);
        assert!(!set(&mut dispi, 4, 0x81));
    }

    #[test]
    fn what_is_possible_can_be_asked_for_and_nothing_else_be_set() {
        let mut dispi = Dispi::default();
        set(&mut dispi, 4, 2);
        dispi.write(Dispi::INDEX_PORT, 1);
        assert_eq!(dispi.read(Dispi::DATA_PORTS[1]), MOST_WIDTH);
        for index in 0..=u16::from(u8::MAX) {
            set(&mut dispi, index, 0xffff);
        }
        assert_eq!(
            (dispi.width, dispi.height, dispi.depth, dispi.bank),
            (0, 0, 8, 0)
        );
    }
}
