//! MOV from CR0, CR2, CR3 and CR4, and SMSW, SLDT and STR to a general register, at CPL 0, without
//! an exit.
//!
//! The monitor keeps these registers, and guest code that changes one of them exits. So the context
//! holds their current values.

use super::copy::uses_stack_pointer_register;
use super::{Flow, Translator};
use crate::abi::context_displacements as at;
use crate::abi::host::*;
use crate::emit::assembler::Width;
use crate::policy::mode::ModeFlags;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

impl Translator {
    /// MOV from a control register. The monitor executes it for other control registers, at other
    /// privilege levels, and with a LOCK prefix.
    pub(super) fn move_from_control(&mut self, instruction: &Instruction) -> Flow {
        let flags = self.emit.mode.flags;
        let is_permitted =
            flags.contains(ModeFlags::KERNEL) || !flags.contains(ModeFlags::PROTECTED);
        let field = match instruction.op1_register() {
            Register::CR0 => at::register::CR0,
            Register::CR2 => at::register::CR2,
            Register::CR3 => at::register::CR3,
            Register::CR4 => at::register::CR4,
            _ => return self.helper(instruction),
        };
        if !is_permitted || flags.contains(ModeFlags::SINGLE) || instruction.has_lock_prefix() {
            return self.helper(instruction);
        }
        if uses_stack_pointer_register(instruction) {
            self.emit.flush_esp_first();
        }
        let width = match self.emit.is_64_bit() {
            true => Width::Qword,
            false => Width::Dword,
        };
        let field = self.emit.field(field);
        self.emit.assembler.load(width, R8, field);
        self.emit
            .set_register(instruction.op0_register(), R8, width);
        Flow::Next
    }

    /// SMSW, SLDT or STR. Above CPL 0, CR4.UMIP may forbid these instructions, and a fast path
    /// executes those that store to memory. If fast paths are off, the monitor executes them.
    pub(super) fn store_system_register(&mut self, instruction: &Instruction) -> Flow {
        let flags = self.emit.mode.flags;
        let field = match instruction.mnemonic() {
            Mnemonic::Smsw => at::register::CR0,
            Mnemonic::Sldt => at::LDT_SELECTOR,
            _ => at::TASK_SELECTOR,
        };
        let size = instruction.op0_register().size();
        // A selector is zero-extended, while SMSW shows as much of CR0 as fits.
        let read = match (instruction.mnemonic(), size) {
            (Mnemonic::Smsw, 4) => Width::Dword,
            (Mnemonic::Smsw, 8) => Width::Qword,
            _ => Width::Word,
        };
        let width = match size {
            2 => Width::Word,
            // The loaded value is zero above 32 bits.
            _ if self.emit.is_64_bit() => Width::Qword,
            _ => Width::Dword,
        };
        if instruction.op0_kind() != OpKind::Register
            || !self.has_fast_paths
            || !flags.contains(ModeFlags::KERNEL | ModeFlags::PROTECTED)
            || flags.contains(ModeFlags::SINGLE)
            || instruction.has_lock_prefix()
        {
            return self.call_function(instruction);
        }
        if uses_stack_pointer_register(instruction) {
            self.emit.flush_esp_first();
        }
        let field = self.emit.field(field);
        self.emit.assembler.load(read, R8, field);
        self.emit
            .set_register(instruction.op0_register(), R8, width);
        Flow::Next
    }
}
