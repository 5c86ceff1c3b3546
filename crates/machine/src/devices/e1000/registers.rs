//! The registers in the adapter's memory window, by their offsets, and what they hold after a reset
//! (PCI/PCI-X Family of Gigabit Ethernet Controllers, Software Developer's Manual 317453, chapter 13).

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub const CONTROL: u32 = 0x0000;
pub const STATUS: u32 = 0x0008;
pub const EEPROM_CONTROL: u32 = 0x0010;
pub const EEPROM_READ: u32 = 0x0014;
pub const MDI_CONTROL: u32 = 0x0020;
/// The Ethernet type of VLAN tags.
pub const VLAN_TYPE: u32 = 0x0038;
/// The causes of interrupts that are pending; reading clears them.
pub const CAUSES: u32 = 0x00c0;
pub const SET_CAUSES: u32 = 0x00c8;
pub const SET_MASK: u32 = 0x00d0;
pub const CLEAR_MASK: u32 = 0x00d8;
pub const RECEIVE_CONTROL: u32 = 0x0100;
pub const TRANSMIT_CONTROL: u32 = 0x0400;
pub const PACKET_BUFFERS: u32 = 0x1000;

/// The registers of a ring of descriptors: the first of each kind, from which the others have the
/// same distance.
pub const RECEIVE_RING: u32 = 0x2800;
pub const TRANSMIT_RING: u32 = 0x3800;
pub const RING_BASE_LOW: u32 = 0x00;
pub const RING_BASE_HIGH: u32 = 0x04;
pub const RING_BYTES: u32 = 0x08;
/// The next descriptor that the adapter uses.
pub const RING_HEAD: u32 = 0x10;
/// The first descriptor that is not the adapter's.
pub const RING_TAIL: u32 = 0x18;

/// Counters, which reading clears.
pub const STATISTICS: std::ops::RangeInclusive<u32> = 0x4000..=0x4124;
pub const GOOD_RECEIVED: u32 = 0x4074;
pub const BROADCASTS_RECEIVED: u32 = 0x4078;
pub const MULTICASTS_RECEIVED: u32 = 0x407c;
pub const GOOD_SENT: u32 = 0x4080;
/// Counters of bytes have 64 bits, the low half first.
pub const GOOD_BYTES_RECEIVED: u32 = 0x4088;
pub const GOOD_BYTES_SENT: u32 = 0x4090;
pub const ALL_RECEIVED: u32 = 0x40d0;
pub const ALL_SENT: u32 = 0x40d4;

/// A bit for each hash value of group addresses.
pub const GROUP_HASHES: u32 = 0x5200;
/// The addresses that are received, low half first, then the high half with [`ADDRESS_VALID`].
pub const ADDRESSES: u32 = 0x5400;
/// The number of these.
pub const ADDRESS_COUNT: u32 = 16;
/// In the high half: there is an address.
pub const ADDRESS_VALID: u32 = 1 << 31;

/// Bits of [`CONTROL`].
pub mod control {
    pub const RESET: u32 = 1 << 26;
    /// VLAN tags are taken out of received frames, and put into sent ones.
    pub const VLAN: u32 = 1 << 30;
    pub const PHY_RESET: u32 = 1 << 31;
}

/// Bits of [`STATUS`].
pub mod status {
    pub const FULL_DUPLEX: u32 = 1;
    pub const LINK_UP: u32 = 1 << 1;
    /// 1000 Mbit/s.
    pub const SPEED: u32 = 1 << 7;
}

/// Causes of interrupts.
pub mod cause {
    /// A descriptor that asked for it was sent.
    pub const SENT: u32 = 1;
    /// All descriptors were sent.
    pub const NOTHING_TO_SEND: u32 = 1 << 1;
    /// Few descriptors are left for frames.
    pub const FEW_DESCRIPTORS: u32 = 1 << 4;
    pub const RECEIVED: u32 = 1 << 7;
    /// The PHY has answered.
    pub const MDI_DONE: u32 = 1 << 9;
    /// The interrupt is requested.
    pub const ASSERTED: u32 = 1 << 31;
}

/// Bits of [`RECEIVE_CONTROL`].
pub mod receiving {
    pub const ENABLE: u32 = 1 << 1;
    pub const ALL_UNICASTS: u32 = 1 << 3;
    pub const ALL_MULTICASTS: u32 = 1 << 4;
    pub const LONG_FRAMES: u32 = 1 << 5;
    pub const BROADCASTS: u32 = 1 << 15;
    /// The sizes of buffers are 16 times as large.
    pub const LARGE_BUFFERS: u32 = 1 << 25;
    /// The check sequence is taken off.
    pub const STRIP_CHECK: u32 = 1 << 26;
}

/// Bits of [`TRANSMIT_CONTROL`].
pub mod sending {
    pub const ENABLE: u32 = 1 << 1;
    /// Short frames are filled up with zeros.
    pub const PAD: u32 = 1 << 3;
}

