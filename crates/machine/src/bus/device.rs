//! The interface that every device on the bus implements.

use super::completion::Completer;
use super::context::DeviceContext;
use crate::board::{SavedState, StateError};
use crate::devices::virtio::drive_change::DriveChange;
use std::any::Any;
use std::ops::RangeInclusive;
use tollgate_exits::blame::DeviceAddress;
use tollgate_platform::GuestTime;
use tollgate_x86::PhysicalAddress;

/// How accesses to ports arrive at a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortWidth {
    /// A wider access is split into one access for each byte, the lowest port first, as the ISA bus
    /// does.
    Byte,
    /// Accesses arrive as the guest makes them: 1, 2 or 4 bytes from a port on. The bytes may
    /// extend past the end of the claim.
    Any,
    /// Only accesses of this size, in bytes, at exactly this port are claimed, and no other device
    /// gets them. Accesses of other sizes go to the device that claims the port in another way.
    Exactly(u8),
}

/// Ports at which a device answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortClaim {
    /// The range of ports.
    pub ports: RangeInclusive<u16>,
    /// How accesses to the ports arrive.
    pub width: PortWidth,
}

bitflags::bitflags! {
    /// The accesses to a port that are near ([`tollgate_platform::NearAccess`]).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct NearUse: u8 {
        /// Reads are near.
        const READ = 1 << 0;
        /// Writes are near.
        const WRITE = 1 << 1;
    }
}

/// Physical addresses at which a device answers, outside of RAM and ROM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryClaim {
    /// The address of the first byte.
    pub start: PhysicalAddress,
    /// The size in bytes, possibly zero. The range is cut off at the end of the address space.
    pub bytes: u64,
}

/// Everything that a device claims. If several devices claim the same address, the one that was
/// added to the bus first gets it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Claims {
    /// The ports claimed.
    pub ports: Vec<PortClaim>,
    /// The ranges of physical addresses claimed.
    pub memory: Vec<MemoryClaim>,
    /// The claimed ports of which some accesses are near.
    pub near: Vec<(RangeInclusive<u16>, NearUse)>,
}

impl Claims {
    /// Makes an empty set of claims.
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds ports that are accessed byte by byte.
    #[must_use]
    pub fn with_byte_ports(self, ports: RangeInclusive<u16>) -> Self {
        self.with_ports(ports, PortWidth::Byte)
    }

    /// Adds ports with this width.
    #[must_use]
    pub fn with_ports(mut self, ports: RangeInclusive<u16>, width: PortWidth) -> Self {
        self.ports.push(PortClaim { ports, width });
        self
    }

    /// Adds near accesses to ports that are claimed. Such an access may drive the device's lines
    /// and change its deadline. It must not touch guest memory, stop the machine, switch address
    /// line 20, mask NMIs or change claims.
    #[must_use]
    pub fn with_near(mut self, ports: RangeInclusive<u16>, uses: NearUse) -> Self {
        self.near.push((ports, uses));
        self
    }

    /// Adds `bytes` bytes of memory from `start` on.
    #[must_use]
    pub fn with_memory(mut self, start: u64, bytes: u64) -> Self {
        let start = PhysicalAddress(start);
        self.memory.push(MemoryClaim { start, bytes });
        self
    }
}

/// A device: a state machine that is driven by accesses, by guest time, and by what the
/// [`DeviceContext`] of each call offers. It has no thread, no file and no clock.
///
/// The guest is hostile: any method may be called with any value at any time, and must return soon
/// without a panic.
///
/// The interrupt controllers are not devices in this sense. The processor accesses them directly,
/// so they belong to the [`Board`](crate::board::Board); on the bus they have only windows without state
/// of their own. The local APIC's page is not on the bus: it belongs to the processor.
pub trait Device: Any {
    /// Returns the device's name in saved states and messages. No two devices on the bus have the
    /// same name.
    fn name(&self) -> &str;

    /// Returns the name of what answers at a claimed port or address: the device, or a part of it.
    fn name_at(&self, _address: DeviceAddress) -> &str {
        self.name()
    }

    /// Returns where the device answers now. This is called when the device is added to the bus,
    /// and again after a call that used [`DeviceContext::claims_changed`], after a reset and after
    /// a restore.
    fn claims(&self) -> Claims;

    /// Reads `size` (1, 2 or 4) bytes from a claimed port. Only the lowest `size` bytes of the
    /// result count.
    fn port_read(&mut self, _port: u16, _size: u8, _context: &mut DeviceContext<'_>) -> u32 {
        u32::MAX
    }

    /// Writes `size` (1, 2 or 4) bytes to a claimed port. The other bits of `value` are zero.
    fn port_write(&mut self, _port: u16, _size: u8, _value: u32, _context: &mut DeviceContext<'_>) {
    }

    /// Reads 1 to 64 bytes of claimed memory, as one access of the guest. The first byte is
    /// claimed; the last may lie beyond the claim.
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

    /// Whether accesses to a byte of the device's memory are [near](tollgate_platform::NearAccess)
    /// now.
    fn is_near(&self, _address: PhysicalAddress) -> bool {
        false
    }

    /// Returns when the device next needs [`Device::advance`], as far as is known now. This is
    /// called after each call of another method.
    fn deadline(&self, _context: &DeviceContext<'_>) -> Option<GuestTime> {
        None
    }

    /// Brings the device to the present time; afterwards its deadline is in the future. This is
    /// called when a deadline has come, of this device or of another.
    fn advance(&mut self, _context: &mut DeviceContext<'_>) {}

    /// Connects the device to the bus. If the device has threads, they report finished work through
    /// `completer`.
    fn connect(&mut self, _completer: Completer) {}

    /// Handles a piece of work that a thread of the device has finished. A token without a meaning
    /// is ignored, because the device may have been reset in the meantime.
    fn complete(&mut self, _token: u64, _context: &mut DeviceContext<'_>) {}

    /// Changes a drive of a virtio device, if this device has or contains it. The caller's thread may
    /// open files. Returns `None` if it has not.
    fn change_drive(
        &mut self,
        _change: &DriveChange,
        _context: &mut DeviceContext<'_>,
    ) -> Option<Result<(), String>> {
        None
    }

    /// Whether threads of the device still work on something whose completion has not arrived.
    /// State is saved or restored only when no device has such work. While the bus waits for that,
    /// only [`Device::complete`] may start more work.
    fn has_pending_work(&self) -> bool {
        false
    }

    /// Writes to the host's files what the device's threads still keep of the guest's data. Called
    /// when no work is unfinished.
    fn flush(&self) {}

    /// Returns why the state cannot be saved at present although no work is unfinished: the guest
    /// uses something of the host that a saved state does not contain. The text follows "the guest"
    /// in a message.
    fn cannot_be_saved(&self) -> Option<String> {
        None
    }

    /// Resets the device, as a pulse of the reset line does, to its state after power-up, except
    /// for what a battery keeps. The interrupt controllers have been reset before, and lines are
    /// low.
    fn reset(&mut self, context: &mut DeviceContext<'_>);

    /// Returns the state, with the version of its layout.
    fn save(&self) -> SavedState;

    /// Restores a saved state. Older versions may be converted.
    ///
    /// # Errors
    /// The state has a layout that cannot be read. The device may be partly changed then.
    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError>;
}
