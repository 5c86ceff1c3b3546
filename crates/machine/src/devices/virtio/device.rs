//! What every virtio device is, apart from how the guest reaches it.

use super::chain::Chain;
use super::queue::{Queue, QueueError};
use crate::bus::completion::Completer;
use std::sync::Arc;
use tollgate_memory::GuestMemory;
use tollgate_share::RequestCounts;

/// The queues of a device and guest memory, during one call.
pub struct Queues<'a> {
    pub(super) queues: &'a mut [Queue],
    pub(super) memory: &'a mut GuestMemory,
    /// What the driver has accepted.
    pub(super) features: u64,
    /// The driver is ready: chains may be taken.
    pub(super) is_running: bool,
}

impl Queues<'_> {
    /// Whether the driver has accepted a feature.
    pub const fn has_feature(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Takes the next available chain of a queue, if there is one.
    ///
    /// # Errors
    /// The driver broke a rule.
    pub fn pop(&mut self, queue: usize) -> Result<Option<Chain>, QueueError> {
        match self.queues.get_mut(queue) {
            Some(queue) if self.is_running => queue.pop(self.memory),
            _ => Ok(None),
        }
    }

    /// How many chains a queue can hold.
    pub fn size(&self, queue: usize) -> u16 {
        self.queues.get(queue).map_or(0, |queue| queue.size)
    }

    /// Gives back the chains of a queue that were taken last and not handed back since.
    pub fn unpop(&mut self, queue: usize, count: u16) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.unpop(count);
        }
    }

    /// Hands a chain back, of which the device has written `written` bytes.
    ///
    /// # Errors
    /// The driver broke a rule.
    pub fn push(&mut self, queue: usize, chain: &Chain, written: u32) -> Result<(), QueueError> {
        match self.queues.get_mut(queue) {
            Some(queue) => queue.push(self.memory, chain.head, written),
            None => Ok(()),
        }
    }

    /// Guest memory.
    pub const fn memory(&mut self) -> &mut GuestMemory {
        self.memory
    }
}

/// A device: what it offers, and what it does with chains. It is called while its driver is
/// ready, but for what concerns its configuration and its threads.
pub trait VirtioDevice {
    /// What the device is called in saved states.
    fn name(&self) -> &str;

    /// The type (chapter 5).
    fn device_type(&self) -> u16;

    /// The features of its type that it offers.
    fn features(&self) -> u64;

    /// The most descriptors that each queue can have: powers of two.
    fn queue_sizes(&self) -> &[u16];

    /// The device-specific configuration, which the driver reads.
    fn config(&self) -> &[u8] {
        &[]
    }

    /// The driver has made chains available in a queue.
    ///
    /// # Errors
    /// The driver broke a rule.
    fn notify(&mut self, queue: usize, queues: &mut Queues<'_>) -> Result<(), QueueError>;

    /// The device was put on the bus; its threads hand in what they have done here.
    fn connect(&mut self, _completer: Completer) {}

    /// A thread of the device has finished something.
    ///
    /// # Errors
    /// The driver broke a rule.
    fn complete(&mut self, _token: u64, _queues: &mut Queues<'_>) -> Result<(), QueueError> {
        Ok(())
    }

    /// Whether threads still work on something whose completion has not come.
    fn has_pending_work(&self) -> bool {
        false
    }

    /// Counts of the requests of a shared directory.
    fn share_requests(&self) -> Option<Arc<RequestCounts>> {
        None
    }

    /// The driver resets the device: nothing that was taken from a queue is handed back.
    fn reset(&mut self) {}
}
