//! The configuration space of one function: 256 bytes, some bits of which the guest may change (PCI
//! Local Bus Specification 3.0, chapter 6).

use bitflags::bitflags;

/// The size of a configuration space in bytes.
pub const CONFIG_BYTES: usize = 256;
/// The number of base address registers of a function.
pub const MAX_BARS: usize = 6;

/// Offsets of registers (6.1).
mod register {
    pub const VENDOR_ID: usize = 0x00;
    pub const DEVICE_ID: usize = 0x02;
    pub const COMMAND: usize = 0x04;
    pub const STATUS: usize = 0x06;
    pub const REVISION: usize = 0x08;
    pub const CLASS: usize = 0x09;
    pub const HEADER_TYPE: usize = 0x0e;
    pub const BAR: usize = 0x10;
    pub const SUBSYSTEM_VENDOR_ID: usize = 0x2c;
    pub const SUBSYSTEM_ID: usize = 0x2e;
    pub const CAPABILITIES: usize = 0x34;
    pub const INTERRUPT_LINE: usize = 0x3c;
    pub const INTERRUPT_PIN: usize = 0x3d;
    /// The first byte that capabilities may occupy.
    pub const FIRST_FREE: usize = 0x40;
}

/// In the status register: INTx is asserted, or would be if it were not disabled (6.2.3).
const STATUS_INTERRUPT: u8 = 1 << 3;
/// In the status register: there is a list of capabilities.
const STATUS_CAPABILITIES: u8 = 1 << 4;
/// In the header type: the device has several functions.
const HEADER_MULTIFUNCTION: u8 = 1 << 7;
/// In the interrupt pin register: INTA.
const PIN_INTA: u8 = 1;
/// In a BAR: it maps I/O ports.
const BAR_IO: u32 = 1;
/// In a BAR: it is 64 bits wide.
const BAR_64_BITS: u32 = 2 << 1;

bitflags! {
    /// The command register (6.2.2).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Command: u16 {
        /// The function answers at the ports in its BARs.
        const IO = 1;
        /// The function answers at the memory in its BARs.
        const MEMORY = 1 << 1;
        /// The function may read and write memory, and send messages.
        const BUS_MASTER = 1 << 2;
        /// This bit is stored without effect.
        const PARITY = 1 << 6;
        /// This bit is stored without effect.
        const SYSTEM_ERROR = 1 << 8;
        /// The function does not assert INTx.
        const INTX_DISABLE = 1 << 10;
    }
}

/// The identification of a function.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Revision ID.
    pub revision: u8,
    /// Base class, sub-class, programming interface: 24 bits.
    pub class: u32,
    /// Subsystem vendor ID.
    pub subsystem_vendor: u16,
    /// Subsystem ID.
    pub subsystem: u16,
}

/// The kind of addresses that a base address register maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BarKind {
    /// I/O ports.
    Io,
    /// Memory below 4 GiB.
    Memory32,
    /// Memory at any address; this uses the next register too.
    Memory64,
}

/// A range of addresses at which a function answers now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The base address register.
    pub bar: usize,
    /// Whether these are ports and not memory.
    pub is_io: bool,
    /// The first address or port.
    pub start: u64,
    /// The size in bytes, which is a power of two.
    pub bytes: u64,
}

/// The configuration space of one function.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    bytes: [u8; CONFIG_BYTES],
    /// The bits that the guest may change.
    writable: [u8; CONFIG_BYTES],
    bars: [Option<(BarKind, u64)>; MAX_BARS],
    /// The offset for the next capability.
    free: usize,
    /// The offset of the pointer to the next capability.
    link: usize,
}

impl ConfigSpace {
    /// Makes a space without BARs, capabilities and interrupts.
    pub fn new(identity: &Identity) -> Self {
        let mut space = Self {
            bytes: [0; CONFIG_BYTES],
            writable: [0; CONFIG_BYTES],
            bars: [None; MAX_BARS],
            free: register::FIRST_FREE,
            link: register::CAPABILITIES,
        };
        space.set(register::VENDOR_ID, &identity.vendor.to_le_bytes());
        space.set(register::DEVICE_ID, &identity.device.to_le_bytes());
        space.set(register::REVISION, &[identity.revision]);
        space.set(register::CLASS, &identity.class.to_le_bytes()[..3]);
        space.set(
            register::SUBSYSTEM_VENDOR_ID,
            &identity.subsystem_vendor.to_le_bytes(),
        );
        space.set(register::SUBSYSTEM_ID, &identity.subsystem.to_le_bytes());
        space.allow(register::COMMAND, &Command::all().bits().to_le_bytes());
        // Software stores here where the pin is routed.
        space.allow(register::INTERRUPT_LINE, &[0xff]);
        space
    }

    /// Gives the function the pin INTA.
    pub fn add_interrupt_pin(&mut self) {
        self.set(register::INTERRUPT_PIN, &[PIN_INTA]);
    }

