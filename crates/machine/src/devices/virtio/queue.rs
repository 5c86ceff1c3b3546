//! A split virtqueue as the device sees it (2.7): the chains that the driver has made available,
//! and the chains that are returned to it.

use super::chain::Chain;
use serde::{Deserialize, Serialize};
use std::fmt;
use tollgate_memory::GuestMemory;
use tollgate_x86::PhysicalAddress;

/// In the flags of the available ring: the driver wants no interrupts.
const NO_INTERRUPT: u16 = 1;
/// The offset of the index in both rings.
const INDEX_OFFSET: u64 = 2;
/// The offset of the first element in both rings.
const RING_OFFSET: u64 = 4;
/// The size of an element of the used ring in bytes.
const USED_BYTES: u64 = 8;

/// A rule that a driver has broken. The device then needs a reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueError {
    /// A ring or table lies outside of memory.
    NoMemory,
    /// More chains are available than the queue holds.
    TooManyAvailable,
    /// An index lies outside of its table.
    Index,
    /// A chain of descriptors does not end.
    Loop,
    /// An indirect table has an impossible size, or refers to another one.
    IndirectTable,
    /// A chain has too many descriptors, or 4 GiB.
    TooLong,
    /// A buffer for reading follows one for writing.
    Order,
    /// A queue was enabled with an impossible size, or with rings that are not aligned.
    Layout,
    /// A request has a form that the device type does not support.
    Request,
}

impl fmt::Display for QueueError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::NoMemory => "a ring or table lies outside of memory",
            Self::TooManyAvailable => "more chains are available than the queue holds",
            Self::Index => "an index lies outside of its table",
            Self::Loop => "a chain of descriptors does not end",
            Self::IndirectTable => "an indirect table is not allowed there, or has a wrong size",
            Self::TooLong => "a chain of descriptors is too long",
            Self::Order => "a buffer for reading follows one for writing",
            Self::Layout => "a queue has a wrong size or wrong addresses",
            Self::Request => "a request has a wrong form",
        })
    }
}

/// A split virtqueue.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Queue {
    max_size: u16,
    /// The number of descriptors.
    pub size: u16,
    /// The address of the descriptor table.
    pub descriptors: u64,
    /// The address of the available ring.
    pub driver_area: u64,
    /// The address of the used ring.
    pub device_area: u64,
    enabled: bool,
    /// The index of the next available chain.
    next_available: u16,
    /// The index of the next used element.
    next_used: u16,
    /// The index of the used ring at the last interrupt.
    signalled: u16,
    /// The number of chains that were taken and not returned.
    in_flight: u16,
    /// Whether used elements were added since the driver was last notified.
    has_news: bool,
    /// If the available chains were not enough for a frame: the available index at that time.
    #[serde(skip)]
    short_at: Option<u16>,
}

impl Queue {
    /// Makes a queue of at most `max_size` descriptors, which must be a power of two.
    pub const fn new(max_size: u16) -> Self {
        Self {
            max_size,
            size: max_size,
            descriptors: 0,
            driver_area: 0,
            device_area: 0,
            enabled: false,
            next_available: 0,
            next_used: 0,
            signalled: 0,
            in_flight: 0,
            has_news: false,
            short_at: None,
        }
    }

    /// Resets the queue with the device.
    pub const fn reset(&mut self) {
        *self = Self::new(self.max_size);
    }

    /// Returns the maximum number of descriptors of the queue.
    pub const fn max_size(&self) -> u16 {
        self.max_size
    }

    /// Whether the driver has enabled the queue. Size and addresses are fixed then.
    pub const fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Enables the queue with its present size and addresses.
    ///
    /// # Errors
    /// [`QueueError::Layout`] (2.7: the size is a power of two, the parts are aligned to 16, 2 and
    /// 4 bytes).
    pub const fn enable(&mut self) -> Result<(), QueueError> {
        let is_possible = self.size.is_power_of_two()
            && self.size <= self.max_size
            && self.descriptors.is_multiple_of(16)
            && self.driver_area.is_multiple_of(2)
            && self.device_area.is_multiple_of(4);
        if !is_possible {
            return Err(QueueError::Layout);
        }
        self.enabled = true;
        Ok(())
    }

