//! Instructions whose fast paths translated code calls ([`crate::gate::fast_path`]).

use super::{Flow, Translator};
use crate::abi::context_displacements as at;
use crate::abi::fast_paths::FastPathCall;
use crate::abi::host::*;
use crate::abi::sites::SiteKind;
use crate::abi::state_map::Restore;
use crate::emit::assembler::{Mem, Width};
use crate::policy::fast_path::FastInstruction;
use crate::policy::mode::ModeFlags;
use crate::policy::virtual_interrupts::Transition;
use iced_x86::{Instruction, Mnemonic, OpKind};
use tollgate_x86::Vector;

impl Translator {
    /// The fast path of an instruction in this mode, if it has one.
    pub(super) fn fast_path(&self, instruction: &Instruction) -> Option<FastInstruction> {
        let fast_path = FastInstruction::of(instruction, &self.emit.mode, self.emit.map)?;
        (self.has_fast_paths || !fast_path.is_executed_for_guest()).then_some(fast_path)
    }

    /// Whether an instruction is permitted in this mode and has no effect there: CLTS while CR0.TS
    /// is clear, and instructions about caches, because the host keeps its caches coherent.
    pub(super) fn changes_nothing(&self, instruction: &Instruction) -> bool {
        let mode = &self.emit.mode;
        let is_permitted =
            mode.flags.contains(ModeFlags::KERNEL) || !mode.flags.contains(ModeFlags::PROTECTED);
        let would_change = instruction.mnemonic() == Mnemonic::Clts
            && mode.flags.contains(ModeFlags::TASK_SWITCHED);
        is_permitted && !would_change && !mode.is_watched() && !instruction.has_lock_prefix()
    }

    /// Translates CPUID.
    pub(super) fn identify(&mut self, instruction: &Instruction) -> Flow {
        match self.fast_path(instruction) {
            Some(fast_path) => self.call_fast_path(instruction, fast_path),
            None => self.helper(instruction),
        }
    }

    /// Translates an instruction that a function of the monitor executes on a fast path where it
    /// can.
    pub(super) fn call_function(&mut self, instruction: &Instruction) -> Flow {
        let Some(fast_path) = self.fast_path(instruction) else {
            return self.helper(instruction);
        };
        self.emit.flush_esp_first();
        let takes_nothing = [
            FastPathCall::Execute,
            FastPathCall::ReadControl,
            FastPathCall::ReadDebug,
        ];
        if matches!(fast_path, FastInstruction::Call(call, _) if takes_nothing.contains(&call)) {
            return self.call_fast_path(instruction, fast_path);
        }
        if instruction.op_count() != 0 && instruction.op0_kind() == OpKind::Memory {
            self.emit.effective_address(instruction);
        } else if instruction.op_count() != 0 {
            let last = instruction.op_count() - 1;
            let value = self.emit.value(instruction.op_register(last), R8);
            if value != R8 {
                self.emit.assembler.mov(R8, value);
            }
        }
        self.call_fast_path(instruction, fast_path)
    }

    /// Translates IN and OUT.
    pub(super) fn access_port(&mut self, instruction: &Instruction) -> Flow {
        let Some(fast_path) = self.fast_path(instruction) else {
            return self.helper(instruction);
        };
        self.call_fast_path(instruction, fast_path)
    }

    /// Emits the call of the fast path for an IRETD to another level, to which a branch was emitted
    /// earlier. The IRETD has had no effect yet.
    pub(super) fn return_by_fast_path(&mut self, kind: SiteKind) {
        self.emit.note_state(Restore::NONE);
        // An island that is inserted later must not be placed before this point.
        self.emit.make_room();
        let Some(branch) = self.emit.far_branch.take() else {
            return;
        };
        let here = self.emit.assembler.position();
        self.emit.assembler.patch_rel32(branch, here);
        let (stack, esp) = (self.emit.map.stack(), self.emit.esp_at_start);
        self.emit.assembler.lea32(R8, Mem::base(stack, esp));
        if let Some(key) = FastInstruction::Return.key(self.mode_id, self.family) {
            self.emit.assembler.mov_imm64(R9, key);
        }
        let site = self.emit.new_site(kind, self.emit.rip, esp, 0);
        self.emit.name_site(site);
        let routine = self
            .emit
            .field(at::fast_path_routine(FastInstruction::Return.routine()));
        self.emit.assembler.jmp_memory(routine);
    }

