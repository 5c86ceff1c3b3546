//! The mode word that the vCPU's code is translated for, formed anew when its inputs change.

use crate::guest_view::view_of;
use crate::running::Running;
use tollgate_engine::abi::link_layout::ModeId;
use tollgate_engine::abi::sites::BlockId;
use tollgate_engine::policy::mode::{Mode, ModeFlags};
use tollgate_platform::Platform;
use tollgate_x86::paging::Privilege;

impl<P: Platform> Running<'_, P> {
    pub(crate) fn update_mode(&mut self) {
        self.due.mode = false;
        let mode = Mode::of(&self.runner.context.cpu);
        self.runner.mode = self.runner.engine.intern(mode, &mut self.view.memory);
        self.runner.forget_old_level_changes();
        self.runner.code_base = self.runner.context.cpu.cs().base;
        let privilege = Privilege::of_cpl(self.runner.context.cpu.cpl());
        self.runner.context.tlb = self
            .view
            .translations
            .table(&self.runner.context.cpu, view_of(privilege));
        self.runner.context.watch_memory(&self.view.memory);
        self.runner.context.note_descriptors();
        if self.due.clock {
            self.due.clock = false;
            self.runner.context.time_stamp_offset = self
                .platform
                .host_time_stamp_offset()
                .wrapping_add(self.runner.context.cpu.tsc_offset);
        }
    }

    /// Guest code was left in `block`, or on the way out of it: the mode may be another one
    /// than when it was entered, by a far transfer or a change of the privilege level.
    pub(crate) fn follow_mode(&mut self, block: BlockId) {
        let cpu = &self.runner.context.cpu;
        let base = cpu.cs().base;
        let level_changed = std::mem::take(&mut self.runner.context.level_changed) != 0;
        if base == self.runner.code_base && !level_changed {
            return;
        }
        self.due.mode = true;
        let Some(id) = self.runner.engine.block(block).map(|block| block.key.mode) else {
            return;
        };
        let mode = self.runner.engine.mode(id);
        let is_user = cpu.cpl() == 3;
        // Nothing else about the mode can have changed.
        if u64::from(mode.code_base) == base
            && mode.flags.contains(ModeFlags::USER) == is_user
            && !mode.flags.contains(ModeFlags::SINGLE)
        {
            self.runner.mode = id;
            self.runner.code_base = base;
            self.due.mode = false;
        }
    }

    /// The number of a mode beside the current one, which stays valid or is formed anew.
    pub(crate) fn intern_temporary(&mut self, mode: Mode) -> ModeId {
        let epoch = self.runner.engine.mode_epoch();
        let id = self.runner.engine.intern(mode, &mut self.view.memory);
        if epoch != self.runner.engine.mode_epoch() {
            self.due.mode = true;
        }
        id
    }
}
