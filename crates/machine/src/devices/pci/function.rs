//! The interface that every function on the PCI bus implements.

use super::config_space::ConfigSpace;
use crate::bus::completion::Completer;
use crate::bus::{DeviceContext, PortClaim, SavedState, StateError};
use crate::devices::virtio::drive_change::DriveChange;
use std::any::Any;
use std::ops::Range;
use tollgate_platform::GuestTime;
use tollgate_x86::PhysicalAddress;

/// A function: a state machine like a [`Device`](crate::bus::Device), which is found by its
/// configuration space and answers at the addresses in its base address registers.
///
/// The guest is hostile: any method may be called with any value at any time, and must return soon
/// without a panic.
pub trait PciFunction: Any {
    /// Returns the function's name in saved states. No two functions on the bus have the same name.
    fn name(&self) -> &str;

    /// Returns the configuration space.
    fn config(&self) -> &ConfigSpace;

    /// Returns the configuration space for changes.
    fn config_mut(&mut self) -> &mut ConfigSpace;

    /// Reads 1 to 4 bytes of the configuration space.
    fn config_read(&mut self, offset: usize, data: &mut [u8], _context: &mut DeviceContext<'_>) {
        self.config().read(offset, data);
    }

    /// Writes 1 to 4 bytes of the configuration space.
    fn config_write(&mut self, offset: usize, data: &[u8], _context: &mut DeviceContext<'_>) {
        self.config_mut().write(offset, data);
    }

    /// Reads 1 to 64 bytes, beginning at an offset inside of a BAR. The last byte may lie beyond
    /// the BAR.
    fn bar_read(
        &mut self,
        _bar: usize,
        _offset: u64,
        data: &mut [u8],
        _context: &mut DeviceContext<'_>,
    ) {
        data.fill(0xff);
    }

    /// Writes 1 to 64 bytes, beginning at an offset inside of a BAR. The last byte may lie beyond
    /// the BAR.
    fn bar_write(
        &mut self,
        _bar: usize,
        _offset: u64,
        _data: &[u8],
        _context: &mut DeviceContext<'_>,
    ) {
    }

    /// Returns the ports at which the function answers independently of its BARs: those that such a
    /// device had before there were BARs. This is called again after each write to its
    /// configuration space.
    fn fixed_ports(&self) -> Vec<PortClaim> {
        Vec::new()
    }

    /// Reads 1 to 4 bytes from a fixed port.
    fn port_read(&mut self, _port: u16, data: &mut [u8], _context: &mut DeviceContext<'_>) {
        data.fill(0xff);
    }

    /// Writes 1 to 4 bytes to a fixed port.
    fn port_write(&mut self, _port: u16, _data: &[u8], _context: &mut DeviceContext<'_>) {}

    /// Returns the addresses whose stores reach the function independently of its BARs, if there are
    /// any. They do not change.
    fn fixed_memory(&self) -> Option<Range<u64>> {
        None
    }

    /// Writes 1 to 64 bytes, beginning at an address in the fixed memory. The last byte may lie
    /// beyond it.
    fn fixed_memory_write(
        &mut self,
        _address: PhysicalAddress,
        _data: &[u8],
        _context: &mut DeviceContext<'_>,
    ) {
    }

    /// Returns the ISA line to which the function leads the INTA of the device with this number, if
    /// the function is a bridge to the ISA bus and the line is not disabled.
    fn isa_line(&self, _device: u8) -> Option<u8> {
        None
    }

    /// Whether the function requests INTA. The host checks this after each call, and applies the
    /// command register.
    fn wants_interrupt(&self) -> bool {
        false
    }

    /// Returns the deadline, see [`Device::deadline`](crate::bus::Device::deadline).
    fn deadline(&self, _context: &DeviceContext<'_>) -> Option<GuestTime> {
        None
    }

    /// Brings the function to the present time, see
    /// [`Device::advance`](crate::bus::Device::advance).
    fn advance(&mut self, _context: &mut DeviceContext<'_>) {}

    /// Connects the function's threads, see [`Device::connect`](crate::bus::Device::connect).
    fn connect(&mut self, _completer: Completer) {}

    /// Handles finished work, see [`Device::complete`](crate::bus::Device::complete).
    fn complete(&mut self, _token: u64, _context: &mut DeviceContext<'_>) {}

    /// Changes a drive, see [`Device::change_drive`](crate::bus::Device::change_drive).
    fn change_drive(
        &mut self,
        _change: &DriveChange,
        _context: &mut DeviceContext<'_>,
    ) -> Option<Result<(), String>> {
        None
    }

    /// Whether threads still work, see
    /// [`Device::has_pending_work`](crate::bus::Device::has_pending_work).
    fn has_pending_work(&self) -> bool {
        false
    }

    /// Writes what threads keep, see [`Device::flush`](crate::bus::Device::flush).
    fn flush(&self) {}

    /// Why the state cannot be saved, see
    /// [`Device::cannot_be_saved`](crate::bus::Device::cannot_be_saved).
    fn cannot_be_saved(&self) -> Option<String> {
        None
    }

    /// Resets the function, as a pulse of the reset line does. The host resets the configuration
    /// space.
    fn reset(&mut self, _context: &mut DeviceContext<'_>) {}

    /// Sets the registers that are not zero after the host has reset the configuration space.
    fn after_reset(&mut self) {}

    /// Places the function's regions of memory according to its registers, because the regions may
    /// have been lost or the registers restored.
    fn place_regions(&mut self, _context: &mut DeviceContext<'_>) {}

    /// Returns the state, except for the configuration space, which the host saves.
    fn save(&self) -> SavedState {
        SavedState::empty()
    }

    /// Restores a saved state.
    ///
    /// # Errors
    /// The state has a layout that cannot be read. The function may be partly changed then.
    fn restore(&mut self, _saved: &SavedState) -> Result<(), StateError> {
        Ok(())
    }
}