    /// Translates an INT n or INT3 that a fast path delivers, or else emits the exit to the
    /// monitor.
    pub(super) fn interrupt_by_fast_path(&mut self, instruction: &Instruction) -> Flow {
        let fast_path = self.fast_path(instruction);
        let fast_path = fast_path.filter(|fast_path| {
            matches!(
                fast_path,
                FastInstruction::Interrupt { .. } | FastInstruction::TaskInterrupt { .. }
            )
        });
        let (Some(fast_path), true) = (fast_path, self.delivers_by_fast_path()) else {
            return self.moves_on(instruction);
        };
        self.emit.make_room();
        self.emit.flush_esp_first();
        if let FastInstruction::TaskInterrupt { .. } = fast_path {
            self.emit.assembler.mov_imm32(R8, self.emit.rip as u32);
        }
        let kind = self.emit.helper_kind(instruction);
        let width = match self.emit.is_64_bit() {
            true => Width::Qword,
            false => Width::Dword,
        };
        let next = self.emit.next_rip;
        self.emit.code_address(RCX, RCX, next, width);
        if let Some(key) = fast_path.key(self.mode_id, self.family) {
            self.emit.assembler.mov_imm64(R9, key);
        }
        let (rip, esp) = (self.emit.rip, self.emit.esp_at_start);
        let site = self.emit.new_site(kind, rip, esp, 0);
        self.emit.name_site(site);
        let routine = self.emit.field(at::fast_path_routine(fast_path.routine()));
        self.emit.assembler.jmp_memory(routine);
        Flow::End
    }

    /// Whether fast paths deliver interrupts. They do not if exits of sensitive instructions should
    /// take another form.
    fn delivers_by_fast_path(&self) -> bool {
        let virtual_interrupts = self.virtual_interrupts;
        virtual_interrupts.flag && virtual_interrupts.transition == Transition::Call
    }

    /// Translates an instruction that raises #GP(0) in this mode, by a fast path or else by the
    /// exit of that fault.
    pub(super) fn refuse(&mut self) -> Flow {
        let kind = SiteKind::Fault(Vector::GeneralProtection);
        let fast_path = FastInstruction::of_refused(&self.emit.mode, self.emit.map);
        let (Some(fast_path), true) = (fast_path, self.delivers_by_fast_path()) else {
            self.emit.exit(kind);
            return Flow::End;
        };
        self.emit.make_room();
        self.emit.flush_esp_first();
        let (rip, esp) = (self.emit.rip, self.emit.esp_at_start);
        self.emit.assembler.mov_imm32(R8, rip as u32);
        if let Some(key) = fast_path.key(self.mode_id, self.family) {
            self.emit.assembler.mov_imm64(R9, key);
        }
        let site = self.emit.new_site(kind, rip, esp, 0);
        self.emit.name_site(site);
        let routine = self.emit.field(at::fast_path_routine(fast_path.routine()));
        self.emit.assembler.jmp_memory(routine);
        Flow::End
    }

    /// Emits the call of a fast path. The exit is named first, for cases that the routine cannot
    /// handle. R8 passes what the routine needs in addition to the key, for example a selector. The
    /// whole stack pointer is in its home.
    pub(super) fn call_fast_path(
        &mut self,
        instruction: &Instruction,
        fast_path: FastInstruction,
    ) -> Flow {
        self.emit.make_room();
        self.emit.flush_esp_first();
        let kind = self.emit.helper_kind(instruction);
        if let Some(key) = fast_path.key(self.mode_id, self.family) {
            self.emit.assembler.mov_imm64(R9, key);
        }
        if let FastInstruction::LoadSegment { .. } = fast_path {
            let next = self.emit.next_rip as u32;
            self.emit.assembler.mov_imm32(RCX, next);
        }
        if let FastInstruction::Port { port: None, .. } = fast_path {
            self.emit.assembler.movzx16(R8, RDX);
        }
        let behind = self.emit.assembler.lea_rip(R11);
        self.emit.name_exit(kind);
        let routine = self.emit.field(at::fast_path_routine(fast_path.routine()));
        let assembler = &mut self.emit.assembler;
        assembler.jmp_memory(routine);
        let position = assembler.position();
        assembler.patch_rel32(behind, position);
        Flow::Next
    }
}
