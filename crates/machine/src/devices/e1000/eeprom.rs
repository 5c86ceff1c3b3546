//! The adapter's EEPROM: 64 words with its address, which drivers read word by word through a register
//! or bit by bit (manual 317453, sections 5.2 to 5.4 and 13.4.3).

use serde::{Deserialize, Serialize};
use tollgate_network::MacAddress;

/// Bits of the register through which the chip's pins are driven.
mod pin {
    pub const CLOCK: u32 = 1;
    pub const SELECT: u32 = 1 << 1;
    /// From the driver.
    pub const DATA_IN: u32 = 1 << 2;
    /// To the driver.
    pub const DATA_OUT: u32 = 1 << 3;
    /// The driver requests the pins, and gets them.
    pub const REQUEST: u32 = 1 << 6;
    pub const GRANT: u32 = 1 << 7;
    pub const PRESENT: u32 = 1 << 8;
}

/// The number of words.
const WORDS: usize = 64;
/// The sum of all words.
const SUM: u16 = 0xbaba;
/// The number of bits before a word: a start bit, two bits of the operation, six of the address.
const COMMAND_BITS: u8 = 9;
/// A start bit, and the operation that reads.
const READ: u16 = 0b110 << 6;

/// The words, and the state of the pins.
#[derive(Clone, Debug)]
pub struct Eeprom {
    words: [u16; WORDS],
    pub pins: Pins,
}

/// What was said through the pins.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Pins {
    /// The driver's pins, as they were written.
    driven: u32,
    /// The bits of a command so far, and their number.
    command: u16,
    bits: u8,
    /// What is left of the word that is read, the next bit at the top.
    answer: u16,
}

impl Eeprom {
    /// The content for an adapter with this address and identity.
    pub fn new(mac: MacAddress, vendor: u16, device: u16, subsystem: [u16; 2]) -> Self {
        let mut words = [0xffff; WORDS];
        for (word, pair) in words.iter_mut().zip(mac.0.chunks(2)) {
            *word = u16::from_le_bytes([pair[0], pair[1]]);
        }
        words[3] = 0;
        // The first word of control: the identity below is the adapter's.
        words[0x0a] = 0x640b;
        [words[0x0c], words[0x0b]] = subsystem;
        words[0x0d] = device;
        words[0x0e] = vendor;
        // The second: flow control in both directions is offered.
        words[0x0f] = 0x3040;
        // Nothing wakes the machine.
        words[0x14] = 0;
        words[0x24] = 0;
        words[WORDS - 1] = 0;
        let sum = words
            .iter()
            .fold(0_u16, |sum, word| sum.wrapping_add(*word));
        words[WORDS - 1] = SUM.wrapping_sub(sum);
        Self {
            words,
            pins: Pins::default(),
        }
    }

    /// A word; ones where there is none.
    pub fn word(&self, address: u16) -> u16 {
        self.words
            .get(usize::from(address))
            .copied()
            .unwrap_or(0xffff)
    }

    /// The value of the register of the pins.
    pub fn read(&self) -> u32 {
        let Pins {
            driven,
            answer,
            bits,
            ..
        } = self.pins;
        let grant = if driven & pin::REQUEST != 0 {
            pin::GRANT
        } else {
            0
        };
        // While nothing is read, the pin is pulled up: the chip is ready.
        let is_high = bits <= COMMAND_BITS || answer & 0x8000 != 0;
        let out = if is_high { pin::DATA_OUT } else { 0 };
        driven | grant | out | pin::PRESENT
    }

    /// Drives the pins.
    pub fn write(&mut self, value: u32) {
        let before = self.pins.driven;
        let driven = value & (pin::CLOCK | pin::SELECT | pin::DATA_IN | pin::REQUEST);
        self.pins.driven = driven;
        if driven & pin::SELECT == 0 {
            self.pins = Pins {
                driven,
                ..Pins::default()
            };
            return;
        }
        let rises = before & pin::CLOCK == 0 && driven & pin::CLOCK != 0;
        if rises {
            self.clock(driven & pin::DATA_IN != 0);
        }
    }

    /// One bit passes: into the command, or out of the word.
    fn clock(&mut self, bit: bool) {
        let pins = &mut self.pins;
        if pins.bits < COMMAND_BITS {
            // Zeros before the start bit mean nothing.
            if pins.bits == 0 && !bit {
                return;
            }
            pins.command = pins.command << 1 | u16::from(bit);
            pins.bits += 1;
            return;
        }
        if pins.bits == COMMAND_BITS {
            pins.bits += 1;
            pins.answer = match pins.command & 0x1c0 == READ {
                true => self.words[usize::from(pins.command) % WORDS],
                // Other operations change nothing.
                false => 0xffff,
            };
            return;
        }
        pins.answer <<= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eeprom() -> Eeprom {
        let mac = MacAddress([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        Eeprom::new(mac, 0x8086, 0x100e, [0x1af4, 0x1100])
    }

    /// Reads a word bit by bit, as Linux's driver does.
    fn read(eeprom: &mut Eeprom, address: u16) -> u16 {
        let base = pin::REQUEST | pin::SELECT;
        eeprom.write(pin::REQUEST);
        assert_ne!(eeprom.read() & pin::GRANT, 0);
        for place in (0..COMMAND_BITS).rev() {
            let bit = (READ | address) >> place & 1;
            let data = if bit == 1 { pin::DATA_IN } else { 0 };
            eeprom.write(base | data);
            eeprom.write(base | data | pin::CLOCK);
            eeprom.write(base | data);
        }
        let mut word = 0;
        for _ in 0..16 {
            eeprom.write(base | pin::CLOCK);
            word = word << 1 | u16::from(eeprom.read() & pin::DATA_OUT != 0);
            eeprom.write(base);
        }
        eeprom.write(pin::REQUEST);
        word
    }

    #[test]
    fn all_words_are_read_bit_by_bit_and_have_the_right_sum() {
        let mut eeprom = eeprom();
        let words: Vec<u16> = (0..64).map(|address| read(&mut eeprom, address)).collect();
        assert_eq!(words[..3], [0x5452, 0x1200, 0x5634]);
        assert_eq!(words[0x0d], 0x100e);
        let sum = words
            .iter()
            .fold(0_u16, |sum, word| sum.wrapping_add(*word));
        assert_eq!(sum, 0xbaba);
        assert!((0..64).all(|address| eeprom.word(address) == words[usize::from(address)]));
        assert_eq!(eeprom.word(64), 0xffff);
    }

    #[test]
    fn a_command_that_is_broken_off_leaves_nothing_behind() {
        let mut eeprom = eeprom();
        for value in 0..500_u32 {
            eeprom.write(value.wrapping_mul(0x9e37) >> 3);
        }
        eeprom.write(0);
        assert_eq!(read(&mut eeprom, 1), 0x1200);
    }
}
