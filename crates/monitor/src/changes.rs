//! Follows what instructions and devices changed under the guest's code: the memory map, writes
//! of code, and translations.

use crate::guest_view::GuestView;
use crate::translated::Translated;
use tollgate_engine::engine::written::Moment;
use tollgate_x86::{Space, TranslationChange};

impl GuestView {
    /// Follows what emulated instructions changed: writes of code, and translations. To be
    /// called before guest code runs again.
    pub(crate) fn apply_changes(&mut self, runner: &mut Translated) {
        if self.memory.has_map_changes() {
            self.follow_map(runner);
        }
        if self.memory.has_code_writes() {
            for write in self.memory.take_code_writes() {
                runner.engine.code_written(
                    write.page,
                    write.first,
                    write.last,
                    Moment::After,
                    &mut self.memory,
                );
            }
        }
        if self.translations.take_changed(runner.engine.links_mut()) {
            runner.resume = None;
        }
    }

    /// Forgets what was derived from the page tables and is void now.
    pub(crate) fn change_translations(
        &mut self,
        runner: &mut Translated,
        change: TranslationChange,
    ) {
        let loaded = Space::loaded(&runner.context.cpu);
        let links = runner.engine.links_mut();
        self.translations.change(loaded, change, links);
    }
}