    /// Makes registers of the function's own writable. They are 0 after a reset.
    ///
    /// # Panics
    /// Some of these registers are not the function's own.
    pub fn make_writable(&mut self, registers: std::ops::Range<usize>) {
        assert!(
            registers.start >= register::FIRST_FREE,
            "the registers are not the function's own"
        );
        self.writable[registers].fill(0xff);
    }

    /// Gives registers of the function's own values that the guest cannot change.
    ///
    /// # Panics
    /// Some of these registers are not the function's own.
    pub fn fix(&mut self, place: usize, bytes: &[u8]) {
        assert!(
            place >= register::FIRST_FREE,
            "the registers are not the function's own"
        );
        self.set(place, bytes);
        self.writable[place..place + bytes.len()].fill(0);
    }

    /// Records that the device has more functions than this one (header type, 6.2.1).
    pub fn set_multifunction(&mut self) {
        self.bytes[register::HEADER_TYPE] |= HEADER_MULTIFUNCTION;
    }

    /// Adds a base address register for `bytes` bytes: a power of two, at least 4 ports or 16 bytes
    /// of memory.
    ///
    /// # Panics
    /// The size is impossible, or the register is in use or does not exist.
    pub fn add_bar(&mut self, bar: usize, kind: BarKind, bytes: u64) {
        assert!(bytes.is_power_of_two() && bytes >= 16, "size of a BAR");
        assert!(self.bars[bar].is_none(), "the register is in use");
        self.bars[bar] = Some((kind, bytes));
        let mask = !(bytes - 1);
        let place = register::BAR + 4 * bar;
        match kind {
            BarKind::Io => {
                self.set(place, &BAR_IO.to_le_bytes());
                // All 32 bits are writable, because firmware determines the size by them.
                self.allow(place, &(mask as u32).to_le_bytes());
            }
            BarKind::Memory32 => self.allow(place, &(mask as u32).to_le_bytes()),
            BarKind::Memory64 => {
                assert!(bar + 1 < MAX_BARS, "two registers");
                self.set(place, &BAR_64_BITS.to_le_bytes());
                self.allow(place, &mask.to_le_bytes());
            }
        }
    }

    /// Adds a capability, with its ID, the bytes that follow the pointer to the next one, and the
    /// bits that the guest may change. Returns its offset.
    ///
    /// # Panics
    /// There is no room.
    pub fn add_capability(&mut self, id: u8, body: &[u8], writable: &[u8]) -> usize {
        let place = self.free;
        self.bytes[register::STATUS] |= STATUS_CAPABILITIES;
        self.set(self.link, &[place as u8]);
        self.set(place, &[id, 0]);
        self.set(place + 2, body);
        self.allow(place + 2, writable);
        self.link = place + 1;
        self.free = (place + 2 + body.len()).next_multiple_of(4);
        place
    }

