//! Follows changes of the memory map: forgets the translations that lead to pages with a new
//! meaning.

use crate::execution::runner::Runner;
use crate::memory::guest_view::GuestView;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::{PhysicalAddress, TranslationChange};

impl GuestView {
    /// Forgets the translations that lead to changed regions. The blocks translated from there are
    /// found through the code writes that the memory gate has noted.
    #[cold]
    pub(crate) fn follow_map<R: Runner>(&mut self, runner: &mut R) {
        self.follow_moved();
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

    /// Unmaps from windows what is no longer in a snapshot's file.
    #[inline]
    pub(crate) fn follow_moved(&mut self) {
        if self.memory.has_moved() {
            for span in self.memory.take_moved() {
                self.translations.unmap_from_windows(span);
            }
        }
    }
}
