//! The windows of programs that run natively, as part of all shadow windows.

use super::native::{SharedNativeSpace, has_page, is_part, start_of_named};
use super::window::Window;
use super::{Run, ShadowWindows};
use crate::derived::SpaceNumber;
use crate::parts::HALF;
use tollgate_x86::LinearAddress;

impl ShadowWindows {
    /// The address space of the host in which programs of the loaded space run natively.
    pub fn native_space(&self) -> Option<&SharedNativeSpace> {
        self.native[self.loaded.index()].as_ref()
    }

    /// Whether the programs of the loaded space, run natively, can have the page of an address.
    pub fn native_has(&self, linear: LinearAddress) -> bool {
        self.native_space()
            .is_some_and(|space| has_page(space, linear))
    }

    /// Makes programs of the loaded space run in this address space of the host, in which nothing is
    /// mapped, from now on; `None` takes the space away. The old one's windows are forgotten.
    pub fn set_native_space(&mut self, space: Option<SharedNativeSpace>) {
        let loaded = self.loaded;
        self.forget_native(loaded);
        self.native[loaded.index()] = space;
    }

    /// An address of the loaded space's programs whose window is put aside.
    pub fn native_aside(&self) -> Option<LinearAddress> {
        let is_it =
            |window: &&Window| window.aside && is_part(window.part) && window.is_of(self.loaded);
        let window = self.windows.iter().find(is_it)?;
        Some(start_of_named(window.part))
    }

    /// The runs in windows of the loaded space's programs that translated code reaches.
    pub fn program_runs(&self) -> Vec<Run> {
        let is_it = |window: &&Window| {
            let is_program = (0..HALF).contains(&window.part);
            is_program && window.is_of(self.loaded) && !window.aside
        };
        let windows = self.windows.iter().filter(is_it);
        windows
            .flat_map(|window| window.runs.iter().copied())
            .collect()
    }

    /// Takes away the address spaces of the host that belong to guest spaces `which` holds for.
    pub fn drop_native_spaces(&mut self, which: impl Fn(SpaceNumber) -> bool) {
        for number in 0..self.native.len() {
            let space = SpaceNumber::new(number);
            if which(space) {
                self.forget_native(space);
                self.native[number] = None;
            }
        }
    }

    /// Forgets the windows of a space's programs without unmapping them: their address space is no
    /// longer used.
    fn forget_native(&mut self, space: SpaceNumber) {
        for window in &mut self.windows {
            if is_part(window.part) && window.space == Some(space) {
                window.runs.clear();
            }
        }
        self.empty(|window| is_part(window.part) && window.space == Some(space));
    }

    /// The number of mappings in the loaded space's programs.
    pub fn native_mappings(&self) -> usize {
        let is_it = |window: &&Window| is_part(window.part) && window.is_of(self.loaded);
        let windows = self.windows.iter().filter(is_it);
        windows.map(|window| window.runs.len()).sum()
    }

    /// Empties the windows of the loaded space's programs.
    pub fn empty_native(&mut self) {
        let loaded = self.loaded;
        self.empty(|window| is_part(window.part) && window.is_of(loaded));
    }

    /// Unmaps an executable page of guest RAM from the programs of all spaces.
    pub fn unmap_executable(&mut self, physical_page: u64) {
        for window in &mut self.windows {
            let leads_there =
                |run: &&Run| run.executable && physical_page.wrapping_sub(run.physical) < run.count;
            let page = |run: &Run| run.page + (physical_page - run.physical);
            let runs = window.runs.iter().filter(leads_there);
            for page in runs.map(page).collect::<Vec<u64>>() {
                self.counts.unmapped += window.unmap(page, page + 1);
            }
        }
    }
}
