//! SWAPGS, RDFSBASE, RDGSBASE, WRFSBASE and WRGSBASE, translated without exits.
//!
//! In 64-bit code the bases of FS and GS are not part of the mode word; emitted code reads them
//! from the context at each access.

use super::copy::uses_stack_pointer_register;
use super::{Flow, Translator};
use crate::abi::context_displacements as at;
use crate::abi::host::*;
use crate::abi::state_map::Restore;
use crate::emit::assembler::Width;
use crate::policy::mode::ModeFlags;
use iced_x86::{Instruction, Mnemonic};
use tollgate_x86::SegmentRegister;

impl Translator {
    /// Whether SWAPGS is permitted in this mode.
    pub(super) fn swaps_gs(&self) -> bool {
        self.emit.is_64_bit() && self.emit.mode.flags.contains(ModeFlags::KERNEL)
    }

    pub(super) fn swap_gs(&mut self) -> Flow {
        let base = self.emit.field(at::segment_base(SegmentRegister::Gs));
        let hidden = self.emit.field(at::register::KERNEL_GS_BASE);
        self.emit.assembler.load(Width::Qword, R8, base);
        self.emit.assembler.load(Width::Qword, R9, hidden);
        self.emit.make_room();
        self.emit.note_state(Restore::UNDIVIDED);
        self.emit.assembler.store(Width::Qword, base, R9);
        self.emit.assembler.store(Width::Qword, hidden, R8);
        Flow::Next
    }

    /// RDFSBASE, RDGSBASE, WRFSBASE or WRGSBASE. The monitor executes them where they fault, above
    /// all without CR4.FSGSBASE. A base that is not canonical makes the look-up of its address
    /// fault, so the monitor executes that instruction too.
    pub(super) fn access_base(&mut self, instruction: &Instruction) -> Flow {
        let flags = self.emit.mode.flags;
        if !flags.contains(ModeFlags::CODE64 | ModeFlags::FSGSBASE)
            || flags.contains(ModeFlags::SINGLE)
            || instruction.has_lock_prefix()
        {
            return self.helper(instruction);
        }
        let segment = match instruction.mnemonic() {
            Mnemonic::Rdfsbase | Mnemonic::Wrfsbase => SegmentRegister::Fs,
            _ => SegmentRegister::Gs,
        };
        let base = self.emit.field(at::segment_base(segment));
        let register = instruction.op0_register();
        let is_wide = register.size() == 8;
        if uses_stack_pointer_register(instruction) {
            self.emit.flush_esp_first();
        }
        let reads = matches!(
            instruction.mnemonic(),
            Mnemonic::Rdfsbase | Mnemonic::Rdgsbase
        );
        if reads {
            let width = if is_wide { Width::Qword } else { Width::Dword };
            self.emit.assembler.load(width, R8, base);
            self.emit.set_register(register, R8, Width::Qword);
            return Flow::Next;
        }
        let value = self.emit.value(register, R11);
        if is_wide {
            self.demand_canonical(value);
        } else {
            self.emit.assembler.mov32(R8, value);
        }
        self.emit.assembler.store(Width::Qword, base, R8);
        Flow::Next
    }
}
