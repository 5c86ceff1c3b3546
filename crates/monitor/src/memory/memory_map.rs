//! The memory map's effect: what leads to pages that mean something else now is forgotten.

use crate::execution::runner::Runner;
use crate::memory::guest_view::GuestView;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::{PhysicalAddress, TranslationChange};

impl GuestView {
    /// Follows changes of regions. Blocks from there are found by the writes of code that the
    /// gate has noted.
    #[cold]
    pub(crate) fn follow_map<R: Runner>(&mut self, runner: &mut R) {
        for (first, last) in self.memory.take_map_changes() {
            self.change_translations(
                runner,
                TranslationChange::Physical {
                    first: PhysicalAddress(first * PAGE_SIZE),
                    last: PhysicalAddress(last * PAGE_SIZE),
                },
            );
        }
    }
}
