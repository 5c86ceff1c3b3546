//! PUSH, POP and LEAVE, with the stack pointer folded into displacements.

use super::memory::Offset;
use super::operands::guest_number;
use super::{Flow, OddSegment, Translator};
use crate::abi::host::Host;
use crate::abi::host::*;
use crate::abi::register_map::Home;
use crate::emit::assembler::{Mem, Width};
use crate::policy::mode::ModeFlags;
use iced_x86::{Instruction, OpKind, Register};
use tollgate_x86::Gpr;

/// What is pushed.
pub(super) enum Pushed {
    /// Sign-extended if the push is wider.
    Immediate(i64),
    Register(Host),
}

/// Operand width of a push or pop from iced's stack pointer increment.
fn width_of(instruction: &Instruction) -> Width {
    match instruction.stack_pointer_increment().unsigned_abs() {
        2 => Width::Word,
        8 => Width::Qword,
        _ => Width::Dword,
    }
}

/// The stack pointer or its low part.
fn is_stack_pointer(register: Register) -> bool {
    register.full_register() == Register::RSP
}

impl Translator {
    /// Stores below the stack pointer and folds the decrement.
    pub(super) fn push(&mut self, value: Pushed, width: Width) -> Result<(), OddSegment> {
        let bytes = width.bytes() as i32;
        self.stack_operand(-bytes, width.bytes(), true)?;
        match value {
            Pushed::Immediate(value) if width == Width::Qword && i32::try_from(value).is_err() => {
                self.assembler.mov_imm64(R10, value as u64);
                self.assembler.store(width, Mem::base(R9, 0), R10);
            }
            Pushed::Immediate(value) => {
                self.assembler
                    .store_imm(width, Mem::base(R9, 0), value as i32);
            }
            Pushed::Register(register) => self.assembler.store(width, Mem::base(R9, 0), register),
        }
        self.esp = self.esp.wrapping_sub(bytes);
        Ok(())
    }

    pub(super) fn push_instruction(&mut self, instruction: &Instruction) -> Flow {
        let width = width_of(instruction);
        let value = match instruction.op0_kind() {
            OpKind::Register if instruction.op0_register().is_segment_register() => {
                return self.push_segment(instruction, width);
            }
            OpKind::Register => {
                let register = instruction.op0_register();
                if is_stack_pointer(register) {
                    // The value before the push is stored.
                    let stack = self.map.stack();
                    self.lea_stack(R11, Mem::base(stack, self.esp));
                    if !self.mode.flags.contains(ModeFlags::STACK32)
                        && self.esp != 0
                        && width == Width::Dword
                    {
                        self.flush_esp_first();
                        self.assembler.mov32(R11, stack);
                    }
                    Pushed::Register(R11)
                } else {
                    Pushed::Register(self.value(register, R11))
                }
            }
            OpKind::Memory => {
                if self
                    .memory_operand(instruction, width.bytes(), false)
                    .is_err()
                {
                    return self.slow();
                }
                self.assembler.load(width, R11, Mem::base(R9, 0));
                Pushed::Register(R11)
            }
            _ => Pushed::Immediate(instruction.immediate(0) as i64),
        };
        match self.push(value, width) {
            Ok(()) => Flow::Next,
            Err(OddSegment) => self.slow(),
        }
    }

    pub(super) fn pop_instruction(&mut self, instruction: &Instruction) -> Flow {
        let width = width_of(instruction);
        let bytes = width.bytes() as i32;
        match instruction.op0_kind() {
            OpKind::Register if instruction.op0_register().is_segment_register() => {
                self.pop_segment(instruction, width)
            }
            OpKind::Register => {
                let register = instruction.op0_register();
                if is_stack_pointer(register) {
                    self.flush_esp_first();
                }
                if self.stack_operand(0, width.bytes(), false).is_err() {
                    return self.slow();
                }
                let stack = self.map.stack();
                let popped = Mem::base(R9, 0);
                if is_stack_pointer(register) {
                    // The popped value replaces the incremented pointer. The upper half
                    // is the incremented one's only with a 32-bit stack.
                    if width != Width::Word {
                        self.assembler.load(width, stack, popped);
                    } else if self.mode.flags.contains(ModeFlags::STACK32) {
                        self.assembler.load(width, R11, popped);
                        self.lea_stack(R8, Mem::base(stack, bytes));
                        self.assembler.mov16(R8, R11);
                        self.mov_pointer(stack, R8);
                    } else {
                        self.assembler.load16_keep(stack, popped);
                    }
                    return Flow::Next;
                }
                let guest = guest_number(register).unwrap_or(0);
                match self.map.home(guest) {
                    Home::Host(to) if width == Width::Word => {
                        self.assembler.load16_keep(to, popped);
                    }
                    Home::Host(to) => self.assembler.load(width, to, popped),
                    Home::Slot => {
                        self.assembler.load(width, R11, popped);
                        self.assembler.store(width, self.slot(guest), R11);
                    }
                }
                self.esp = self.esp.wrapping_add(bytes);
                Flow::Next
            }
            _ => {
                if self.stack_operand(0, width.bytes(), false).is_err() {
                    return self.slow();
                }
                self.assembler.load(width, R11, Mem::base(R9, 0));
                // An operand that names ESP sees the incremented value.
                self.esp = self.esp.wrapping_add(bytes);
                if self
                    .memory_operand(instruction, width.bytes(), true)
                    .is_err()
                {
                    self.esp = self.esp_at_start;
                    return self.slow();
                }
                self.assembler.store(width, Mem::base(R9, 0), R11);
                Flow::Next
            }
        }
    }

    /// LEAVE: ESP from EBP, then POP EBP.
    pub(super) fn leave_instruction(&mut self, instruction: &Instruction) -> Flow {
        let width = width_of_leave(instruction);
        if !self.mode.flags.contains(ModeFlags::STACK32) || width == Width::Word {
            return self.slow();
        }
        // The new ESP is formed before the last instruction, which commits: until then
        // marks put the old one back.
        if self.leave_operand(width).is_err() {
            return self.slow();
        }
        self.assembler.load(width, R11, Mem::base(R9, 0));
        let stack = self.map.stack();
        self.assembler.mov(R8, stack);
        self.mark(crate::abi::marks::Restore::one(Gpr::Rsp as u8, R8));
        let frame = self.value(Register::EBP, R10);
        self.lea_stack(stack, Mem::base(frame, width.bytes() as i32));
        self.set_register(Register::EBP, R11, width);
        self.esp = 0;
        Flow::Next
    }

    fn leave_operand(&mut self, width: Width) -> Result<(), OddSegment> {
        use tollgate_x86::SegmentRegister;
        if self.mode.segment(SegmentRegister::Ss, false) == crate::policy::mode::SegmentClass::Odd {
            return Err(OddSegment);
        }
        let frame = self.value(Register::EBP, R8);
        if frame != R8 {
            self.mov_pointer(R8, frame);
        }
        self.access(SegmentRegister::Ss, Offset::Wide, width.bytes(), false)
    }
}

fn width_of_leave(instruction: &Instruction) -> Width {
    match instruction.code() {
        iced_x86::Code::Leavew => Width::Word,
        iced_x86::Code::Leaveq => Width::Qword,
        _ => Width::Dword,
    }
}
