//! Access to the shadow windows, as part of all data derived from the guest's page tables.

use super::Translations;
use crate::memory::watched_pages::WatchedPages;
use std::os::fd::BorrowedFd;
use tollgate_memory::PageSpan;
use tollgate_tlb::shadow_windows::native::SharedNativeSpace;
use tollgate_tlb::shadow_windows::{BesideWindow, Run, narrow};
use tollgate_tlb::{Allows, GsTarget, KnownPage, SpaceNumber, View};
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::Translation;
use tollgate_x86::{CpuState, LinearAddress, PhysicalAddress};

impl Translations {
    /// Classifies a host address at which a direct access of a view has faulted. In IA-32e mode,
    /// `near` is a linear address of the same part.
    pub(crate) fn beside_window(
        &self,
        state: &CpuState,
        view: View,
        host: u64,
        near: LinearAddress,
    ) -> BesideWindow {
        let windows = self.long_tlb.windows();
        windows.map_or(BesideWindow::No, |windows| match state.is_long_mode() {
            true => windows.what_is(host, near),
            false => windows.what_is_narrow(view, host),
        })
    }

    /// Makes direct accesses of a 32-bit guest lead to its windows, which may have changed.
    pub(crate) fn point_narrow(&mut self) {
        for (view, delta) in self.long_tlb.narrow_deltas().into_iter().flatten() {
            self.tlb.point_direct(view, delta);
        }
    }

    /// Whether direct accesses of a 32-bit guest lead to its windows as they are now.
    pub(crate) fn leads_to_narrow_windows(&self) -> bool {
        let mut deltas = self.long_tlb.narrow_deltas().into_iter().flatten();
        deltas.all(|(view, delta)| self.tlb.direct_delta(view) == delta)
    }

    /// Whether this process has room for shadow windows.
    pub(crate) fn has_windows(&self) -> bool {
        self.long_tlb.windows().is_some()
    }

    /// The run that is mapped in the window of the loaded space at an address.
    pub(crate) fn window_run(&self, linear: LinearAddress) -> Option<Run> {
        self.long_tlb.windows()?.mapped(linear)
    }

    /// Whether the programs of this machine can reach the common parts by anchors.
    pub(crate) fn has_anchors(&self) -> bool {
        let windows = self.long_tlb.windows();
        windows.is_some_and(|windows| windows.anchor().is_some())
    }

    /// Switches anchors on or off.
    pub(crate) fn use_anchors(&mut self, uses: bool) {
        self.long_tlb
            .change_windows(|windows| windows.use_anchors(uses));
    }

    /// An address in a common part of the loaded space whose window is put aside. While there is
    /// one, the anchor leads to nothing.
    pub(crate) fn common_aside(&self) -> Option<LinearAddress> {
        self.long_tlb.windows()?.common_aside()
    }

    /// Sets the calling thread's GS base to the anchor of the loaded space.
    pub(crate) fn load_anchor(&mut self) {
        self.long_tlb.load_anchor();
    }

    /// Sets the calling thread's GS base as the code that runs next expects it.
    #[inline]
    pub(crate) fn lead_gs(&mut self, to: GsTarget) {
        self.long_tlb.lead_gs(to);
    }

    /// The number under which the loaded space has windows.
    pub(crate) fn window_space(&self) -> SpaceNumber {
        let windows = self.long_tlb.windows();
        windows.map_or_else(SpaceNumber::default, |windows| windows.loaded())
    }

    /// Whether the programs of the loaded space can run natively.
    pub(crate) fn has_program(&self) -> bool {
        let windows = self.long_tlb.windows();
        windows.is_some_and(|windows| windows.native_space().is_some())
    }

    /// Whether the program of the loaded space, run natively, can have the page of an address.
    pub(crate) fn program_has(&self, linear: LinearAddress) -> bool {
        let windows = self.long_tlb.windows();
        windows.is_some_and(|windows| windows.native_has(linear))
    }

    /// The runs of pages that translated code of the loaded space's program reaches by windows.
    pub(crate) fn program_runs(&self) -> Vec<Run> {
        let windows = self.long_tlb.windows();
        windows.map_or_else(Vec::new, |windows| windows.program_runs())
    }

    /// See [`ShadowWindows::set_native_space`](tollgate_tlb::ShadowWindows::set_native_space).
    pub(crate) fn set_program(&mut self, program: Option<SharedNativeSpace>) {
        self.long_tlb
            .change_windows(|windows| windows.set_native_space(program));
    }

    /// Takes the programs of all spaces away.
    pub(crate) fn drop_programs(&mut self) {
        self.long_tlb
            .change_windows(|windows| windows.drop_native_spaces(|_| true));
    }

    /// An address of the loaded space's program whose window is put aside.
    pub(crate) fn program_aside(&self) -> Option<LinearAddress> {
        self.long_tlb.windows()?.native_aside()
    }

