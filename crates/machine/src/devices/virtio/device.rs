//! The interface that every virtio device implements, independently of the transport.

use super::balloon::control::BalloonControl;
use super::chain::Chain;
use super::drive_change::DriveChange;
use super::queue::{Queue, QueueError};
use crate::bus::completion::Completer;
use serde_json::Value;
use std::sync::Arc;
use tollgate_memory::GuestMemory;
use tollgate_network::Refusals;
use tollgate_share::RequestCounts;

/// The queues of a device and guest memory, during one call.
pub struct Queues<'a> {
    pub(super) queues: &'a mut [Queue],
    pub(super) memory: &'a mut GuestMemory,
    /// The features that the driver has accepted.
    pub(super) features: u64,
    /// Whether the driver is ready, so that chains may be taken.
    pub(super) is_running: bool,
    /// Whether the driver must read the configuration again.
    pub(super) config_changed: bool,
}

impl Queues<'_> {
    /// Whether the driver has accepted a feature.
    pub const fn has_feature(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Takes the next available chain of a queue.
    ///
    /// # Errors
    /// The driver broke a rule.
    pub fn pop(&mut self, queue: usize) -> Result<Option<Chain>, QueueError> {
        match self.queues.get_mut(queue) {
            Some(queue) if self.is_running => queue.pop(self.memory),
            _ => Ok(None),
        }
    }

    /// Returns how many chains a queue can hold.
    pub fn size(&self, queue: usize) -> u16 {
        self.queues.get(queue).map_or(0, |queue| queue.size)
    }

    /// Undoes the last `count` calls of [`Queues::pop`] whose chains were not returned to the
    /// driver.
    pub fn unpop(&mut self, queue: usize, count: u16) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.unpop(count);
        }
    }

    /// Returns a chain to the driver, of which the device has written `written` bytes.
    ///
    /// # Errors
    /// The driver broke a rule.
    pub fn push(&mut self, queue: usize, chain: &Chain, written: u32) -> Result<(), QueueError> {
        match self.queues.get_mut(queue) {
            Some(queue) => queue.push(self.memory, chain.head, written),
            None => Ok(()),
        }
    }

    /// Notifies the driver after the call that the configuration has changed.
    pub const fn announce_config(&mut self) {
        self.config_changed = true;
    }

    /// Returns guest memory.
    pub const fn memory(&mut self) -> &mut GuestMemory {
        self.memory
    }
}

/// A device: what it offers, and what it does with chains. Its methods are called only while its
/// driver is ready, except for those that concern its configuration and its threads.
pub trait VirtioDevice {
    /// Returns the device's name in saved states.
    fn name(&self) -> &str;

    /// Returns the device type (chapter 5).
    fn device_type(&self) -> u16;

    /// Returns the offered features of the device type.
    fn features(&self) -> u64;

    /// Returns the maximum number of descriptors of each queue, which are powers of two.
    fn queue_sizes(&self) -> &[u16];

    /// Returns the device-specific configuration, which the driver reads.
    fn config(&self) -> &[u8] {
        &[]
    }

    /// Handles a write of the driver to the device-specific configuration.
    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    /// Handles chains that the driver has made available in a queue.
    ///
    /// # Errors
    /// The driver broke a rule.
    fn notify(&mut self, queue: usize, queues: &mut Queues<'_>) -> Result<(), QueueError>;

    /// Connects the device to the bus: its threads report finished work through the completer.
    fn connect(&mut self, _completer: Completer) {}

    /// Handles work that a thread of the device has finished.
    ///
    /// # Errors
    /// The driver broke a rule.
    fn complete(&mut self, _token: u64, _queues: &mut Queues<'_>) -> Result<(), QueueError> {
        Ok(())
    }

    /// Whether threads still work on something whose completion has not arrived.
    fn has_pending_work(&self) -> bool {
        false
    }

    /// Returns the counts of requests to a shared directory.
    fn share_requests(&self) -> Option<Arc<RequestCounts>> {
        None
    }

    /// Returns the record of what a network has refused to the guest.
    fn refusals(&self) -> Option<Refusals> {
        None
    }

    /// Returns the control of a balloon.
    fn balloon(&self) -> Option<BalloonControl> {
        None
    }

    /// Changes a drive if this device has it. The caller's thread may open files. Returns `None` if the
    /// device has no such drive.
    fn change_drive(
        &mut self,
        _change: &DriveChange,
        _queues: &mut Queues<'_>,
    ) -> Option<Result<(), String>> {
        None
    }

    /// Returns what the device keeps in addition to its queues and to what its threads do.
    fn save(&self) -> Value {
        Value::Null
    }

    /// Restores what [`VirtioDevice::save`] has returned, after a [reset](VirtioDevice::reset).
    /// Returns whether it was such a value; if not, the device is as after the reset.
    fn restore(&mut self, saved: &Value) -> bool {
        saved.is_null()
    }

    /// Writes what threads keep, as the bus's method of that name does.
    fn flush(&self) {}

    /// Returns why the state cannot be saved at present, as the bus's method of that name does.
    fn cannot_be_saved(&self) -> Option<String> {
        None
    }

    /// Resets the device for the driver: no chain that was taken from a queue is returned.
    fn reset(&mut self) {}
}
