//! The memory map's effect: what leads to pages that mean something else now is forgotten.

use crate::vcpu::Vcpu;
use tollgate_platform::Platform;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::{PhysicalAddress, TranslationChange};

impl<P: Platform> Vcpu<P> {
    /// Follows changes of regions. Blocks from there are found by the writes of code that the
    /// gate has noted.
    #[cold]
    pub(crate) fn follow_map(&mut self) {
        for (first, last) in self.view.memory.take_map_changes() {
            self.change_translations(TranslationChange::Physical {
                first: PhysicalAddress(first * PAGE_SIZE),
                last: PhysicalAddress(last * PAGE_SIZE),
            });
        }
    }
}
