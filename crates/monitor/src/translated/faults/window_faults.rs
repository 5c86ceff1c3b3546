//! Handles host faults of direct accesses in shadow windows, and decides which spaces have windows.

use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use crate::memory::access_policy::{MemoryAccess, Moment};
use crate::memory::addresses::view_of;
use crate::memory::guest_view::Target;
use crate::memory::windows::{PageAccess, WindowsOf};
use crate::translated::Translated;
use crate::translated::processor::Processor;
use crate::translated::work_left::Work;
use tollgate_engine::abi::context::{ByAnchor, SignalExit};
use tollgate_engine::abi::sites::BlockId;
use tollgate_engine::preemption::Interruptible;
use tollgate_exits::ExitKind;
use tollgate_exits::latency::InterruptibleWork;
use tollgate_platform::Platform;
use tollgate_tlb::long_tlb::part_of_linear;
use tollgate_tlb::shadow_windows::BesideWindow;
use tollgate_tlb::shadow_windows::anchors::is_common;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::canonical::is_canonical;
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::{LinearAddress, Space};

/// Nanoseconds of a fault that pass before the monitor reads the clock: the host's signal and the
/// return.
const SIGNAL_COST: u64 = 3000;

/// The last page of the lower canonical addresses.
const LAST_LOWER_PAGE: u64 = (1 << 47) / PAGE_SIZE - 1;