    /// Takes the next available chain.
    ///
    /// # Errors
    /// The driver broke a rule.
    pub fn pop(&mut self, memory: &GuestMemory) -> Result<Option<Chain>, QueueError> {
        if !self.enabled {
            return Ok(None);
        }
        let index = read_u16(memory, self.driver_area.wrapping_add(INDEX_OFFSET))?;
        let waiting = index.wrapping_sub(self.next_available);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > self.size || self.in_flight >= self.size {
            return Err(QueueError::TooManyAvailable);
        }
        let place = RING_OFFSET + 2 * u64::from(self.next_available % self.size);
        let head = read_u16(memory, self.driver_area.wrapping_add(place))?;
        let chain = Chain::read(memory, self.descriptors, self.size, head)?;
        self.next_available = self.next_available.wrapping_add(1);
        self.in_flight += 1;
        self.short_at = None;
        Ok(Some(chain))
    }

    /// Undoes the last `count` calls of [`Queue::pop`]: the chains are not enough and wait for
    /// more.
    pub fn unpop(&mut self, count: u16) {
        let count = count.min(self.in_flight);
        self.short_at = Some(self.next_available);
        self.next_available = self.next_available.wrapping_sub(count);
        self.in_flight -= count;
    }

    /// Returns a chain to the driver, of which the device has written `written` bytes.
    ///
    /// # Errors
    /// The ring lies outside of memory.
    pub fn push(
        &mut self,
        memory: &mut GuestMemory,
        head: u16,
        written: u32,
    ) -> Result<(), QueueError> {
        if !self.enabled {
            return Ok(());
        }
        let place = RING_OFFSET + USED_BYTES * u64::from(self.next_used % self.size);
        let mut element = [0; USED_BYTES as usize];
        element[..2].copy_from_slice(&head.to_le_bytes());
        element[4..].copy_from_slice(&written.to_le_bytes());
        write(memory, self.device_area.wrapping_add(place), &element)?;
        self.next_used = self.next_used.wrapping_add(1);
        let index = self.device_area.wrapping_add(INDEX_OFFSET);
        write(memory, index, &self.next_used.to_le_bytes())?;
        self.in_flight = self.in_flight.saturating_sub(1);
        self.has_news = true;
        Ok(())
    }

    /// Whether the driver must be interrupted for the chains that were returned since the last
    /// call.
    ///
    /// # Errors
    /// The ring lies outside of memory.
    pub fn take_news(
        &mut self,
        memory: &GuestMemory,
        event_index: bool,
    ) -> Result<bool, QueueError> {
        if !std::mem::take(&mut self.has_news) {
            return Ok(false);
        }
        if !event_index {
            return Ok(read_u16(memory, self.driver_area)? & NO_INTERRUPT == 0);
        }
        // The driver's request follows its ring (2.7.7): it wants an interrupt once the used index
        // passes this value.
        let place = RING_OFFSET + 2 * u64::from(self.size);
        let wanted = read_u16(memory, self.driver_area.wrapping_add(place))?;
        let before = std::mem::replace(&mut self.signalled, self.next_used);
        let behind = self.next_used.wrapping_sub(wanted).wrapping_sub(1);
        Ok(behind < self.next_used.wrapping_sub(before))
    }

    /// Asks the driver to notify the device of the next chain, because all available chains were
    /// taken or they were not enough. The driver notifies when its index passes the one that is
    /// stored here (2.7.10), so this must not be the index of chains that it has already notified
    /// of.
    ///
    /// # Errors
    /// The ring lies outside of memory.
    pub fn ask_for_notification(&self, memory: &mut GuestMemory) -> Result<(), QueueError> {
        if !self.enabled {
            return Ok(());
        }
        let place = RING_OFFSET + USED_BYTES * u64::from(self.size);
        let wish = self.short_at.unwrap_or(self.next_available).to_le_bytes();
        write(memory, self.device_area.wrapping_add(place), &wish)
    }

    /// Whether a saved queue has the layout of this device's.
    pub const fn fits(&self, saved: &Self) -> bool {
        saved.max_size == self.max_size && (!saved.enabled || saved.size.is_power_of_two())
    }
}

fn read_u16(memory: &GuestMemory, address: u64) -> Result<u16, QueueError> {
    let mut bytes = [0; 2];
    let is_there = memory.read(PhysicalAddress(address), &mut bytes);
    is_there
        .then_some(u16::from_le_bytes(bytes))
        .ok_or(QueueError::NoMemory)
}

fn write(memory: &mut GuestMemory, address: u64, bytes: &[u8]) -> Result<(), QueueError> {
    let is_there = memory.write(PhysicalAddress(address), bytes);
    is_there.then_some(()).ok_or(QueueError::NoMemory)
}