    /// Unmaps a page of code from all programs that run natively.
    pub(crate) fn unmap_executable(&mut self, physical_page: u64) {
        self.long_tlb
            .change_windows(|windows| windows.unmap_executable(physical_page));
    }

    /// Puts the windows of the loaded space aside.
    pub(crate) fn put_windows_aside(&mut self) {
        self.long_tlb
            .change_windows(|windows| windows.put_aside(false));
    }

    /// Whether the window of an address in the loaded space is put aside.
    pub(crate) fn is_window_aside(&self, linear: LinearAddress) -> bool {
        let windows = self.long_tlb.windows();
        windows.is_some_and(|windows| windows.is_aside(linear))
    }

    /// See [`ShadowWindows::runs_aside`](tollgate_tlb::ShadowWindows::runs_aside).
    pub(crate) fn runs_aside(&self, linear: LinearAddress) -> Vec<Run> {
        let windows = self.long_tlb.windows();
        windows.map_or_else(Vec::new, |windows| windows.runs_aside(linear))
    }

    /// See [`ShadowWindows::take_back`](tollgate_tlb::ShadowWindows::take_back).
    pub(crate) fn take_window_back(&mut self, linear: LinearAddress, gone: &[(u64, u64)]) {
        self.long_tlb
            .change_windows(|windows| windows.take_back(linear, gone));
        self.point_narrow();
    }

    /// Maps pages of guest RAM, which begin at `offset` in `file`, in the window of the loaded
    /// space. The caller must call [`Translations::note_window`] next. Returns whether the host
    /// made the mapping.
    pub(crate) fn map_window(&mut self, run: Run, file: BorrowedFd<'_>, offset: u64) -> bool {
        let result = self
            .long_tlb
            .change_windows(|windows| windows.map(run, file, offset));
        // Other windows may have been emptied to make room.
        self.changed = true;
        self.point_narrow();
        result.is_some_and(|result| result.is_ok())
    }

    /// Unmaps physical pages from all windows that have them for loads only: their contents are in
    /// another file from now on. The software TLBs lead to the same host addresses as before.
    #[cold]
    pub(crate) fn unmap_from_windows(&mut self, pages: PageSpan) {
        self.long_tlb.unmap_loads_from(pages.first, pages.end);
    }

    /// Empties the windows of the loaded space.
    pub(crate) fn empty_windows(&mut self) {
        self.long_tlb
            .change_windows(|windows| windows.empty_loaded());
        self.changed = true;
        self.point_narrow();
    }

    /// Sets the pages in which memory is watched, and empties all windows: those that were put aside
    /// could be taken back with such a page. The caller must forget all other derived data.
    pub(crate) fn set_watched_pages(&mut self, pages: WatchedPages) {
        self.watched_pages = pages;
        self.long_tlb.change_windows(|windows| windows.empty_all());
        self.changed = true;
        self.point_narrow();
    }

    /// Notes the size of the guest's page of which a window holds a piece at an address.
    pub(crate) fn note_window(&mut self, linear: LinearAddress, bytes: u64) {
        if bytes > PAGE_SIZE {
            self.long_tlb
                .change_windows(|windows| windows.note_large(linear, bytes));
        }
    }

    /// Notes that a walk has found this translation of an address, whose page is about to be mapped
    /// in the window of the loaded space; for stores, too, if the page is `writable`.
    pub(crate) fn note_for_window(
        &mut self,
        view: View,
        linear: LinearAddress,
        translation: &Translation,
        writable: bool,
    ) {
        self.note_keys(translation);
        self.entries.note(linear, translation);
        let Some(check) = &mut self.check else {
            return;
        };
        // A large page has one record, at its first address.
        let offset = linear.0 % translation.page_size;
        let first = Translation {
            physical: PhysicalAddress(translation.physical.0 - offset),
            ..*translation
        };
        for (allows, is_allowed) in [(Allows::Loads, true), (Allows::Stores, writable)] {
            if is_allowed {
                let (what, at) = ((view, allows), LinearAddress(linear.0 - offset));
                check.note(self.spaces.loaded(), what, at, &first, None);
            }
        }
    }

    /// The pages that a view's accesses find in the software TLB, in the loaded space, without
    /// global pages, which have the numbers that windows use. `is_long` selects the lower half of the software TLB of IA-32e mode.
    pub(crate) fn known_pages(&self, view: View, is_long: bool) -> Vec<KnownPage> {
        if is_long {
            return self.long_tlb.known_pages(view);
        }
        let mut pages = self.tlb.known_pages(view);
        for KnownPage { page, .. } in &mut pages {
            *page = narrow::named(view, LinearAddress(*page * PAGE_SIZE)).page();
        }
        pages
    }

    /// Whether the space that was loaded last had kept entries.
    pub(crate) fn was_kept(&self) -> bool {
        self.was_kept
    }
}
