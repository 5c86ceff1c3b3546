//! MOV from CR0, CR2, CR3 and CR4 at CPL 0. The monitor keeps these registers, and guest code
//! that changes one leaves; so what the context holds is what they hold.

use super::copy::uses_stack_pointer_register;
use super::{Flow, Translator};
use crate::abi::at;
use crate::abi::host::*;
use crate::emit::assembler::Width;
use crate::policy::mode::ModeFlags;
use iced_x86::{Instruction, Register};

impl Translator {
    /// Another register, another privilege level and the form with LOCK are the monitor's.
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
}
