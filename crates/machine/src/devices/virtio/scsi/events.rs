//! The event queue (5.6.6.3): buffers of the driver, by which it hears of units that come, go or
//! change.

use super::options::Address;
use crate::devices::ide::Sense;
use crate::devices::virtio::chain::Chain;
use crate::devices::virtio::device::Queues;
use crate::devices::virtio::queue::QueueError;

/// The number of the queue.
pub(super) const QUEUE: usize = 1;
/// The size of an event in bytes.
pub(super) const EVENT_BYTES: u32 = 16;

/// Features (5.6.3).
mod feature {
    /// Units come and go.
    pub const HOTPLUG: u64 = 1 << 1;
    /// Parameters of units change.
    pub const CHANGE: u64 = 1 << 2;
}

/// The features that the events need.
pub(super) const FEATURES: u64 = feature::HOTPLUG | feature::CHANGE;

/// Kinds of events, with a flag for events that were lost.
mod kind {
    pub const NONE: u32 = 0;
    pub const TRANSPORT_RESET: u32 = 1;
    pub const PARAMETER_CHANGE: u32 = 3;
    pub const MISSED: u32 = 1 << 31;
}

/// What the driver hears of a unit.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// There is a unit at this address now.
    Added(Address),
    /// There is none any more.
    Removed(Address),
    /// A unit has changed in the way that this reason says.
    Changed(Address, Sense),
}

impl Event {
    const fn feature(self) -> u64 {
        match self {
            Self::Added(_) | Self::Removed(_) => feature::HOTPLUG,
            Self::Changed(..) => feature::CHANGE,
        }
    }

    /// Returns the kind, the address and the reason.
    const fn parts(self) -> (u32, Address, u32) {
        const RESCAN: u32 = 1;
        const REMOVED: u32 = 2;
        match self {
            Self::Added(address) => (kind::TRANSPORT_RESET, address, RESCAN),
            Self::Removed(address) => (kind::TRANSPORT_RESET, address, REMOVED),
            Self::Changed(address, sense) => {
                let reason = sense.code as u32 | (sense.qualifier as u32) << 8;
                (kind::PARAMETER_CHANGE, address, reason)
            }
        }
    }
}

/// The state of the queue that is not in the queue.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Whether an event found no buffer, which the next buffer reports.
    pub(super) missed: bool,
}

impl Events {
    /// Reports an event to a driver that has accepted its feature.
    pub(super) fn report(
        &mut self,
        event: Event,
        queues: &mut Queues<'_>,
    ) -> Result<(), QueueError> {
        if !queues.has_feature(event.feature()) {
            return Ok(());
        }
        let Some(chain) = queues.pop(QUEUE)? else {
            self.missed = true;
            return Ok(());
        };
        let (kind, Address { target, lun }, reason) = event.parts();
        // Linux expects the form of REPORT LUNS: numbers below 256 have no prefix.
        let lun = if lun > 255 { lun | 0x4000 } else { lun };
        let [high, low] = lun.to_be_bytes();
        self.give(
            kind,
            [1, target, high, low, 0, 0, 0, 0],
            reason,
            &chain,
            queues,
        )
    }

    /// Handles buffers of the driver.
    pub(super) fn take_buffers(&mut self, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        if !self.missed {
            return Ok(());
        }
        match queues.pop(QUEUE)? {
            Some(chain) => self.give(kind::NONE, [0; 8], 0, &chain, queues),
            None => Ok(()),
        }
    }

    fn give(
        &mut self,
        kind: u32,
        address: [u8; 8],
        reason: u32,
        chain: &Chain,
        queues: &mut Queues<'_>,
    ) -> Result<(), QueueError> {
        if chain.writable_bytes() < EVENT_BYTES.into() {
            return Err(QueueError::Request);
        }
        let missed = match std::mem::take(&mut self.missed) {
            true => kind::MISSED,
            false => 0,
        };
        let mut event = (kind | missed).to_le_bytes().to_vec();
        event.extend(address);
        event.extend(reason.to_le_bytes());
        if !chain.copy_in(queues.memory(), 0, &event) {
            return Err(QueueError::NoMemory);
        }
        queues.push(QUEUE, chain, EVENT_BYTES)
    }
}
