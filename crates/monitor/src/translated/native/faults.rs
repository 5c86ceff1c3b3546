//! Gives a program that runs natively the pages that it reaches.

use super::judgement::{Judgement, Starts};
use crate::memory::guest_view::Target;
use crate::memory::program_pages::CodePage;
use crate::memory::windows::{PageAccess, WindowsOf};
use crate::translated::processor::Processor;
use tollgate_engine::engine::written_code::Moment;
use tollgate_memory::gate::CodeWrite;
use tollgate_tlb::shadow_windows::native;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::{Exception, LinearAddress};

impl Processor<'_> {
    /// Whether the process of the loaded space has the page of the program's code at this address, and
    /// holds only what it may.
    pub(super) fn has_code(&self, linear: LinearAddress) -> bool {
        let translations = &self.view.translations;
        let run = native::name_of(linear).and_then(|it| translations.window_run(it));
        run.is_some_and(|run| run.executable)
            && !self.runner.native.code.has_written()
            && translations.program_aside().is_none()
    }

    /// Makes the process of the loaded space hold only what it may, and starts it if there is none.
    /// Returns false if the program's code at this address, which is at a physical page, must be
    /// translated.
    pub(super) fn prepare_native(&mut self, linear: LinearAddress, page: u64) -> bool {
        if !self.has_process() || !self.may_run(linear, page) {
            return false;
        }
        self.unmap_written();
        self.take_program_back();
        true
    }

    /// Unmaps pages of code that were written since they were judged from all programs.
    fn unmap_written(&mut self) {
        for written in self.runner.native.code.take_written() {
            self.view.translations.unmap_executable(written);
        }
    }

    /// Whether code at an address, which is at a physical page, may run natively. From then on
    /// stores to the page are tested.
    fn may_run(&mut self, linear: LinearAddress, page: u64) -> bool {
        let judgement = self.judged(page);
        if judgement.is_cut()
            && let Some(next) = self.code_page(linear.0.wrapping_add(PAGE_SIZE))
            && judgement.reveals_with(self.judged(next), self.runner.native.code.refused)
        {
            return false;
        }
        judgement.is_always_fit() || judgement.is_fit(self.starts(linear, page, judgement))
    }

    /// Where the first instruction of a page of code may begin.
    fn starts(&mut self, linear: LinearAddress, page: u64, judgement: Judgement) -> Starts {
        if !judgement.depends_on_start() {
            return Starts::ALL;
        }
        let Some(before) = self.code_page(linear.0.wrapping_sub(PAGE_SIZE)) else {
            return Starts::ALL;
        };
        self.judged(before);
        let code = &mut self.runner.native.code;
        code.starts(before, page, &self.view.memory)
    }

    /// Whether a page of code may be mapped after the page that precedes it.
    fn may_follow(&mut self, linear: LinearAddress, page: u64) -> bool {
        let before = self.code_page(linear.0.wrapping_sub(PAGE_SIZE));
        let judgement = self.judged(page);
        before.is_none_or(|before| {
            let before = self.judged(before);
            !before.reveals_with(judgement, self.runner.native.code.refused)
        })
    }

    /// Unmaps the page of code that follows one that is mapped now, if it must not run natively after
    /// this one.
    fn follow_new_code(&mut self, linear: LinearAddress) {
        let next = LinearAddress(linear.0.wrapping_add(PAGE_SIZE));
        if let Some(page) = self.code_page(next.0)
            && self.judged(page).depends_on_start()
            && !self.may_run(next, page)
        {
            self.view.translations.unmap_executable(page);
        }
    }

    /// The physical page of an address, if the program may fetch from it.
    fn code_page(&mut self, linear: u64) -> Option<u64> {
        let cpu = &self.runner.context.cpu;
        let fetch = (LinearAddress(linear), AccessKind::Fetch);
        let found = self.view.accessed(cpu, fetch, WindowsOf::Native)?;
        Some(found.physical.page())
    }

    fn judged(&mut self, page: u64) -> Judgement {
        let code = &mut self.runner.native.code;
        let is_known = code.is_known(page);
        let judgement = code.judged(page, &self.view.memory);
        if !is_known {
            self.view.watch_for_code(page);
        }
        judgement
    }

    /// Whether the loaded space has a process for its programs, which is started if it has none.
    fn has_process(&mut self) -> bool {
        let native = &mut self.runner.native;
        if self.view.translations.has_program() {
            return true;
        }
        if native.processes.refused.is_some() {
            return false;
        }
        let space = self.view.translations.window_space();
        match native.processes.start(space, self.view.memory.ram().fd()) {
            Ok((program, refused)) => {
                native.counts.processes += 1;
                native.code.set_refused(refused);
                self.view.translations.set_program(Some(program));
                self.map_known();
                true
            }
            Err(error) => {
                native.processes.refused = Some(error.to_string());
                self.runner.accounts.refuse_native();
                self.follow_access_choice();
                false
            }
        }
    }

    /// Maps what the loaded space's program was seen to use while it was translated.
    fn map_known(&mut self) {
        let cpu = &self.runner.context.cpu;
        let code = self.view.known_code(cpu);
        let code = self.fit_pages(code);
        let cpu = &self.runner.context.cpu;
        self.view.map_code(cpu, code);
        self.view.map_known_data(cpu);
    }

    /// Those of some pages of code that may run natively.
    fn fit_pages(&mut self, mut pages: Vec<CodePage>) -> Vec<CodePage> {
        pages.retain(|page| {
            let (linear, physical) = (page.linear, page.walk.physical.page());
            let is_fit = self.may_run(linear, physical) && self.may_follow(linear, physical);
            if is_fit {
                self.follow_new_code(linear);
            }
            is_fit
        });
        pages
    }

    /// Ends the process of the loaded space, whose state is no longer known.
    pub(super) fn end_program(&mut self) {
        self.view.translations.set_program(None);
        let space = self.view.translations.window_space();
        self.runner.native.processes.end(space);
    }

    /// Takes back the windows of the loaded space's program that were put aside, as far as the
    /// guest's tables still lead to the pages that they have.
    fn take_program_back(&mut self) {
        while let Some(aside) = self.view.translations.program_aside() {
            let cpu = &self.runner.context.cpu;
            let comparing = &mut self.runner.comparing;
            comparing.forget();
            let of = WindowsOf::Native;
            let holds = (self.view).take_window_back(cpu, aside, of, comparing, |_| false);
            if holds == Some(false) {
                self.runner.accounts.is_another();
                self.follow_access_choice();
            }
        }
    }

    /// Maps the page of a program's access.
    ///
    /// # Errors
    /// The guest's tables refuse the access.
    pub(super) fn reach_natively(
        &mut self,
        linear: LinearAddress,
        kind: AccessKind,
    ) -> Result<Reached, Exception> {
        if !self.view.translations.program_has(linear) {
            return Ok(Reached::Not);
        }
        let cpu = &self.runner.context.cpu;
        let mut target = self.view.resolve(cpu, linear, kind, Privilege::User)?;
        if let Target::Code(physical) = target {
            self.retire_page(physical.page());
            let cpu = &self.runner.context.cpu;
            target = self.view.resolve(cpu, linear, kind, Privilege::User)?;
        }
        if !matches!(target, Target::Ram(_)) {
            return Ok(Reached::Not);
        }
        self.take_program_back();
        if kind != AccessKind::Read && self.map_trusted(linear) {
            return Ok(Reached::Mapped);
        }
        if kind == AccessKind::Fetch {
            return Ok(self.map_code(linear));
        }
        let cpu = &self.runner.context.cpu;
        let access = PageAccess {
            linear,
            kind,
            of: WindowsOf::Native,
        };
        let filled = self.view.fill_window(cpu, access, None, |_| false);
        Ok(match filled.found {
            true => Reached::Mapped,
            false => Reached::Not,
        })
    }

    /// Drops all code that was made from a page, so that programs may store to it.
    fn retire_page(&mut self, page: u64) {
        let write = CodeWrite {
            page,
            first: 0,
            last: PAGE_SIZE as u16 - 1,
        };
        let memory = &mut self.view.memory;
        self.runner.retire_code(write, Moment::Before, memory);
        self.runner.engine.clear_lines_without_code(page, memory);
        self.unmap_written();
        let code = self.view.memory.code();
        while !code.page_has_code(page) && !code.may_unwatch(page) {}
    }

    /// Maps a page for stores and execution at the same time, if the guest allows both and the page is
    /// trusted. Returns whether it did.
    fn map_trusted(&mut self, linear: LinearAddress) -> bool {
        let cpu = &self.runner.context.cpu;
        let mut walk = |kind| self.view.accessed(cpu, (linear, kind), WindowsOf::Native);
        let (Some(_), Some(walk)) = (walk(AccessKind::Fetch), walk(AccessKind::Write)) else {
            return false;
        };
        self.runner.native.code.is_trusted(walk.physical.page())
            && self.view.map_for_both(cpu, linear, &walk)
    }

    /// Maps the page of a program's code and its neighbours, as far as they may run natively.
    fn map_code(&mut self, linear: LinearAddress) -> Reached {
        let cpu = &self.runner.context.cpu;
        let pages = self.view.code_around(cpu, linear);
        let has_page = |pages: &[CodePage]| pages.iter().any(|page| page.holds(linear));
        if !has_page(&pages) {
            return Reached::Not;
        }
        let pages = self.fit_pages(pages);
        if !has_page(&pages) {
            return Reached::Translated;
        }
        let cpu = &self.runner.context.cpu;
        self.view.map_code(cpu, pages);
        match self.view.translations.window_run(native::named(linear)) {
            Some(run) if run.executable => Reached::Mapped,
            _ => Reached::Not,
        }
    }
}

/// What became of an access of a program that the host has refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reached {
    /// The page is mapped.
    Mapped,
    /// The code there must run translated.
    Translated,
    /// The page cannot be mapped: the instruction must run translated.
    Not,
}
