//! What the engine has derived from the guest's page tables, mainly its links: callers report which
//! of it to forget, and which address space is loaded.

use super::Engine;
use super::known_device_page::DevicePage;
use crate::abi::context::NO_PAGE;
use crate::blocks::code_pages::CodePageKey;
use crate::blocks::link_pages;
use crate::blocks::links::LinkTables;
use crate::blocks::pages::PageParts;
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
        self.display_window = NO_PAGE;
    }

    fn load(&mut self, to: SpaceNumber, keeps: bool) {
        self.links.load(to, keeps);
        self.device_page.load();
    }

    fn purge(&mut self, number: SpaceNumber) {
        self.links.purge(number);
    }

    fn show(&self, check: &mut dyn FnMut(Held)) {
        self.links.show(check);
    }

    fn contradiction(&self) -> Option<String> {
        self.links.contradiction()
    }
}

/// What `link_pages` must know of the engine's code to choose link addresses.
pub(super) struct Code<'a> {
    pub(super) pages: &'a PageParts,
    pub(super) links: &'a LinkTables,
}

impl link_pages::Code for Code<'_> {
    fn has_code(&self, physical_page: u64) -> bool {
        self.pages.has_code(physical_page)
    }

    fn active_slide(&self, physical_page: u64, link_page: u64) -> Option<u64> {
        // All relocatable code is code of programs.
        let key = CodePageKey {
            physical_page,
            second_page: None,
            page: link_page,
            relocates: true,
            user: true,
        };
        self.links.active_slide(&key)
    }
}
