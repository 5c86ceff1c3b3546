//! Stores the results of changes of the privilege level, for the fast path that makes the next such
//! change without the monitor.

use crate::memory::addresses::view_of;
use crate::translated::Translated;
use crate::translated::processor::Processor;
use iced_x86::Mnemonic;
use std::ops::RangeInclusive;
use tollgate_engine::abi::descriptors::KnownDescriptors;
use tollgate_engine::abi::flags::SYSTEM_FLAGS;
use tollgate_engine::abi::memos::level_change::{
    LevelChange, LevelChangeKind, OuterReturn, VirtualReturn,
};
use tollgate_engine::policy::instruction_kind::Helper;
use tollgate_engine::policy::mode::ModeFlags;
use tollgate_exits::ExitKind;
use tollgate_x86::flags::Flags;
use tollgate_x86::paging::Privilege;
use tollgate_x86::{Cr0, Gpr, SegmentRegister};

/// The flags that IA32_FMASK must clear so that SYSCALL can run in translated code, which always
/// clears them. VIF and VIP need not be among them, because they are already checked to be clear.
const CLEARED: Flags = SYSTEM_FLAGS
    .difference(Flags::VIF.union(Flags::VIP))
    .union(Flags::ARITHMETIC)
    .union(Flags::IF)
    .union(Flags::DF);

/// The numbers of IA32_SYSENTER_CS, ESP and EIP.
const SYSENTER_REGISTERS: RangeInclusive<u32> = 0x174..=0x176;
/// The numbers of IA32_EFER, STAR, LSTAR, CSTAR and FMASK.
const SYSCALL_REGISTERS: RangeInclusive<u32> = 0xc000_0080..=0xc000_0084;

/// Whether instructions that change the level depend on this model-specific register.
pub(in crate::translated) fn changes_with(number: u32) -> bool {
    SYSENTER_REGISTERS.contains(&number) || SYSCALL_REGISTERS.contains(&number)
}

impl Processor<'_> {
    /// Stores the result of an instruction that changes the privilege level, which the monitor has
    /// just executed. The result is valid for every such instruction in the same mode if it depends
    /// only on registers whose changes discard it.
    pub(crate) fn remember_level_change(&mut self, mnemonic: Mnemonic) {
        let cpu = &self.runner.context.cpu;
        if mnemonic == Mnemonic::Iretd && cpu.is_virtual_8086() {
            return self.remember_virtual_return();
        }
        let is_long = cpu.is_long_mode();
        let no_system_flags = cpu.flags & SYSTEM_FLAGS.bits() == 0;
        let from = *self.runner.engine.mode(self.runner.mode);
        let (kind, holds) = match mnemonic {
            Mnemonic::Syscall if is_long => {
                let clears = Flags::from_bits_retain(cpu.sfmask).contains(CLEARED);
                (LevelChangeKind::Syscall, clears)
            }
            Mnemonic::Sysretq if is_long => (LevelChangeKind::Sysret, no_system_flags),
            Mnemonic::Sysenter if !is_long => (LevelChangeKind::Sysenter, true),
            Mnemonic::Sysexit if !is_long => (LevelChangeKind::Sysexit, no_system_flags),
            Mnemonic::Iretq if cpu.is_64_bit() => {
                let returns = from.flags.contains(ModeFlags::KERNEL) && cpu.cpl() == 3;
                (LevelChangeKind::Iret, returns && no_system_flags)
            }
            Mnemonic::Iretd if !is_long => {
                let returns = from.flags.contains(ModeFlags::KERNEL) && cpu.cpl() == 3;
                let has_all = cpu.cs().limit == u32::MAX && !cpu.is_virtual_8086();
                (LevelChangeKind::Iret, returns && has_all && no_system_flags)
            }
            _ => return,
        };
        if !holds {
            return;
        }
        let to = self.runner.mode_of_state();
        let changes_size = from.flags.symmetric_difference(to.flags);
        // Alignment checks depend on AC, which is not part of the mode.
        let may_check = cpu.cr0().contains(Cr0::AM) && !no_system_flags;
        if may_check
            || from.is_watched()
            || to.is_watched()
            || changes_size.contains(ModeFlags::CODE64)
        {
            return;
        }
        let privilege = Privilege::of_cpl(cpu.cpl());
        let tlb = self.view.translations.table(cpu, view_of(privilege));
        let code = *cpu.segment(SegmentRegister::Cs);
        let stack = *cpu.segment(SegmentRegister::Ss);
        if kind == LevelChangeKind::Iret {
            let known = KnownDescriptors::of(cpu);
            self.runner.context.transfers.outer_return = OuterReturn {
                code_selector: code.selector.0.into(),
                stack_selector: stack.selector.0.into(),
                code: known.code,
                stack: known.stack,
            };
        }
        let from = self.runner.mode;
        let Some(to) = self.intern_for_memo(to) else {
            return;
        };
        let to = self.runner.engine.mode_table(to);
        self.runner.context.transfers.level_changes[kind as usize] =
            LevelChange::new(from, to, code, stack, tlb);
    }

    /// Stores the result of an IRET in V86 mode, or to it: the task's mode follows from EFLAGS and
    /// from CS, and its segments from the frame.
    fn remember_virtual_return(&mut self) {
        let from = *self.runner.engine.mode(self.runner.mode);
        let to = self.runner.mode_of_state();
        let comes_from_kernel =
            from.flags.contains(ModeFlags::KERNEL) && !from.flags.contains(ModeFlags::LONG);
        if !comes_from_kernel || from.is_watched() || to.is_watched() {
            return;
        }
        let cpu = &self.runner.context.cpu;
        let privilege = cpu.flags & Flags::IOPL.bits();
        let others = SYSTEM_FLAGS.difference(Flags::IOPL | Flags::VIF | Flags::ID);
        if cpu.flags & others.bits() != 0 {
            return;
        }
        let tlb = (self.view.translations).table(cpu, view_of(Privilege::User));
        let from = self.runner.mode;
        let Some(to) = self.intern_for_memo(to) else {
            return;
        };
        let family = self.runner.engine.family(to);
        self.runner.context.transfers.virtual_return =
            VirtualReturn::new(from, family, privilege, tlb);
    }
}

impl Translated {
    /// Whether this instruction, which has been executed, may have changed a register on which
    /// changes of the level depend. WRMSR counts only if it wrote one of these registers.
    pub(crate) fn may_change_level_changes(&self, helper: &Helper) -> bool {
        let number = self.context.cpu.gpr[Gpr::Rcx as usize] as u32;
        helper.kind.exit != ExitKind::Msr || changes_with(number)
    }

    /// Forgets the results of level changes, because a register on which they depend has changed.
    pub(crate) fn forget_level_changes(&mut self) {
        self.context.forget_level_changes();
        self.context.fast_paths.deliveries.forget();
        self.context.fast_paths.known_codes.forget();
        self.forget_segment_loads();
        self.fault_deliveries.forget();
    }

    /// Forgets results of level changes whose mode numbers may have been assigned again.
    pub(crate) fn forget_old_level_changes(&mut self) {
        let epoch = self.engine.mode_epoch();
        if epoch != self.level_changes_epoch {
            self.level_changes_epoch = epoch;
            self.forget_level_changes();
        }
    }
}
