//! One 8237A DMA controller: its four channels and its registers.

use serde::{Deserialize, Serialize};

/// The kind of transfer of a channel ("Mode Register").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Addresses are counted, but nothing is transferred.
    Verify,
    /// From the device ("write transfer").
    ToMemory,
    /// To the device ("read transfer").
    FromMemory,
}

/// The order of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    /// Each address is one higher than the one before.
    Up,
    /// Each address is one lower than the one before.
    Down,
}

/// Consecutive units that are transferred together.
pub(super) struct Run {
    pub kind: Kind,
    pub direction: Direction,
    /// The address of the first unit, in units.
    pub first: u16,
    pub units: usize,
    /// Whether the count has reached its end.
    pub terminal_count: bool,
}

/// Command register: the controller is disabled.
const COMMAND_DISABLE: u8 = 1 << 2;

/// Mode register: position of the two bits for the kind of transfer.
const MODE_KIND: u8 = 2;
/// Mode register: address and count are reloaded at the end of the count.
const MODE_AUTOINITIALIZE: u8 = 1 << 4;
/// Mode register: addresses decrease.
const MODE_DECREMENT: u8 = 1 << 5;
/// Mode register, the two highest bits: another controller or bus master uses the channel.
const MODE_CASCADE: u8 = 3 << 6;

/// Registers from 8 on ("Software Command Codes", "Register Codes").
mod register {
    pub const COMMAND: u8 = 8;
    pub const REQUEST: u8 = 9;
    pub const SINGLE_MASK: u8 = 10;
    pub const MODE: u8 = 11;
    pub const CLEAR_POINTER: u8 = 12;
    pub const MASTER_CLEAR: u8 = 13;
    pub const CLEAR_MASK: u8 = 14;
    pub const MASK: u8 = 15;
}

/// The registers of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Channel {
    base_address: u16,
    base_count: u16,
    address: u16,
    /// The number of units to transfer, minus one.
    count: u16,
    mode: u8,
}

/// A controller with its four channels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Controller {
    channels: [Channel; 4],
    command: u8,
    /// A bit for each masked channel.
    mask: u8,
    /// A bit for each channel whose count has ended since the status was last read.
    ended: u8,
    /// A bit for each channel whose device requests a transfer.
    requests: u8,
    /// Whether the next access to an address or a count is to its upper byte.
    upper: bool,
}

impl Default for Controller {
    /// The state after RESET: all channels are masked.
    fn default() -> Self {
        Self {
            channels: Default::default(),
            command: 0,
            mask: 0xf,
            ended: 0,
            requests: 0,
            upper: false,
        }
    }
}

/// Returns one byte of a 16-bit register.
const fn byte_of(value: u16, upper: bool) -> u8 {
    (if upper { value >> 8 } else { value }) as u8
}

const fn with_byte(value: u16, byte: u8, upper: bool) -> u16 {
    if upper {
        value & 0xff | (byte as u16) << 8
    } else {
        value & 0xff00 | byte as u16
    }
}

impl Controller {
    /// Returns whether the next access is to the upper byte. The access after it is to the other
    /// byte.
    const fn flip(&mut self) -> bool {
        let upper = self.upper;
        self.upper = !upper;
        upper
    }

    /// Reads register 0 to 15.
    pub fn read(&mut self, register: u8) -> u8 {
        match register & 0xf {
            index @ 0..=7 => {
                let channel = &self.channels[usize::from(index >> 1)];
                let value = if index & 1 == 0 {
                    channel.address
                } else {
                    channel.count
                };
                byte_of(value, self.flip())
            }
            register::COMMAND => std::mem::take(&mut self.ended) | self.requests << 4,
            // The temporary register is only for transfers between memory locations. Chip sets
            // return the mask here, which the 8237A does not.
            register::MASK => 0xf0 | self.mask,
            _ => 0,
        }
    }

    /// Writes register 0 to 15.
    pub fn write(&mut self, register: u8, value: u8) {
        let bit = 1 << (value & 3);
        match register & 0xf {
            index @ 0..=7 => {
                let upper = self.flip();
                let channel = &mut self.channels[usize::from(index >> 1)];
                let (base, current) = if index & 1 == 0 {
                    (&mut channel.base_address, &mut channel.address)
                } else {
                    (&mut channel.base_count, &mut channel.count)
                };
                *base = with_byte(*base, value, upper);
                *current = with_byte(*current, value, upper);
            }
            register::COMMAND => self.command = value,
            register::SINGLE_MASK if value & 4 != 0 => self.mask |= bit,
            register::SINGLE_MASK => self.mask &= !bit,
            register::MODE => self.channels[usize::from(value & 3)].mode = value,
            register::CLEAR_POINTER => self.upper = false,
            register::MASTER_CLEAR => {
                *self = Self {
                    channels: self.channels,
                    requests: self.requests,
                    ..Self::default()
                };
            }
            register::CLEAR_MASK => self.mask = 0,
            register::MASK => self.mask = value & 0xf,
            register::REQUEST => {}
            _ => {}
        }
    }

    pub fn request(&mut self, channel: u8, requested: bool) {
        let bit = 1 << (channel & 3);
        if requested {
            self.requests |= bit;
        } else {
            self.requests &= !bit;
        }
    }

    /// Whether a channel, 0 to 3, serves requests of its device.
    pub fn is_open(&self, channel: u8) -> bool {
        let mode = self.channels[usize::from(channel & 3)].mode;
        let is_illegal = mode >> MODE_KIND & 3 == 3;
        self.command & COMMAND_DISABLE == 0
            && self.mask >> (channel & 3) & 1 == 0
            && mode & MODE_CASCADE != MODE_CASCADE
            && !is_illegal
    }

    /// For the second controller: whether the first one gets the bus through channel 4. It does
    /// even if the system has not programmed that channel as cascaded.
    pub fn lets_first_through(&self) -> bool {
        self.command & COMMAND_DISABLE == 0 && self.mask & 1 == 0
    }

    /// Counts at most `most` units, and at least one, of an open channel, 0 to 3, and returns them.
    /// A run ends at the end of the count or of the addresses.
    pub fn next_run(&mut self, channel: u8, most: usize) -> Run {
        let index = usize::from(channel & 3);
        let channel = &mut self.channels[index];
        let direction = match channel.mode & MODE_DECREMENT {
            0 => Direction::Up,
            _ => Direction::Down,
        };
        let first = channel.address;
        let to_edge = match direction {
            Direction::Up => 0x1_0000 - usize::from(first),
            Direction::Down => usize::from(first) + 1,
        };
        let left = usize::from(channel.count) + 1;
        let units = most.max(1).min(left).min(to_edge);
        let step = units as u16;
        channel.address = match direction {
            Direction::Up => first.wrapping_add(step),
            Direction::Down => first.wrapping_sub(step),
        };
        channel.count = channel.count.wrapping_sub(step);
        let terminal_count = units == left;
        let kind = match channel.mode >> MODE_KIND & 3 {
            1 => Kind::ToMemory,
            2 => Kind::FromMemory,
            _ => Kind::Verify,
        };
        if terminal_count {
            self.ended |= 1 << index;
            if channel.mode & MODE_AUTOINITIALIZE != 0 {
                channel.address = channel.base_address;
                channel.count = channel.base_count;
            } else {
                self.mask |= 1 << index;
            }
        }
        Run {
            kind,
            direction,
            first,
            units,
            terminal_count,
        }
    }
}
