//! PUSH, POP and LEAVE, with the stack pointer folded into displacements.

use super::memory::host_of;
use super::{Flow, OddSegment, Translator};
use crate::assembler::host::*;
use crate::assembler::{Host, Mem, Width};
use crate::mode::ModeFlags;
use iced_x86::{Instruction, OpKind, Register};

/// What is pushed.
pub(super) enum Pushed {
    Immediate(i32),
    Register(Host),
}

/// Operand width of a push or pop from iced's stack pointer increment.
fn width_of(instruction: &Instruction) -> Width {
    if instruction.stack_pointer_increment().unsigned_abs() == 2 {
        Width::Word
    } else {
        Width::Dword
    }
}

impl Translator {
    /// Stores below the stack pointer and folds the decrement.
    pub(super) fn push(&mut self, value: Pushed, width: Width) -> Result<(), OddSegment> {
        let bytes = width.bytes() as i32;
        self.stack_operand(-bytes, width.bytes(), true)?;
        match value {
            Pushed::Immediate(value) => self.assembler.store_imm(width, Mem::base(R9, 0), value),
            Pushed::Register(register) => self.assembler.store(width, Mem::base(R9, 0), register),
        }
        self.esp = self.esp.wrapping_sub(bytes);
        Ok(())
    }

    pub(super) fn push_instruction(&mut self, instruction: &Instruction) -> Flow {
        let width = width_of(instruction);
        let value = match instruction.op0_kind() {
            OpKind::Register if instruction.op0_register().is_segment_register() => {
                return self.helper(instruction);
            }
            OpKind::Register => {
                let register = instruction.op0_register();
                if matches!(register, Register::ESP | Register::SP) {
                    // The value before the push is stored.
                    self.assembler.lea32(R11, Mem::base(R12, self.esp));
                    if !self.mode.flags.contains(ModeFlags::STACK32)
                        && self.esp != 0
                        && width == Width::Dword
                    {
                        self.flush_esp_first();
                        self.assembler.mov32(R11, R12);
                    }
                    Pushed::Register(R11)
                } else {
                    Pushed::Register(host_of(register))
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
            _ => Pushed::Immediate(instruction.immediate(0) as i32),
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
                self.helper(instruction)
            }
            OpKind::Register => {
                let register = instruction.op0_register();
                if matches!(register, Register::ESP | Register::SP) {
                    self.flush_esp_first();
                }
                if self.stack_operand(0, width.bytes(), false).is_err() {
                    return self.slow();
                }
                let to = host_of(register);
                if to == R12 {
                    // The popped value replaces the incremented pointer. The upper half
                    // is the incremented one's only with a 32-bit stack.
                    if width == Width::Dword {
                        self.assembler.load(width, R12, Mem::base(R9, 0));
                    } else if self.mode.flags.contains(ModeFlags::STACK32) {
                        self.assembler.load(width, R11, Mem::base(R9, 0));
                        self.assembler.lea32(R8, Mem::base(R12, bytes));
                        self.assembler.mov16(R8, R11);
                        self.assembler.mov32(R12, R8);
                    } else {
                        self.assembler.load16_keep(R12, Mem::base(R9, 0));
                    }
                    return Flow::Next;
                }
                if width == Width::Word {
                    self.assembler.load16_keep(to, Mem::base(R9, 0));
                } else {
                    self.assembler.load(width, to, Mem::base(R9, 0));
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
        // From here R12 plus `esp_at_start` is still the old ESP; the new one is formed
        // only by the last two instructions, which restart from EBP in between.
        if self.leave_operand(width).is_err() {
            return self.slow();
        }
        self.assembler.load(width, R11, Mem::base(R9, 0));
        self.assembler.mov(R8, R12);
        self.mark(crate::block::Restore::one(R12.0, R8.0));
        self.assembler
            .lea32(R12, Mem::base(RBP, width.bytes() as i32));
        self.assembler.mov32(RBP, R11);
        self.esp = 0;
        Flow::Next
    }

    fn leave_operand(&mut self, width: Width) -> Result<(), OddSegment> {
        use tollgate_x86::SegmentRegister;
        if self.mode.segment(SegmentRegister::Ss, false) == crate::mode::SegmentClass::Odd {
            return Err(OddSegment);
        }
        self.assembler.mov32(R8, RBP);
        self.access(SegmentRegister::Ss, width.bytes(), false)
    }
}

fn width_of_leave(instruction: &Instruction) -> Width {
    if instruction.code() == iced_x86::Code::Leavew {
        Width::Word
    } else {
        Width::Dword
    }
}