/// The registers that keep what is written to them, each with the bits that it has: ranges of
/// offsets, and a mask.
const STORED: &[(u32, u32, u32)] = &[
    (CONTROL, CONTROL, !(control::RESET | control::PHY_RESET)),
    // Extended control, flow control, VLAN type.
    (0x0018, 0x0018, u32::MAX),
    (0x0028, 0x0030, u32::MAX),
    (VLAN_TYPE, VLAN_TYPE, 0xffff),
    // Throttling of interrupts.
    (0x00c4, 0x00c4, 0xffff),
    (RECEIVE_CONTROL, RECEIVE_CONTROL, u32::MAX),
    (0x0170, 0x0180, u32::MAX),
    (TRANSMIT_CONTROL, TRANSMIT_CONTROL, u32::MAX),
    (0x0410, 0x0410, u32::MAX),
    (0x0458, 0x0458, u32::MAX),
    (0x0e00, 0x0e00, u32::MAX),
    (PACKET_BUFFERS, PACKET_BUFFERS, u32::MAX),
    (0x2160, 0x2168, u32::MAX),
    (0x3830, 0x3830, u32::MAX),
    // Checksums of received frames, which are left to the driver.
    (0x5000, 0x5000, u32::MAX),
    (GROUP_HASHES, GROUP_HASHES + 4 * 127, u32::MAX),
    (ADDRESSES, ADDRESSES + 8 * ADDRESS_COUNT - 4, u32::MAX),
    // VLANs, waking, management.
    (0x5600, 0x5600 + 4 * 127, u32::MAX),
    (0x5800, 0x5820, u32::MAX),
    (0x5b50, 0x5b50, u32::MAX),
];

/// The same for each of both rings, with offsets from its first register: what is above, and delays of
/// interrupts.
const STORED_OF_RING: &[(u32, u32, u32)] = &[
    (RING_BASE_LOW, RING_BASE_LOW, !0xf),
    (RING_BASE_HIGH, RING_BASE_HIGH, u32::MAX),
    (RING_BYTES, RING_BYTES, 0xf_ff80),
    (RING_HEAD, RING_HEAD, 0xffff),
    (RING_TAIL, RING_TAIL, 0xffff),
    (0x20, 0x2c, u32::MAX),
];

/// The bits that a register keeps, if it keeps something.
fn kept_bits(offset: u32) -> Option<u32> {
    let of = |table: &[(u32, u32, u32)], offset: u32| {
        let mut rows = table.iter();
        let row = rows.find(|(first, last, _)| (*first..=*last).contains(&offset));
        row.map(|(_, _, mask)| *mask)
    };
    let places = [RECEIVE_RING, TRANSMIT_RING].map(|ring| offset.checked_sub(ring));
    let of_rings = places.into_iter().flatten();
    of(STORED, offset).or_else(|| {
        let mut masks = of_rings.filter_map(|place| of(STORED_OF_RING, place));
        masks.next()
    })
}

/// The registers that keep their values.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Registers(BTreeMap<u32, u32>);

impl Registers {
    /// The registers after a reset.
    pub fn new() -> Self {
        Self(BTreeMap::from([
            // 48 KiB for frames that arrive, 16 KiB for frames to send.
            (PACKET_BUFFERS, 0x0010_0030),
            (0x0e00, 0x0706_8302),
        ]))
    }

    /// The value of a register; 0 if there is none.
    pub fn get(&self, offset: u32) -> u32 {
        self.0.get(&offset).copied().unwrap_or(0)
    }

    /// Sets a register that only the adapter changes.
    pub fn set(&mut self, offset: u32, value: u32) {
        self.0.insert(offset, value);
    }

    /// Takes what the guest writes to a register, if the register keeps something.
    pub fn write(&mut self, offset: u32, value: u32) {
        if let Some(mask) = kept_bits(offset) {
            self.0.insert(offset, value & mask);
        }
    }

    /// Reads a counter, and clears it.
    pub fn take(&mut self, offset: u32) -> u32 {
        self.0.remove(&offset).unwrap_or(0)
    }

    /// Adds to a counter of 32 bits, which stays at its maximum.
    pub fn count(&mut self, offset: u32) {
        let value = self.get(offset).saturating_add(1);
        self.set(offset, value);
    }

    /// Adds to a counter of 64 bits.
    pub fn add(&mut self, offset: u32, number: u64) {
        let value = u64::from(self.get(offset)) | u64::from(self.get(offset + 4)) << 32;
        let value = value.saturating_add(number);
        self.set(offset, value as u32);
        self.set(offset + 4, (value >> 32) as u32);
    }

    /// The adapter's ring with these registers.
    pub fn ring(&self, first: u32) -> Ring {
        let low = u64::from(self.get(first + RING_BASE_LOW));
        Ring {
            base: low | u64::from(self.get(first + RING_BASE_HIGH)) << 32,
            count: self.get(first + RING_BYTES) / DESCRIPTOR_BYTES,
            head: self.get(first + RING_HEAD),
            tail: self.get(first + RING_TAIL),
        }
    }
}

/// The size of a descriptor in bytes.
pub const DESCRIPTOR_BYTES: u32 = 16;

/// A ring of descriptors.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    base: u64,
    count: u32,
    pub head: u32,
    tail: u32,
}

impl Ring {
    /// The number of descriptors that are the adapter's. It is 0 if the registers make no sense.
    pub fn available(&self) -> u32 {
        if self.head >= self.count || self.tail >= self.count {
            return 0;
        }
        match self.tail.checked_sub(self.head) {
            Some(available) => available,
            None => self.count - self.head + self.tail,
        }
    }

    /// The number of descriptors.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The address of the adapter's next descriptor.
    pub fn address(&self) -> u64 {
        self.base
            .wrapping_add(u64::from(self.head * DESCRIPTOR_BYTES))
    }

    /// Gives the next descriptor back.
    pub fn advance(&mut self) {
        self.head = match self.head + 1 {
            next if next >= self.count => 0,
            next => next,
        };
    }
}
