//! Computes the mode word that the vCPU's code is translated for, again whenever its inputs change.

use crate::execution::running::Running;
use crate::memory::addresses::view_of;
use crate::memory::guest_view::GuestView;
use crate::translated::Translated;
use crate::translated::processor::Processor;
use tollgate_engine::abi::context::groups::Changed;
use tollgate_engine::abi::link_layout::ModeId;
use tollgate_engine::abi::sites::BlockId;
use tollgate_engine::policy::mode::{Mode, ModeFlags};
use tollgate_platform::Platform;
use tollgate_tlb::{GsTarget, View};
use tollgate_x86::Cr0;
use tollgate_x86::paging::Privilege;

impl Translated {
    /// The mode word for the present registers and the way in which programs access memory.
    pub(crate) fn mode_of_state(&self) -> Mode {
        let mode = Mode::of(&self.context.cpu);
        let access = match self.context.cpu.cpl() {
            3 => self.program_access,
            _ if !self.has_paging() => self.accounts.access_without_paging(),
            _ => self.accounts.access_of_kernels(),
        };
        mode.with_access(access)
    }

    /// Whether a program of an address space is running, at level 3.
    pub(crate) fn runs_program(&self) -> bool {
        let cpu = &self.context.cpu;
        cpu.cpl() == 3 && cpu.cr0().contains(Cr0::PG) && !cpu.is_virtual_8086()
    }

    /// Whether the guest's linear addresses are translated by page tables.
    fn has_paging(&self) -> bool {
        self.context.cpu.cr0().contains(Cr0::PG)
    }

    /// Whether the guest is at level 0, 1 or 2 without paging, for example in real mode.
    pub(crate) fn runs_without_paging(&self) -> bool {
        !self.has_paging() && self.context.cpu.cpl() != 3
    }

    /// What GS leads to while code runs in the present state, until the next exit. Code of level 3
    /// may run until then, and of 16-bit code it alone uses GS in protected mode.
    #[inline]
    pub(crate) fn gs_target(&self) -> GsTarget {
        let cpu = &self.context.cpu;
        match (cpu.is_long_mode(), cpu.is_protected()) {
            (true, _) => GsTarget::Anchor,
            (false, true) => GsTarget::Narrow(View::User),
            (false, false) => GsTarget::Narrow(View::Supervisor),
        }
    }

    /// Computes the mode word, and what else follows from the registers that decide how code runs.
    pub(crate) fn form_mode(&mut self, view: &mut GuestView) {
        if self.runs_program() && self.accounts.meet_program() {
            self.forget_level_changes();
        }
        let mode = self.mode_of_state();
        self.mode = self.engine.intern(mode, &mut view.memory);
        self.forget_old_level_changes();
        let cpu = &self.context.cpu;
        self.code_base = cpu.cs().base;
        let privilege = Privilege::of_cpl(cpu.cpl());
        self.context.hot.tlb = view.translations.table(cpu, view_of(privilege));
        self.context.watch_memory(&view.memory);
        self.context.note_descriptors();
    }
}

impl<P: Platform> Running<'_, Translated, P> {
    /// Follows changes of the mode since guest code was entered, by a far transfer or a change of
    /// the privilege level. Guest code was left in `block`, or on the way out of it.
    pub(crate) fn follow_mode(&mut self, block: BlockId) {
        let base = self.runner.context.cpu.cs().base;
        let changed = std::mem::take(&mut self.runner.context.transfers.changed);
        if base == self.runner.code_base && changed.is_empty() {
            return;
        }
        self.follow_returned_flag(changed);
        if base == self.runner.code_base && changed == Changed::RESUME_FLAG {
            return;
        }
        self.due.mode = true;
        let Some(id) = self
            .runner
            .engine
            .block(block)
            .map(|block| block.key().mode)
        else {
            return;
        };
        let mode = self.runner.engine.mode(id);
        let is_user = self.runner.context.cpu.cpl() == 3;
        // No other part of the mode can have changed.
        if u64::from(mode.code_base) == base
            && mode.flags.contains(ModeFlags::USER) == is_user
            && !mode.flags.contains(ModeFlags::SINGLE)
        {
            self.runner.mode = self.runner.engine.mode_of_branches(id);
            self.runner.code_base = base;
            self.due.mode = false;
        }
    }

    /// If guest code has returned from a handler, the return may have loaded EFLAGS.RF: notes the
    /// address of the instruction to which RF then applies.
    pub(crate) fn follow_returned_flag(&mut self, changed: Changed) {
        if !Changed::MODE.contains(changed) {
            self.non_register.resume_flag_rip = self.runner.context.transfers.returned_rip;
        }
    }
}

impl Processor<'_> {
    /// The number of a mode other than the present one. The number of the present mode stays valid
    /// or is assigned again.
    pub(crate) fn intern_temporary(&mut self, mode: Mode) -> ModeId {
        let epoch = self.runner.engine.mode_epoch();
        let id = self.runner.engine.intern(mode, &mut self.view.memory);
        if epoch != self.runner.engine.mode_epoch() {
            // All numbers were given up, including that of the present mode.
            let runs = self.runner.mode_of_state();
            self.runner.mode = self.runner.engine.intern(runs, &mut self.view.memory);
            self.due.mode = true;
        }
        id
    }

    /// The number of the mode that a memo leads to. `None` means that all numbers were assigned
    /// again, so that numbers which the memo already has are invalid.
    pub(crate) fn intern_for_memo(&mut self, mode: Mode) -> Option<ModeId> {
        let epoch = self.runner.engine.mode_epoch();
        let id = self.intern_temporary(mode);
        (epoch == self.runner.engine.mode_epoch()).then_some(id)
    }
}
