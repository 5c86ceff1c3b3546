//! What every function on the PCI bus is.

use super::config_space::ConfigSpace;
use crate::bus::completion::Completer;
use crate::bus::{DeviceContext, PortClaim, SavedState, StateError};
use std::any::Any;
use tollgate_platform::GuestTime;

/// A function: a state machine like a [`Device`](crate::bus::Device), that is found by its
/// configuration space and answers where its base address registers say.
///
/// The guest is hostile: any method may be called with any value at any time, and must
/// return soon, without a panic.
pub trait PciFunction: Any {
    /// What the function is called in saved states; unlike any other on the bus.
    fn name(&self) -> &str;

    /// The configuration space.
    fn config(&self) -> &ConfigSpace;

    /// The configuration space.
    fn config_mut(&mut self) -> &mut ConfigSpace;

    /// Reads 1 to 4 bytes of the configuration space.
    fn config_read(&mut self, offset: usize, data: &mut [u8], _context: &mut DeviceContext<'_>) {
        self.config().read(offset, data);
    }

    /// Writes 1 to 4 bytes of the configuration space.
    fn config_write(&mut self, offset: usize, data: &[u8], _context: &mut DeviceContext<'_>) {
        self.config_mut().write(offset, data);
    }

    /// Reads 1 to 64 bytes at an offset that lies inside of a BAR; the last may lie behind it.
    fn bar_read(
        &mut self,
        _bar: usize,
        _offset: u64,
        data: &mut [u8],
        _context: &mut DeviceContext<'_>,
    ) {
        data.fill(0xff);
    }

    /// Writes 1 to 64 bytes at an offset that lies inside of a BAR; the last may lie behind it.
    fn bar_write(
        &mut self,
        _bar: usize,
        _offset: u64,
        _data: &[u8],
        _context: &mut DeviceContext<'_>,
    ) {
    }

    /// Ports at which the function answers wherever its BARs lead: those that such a device had
    /// before there were BARs. Asked again after each write to its configuration space.
    fn fixed_ports(&self) -> Vec<PortClaim> {
        Vec::new()
    }

    /// Reads 1 to 4 bytes from a fixed port.
    fn port_read(&mut self, _port: u16, data: &mut [u8], _context: &mut DeviceContext<'_>) {
        data.fill(0xff);
    }

    /// Writes 1 to 4 bytes to a fixed port.
    fn port_write(&mut self, _port: u16, _data: &[u8], _context: &mut DeviceContext<'_>) {}

    /// Whether the function asks for INTA. The host looks after each call, and heeds the
    /// command register.
    fn wants_interrupt(&self) -> bool {
        false
    }

    /// As [`Device::deadline`](crate::bus::Device::deadline).
    fn deadline(&self, _context: &DeviceContext<'_>) -> Option<GuestTime> {
        None
    }

    /// As [`Device::advance`](crate::bus::Device::advance).
    fn advance(&mut self, _context: &mut DeviceContext<'_>) {}

    /// As [`Device::connect`](crate::bus::Device::connect).
    fn connect(&mut self, _completer: Completer) {}

    /// As [`Device::complete`](crate::bus::Device::complete).
    fn complete(&mut self, _token: u64, _context: &mut DeviceContext<'_>) {}

    /// As [`Device::has_pending_work`](crate::bus::Device::has_pending_work).
    fn has_pending_work(&self) -> bool {
        false
    }

    /// The reset line was pulsed. The host resets the configuration space.
    fn reset(&mut self, _context: &mut DeviceContext<'_>) {}

    /// The host has reset the configuration space: registers that are not zero then.
    fn after_reset(&mut self) {}

    /// Puts the function's regions of memory in place, as its registers say: they may have been
    /// lost, or the registers restored.
    fn place_regions(&mut self, _context: &mut DeviceContext<'_>) {}

    /// The state beside the configuration space, which the host saves.
    fn save(&self) -> SavedState {
        SavedState::empty()
    }

    /// Puts a saved state in place.
    ///
    /// # Errors
    /// The state has a layout that cannot be read; the function may be changed partly.
    fn restore(&mut self, _saved: &SavedState) -> Result<(), StateError> {
        Ok(())
    }
}