impl<P: Platform> Running<'_, Translated, P> {
    /// Handles a direct access that has faulted on the host, exactly before its instruction.
    /// Returns false if the fault was not one of a direct access.
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
                self.processor().reach_by_part(block);
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
                self.processor().follow_fault(block, now);
                return self.done_alone(block);
            }
        };
        let rip = self.runner.context.cpu.rip;
        if self.runner.faulting_sites.is_stuck(rip, signal.address) {
            return self.done_alone(block);
        }
        let begun = self.platform.now();
        if !self.processor().take_windows_back(linear, privilege) {
            // The instruction faults again after the interrupt handler, and then all windows are
            // compared: while one of them is put aside, an access to another may continue into it.
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
            // An access that continues beyond the canonical addresses is a general-protection fault
            // (SDM volume 1, 3.3.7.1), whichever of its bytes the host has reported.
            Err(_) if is_long && linear.page() == LAST_LOWER_PAGE => false,
            Err(exception) if is_sure => {
                self.charge(begun.0);
                self.processor().follow_fault(block, begun.0);
                return match self.processor().fault_of_operand(block, linear, exception) {
                    Some(exception) => self.raise(exception).map(|()| true),
                    None => self.done_alone(block),
                };
            }
            Err(_) => {
                let is_lower = is_long && linear.0 >> 63 == 0;
                if privilege == Privilege::Supervisor && is_lower {
                    self.processor().look_up_from_now_on(block);
                }
                false
            }
            Ok(Target::Ram(_)) => {
                let access = PageAccess {
                    linear,
                    kind,
                    of: WindowsOf::Translated(privilege),
                };
                if self.processor().map_window(access, None) {
                    self.processor().follow_fault(block, begun.0);
                } else {
                    self.processor().look_up_from_now_on(block);
                }
                // The software TLB has the page, too, so a look-up finds it.
                true
            }
            Ok(Target::Device(_)) => {
                if self.runner.instructions.search.is_none() {
                    self.processor().look_up_from_now_on(block);
                }
                false
            }
            Ok(Target::Code(_)) => {
                // With a look-up, a store that does not hit code does not need the monitor. But
                // kernels copy to pages that have held code with the instructions that they use for
                // all copies, and these are faster without look-ups.
                match is_long {
                    true => self.processor().follow_fault(block, begun.0),
                    false => self.processor().look_up_from_now_on(block),
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

    /// Executes the instruction alone, with all checks.
    fn done_alone(&mut self, block: BlockId) -> Result<bool, VcpuStop> {
        if self.slow_step(block)? {
            self.completed()?;
        }
        Ok(true)
    }

    /// The present moment, for the accounts.
    pub(in crate::translated) fn moment(&self) -> Moment {
        Moment {
            time: self.platform.now().0,
            fills: self.view.translations.fills(),
            progress: self.runner.context.counters.progress,
        }
    }

    /// Adds the cost of a fault to the account of the space.
    fn charge(&mut self, begun: u64) {
        let now = self.moment();
        let cost = now.time.saturating_sub(begun) + SIGNAL_COST;
        if self.runner.runs_without_paging() && self.runner.accounts.spends_without_paging(cost) {
            self.processor().follow_choice_without_paging();
        }
        if self.runner.context.cpu.cpl() != 3 {
            return;
        }
        if self.runner.accounts.spend(cost, now) {
            self.view.translations.empty_windows();
            self.processor().follow_access_choice();
        }
    }

    /// Follows a load of a space, which may be the one that was loaded before.
    pub(crate) fn space_loaded(&mut self) {
        if self.runner.accounts.choice() == MemoryAccess::Checked {
            return;
        }
        let space = Space::loaded(&self.runner.context.cpu);
        let root = space.tables.map_or(0, |tables| tables.0);
        let keeps = self.view.translations.was_kept();
        let now = self.moment();
        self.runner.accounts.load(root, keeps, now);
        self.processor().follow_access_choice();
    }

    /// Called when guest code was interrupted: a program, a V86 task, or code without paging has
    /// run for a while.
    pub(crate) fn program_ran(&mut self) {
        if self.runner.runs_without_paging() {
            let now = self.platform.now().0;
            if self.runner.accounts.earns_without_paging(now) {
                self.processor().follow_choice_without_paging();
            }
            return;
        }
        if self.runner.accounts.choice() != MemoryAccess::Adaptive
            || self.runner.context.cpu.cpl() != 3
            || !self.view.translations.has_windows()
        {
            return;
        }
        let now = self.moment();
        let earns = self.runner.accounts.earns(now);
        if self.runner.accounts.turns() {
            self.processor().follow_access_choice();
        }
        if self.runner.accounts.earns_native_soon() && !self.view.translations.has_program() {
            let ram = self.view.memory.ram().fd();
            self.runner.native.processes.prepare(ram);
        }
        let (cpu, view) = (&self.runner.context.cpu, &mut self.view);
        if cpu.is_64_bit() && (self.runner.accounts).earns_native(|| view.first_code(cpu)) {
            self.processor().follow_access_choice();
            return;
        }
        if !earns
            && (self.runner.half_filled != Some(self.runner.accounts.root())
                || !self.runner.program_access.is_direct())
        {
            return;
        }
        self.processor().fill_windows(earns);
        let behind = self.moment();
        let cost = behind.time.saturating_sub(now.time);
        self.runner.accounts.spend(cost, behind);
        self.processor().follow_access_choice();
    }
}

impl Processor<'_> {
    /// An address whose window is put aside and must be taken back before memory of the loaded
    /// space can be accessed at `linear`: `linear` itself or, in a common part, any address in a
    /// common part.
    fn window_aside(&self, linear: LinearAddress, privilege: Privilege) -> Option<LinearAddress> {
        let cpu = &self.runner.context.cpu;
        if self.view.is_window_aside(cpu, linear, privilege) {
            return Some(linear);
        }
        let is_common = cpu.is_long_mode() && is_common(part_of_linear(linear.0 as i64));
        let translations = &self.view.translations;
        translations.common_aside().filter(|_| is_common)
    }

    /// Maps the page of an access in its window, with all neighbours or those from `from` on.
    /// Returns whether the page is mapped now.
    pub(in crate::translated) fn map_window(
        &mut self,
        access: PageAccess,
        from: Option<u64>,
    ) -> bool {
        let begin = self.begin_work();
        let requests = &self.runner.requests;
        let stops = |work| requests.stops(work);
        let cpu = &self.runner.context.cpu;
        let filled = self.view.fill_window(cpu, access, from, stops);
        self.end_work(InterruptibleWork::MapWindow, begin);
        if self.runner.requests.checkpoints().has_stopped() {
            let next = filled.next;
            self.leave_work(Work::MapWindow { access, next });
        }
        filled.found
    }

    /// Compares a window that was put aside with the guest's tables. Returns whether it is valid,
    /// or `None` if the comparison has stopped for a request. A comparison that starts from the
    /// beginning does not stop if `is_second`.
    fn compare_window(
        &mut self,
        linear: LinearAddress,
        privilege: Privilege,
        is_second: bool,
    ) -> Option<bool> {
        let of = WindowsOf::Translated(privilege);
        let begin = self.begin_work();
        let goes_on = self.runner.comparing.goes_on(self.view, linear, of);
        let requests = &self.runner.requests;
        let stops = |work| (goes_on || !is_second) && requests.stops(work);
        let cpu = &self.runner.context.cpu;
        let comparing = &mut self.runner.comparing;
        let holds = (self.view).take_window_back(cpu, linear, of, comparing, stops);
        self.runner.half_compared = holds.is_none();
        self.end_work(InterruptibleWork::CompareWindow, begin);
        if self.runner.requests.checkpoints().interruptible() != Interruptible::Resume {
            self.runner.comparing.forget();
        }
        holds
    }

    /// Takes back the windows that were put aside and that an access needs, as far as the guest's
    /// tables still lead to the mapped pages. Returns false if that has stopped for a request; the
    /// rest is still put aside.
    pub(in crate::translated) fn take_windows_back(
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

    /// Maps the known pages of the loaded space's program in windows, or a part of them. If the
    /// windows are new (`are_new`), they may still have mappings of another space.
    pub(in crate::translated) fn fill_windows(&mut self, are_new: bool) {
        let begin = self.begin_work();
        if are_new {
            self.view.translations.empty_windows();
            self.runner
                .accounts
                .note_parts(self.view.uses_common_parts());
        }
        let requests = &self.runner.requests;
        let stops = |work| requests.stops(work);
        let is_long = self.runner.context.cpu.is_long_mode();
        let is_done = self.view.fill_windows(is_long, stops);
        let root = self.runner.accounts.root();
        self.runner.half_filled = (!is_done).then_some(root);
        self.end_work(InterruptibleWork::FillWindows, begin);
        if !is_done {
            self.leave_work(Work::FillWindows);
        }
    }

    /// The physical address of the instruction at RIP.
    fn site(&mut self) -> Option<u64> {
        let cpu = &self.runner.context.cpu;
        let place = self.view.place(cpu, cpu.rip, false);
        place.ok().map(|place| place.physical)
    }

    /// Makes the instruction at RIP look its operand up, because no window has the memory that it
    /// accesses.
    fn look_up_from_now_on(&mut self, block: BlockId) {
        if let Some(physical) = self.site() {
            let memory = &mut self.view.memory;
            let engine = &mut self.runner.engine;
            engine.look_up_always(block, physical, memory);
        }
    }

    /// Makes the instruction at RIP reach its operand by the distance of the operand's part, which
    /// is not one that the space's anchor leads to.
    fn reach_by_part(&mut self, block: BlockId) {
        if let Some(physical) = self.site() {
            let memory = &mut self.view.memory;
            self.runner.engine.reach_by_part(block, physical, memory);
        }
    }

    /// Records that the instruction at RIP has faulted at time `now`, but need not fault again.
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

    /// Makes code without paging use the way of access that its account demands.
    fn follow_choice_without_paging(&mut self) {
        self.runner.forget_level_changes();
        self.due.mode = true;
    }

    /// Makes programs use the way of access that the account of the loaded space demands.
    pub(in crate::translated) fn follow_access_choice(&mut self) {
        let access = self.runner.accounts.access();
        let before = std::mem::replace(&mut self.runner.program_access, access);
        if access != before {
            let context = &mut self.runner.context;
            context.turn_programs(before as usize, access as usize);
            self.due.mode |= self.runner.context.cpu.cpl() == 3;
        }
    }
}
