//! Maps code in the windows of programs that run natively, and what a program is known to use before
//! it runs.

use crate::memory::addresses::view_of;
use crate::memory::guest_view::GuestView;
use crate::memory::windows::{WindowsOf, address_of, push};
use tollgate_tlb::shadow_windows::native;
use tollgate_tlb::{Run, View};
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::{AccessKind, Privilege, Translation};
use tollgate_x86::{CpuState, LinearAddress};

/// The number of pages of code, aligned, that are mapped together.
const TOGETHER: u64 = 16;
/// The most runs of data that are mapped before a program runs.
const MOST_AT_ONCE: usize = 512;

/// A page of code that a program may fetch from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodePage {
    /// The first address of the page.
    pub(crate) linear: LinearAddress,
    /// The walk that has found it.
    pub(crate) walk: Translation,
}

impl CodePage {
    /// Whether an address lies in the page.
    pub(crate) const fn holds(&self, linear: LinearAddress) -> bool {
        self.linear.page() == linear.page()
    }
}

impl GuestView {
    /// The page of an address and its neighbours, as far as the program may fetch from them, they
    /// were accessed before and are not mapped with other rights.
    pub(crate) fn code_around(&mut self, state: &CpuState, linear: LinearAddress) -> Vec<CodePage> {
        let first = linear.page() & !(TOGETHER - 1);
        let mut pages = Vec::new();
        for page in first..first + TOGETHER {
            let linear_page = address_of(page);
            let named = native::named(linear_page);
            let is_mapped = self.translations.window_run(named).is_some();
            if is_mapped && page != linear.page() {
                continue;
            }
            pages.extend(self.code_page(state, linear_page, page == linear.page()));
        }
        pages
    }

    /// The page of code at an address, if the program may fetch from it and has accessed it, and if a
    /// process can map it. With `takes_own`, a page that still lies in a snapshot is taken from there first.
    fn code_page(
        &mut self,
        state: &CpuState,
        linear: LinearAddress,
        takes_own: bool,
    ) -> Option<CodePage> {
        let walk = self.accessed(state, (linear, AccessKind::Fetch), WindowsOf::Native)?;
        if takes_own {
            self.memory.take_own(walk.physical.page());
            self.follow_moved();
        }
        let has_file = self.has_file(walk.physical.page(), native::named(linear));
        has_file.then_some(CodePage { linear, walk })
    }

    /// Maps pages of code, which may be executed and not stored to.
    pub(crate) fn map_code(&mut self, state: &CpuState, pages: Vec<CodePage>) {
        let mut runs = Vec::new();
        for page in &pages {
            let run = Run {
                page: native::named(page.linear).page(),
                count: 1,
                physical: page.walk.physical.page(),
                writable: false,
                executable: true,
            };
            push(&mut runs, run);
        }
        for run in runs {
            self.map_run(run);
        }
        for page in pages {
            let translations = &mut self.translations;
            translations.note_window(native::named(page.linear), page.walk.page_size);
            translations.note_for_window(View::User, page.linear, &page.walk, false);
        }
        self.confirm(state);
    }

    /// Maps a page that may be stored to and executed at the same time. Returns whether it is mapped
    /// so: not if the monitor must see stores to it.
    pub(crate) fn map_for_both(
        &mut self,
        state: &CpuState,
        linear: LinearAddress,
        walk: &Translation,
    ) -> bool {
        self.memory.take_own(walk.physical.page());
        self.follow_moved();
        let named = native::named(linear);
        let page = self.page(named, walk).filter(|page| page.writable);
        let Some(page) = page else {
            return false;
        };
        let is_mapped = self.map_run(Run {
            executable: true,
            ..page
        });
        self.translations.note_window(named, walk.page_size);
        (self.translations).note_for_window(View::User, linear, walk, true);
        self.confirm(state);
        is_mapped
    }

    /// The physical page of the first code, by address, that the loaded space's program was seen to use.
    /// Spaces that run the same program have it in common: it belongs to the file.
    pub(crate) fn first_code(&mut self, state: &CpuState) -> Option<u64> {
        let page = self.translations.program_fetches().into_iter().min()?;
        let fetch = (LinearAddress(page * PAGE_SIZE), AccessKind::Fetch);
        let walk = self.accessed(state, fetch, WindowsOf::Native)?;
        Some(walk.physical.page())
    }

    /// The pages of code that the loaded space's program was seen to use, as far as it may fetch from
    /// them, in ascending order.
    pub(crate) fn known_code(&mut self, state: &CpuState) -> Vec<CodePage> {
        let known = self.translations.program_fetches().into_iter();
        known
            .filter_map(|page| self.code_page(state, LinearAddress(page * PAGE_SIZE), false))
            .collect()
    }

    /// Maps the pages of data that the loaded space's program was seen to use: those that are in the
    /// software TLB of IA-32e mode or in its windows.
    pub(crate) fn map_known_data(&mut self, state: &CpuState) {
        let view = view_of(Privilege::User);
        let looked_up = self.translations.known_pages(view, true);
        let mut pages: Vec<u64> = looked_up.into_iter().map(|known| known.page).collect();
        for run in self.translations.program_runs() {
            pages.extend(run.page..run.end());
        }
        pages.sort_unstable();
        pages.dedup();
        let mut runs = Vec::new();
        for page in pages {
            let linear = LinearAddress(page * PAGE_SIZE);
            let named = native::named(linear);
            if self.translations.window_run(named).is_some() {
                continue;
            }
            let read = (linear, AccessKind::Read);
            let Some(walk) = self.accessed(state, read, WindowsOf::Native) else {
                continue;
            };
            let Some(run) = self.page(named, &walk) else {
                continue;
            };
            push(&mut runs, run);
            let translations = &mut self.translations;
            translations.note_window(named, walk.page_size);
            translations.note_for_window(View::User, linear, &walk, walk.writable_now);
            if runs.len() > MOST_AT_ONCE {
                break;
            }
        }
        for run in runs {
            self.map_run(run);
        }
        self.confirm(state);
    }
}
