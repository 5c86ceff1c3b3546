//! Page walks that do not change the guest's page tables.

use tollgate_x86::PhysicalAddress;
use tollgate_x86::paging::PageTableMemory;

/// Page tables in which a walk sets no bits.
pub(crate) struct Unchanged<'a, M: ?Sized> {
    memory: &'a mut M,
    /// Whether the walk would have set a bit.
    lacks_bits: bool,
}

impl<'a, M: PageTableMemory + ?Sized> Unchanged<'a, M> {
    /// Wraps the page tables in `memory`.
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
