//! The debugger's breakpoints: blocks that would run past one are dropped.

use super::Engine;
use crate::abi::sites::BlockId;
use crate::policy::breakpoints::{Breakpoints, Place};
use std::collections::BTreeSet;
use tollgate_memory::GuestMemory;

impl Engine {
    /// Ends blocks before the instructions at these linear addresses from now on, and no block begins
    /// there. Drops the blocks in which one of them begins.
    ///
    /// The caller must not ask for the block of such a place, except in modes of single instructions.
    pub fn set_breakpoints(&mut self, addresses: &BTreeSet<u64>, memory: &mut GuestMemory) {
        let wanted = Breakpoints::new(addresses);
        let new = wanted.without(&self.translator.breakpoints);
        self.translator.breakpoints = wanted;
        if new.is_empty() {
            return;
        }
        let doomed: Vec<BlockId> = (self.blocks.ids())
            .filter(|&id| self.may_have_breakpoint(id, &new))
            .collect();
        self.evict(&doomed, memory);
    }

    /// Whether one of these breakpoints may be in a block.
    fn may_have_breakpoint(&self, id: BlockId, breakpoints: &Breakpoints) -> bool {
        self.block(id).is_some_and(|block| {
            let key = block.key();
            let place = Place {
                linear: self.mode(key.mode).linear(key.rip),
                relocates: key.relocates,
            };
            breakpoints.may_be_in(place, block.guest_length.into())
        })
    }

    /// The debugger's breakpoints.
    #[inline]
    pub fn breakpoints(&self) -> &Breakpoints {
        &self.translator.breakpoints
    }
}