    fn set(&mut self, place: usize, bytes: &[u8]) {
        self.bytes[place..place + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, place: usize, mask: &[u8]) {
        self.writable[place..place + mask.len()].copy_from_slice(mask);
    }

    /// Reads bytes. Bytes beyond the end are ones.
    pub fn read(&self, offset: usize, data: &mut [u8]) {
        for (index, byte) in data.iter_mut().enumerate() {
            *byte = self.bytes.get(offset + index).copied().unwrap_or(0xff);
        }
    }

    /// Writes bytes. Only writable bits change.
    pub fn write(&mut self, offset: usize, data: &[u8]) {
        for (index, byte) in data.iter().enumerate() {
            let Some(old) = self.bytes.get_mut(offset + index) else {
                return;
            };
            let mask = self.writable[offset + index];
            *old = *old & !mask | byte & mask;
        }
    }

    fn u16_at(&self, place: usize) -> u16 {
        u16::from_le_bytes([self.bytes[place], self.bytes[place + 1]])
    }

    fn u32_at(&self, place: usize) -> u32 {
        u32::from(self.u16_at(place)) | u32::from(self.u16_at(place + 2)) << 16
    }

    /// Returns a register of a capability, for the function itself.
    pub fn u16(&self, offset: usize) -> u16 {
        if offset + 2 <= CONFIG_BYTES {
            self.u16_at(offset)
        } else {
            0
        }
    }

    /// Returns the command register.
    pub fn command(&self) -> Command {
        Command::from_bits_truncate(self.u16_at(register::COMMAND))
    }

    /// Shows in the status register whether the function requests INTx.
    pub fn set_interrupt_status(&mut self, asserted: bool) {
        let status = &mut self.bytes[register::STATUS];
        *status = *status & !STATUS_INTERRUPT | if asserted { STATUS_INTERRUPT } else { 0 };
    }

    /// Returns where the function answers according to its command register and BARs. A memory BAR
    /// with address 0 was never set.
    pub fn windows(&self) -> impl Iterator<Item = Window> {
        let command = self.command();
        let bars = self.bars.iter().enumerate();
        bars.filter_map(move |(bar, entry)| {
            let (kind, bytes) = (*entry)?;
            let place = register::BAR + 4 * bar;
            let low = u64::from(self.u32_at(place));
            let is_io = kind == BarKind::Io;
            let start = match kind {
                BarKind::Io => low & !3,
                BarKind::Memory32 => low & !0xf,
                BarKind::Memory64 => u64::from(self.u32_at(place + 4)) << 32 | low & !0xf,
            };
            let wanted = if is_io { Command::IO } else { Command::MEMORY };
            // There are no ports above FFFFh.
            let is_there = start != 0 && (!is_io || start < 0x1_0000);
            (command.contains(wanted) && is_there).then_some(Window {
                bar,
                is_io,
                start,
                bytes,
            })
        })
    }

    /// Resets the space to its state after power-up: all bits that the guest may change are zero.
    pub fn reset(&mut self) {
        for (byte, writable) in self.bytes.iter_mut().zip(self.writable) {
            *byte &= !writable;
        }
        self.set_interrupt_status(false);
    }

    /// Returns the bytes for a saved state.
    pub fn saved(&self) -> Vec<u8> {
        self.bytes.to_vec()
    }

    /// Restores the bytes of a saved state, as far as the guest could have set them.
    pub fn restore(&mut self, saved: &[u8]) {
        self.write(0, &saved[..saved.len().min(CONFIG_BYTES)]);
        let asserted = saved.get(register::STATUS).copied().unwrap_or(0) & STATUS_INTERRUPT != 0;
        self.set_interrupt_status(asserted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity {
        vendor: 0x1af4,
        device: 0x1042,
        revision: 1,
        class: 0x01_80_00,
        subsystem_vendor: 0x1af4,
        subsystem: 2,
    };

    fn u32_of(space: &ConfigSpace, offset: usize) -> u32 {
        let mut bytes = [0; 4];
        space.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn identity_is_read_only() {
        let mut space = ConfigSpace::new(&IDENTITY);
        space.write(0, &[0xff; 4]);
        space.write(8, &[0xff; 8]);
        assert_eq!(u32_of(&space, 0), 0x1042_1af4);
        assert_eq!(u32_of(&space, 8), 0x0180_0001);
        assert_eq!(u32_of(&space, 0x2c), 0x0002_1af4);
    }

    #[test]
    fn a_bar_tells_its_size_and_is_a_window_only_when_decoded() {
        let mut space = ConfigSpace::new(&IDENTITY);
        space.add_bar(0, BarKind::Io, 32);
        space.add_bar(1, BarKind::Memory32, 0x1000);
        space.add_bar(2, BarKind::Memory64, 0x4000);
        for bar in 0..4 {
            space.write(0x10 + 4 * bar, &[0xff; 4]);
        }
        assert_eq!(u32_of(&space, 0x10), 0xffff_ffe1);
        assert_eq!(u32_of(&space, 0x14), 0xffff_f000);
        assert_eq!(u32_of(&space, 0x18), 0xffff_c004);
        assert_eq!(u32_of(&space, 0x1c), 0xffff_ffff);
        space.write(0x10, &0xc041u32.to_le_bytes());
        space.write(0x14, &0xc000_1000u32.to_le_bytes());
        space.write(0x18, &0x1_c000_4000u64.to_le_bytes());
        assert_eq!(space.windows().count(), 0);
        space.write(4, &[3, 0]);
        let windows: Vec<_> = space.windows().map(|w| (w.bar, w.start, w.bytes)).collect();
        let expected = [
            (0, 0xc040, 32),
            (1, 0xc000_1000, 0x1000),
            (2, 0x1_c000_4000, 0x4000),
        ];
        assert_eq!(windows, expected);
        space.write(4, &[1, 0]);
        assert!(space.windows().all(|window| window.is_io));
        space.reset();
        assert_eq!(u32_of(&space, 0x18), 4);
    }

    #[test]
    fn capabilities_are_a_list() {
        let mut space = ConfigSpace::new(&IDENTITY);
        assert_eq!(u32_of(&space, 4) >> 16, 0);
        let first = space.add_capability(0x11, &[1, 2, 3], &[0, 0xf0, 0]);
        let second = space.add_capability(9, &[4], &[]);
        assert_eq!(u32_of(&space, 4) >> 16, 0x10);
        assert_eq!(u32_of(&space, 0x34), first as u32);
        assert_eq!(u32_of(&space, first), 0x0201_0011 | (second as u32) << 8);
        assert_eq!(u32_of(&space, second), 0x0004_0009);
        space.write(first, &[0xff; 8]);
        assert_eq!(u32_of(&space, first), 0xf201_0011 | (second as u32) << 8);
        space.reset();
        assert_eq!(u32_of(&space, first) >> 24, 2);
    }

    #[test]
    fn accesses_past_the_end_are_harmless() {
        let mut space = ConfigSpace::new(&IDENTITY);
        space.write(254, &[0xff; 64]);
        let mut bytes = [0; 4];
        space.read(254, &mut bytes);
        assert_eq!(bytes, [0, 0, 0xff, 0xff]);
        space.restore(&[0xff; 1000]);
        assert_eq!(space.command(), Command::all());
    }
}
