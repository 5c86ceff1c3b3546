//! Walks that leave the guest's page tables as they are.

use tollgate_x86::PhysicalAddress;
use tollgate_x86::paging::PageTableMemory;

/// Page tables that a walk does not change.
pub(crate) struct Unchanged<'a, M: ?Sized> {
    memory: &'a mut M,
    /// A bit would have been set.
    lacks_bits: bool,
}

impl<'a, M: PageTableMemory + ?Sized> Unchanged<'a, M> {
    /// The tables in `memory`.
    pub(crate) fn new(memory: &'a mut M) -> Self {
        Self {
            memory,
            lacks_bits: false,
        }
    }

    /// Whether a walk would have set a bit.
    pub(crate) fn lacks_bits(&self) -> bool {
        self.lacks_bits
    }
}

impl<M: PageTableMemory + ?Sized> PageTableMemory for Unchanged<'_, M> {
    fn read_u32(&mut self, address: PhysicalAddress) -> u32 {
        self.memory.read_u32(address)
    }

    fn read_u64(&mut self, address: PhysicalAddress) -> u64 {
        self.memory.read_u64(address)
    }

    fn set_bits(&mut self, _: PhysicalAddress, _: u32) {
        self.lacks_bits = true;
    }
}
