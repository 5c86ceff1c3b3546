//! Maps code in the windows of programs that run natively.

use crate::memory::guest_view::GuestView;
use crate::memory::windows::{WindowsOf, address_of, push};
use tollgate_tlb::shadow_windows::native;
use tollgate_tlb::{Run, View};
use tollgate_x86::paging::{AccessKind, Translation};
use tollgate_x86::{CpuState, LinearAddress};

/// The number of pages of code, aligned, that are mapped together.
const TOGETHER: u64 = 16;

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
            let fetch = (linear_page, AccessKind::Fetch);
            let Some(walk) = self.accessed(state, fetch, WindowsOf::Native) else {
                continue;
            };
            if page == linear.page() {
                self.memory.take_own(walk.physical.page());
                self.follow_moved();
            }
            if self.has_file(walk.physical.page(), named) {
                pages.push(CodePage {
                    linear: linear_page,
                    walk,
                });
            }
        }
        pages
    }

    /// Maps pages of code, which may be executed and not stored to. Returns whether the page of an
    /// address is one of those that are mapped now.
    pub(crate) fn map_code(
        &mut self,
        state: &CpuState,
        linear: LinearAddress,
        pages: Vec<CodePage>,
    ) -> bool {
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
        let wanted = native::named(linear).page();
        let mut found = false;
        for run in runs {
            let holds = run.page <= wanted && wanted < run.end();
            found |= self.map_run(run) && holds;
        }
        for page in pages {
            let translations = &mut self.translations;
            translations.note_window(native::named(page.linear), page.walk.page_size);
            translations.note_for_window(View::User, page.linear, &page.walk, false);
        }
        self.confirm(state);
        found
    }
}
