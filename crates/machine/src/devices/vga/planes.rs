//! The four planes of display memory, and how the processor accesses them through the graphics
//! controller and the sequencer.
//!
//! A *cell* consists of the four bytes at one address, one of each plane. In text mode it holds a
//! character, its attribute and a byte of a font.

use super::registers::{Registers, graphics, sequencer};

/// The number of cells: each plane has 64 KiB.
pub const CELLS: usize = 0x1_0000;

/// The planes, with the graphics controller's latches.
#[derive(Debug)]
pub struct Planes {
    /// The bytes of each cell, plane 0 first.
    pub cells: Vec<[u8; 4]>,
    latches: [u8; 4],
}

impl Default for Planes {
    fn default() -> Self {
        Self {
            cells: vec![[0; 4]; CELLS],
            latches: [0; 4],
        }
    }
}

/// The target of an address of the window.
enum Path {
    /// One plane of a cell.
    One(usize, usize),
    /// All planes of a cell.
    All(usize),
}

fn path(registers: &Registers, offset: usize) -> Path {
    const CHAIN_4: u8 = 1 << 3;
    const ODD_EVEN: u8 = 1 << 4;
    if registers.sequencer[sequencer::MEMORY_MODE] & CHAIN_4 != 0 {
        Path::One(offset >> 2 & (CELLS - 1), offset & 3)
    } else if registers.graphics[graphics::MODE] & ODD_EVEN != 0 {
        let plane = registers.graphics[graphics::READ_MAP] & 2 | (offset & 1) as u8;
        Path::One(offset >> 1 & (CELLS - 1), plane.into())
    } else {
        Path::All(offset & (CELLS - 1))
    }
}

impl Planes {
    /// Loads a byte.
    pub fn load(&mut self, registers: &Registers, offset: usize) -> u8 {
        let cell = match path(registers, offset) {
            Path::One(cell, plane) => {
                self.latches = self.cells[cell];
                return self.cells[cell][plane];
            }
            Path::All(cell) => cell,
        };
        const COMPARE: u8 = 1 << 3;
        self.latches = self.cells[cell];
        let registers = &registers.graphics;
        if registers[graphics::MODE] & COMPARE == 0 {
            return self.latches[usize::from(registers[graphics::READ_MAP] & 3)];
        }
        let differs = (0..4)
            .filter(|plane| registers[graphics::DO_NOT_CARE] >> plane & 1 != 0)
            .map(|plane| self.latches[plane] ^ ones(registers[graphics::COLOUR_COMPARE], plane))
            .fold(0, |all, bits| all | bits);
        !differs
    }

    /// Stores a byte.
    pub fn store(&mut self, registers: &Registers, offset: usize, value: u8) {
        let mask = registers.sequencer[sequencer::MAP_MASK];
        match path(registers, offset) {
            Path::One(cell, plane) => {
                if mask >> plane & 1 != 0 {
                    self.cells[cell][plane] = value;
                }
            }
            Path::All(cell) => {
                let bytes = self.made(&registers.graphics, value);
                for plane in (0..4).filter(|plane| mask >> plane & 1 != 0) {
                    self.cells[cell][plane] = bytes[plane];
                }
            }
        }
    }

    /// Computes the byte for each plane from the stored value and the latches.
    fn made(&self, registers: &[u8; 9], value: u8) -> [u8; 4] {
        let rotate = registers[graphics::ROTATE];
        let rotated = value.rotate_right((rotate & 7).into());
        let bit_mask = registers[graphics::BIT_MASK];
        let set_reset = registers[graphics::SET_RESET];
        let (bytes, bit_mask): ([u8; 4], u8) = match registers[graphics::MODE] & 3 {
            0 => {
                let enabled = registers[graphics::ENABLE_SET_RESET];
                let byte = |plane: usize| match enabled >> plane & 1 {
                    0 => rotated,
                    _ => ones(set_reset, plane),
                };
                (std::array::from_fn(byte), bit_mask)
            }
            1 => return self.latches,
            2 => (std::array::from_fn(|plane| ones(value, plane)), bit_mask),
            _ => (
                std::array::from_fn(|plane| ones(set_reset, plane)),
                bit_mask & rotated,
            ),
        };
        let combined = |plane: usize| {
            let (byte, latch) = (bytes[plane], self.latches[plane]);
            let byte = match rotate >> 3 & 3 {
                0 => byte,
                1 => byte & latch,
                2 => byte | latch,
                _ => byte ^ latch,
            };
            byte & bit_mask | latch & !bit_mask
        };
        std::array::from_fn(combined)
    }
}

