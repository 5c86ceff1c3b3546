//! Follows changes that instructions and devices made to what guest code runs on: changes of the
//! memory map, writes to code, and changes of translations.

use crate::execution::runner::Runner;
use crate::memory::guest_view::GuestView;
use tollgate_x86::{Space, TranslationChange};

impl GuestView {
    /// Applies the changes that emulated instructions made: writes to code, and changes of
    /// translations. Must be called before guest code runs again.
    pub(crate) fn apply_changes<R: Runner>(&mut self, runner: &mut R) {
        if self.memory.has_map_changes() {
            self.follow_map(runner);
        }
        if self.memory.has_code_writes() {
            for write in self.memory.take_code_writes() {
                runner.code_written(write, &mut self.memory);
            }
        }
        let (_, derived) = runner.state_and_derived();
        if self.translations.take_changed(derived) {
            runner.translations_changed();
        }
    }

    /// Forgets the data derived from the page tables that a change makes void.
    pub(crate) fn change_translations<R: Runner>(
        &mut self,
        runner: &mut R,
        change: TranslationChange,
    ) {
        let (state, derived) = runner.state_and_derived();
        let loaded = Space::loaded(state);
        self.translations
            .change(loaded, change, derived, &mut self.memory);
    }
}
