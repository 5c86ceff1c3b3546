//! Handles host faults of direct accesses in shadow windows, and decides which spaces have windows.

use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use crate::memory::addresses::view_of;
use crate::memory::guest_view::Target;
use crate::memory::memory_access::{MemoryAccess, Moment};
use crate::translated::Translated;
use crate::translated::interrupted_work::Work;
use tollgate_engine::abi::context::{ByAnchor, SignalExit};
use tollgate_engine::abi::sites::BlockId;
use tollgate_engine::preemption::Interruptible;
use tollgate_exits::ExitKind;
use tollgate_exits::latency::Section;
use tollgate_platform::Platform;
use tollgate_tlb::long_tlb::part_of_linear;
use tollgate_tlb::shadow_windows::BesideWindow;
use tollgate_tlb::shadow_windows::anchors::is_common;
use tollgate_x86::canonical::is_canonical;
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::{LinearAddress, Space};

/// Nanoseconds of a fault that pass before the monitor looks at the clock: the host's signal and
/// the way back.
const SIGNAL_COST: u64 = 3000;

impl<P: Platform> Running<'_, Translated, P> {
    /// A direct access has faulted on the host, exactly before its instruction. False: it was
    /// none.
    pub(crate) fn window_fault(
        &mut self,
        block: BlockId,
        signal: &SignalExit,
    ) -> Result<bool, VcpuStop> {
        let near = LinearAddress(signal.near);
        match signal.by_anchor {
            ByAnchor::Check => {
                let rip = self.runner.context.cpu.rip;
                if self.runner.faulting_sites.is_stuck(rip, signal.address) {
                    return self.done_alone(block);
                }
                self.count(ExitKind::WindowFault);
                self.reach_by_part(block);
                return Ok(true);
            }
            ByAnchor::Access if !is_canonical(near.0) => return self.done_alone(block),
            ByAnchor::Access | ByAnchor::No => {}
        }
        let cpu = &self.runner.context.cpu;
        let privilege = Privilege::of_cpl(cpu.cpl());
        let (view, translations) = (view_of(privilege), &self.view.translations);
        let (linear, is_sure) = match translations.beside_window(cpu, view, signal.address, near) {
            BesideWindow::No => return Ok(false),
            BesideWindow::Page(linear) => (linear, true),
            BesideWindow::Nothing(linear) => (linear, false),
            BesideWindow::Between => {
                let now = self.platform.now().0;
                self.follow_fault(block, now);
                return self.done_alone(block);
            }
        };
        let rip = self.runner.context.cpu.rip;
        if self.runner.faulting_sites.is_stuck(rip, signal.address) {
            return self.done_alone(block);
        }
        let begun = self.platform.now();
        if !self.take_windows_back(linear, privilege) {
            // The instruction faults again behind the handler, and then all of them are
            // compared: while one is not, an access to another may go on into it.
            self.count(ExitKind::WindowFault);
            self.charge(begun.0);
            return Ok(true);
        }
        let kind = if signal.stores {
            AccessKind::Write
        } else {
            AccessKind::Read
        };
        let cpu = &self.runner.context.cpu;
        let is_long = cpu.is_long_mode();
        let target = self.view.resolve(cpu, linear, kind, privilege);
        self.count(ExitKind::WindowFault);
        let goes_on = match target {
            Err(exception) if is_sure => {
                self.charge(begun.0);
                self.follow_fault(block, begun.0);
                return match self.fault_of_operand(block, linear, exception) {
                    Some(exception) => self.raise(exception).map(|()| true),
                    None => self.done_alone(block),
                };
            }
            Err(_) => {
                let is_lower = is_long && linear.0 >> 63 == 0;
                if privilege == Privilege::Supervisor && is_lower {
                    self.look_up_from_now_on(block);
                }
                false
            }
            Ok(Target::Ram(_)) => {
                if self.map_window((linear, kind, privilege), None) {
                    self.follow_fault(block, begun.0);
                } else {
                    self.look_up_from_now_on(block);
                }
                // It is in the software TLB, too: looked up, it is found.
                true
            }
            Ok(Target::Device(_)) => {
                if !self.runner.instructions.source().finds_anew() {
                    self.look_up_from_now_on(block);
                }
                false
            }
            Ok(Target::Code(_)) => {
                // Looked up, what does not hit code is stored without the monitor. Kernels copy to
                // pages that have held code with the same instructions as anywhere else, and are
                // better off with them as they are.
                match is_long {
                    true => self.follow_fault(block, begun.0),
                    false => self.look_up_from_now_on(block),
                }
                !is_long
            }
        };
        self.charge(begun.0);
        match goes_on {
            true => Ok(true),
            false => self.done_alone(block),
        }
    }

    /// An address whose window, which is put aside, must be taken back before another one of the loaded
    /// space is reached: its own, or in a common part all.
    fn window_aside(&self, linear: LinearAddress, privilege: Privilege) -> Option<LinearAddress> {
        let cpu = &self.runner.context.cpu;
        if self.view.is_window_aside(cpu, linear, privilege) {
            return Some(linear);
        }
        let is_common = cpu.is_long_mode() && is_common(part_of_linear(linear.0 as i64));
        let translations = &self.view.translations;
        translations.common_aside().filter(|_| is_common)
    }

    /// Maps the page of an access in its window, with its neighbours, or those from `from` on; whether
    /// it is there now.
    pub(super) fn map_window(
        &mut self,
        access: (LinearAddress, AccessKind, Privilege),
        from: Option<u64>,
    ) -> bool {
        let begin = self.begin_section();
        let requests = &self.runner.requests;
        let stops = |section| requests.stops(section);
        let cpu = &self.runner.context.cpu;
        let filled = self.view.fill_window(cpu, access, from, stops);
        self.end_section(Section::MapWindow, begin);
        if self.pending.points().has_stopped() {
            let next = filled.next;
            self.leave_work(Work::MapWindow { access, next });
        }
        filled.found
    }

    /// Compares a window that was put aside with the guest's tables: whether it holds. `None`: that
    /// has stopped for a request. If it begins anew, it does not do so if it is the second time.
    fn compare_window(
        &mut self,
        linear: LinearAddress,
        privilege: Privilege,
        is_second: bool,
    ) -> Option<bool> {
        let begin = self.begin_section();
        let goes_on = self.runner.comparing.goes_on(self.view, linear, privilege);
        let requests = &self.runner.requests;
        let stops = |section| (goes_on || !is_second) && requests.stops(section);
        let cpu = &self.runner.context.cpu;
        let comparing = &mut self.runner.comparing;
        let holds = (self.view).take_window_back(cpu, (linear, privilege), comparing, stops);
        self.runner.half_compared = holds.is_none();
        self.end_section(Section::CompareWindow, begin);
        if self.pending.points().interruptible() != Interruptible::Resume {
            self.runner.comparing.forget();
        }
        holds
    }

    /// Takes the windows back that were put aside and that an access needs, as far as the guest's
    /// tables lead where they do. False: that has stopped for a request, and all are aside.
    pub(super) fn take_windows_back(
        &mut self,
        linear: LinearAddress,
        privilege: Privilege,
    ) -> bool {
        let is_second = self.runner.half_compared;
        while let Some(aside) = self.window_aside(linear, privilege) {
            match self.compare_window(aside, privilege, is_second) {
                None => {
                    self.view.translations.put_windows_aside();
                    self.leave_work(Work::CompareWindow { linear, privilege });
                    return false;
                }
                Some(false) if privilege == Privilege::User => {
                    self.runner.accounts.is_another();
                    self.follow_access_choice();
                }
                Some(_) => {}
            }
        }
        true
    }

    /// Maps in windows what is known of the program of the loaded space, or a part of it. If they
    /// are new, what is there may be left of another space.
    pub(super) fn fill_windows(&mut self, are_new: bool) {
        let begin = self.begin_section();
        if are_new {
            self.view.translations.empty_windows();
            self.runner
                .accounts
                .note_parts(self.view.uses_common_parts());
        }
        let requests = &self.runner.requests;
        let stops = |section| requests.stops(section);
        let is_long = self.runner.context.cpu.is_long_mode();
        let is_done = self.view.fill_windows(is_long, stops);
        let root = self.runner.accounts.root();
        self.runner.half_filled = (!is_done).then_some(root);
        self.end_section(Section::FillWindows, begin);
        if !is_done {
            self.leave_work(Work::FillWindows);
        }
    }

    /// Where the instruction at RIP lies in physical memory.
    fn site(&mut self) -> Option<u64> {
        let cpu = &self.runner.context.cpu;
        let place = self.view.place(cpu, cpu.rip, false);
        place.ok().map(|place| place.physical)
    }

    /// Has the instruction at RIP look its operand up: what it accesses is in no window.
    fn look_up_from_now_on(&mut self, block: BlockId) {
        if let Some(physical) = self.site() {
            let memory = &mut self.view.memory;
            let engine = &mut self.runner.engine;
            engine.look_up_always(block, physical, memory);
        }
    }

    /// Has the instruction at RIP reach its operand by the delta of its part: that is none which the
    /// space's anchor leads to.
    fn reach_by_part(&mut self, block: BlockId) {
        if let Some(physical) = self.site() {
            let memory = &mut self.view.memory;
            self.runner.engine.reach_by_part(block, physical, memory);
        }
    }

    /// The instruction at RIP has faulted at this time, but need not again.
    fn follow_fault(&mut self, block: BlockId, now: u64) {
        if self.runner.accounts.choice() != MemoryAccess::Adaptive {
            return;
        }
        if let Some(physical) = self.site()
            && self.runner.faulting_sites.fault(physical, now)
        {
            self.look_up_from_now_on(block);
        }
    }

    /// Does the instruction with all checks.
    fn done_alone(&mut self, block: BlockId) -> Result<bool, VcpuStop> {
        if self.slow_step(block)? {
            self.completed()?;
        }
        Ok(true)
    }

    /// What accounts are kept in, now.
    fn moment(&self) -> Moment {
        Moment {
            time: self.platform.now().0,
            fills: self.view.translations.fills(),
        }
    }

    /// Holds what a fault has cost against the space.
    fn charge(&mut self, begun: u64) {
        let now = self.moment();
        let cost = now.time.saturating_sub(begun) + SIGNAL_COST;
        if self.runner.is_in_real_mode() && self.runner.accounts.real_mode_spends(cost) {
            self.follow_real_mode_choice();
        }
        if self.runner.context.cpu.cpl() != 3 {
            return;
        }
        if self.runner.accounts.spend(cost, now) {
            self.view.translations.empty_windows();
            self.follow_access_choice();
        }
    }

    /// Another space is loaded, or the same again.
    pub(crate) fn space_loaded(&mut self) {
        if self.runner.accounts.choice() == MemoryAccess::Checked {
            return;
        }
        let space = Space::loaded(&self.runner.context.cpu);
        let root = space.tables.map_or(0, |tables| tables.0);
        let keeps = self.view.translations.was_kept();
        let now = self.moment();
        self.runner.accounts.load(root, keeps, now);
        self.follow_access_choice();
    }

    /// Guest code was interrupted: a program, or code of real mode, has run for a while.
    pub(crate) fn program_ran(&mut self) {
        if self.runner.is_in_real_mode() {
            let now = self.platform.now().0;
            if self.runner.accounts.real_mode_earns(now) {
                self.follow_real_mode_choice();
            }
            return;
        }
        if self.runner.accounts.choice() != MemoryAccess::Adaptive
            || !self.runner.runs_program()
            || !self.view.translations.has_windows()
        {
            return;
        }
        let now = self.moment();
        let earns = self.runner.accounts.earns(now);
        if !earns
            && (self.runner.half_filled != Some(self.runner.accounts.root())
                || !self.runner.program_access.is_direct())
        {
            return;
        }
        self.fill_windows(earns);
        let behind = self.moment();
        let cost = behind.time.saturating_sub(now.time);
        self.runner.accounts.spend(cost, behind);
        self.follow_access_choice();
    }

    /// Has code of real mode be of the mode that its account asks for.
    fn follow_real_mode_choice(&mut self) {
        self.runner.forget_level_changes();
        self.due.mode = true;
    }

    /// Has code of programs be of the mode that the loaded space's account asks for.
    fn follow_access_choice(&mut self) {
        let access = self.runner.accounts.access();
        let before = std::mem::replace(&mut self.runner.program_access, access);
        if access != before {
            let context = &mut self.runner.context;
            context.turn_programs(before as usize, access as usize);
            self.due.mode |= self.runner.context.cpu.cpl() == 3;
        }
    }
}
