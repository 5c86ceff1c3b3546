//! The settings of a virtual processor that may change between two runs: the knobs of experiments.

use crate::execution::due_work::Due;
use crate::execution::instruction_cache::InstructionSource;
use crate::execution::vcpu::Vcpu;
use crate::memory::access_policy::{Accounts, MemoryAccess, UserCode};
use crate::memory::shadow_tables::ShadowChoices;
use crate::memory::space_switch::SpaceSwitch;
use tollgate_engine::policy::virtual_interrupts::VirtualInterrupts;
use tollgate_engine::preemption::Interruptible;

/// How a virtual processor runs its guest. Each field is the choice of an experiment; whatever the
/// choices are, the guest computes the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VcpuSettings {
    /// How instructions that read or change the interrupt flag run.
    pub virtual_interrupts: VirtualInterrupts,
    /// Where the monitor gets the instructions that it emulates.
    pub instruction_source: InstructionSource,
    /// How many address spaces keep the data derived from their page tables, and how this data is
    /// invalidated.
    pub shadow: ShadowChoices,
    /// How real-mode code and 32-bit and 64-bit code access guest memory. If the process has no
    /// room for shadow windows, all accesses are looked up.
    pub memory_access: MemoryAccess,
    /// How 64-bit programs run. If the process has no room for shadow windows, all are translated.
    pub user_code: UserCode,
    /// Whether 64-bit programs with direct memory access use the
    /// [anchor](tollgate_tlb::shadow_windows::anchors) of their space for the parts that it leads
    /// to. Another machine of the process may have taken all anchors.
    pub anchors: bool,
    /// How a load of CR3 switches to an address space that is kept.
    pub space_switch: SpaceSwitch,
    /// Whether the monitor's interruptible work stops for interrupts.
    pub interruptible: Interruptible,
}

impl Vcpu {
    /// The present settings.
    pub fn settings(&self) -> VcpuSettings {
        VcpuSettings {
            virtual_interrupts: self.runner.engine.virtual_interrupts(),
            instruction_source: self.runner.instructions.source(),
            shadow: self.view.translations.choices(),
            memory_access: self.runner.memory_access,
            anchors: self.runner.uses_anchors,
            user_code: self.runner.user_code,
            space_switch: self.runner.space_switch,
            interruptible: self.pending.checkpoints().interruptible(),
        }
    }

    /// Changes settings. Some of them drop all translations, so only those that differ are set.
    /// Must not be called while `run` runs.
    pub fn change_settings(&mut self, change: impl FnOnce(&mut VcpuSettings)) {
        let before = self.settings();
        let mut settings = before;
        change(&mut settings);
        let memory = &mut self.view.memory;
        if settings.virtual_interrupts != before.virtual_interrupts {
            self.runner.change_engine(memory, |engine, memory| {
                engine.set_virtual_interrupts(settings.virtual_interrupts, memory);
            });
        }
        if settings.instruction_source != before.instruction_source {
            let source = settings.instruction_source;
            self.runner.instructions.set_source(source, memory);
            let fast_paths = source == InstructionSource::FastPath;
            self.runner.change_engine(memory, |engine, memory| {
                engine.set_fast_paths(fast_paths, memory);
            });
        }
        if settings.shadow != before.shadow {
            self.view.translations.set_choices(settings.shadow);
        }
        let access = |it: &VcpuSettings| (it.memory_access, it.anchors, it.user_code);
        if access(&settings) != access(&before) {
            self.runner.memory_access = settings.memory_access;
            self.runner.uses_anchors = settings.anchors;
            self.runner.user_code = settings.user_code;
            self.begin_memory_access();
        }
        self.runner.space_switch = settings.space_switch;
        if settings.interruptible != before.interruptible {
            self.pending
                .checkpoints()
                .set_interruptible(settings.interruptible);
            self.runner.forget_work();
            self.due.events = true;
        }
    }

    /// Begins new accounts of which address spaces earn shadow windows, under the present settings.
    fn begin_memory_access(&mut self) {
        let choice = match self.view.translations.has_windows() {
            true => self.runner.memory_access,
            false => MemoryAccess::Checked,
        };
        let uses_anchors = self.runner.uses_anchors && choice != MemoryAccess::Checked;
        self.view.translations.use_anchors(uses_anchors);
        let has_anchors = self.view.translations.has_anchors();
        let user_code = match self.view.translations.has_windows() {
            true => self.runner.user_code,
            false => UserCode::Translated,
        };
        if user_code == UserCode::Translated {
            self.view.translations.drop_programs();
            self.runner.native.end_all();
        }
        *self.runner.accounts = Accounts::new(choice, has_anchors).with_user_code(user_code);
        self.runner.program_access = self.runner.accounts.access();
        self.runner.forget_level_changes();
        self.due = Due::ALL;
    }
}
