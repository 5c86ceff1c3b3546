//! MSI-X: interrupts as messages, with a table of them in a BAR (PCI Local Bus Specification 3.0,
//! 6.8.2).

use super::config_space::{BarKind, Command, ConfigSpace};
use crate::bus::DeviceContext;
use serde::{Deserialize, Serialize};

/// The ID of the capability.
const CAPABILITY: u8 = 0x11;
/// In the message control register: all vectors are masked.
const FUNCTION_MASK: u16 = 1 << 14;
/// In the message control register: MSI-X is enabled instead of INTx.
const ENABLE: u16 = 1 << 15;
/// The size of an entry of the table in bytes.
const ENTRY_BYTES: usize = 16;
/// The offset of the pending bits in the BAR.
const PENDING_OFFSET: u32 = 0x800;
/// The size of the BAR in bytes.
const BAR_BYTES: u64 = 0x1000;

/// The maximum number of vectors, which fit before the pending bits.
pub const MAX_VECTORS: u16 = PENDING_OFFSET as u16 / ENTRY_BYTES as u16;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Entry {
    address: u64,
    data: u32,
    masked: bool,
    pending: bool,
}

impl Entry {
    const POWER_UP: Self = Self {
        address: 0,
        data: 0,
        masked: true,
        pending: false,
    };

    fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.data.to_le_bytes());
        bytes[12] = self.masked.into();
        bytes
    }

    fn set_bytes(&mut self, bytes: [u8; ENTRY_BYTES]) {
        let (address, rest) = bytes.split_at(8);
        self.address = u64::from_le_bytes(address.try_into().unwrap_or_default());
        self.data = u32::from_le_bytes(rest[..4].try_into().unwrap_or_default());
        self.masked = rest[4] & 1 != 0;
    }
}

/// The table and pending bits of a function, in a BAR of their own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MsiX {
    entries: Vec<Entry>,
    /// The offset of the capability.
    capability: usize,
}

impl MsiX {
    /// Adds the capability and the BAR `bar` (32-bit memory) to a configuration space. `vectors` is
    /// limited to 1 to [`MAX_VECTORS`].
    pub fn add_to(config: &mut ConfigSpace, bar: usize, vectors: u16) -> Self {
        let vectors = vectors.clamp(1, MAX_VECTORS);
        config.add_bar(bar, BarKind::Memory32, BAR_BYTES);
        let mut body = [0; 10];
        body[..2].copy_from_slice(&(vectors - 1).to_le_bytes());
        body[2..6].copy_from_slice(&(bar as u32).to_le_bytes());
        body[6..].copy_from_slice(&(PENDING_OFFSET | bar as u32).to_le_bytes());
        let writable = (FUNCTION_MASK | ENABLE).to_le_bytes();
        Self {
            capability: config.add_capability(CAPABILITY, &body, &writable),
            entries: vec![Entry::POWER_UP; usize::from(vectors)],
        }
    }

    /// Returns the number of vectors in the table.
    pub fn vectors(&self) -> u16 {
        self.entries.len() as u16
    }

    /// Whether messages replace INTx.
    pub fn is_enabled(&self, config: &ConfigSpace) -> bool {
        config.u16(self.capability + 2) & ENABLE != 0
    }

    fn is_masked(&self, config: &ConfigSpace) -> bool {
        config.u16(self.capability + 2) & FUNCTION_MASK != 0
            || !config.command().contains(Command::BUS_MASTER)
    }

    /// Sends the message of a vector, or makes it pending while the vector is masked. Nothing is
    /// sent for vectors that do not exist, or while MSI-X is not enabled.
    pub fn signal(&mut self, vector: u16, config: &ConfigSpace, context: &mut DeviceContext<'_>) {
        if !self.is_enabled(config) {
            return;
        }
        let is_masked = self.is_masked(config);
        let Some(entry) = self.entries.get_mut(usize::from(vector)) else {
            return;
        };
        if is_masked || entry.masked {
            entry.pending = true;
        } else {
            context.send_message(entry.address, entry.data);
        }
    }

    /// Sends the pending messages that are no longer masked. Must be called after each change of
    /// the configuration space.
    pub fn send_pending(&mut self, config: &ConfigSpace, context: &mut DeviceContext<'_>) {
        if !self.is_enabled(config) || self.is_masked(config) {
            return;
        }
        for entry in &mut self.entries {
            if !entry.masked && std::mem::take(&mut entry.pending) {
                context.send_message(entry.address, entry.data);
            }
        }
    }

    /// Reads the BAR. Only the table and the pending bits exist; other bytes are zero.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        for (index, byte) in data.iter_mut().enumerate() {
            let place = offset as usize + index;
            *byte = match place.checked_sub(PENDING_OFFSET as usize) {
                Some(place) => (0..8)
                    .filter(|bit| self.entries.get(8 * place + bit).is_some_and(|e| e.pending))
                    .fold(0, |bits, bit| bits | 1 << bit),
                None => self
                    .entries
                    .get(place / ENTRY_BYTES)
                    .map_or(0, |entry| entry.to_bytes()[place % ENTRY_BYTES]),
            };
        }
    }

    /// Writes the BAR. Only the table can be written.
    pub fn write(
        &mut self,
        offset: u64,
        data: &[u8],
        config: &ConfigSpace,
        context: &mut DeviceContext<'_>,
    ) {
        let mut place = offset as usize;
        let mut rest = data;
        while let (Some(entry), false) =
            (self.entries.get_mut(place / ENTRY_BYTES), rest.is_empty())
        {
            let start = place % ENTRY_BYTES;
            let (now, later) = rest.split_at(rest.len().min(ENTRY_BYTES - start));
            let mut bytes = entry.to_bytes();
            bytes[start..start + now.len()].copy_from_slice(now);
            entry.set_bytes(bytes);
            place += now.len();
            rest = later;
        }
        self.send_pending(config, context);
    }

    /// Resets the table to its state after power-up: all vectors are masked, none is pending.
    pub fn reset(&mut self) {
        self.entries.fill(Entry::POWER_UP);
    }

    /// Whether a saved table has the layout of this function's.
    pub fn fits(&self, saved: &Self) -> bool {
        saved.entries.len() == self.entries.len() && saved.capability == self.capability
    }

    /// Restores a saved table if it has the layout of this function's. Returns whether it did.
    pub fn restore(&mut self, saved: Self) -> bool {
        let fits = self.fits(&saved);
        if fits {
            self.entries = saved.entries;
        }
        fits
    }
}
