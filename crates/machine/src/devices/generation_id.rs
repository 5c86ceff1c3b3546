//! The generation ID: sixteen random bytes in the guest's memory that change whenever the machine
//! continues from a snapshot (Microsoft, "Virtual Machine Generation ID", 2012).
//!
//! Two machines that are restored from one snapshot begin with the same state of everything, that
//! of their random number generators included. A guest that finds another generation ID, or to
//! which ACPI reports the change, knows that it may be a copy. Linux then mixes the ID into its random
//! numbers and reseeds them (`drivers/virt/vmgenid.c`, since 5.18). ACPI describes the device
//! ([`crate::acpi`]), and a general-purpose event reports the change.

use crate::bus::{Claims, Device, DeviceContext, SavedState, StateError};
use rustix::rand::{GetRandomFlags, getrandom};
use tollgate_x86::PhysicalAddress;

/// The physical address of the ID.
pub const BASE_ADDRESS: u64 = 0xfed5_0000;
/// The size of the ID in bytes.
pub const ID_BYTES: usize = 16;
/// The bit of general-purpose event block 0 that reports a new ID.
pub const EVENT: u8 = 0;

/// The device, with the present ID.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GenerationId([u8; ID_BYTES]);

impl Default for GenerationId {
    fn default() -> Self {
        let mut device = Self([0; ID_BYTES]);
        device.renew();
        device
    }
}

impl GenerationId {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;

    /// Gives the machine a new ID. The caller raises [`EVENT`].
    pub fn renew(&mut self) {
        let mut id = [0; ID_BYTES];
        // A request of this size is never cut short (getrandom(2)). A host without random numbers
        // would not have started the monitor.
        let filled = getrandom(&mut id, GetRandomFlags::empty());
        debug_assert_eq!(filled, Ok(ID_BYTES));
        self.0 = id;
    }
}

impl Device for GenerationId {
    fn name(&self) -> &str {
        "vmgenid"
    }

    fn claims(&self) -> Claims {
        Claims::none().with_memory(BASE_ADDRESS, ID_BYTES as u64)
    }

    fn memory_read(
        &mut self,
        address: PhysicalAddress,
        data: &mut [u8],
        _context: &mut DeviceContext<'_>,
    ) {
        for (byte, offset) in data.iter_mut().zip(address.0.wrapping_sub(BASE_ADDRESS)..) {
            let id = usize::try_from(offset).ok().and_then(|at| self.0.get(at));
            *byte = id.copied().unwrap_or(0xff);
        }
    }

    /// The ID stays the same: it belongs to the machine, not to one start of its guest.
    fn reset(&mut self, _context: &mut DeviceContext<'_>) {}

    fn save(&self) -> SavedState {
        SavedState::of(Self::STATE_VERSION, &self.0)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        self.0 = saved.read(Self::STATE_VERSION)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::testing::Bench;

    fn read(device: &mut GenerationId, offset: u64, count: usize) -> Vec<u8> {
        let mut data = vec![0; count];
        let mut bench = Bench::new();
        let address = PhysicalAddress(BASE_ADDRESS.wrapping_add(offset));
        device.memory_read(address, &mut data, &mut bench.context(0));
        data
    }

    #[test]
    fn the_id_is_read_whole_and_in_parts_and_nothing_lies_behind_it() {
        let mut device = GenerationId::default();
        let whole = read(&mut device, 0, 16);
        assert_eq!(read(&mut device, 5, 4), whole[5..9]);
        assert_eq!(read(&mut device, 12, 8)[..4], whole[12..]);
        assert_eq!(read(&mut device, 12, 8)[4..], [0xff; 4]);
    }

    #[test]
    fn a_new_id_is_another_one_and_a_saved_one_comes_back() {
        let mut device = GenerationId::default();
        let first = device.clone();
        let saved = device.save();
        device.renew();
        assert_ne!(device, first);
        device.restore(&saved).unwrap();
        assert_eq!(device, first);
    }
}
