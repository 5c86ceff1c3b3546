//! What the engine has derived from the guest's page tables: its links. It is told what to forget
//! of them, and which address space is loaded.

use super::Engine;
use super::device_page::DevicePage;
use tollgate_tlb::{Derived, Held, PageRange, SpaceNumber};

impl Derived for Engine {
    fn drop_local(&mut self) {
        self.links.drop_local();
        self.device_page.drop_local();
    }

    fn drop_pages(&mut self, pages: PageRange) {
        self.links.drop_pages(pages);
        self.device_page.drop_pages(pages);
    }

    fn drop_everything(&mut self) {
        self.links.drop_everything();
        self.device_page = DevicePage::NONE;
    }

    fn load(&mut self, to: SpaceNumber, keeps: bool) {
        self.links.load(to, keeps);
        self.device_page.load();
        let Self {
            links,
            homes,
            pages,
            ..
        } = self;
        let epoch = links.epoch();
        links.put_kept_back(|page| {
            let (key, found) = (page.key(), page.found());
            // Another page may have taken its home with another delta.
            let place = (key.physical_page, found.linear_page);
            let has_code = |page| pages.has_code(page);
            !key.relocates
                || homes.delta(epoch, place, Some(found.delta), has_code) == Some(found.delta)
        });
    }

    fn show(&self, check: &mut dyn FnMut(Held)) {
        self.links.show(check);
    }

    fn contradiction(&self) -> Option<String> {
        self.links.contradiction()
    }
}
