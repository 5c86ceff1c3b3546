//! What every device on the bus is.

use super::completion::Completer;
use super::context::DeviceContext;
use super::state::{SavedState, StateError};
use std::any::Any;
use std::ops::RangeInclusive;
use tollgate_exits::blame::DeviceAddress;
use tollgate_platform::GuestTime;
use tollgate_x86::PhysicalAddress;

/// How a device takes accesses to its ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortWidth {
    /// One access for each byte, the lowest port first, as the ISA bus makes them of a
    /// wider one.
    Byte,
    /// As the guest makes them: 1, 2 or 4 bytes from a port on. The bytes may reach
    /// past the end of the claim.
    Any,
    /// Only accesses of this many bytes at exactly this port, which then go to this device
    /// alone. Accesses of other sizes go to the device that claims the port in another way.
    Exactly(u8),
}

/// Ports that a device answers at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortClaim {
    /// The ports.
    pub ports: RangeInclusive<u16>,
    /// How accesses to them arrive.
    pub width: PortWidth,
}

bitflags::bitflags! {
    /// Which accesses to a port are near ([`tollgate_platform::NearAccess`]).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct NearUse: u8 {
        /// Reads are.
        const READ = 1 << 0;
        /// Writes are.
        const WRITE = 1 << 1;
    }
}

/// Physical addresses that a device answers at, where no RAM or ROM lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryClaim {
    /// The first byte.
    pub start: PhysicalAddress,
    /// Bytes; none if zero. The range ends with the address space at the latest.
    pub bytes: u64,
}

/// All that a device answers at. Where several devices claim the same, the one that was
/// put on the bus first gets it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Claims {
    /// The ports claimed.
    pub ports: Vec<PortClaim>,
    /// The ranges of physical addresses claimed.
    pub memory: Vec<MemoryClaim>,
    /// Of the ports claimed, those of which accesses are near.
    pub near: Vec<(RangeInclusive<u16>, NearUse)>,
}

impl Claims {
    /// Claims nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// With ports that are accessed byte by byte.
    #[must_use]
    pub fn with_byte_ports(self, ports: RangeInclusive<u16>) -> Self {
        self.with_ports(ports, PortWidth::Byte)
    }

    /// With ports.
    #[must_use]
    pub fn with_ports(mut self, ports: RangeInclusive<u16>, width: PortWidth) -> Self {
        self.ports.push(PortClaim { ports, width });
        self
    }

    /// With accesses that are near, to ports that are claimed. Such an access may drive the
    /// device's lines and change its deadline. It must not touch guest memory, stop the machine,
    /// switch address line 20, hold off NMIs or change claims.
    #[must_use]
    pub fn with_near(mut self, ports: RangeInclusive<u16>, uses: NearUse) -> Self {
        self.near.push((ports, uses));
        self
    }

    /// With `bytes` bytes of memory from `start` on.
    #[must_use]
    pub fn with_memory(mut self, start: u64, bytes: u64) -> Self {
        let start = PhysicalAddress(start);
        self.memory.push(MemoryClaim { start, bytes });
        self
    }
}

/// A device: a state machine that is driven by accesses, by guest time and by what the
/// [`DeviceContext`] of each call offers. It has no thread, no file and no clock.
///
/// The guest is hostile: any method may be called with any value at any time, and must
/// return soon, without a panic.
///
/// The interrupt controllers are not devices in this sense. The processor reaches them
/// directly, so they belong to the [`Board`](super::Board); on the bus they have only
/// windows without state of their own. The local APIC's page is not on the bus at all: it
/// belongs to the processor.
pub trait Device: Any {
    /// What the device is called in saved states and messages; unlike that of any other
    /// device on the bus.
    fn name(&self) -> &str;

    /// What answers at a port or an address that the device claims: its name, or that of a part.
    fn name_at(&self, _address: DeviceAddress) -> &str {
        self.name()
    }

    /// Where the device answers now. Asked when it is put on the bus, and again after a
    /// call that said [`DeviceContext::claims_changed`], a reset and a restore.
    fn claims(&self) -> Claims;

    /// Reads `size` (1, 2 or 4) bytes from a claimed port; only the lowest `size` bytes of
    /// the result count.
    fn port_read(&mut self, _port: u16, _size: u8, _context: &mut DeviceContext<'_>) -> u32 {
        u32::MAX
    }

    /// Writes `size` (1, 2 or 4) bytes to a claimed port; the bits of `value` above them
    /// are zero.
    fn port_write(&mut self, _port: u16, _size: u8, _value: u32, _context: &mut DeviceContext<'_>) {
    }

    /// Reads 1 to 64 bytes of claimed memory, as one access of the guest. The first byte
    /// is claimed; the last may lie behind the claim.
    fn memory_read(
        &mut self,
        _address: PhysicalAddress,
        data: &mut [u8],
        _context: &mut DeviceContext<'_>,
    ) {
        data.fill(0xff);
    }

    /// Writes 1 to 64 bytes of claimed memory, as one access of the guest.
    fn memory_write(
        &mut self,
        _address: PhysicalAddress,
        _data: &[u8],
        _context: &mut DeviceContext<'_>,
    ) {
    }

    /// Whether accesses to a byte of its memory are [near](tollgate_platform::NearAccess) now.
    fn is_near(&self, _address: PhysicalAddress) -> bool {
        false
    }

    /// When the device next needs [`Device::advance`], if ever, as far as is known now.
    /// Asked after each call of the other methods.
    fn deadline(&self, _context: &DeviceContext<'_>) -> Option<GuestTime> {
        None
    }

    /// Brings the device to the present; afterwards its deadline lies ahead. Called when
    /// a deadline has come, of this device or of another.
    fn advance(&mut self, _context: &mut DeviceContext<'_>) {}

    /// The device was put on the bus; its own threads, if it has some, hand in what they
    /// have done through `completer`.
    fn connect(&mut self, _completer: Completer) {}

    /// A thread of the device has finished a piece of work. Tokens that mean nothing (the
    /// device was reset meanwhile) are ignored.
    fn complete(&mut self, _token: u64, _context: &mut DeviceContext<'_>) {}

    /// Whether threads of the device still work on something whose completion has not come.
    /// No state is saved or put in place until there is none; nothing new is begun
    /// meanwhile, unless by [`Device::complete`].
    fn has_pending_work(&self) -> bool {
        false
    }

    /// The reset line was pulsed: the device is as after power-up, but for what a battery
    /// keeps. The interrupt controllers have been reset before; lines are low.
    fn reset(&mut self, context: &mut DeviceContext<'_>);

    /// The state, with the version of its layout.
    fn save(&self) -> SavedState;

    /// Puts a saved state in place. Older versions may be converted.
    ///
    /// # Errors
    /// The state has a layout that cannot be read; the device may be changed partly.
    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError>;
}