/// Returns all ones if the bit of a plane is set.
fn ones(bits: u8, plane: usize) -> u8 {
    if bits >> plane & 1 != 0 { 0xff } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planar() -> (Planes, Registers) {
        let mut registers = Registers::new();
        registers.sequencer[sequencer::MAP_MASK] = 0xf;
        registers.graphics[graphics::BIT_MASK] = 0xff;
        (Planes::default(), registers)
    }

    #[test]
    fn stores_reach_the_planes_of_the_mask() {
        let (mut planes, mut registers) = planar();
        registers.sequencer[sequencer::MAP_MASK] = 0b0101;
        planes.store(&registers, 0x1_0003, 0x5a);
        assert_eq!(planes.cells[3], [0x5a, 0, 0x5a, 0]);
        registers.graphics[graphics::READ_MAP] = 2;
        assert_eq!(planes.load(&registers, 3), 0x5a);
    }

    #[test]
    fn write_modes_make_the_bytes_as_the_manual_says() {
        let (mut planes, mut registers) = planar();
        planes.cells[0] = [0xf0; 4];
        planes.load(&registers, 0);
        // Mode 0: rotated, XORed with the latches, in the bits of the mask.
        registers.graphics[graphics::ROTATE] = 3 << 3 | 4;
        registers.graphics[graphics::BIT_MASK] = 0x3c;
        planes.store(&registers, 0, 0x0f);
        assert_eq!(planes.cells[0], [0xc0; 4]);
        // Mode 1: the latches are stored.
        registers.graphics[graphics::MODE] = 1;
        planes.store(&registers, 1, 0);
        assert_eq!(planes.cells[1], [0xf0; 4]);
        // Mode 2: the value has one bit for each plane.
        registers.graphics[graphics::MODE] = 2;
        registers.graphics[graphics::ROTATE] = 0;
        planes.store(&registers, 2, 0b1001);
        assert_eq!(planes.cells[2], [0xfc, 0xc0, 0xc0, 0xfc]);
        // Mode 3: set/reset is stored in the bits that are set in both mask and value.
        registers.graphics[graphics::MODE] = 3;
        registers.graphics[graphics::SET_RESET] = 0b0010;
        planes.store(&registers, 3, 0xf8);
        assert_eq!(planes.cells[3], [0xc0, 0xf8, 0xc0, 0xc0]);
    }

    #[test]
    fn a_colour_is_compared_in_the_planes_that_count() {
        let (mut planes, mut registers) = planar();
        planes.cells[7] = [0xf0, 0xcc, 0, 0xff];
        registers.graphics[graphics::MODE] = 8;
        registers.graphics[graphics::COLOUR_COMPARE] = 0b0011;
        registers.graphics[graphics::DO_NOT_CARE] = 0b0111;
        assert_eq!(planes.load(&registers, 7), 0xc0);
    }

    #[test]
    fn chained_and_odd_addresses_choose_a_plane() {
        let (mut planes, mut registers) = planar();
        registers.graphics[graphics::MODE] = 0x10;
        planes.store(&registers, 5, 1);
        assert_eq!(planes.cells[2], [0, 1, 0, 0]);
        registers.sequencer[sequencer::MEMORY_MODE] = 8;
        planes.store(&registers, 6, 2);
        assert_eq!(planes.cells[1], [0, 0, 2, 0]);
    }
}
