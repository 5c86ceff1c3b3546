//! PUSH, POP and LEAVE, with changes of the stack pointer folded into displacements.

use super::{Flow, Translator};
use crate::abi::host::Host;
use crate::abi::host::*;
use crate::abi::register_map::Home;
use crate::emit::assembler::{Mem, Width};
use crate::emit::effective_address::Offset;
use crate::emit::guest_operand_form::Reach;
use crate::emit::look_up::OddSegment;
use crate::emit::named_operands::guest_number;
use crate::policy::mode::ModeFlags;
use iced_x86::{Instruction, OpKind, Register};
use tollgate_x86::Gpr;

/// The value that is pushed.
pub(super) enum Pushed {
    /// A constant, which is sign-extended if the push is wider.
    Immediate(i64),
    Register(Host),
    /// A guest register other than the stack pointer.
    Guest(Register),
    /// The address after the current instruction.
    NextRip,
}

/// Operand width of a push or pop, from the stack pointer increment that iced-x86 reports.
fn width_of(instruction: &Instruction) -> Width {
    match instruction.stack_pointer_increment().unsigned_abs() {
        2 => Width::Word,
        8 => Width::Qword,
        _ => Width::Dword,
    }
}

/// Whether the register is the stack pointer or its low part.
fn is_stack_pointer(register: Register) -> bool {
    register.full_register() == Register::RSP
}

impl Translator {
    /// Stores a value below the stack pointer and folds the decrement.
    pub(super) fn push(&mut self, value: Pushed, width: Width) -> Result<(), OddSegment> {
        let bytes = width.bytes() as i32;
        let reach = (self.emit).reach_stack_operand(-bytes, width.bytes(), true)?;
        // A scratch register that the operand's address does not need.
        let spare = match reach {
            Reach::InSegment => RCX,
            _ => R9,
        };
        let value = match value {
            Pushed::NextRip if self.emit.relocates => {
                self.emit
                    .code_address(spare, spare, self.emit.next_rip, width);
                Pushed::Register(spare)
            }
            Pushed::NextRip => Pushed::Immediate(self.emit.next_rip as i64),
            Pushed::Guest(register) => Pushed::Register(self.emit.value(register, spare)),
            value => value,
        };
        match value {
            Pushed::NextRip | Pushed::Guest(_) => {
                unreachable!("the match above has replaced these")
            }
            Pushed::Immediate(value) if width == Width::Qword && i32::try_from(value).is_err() => {
                self.emit.assembler.mov_imm64(spare, value as u64);
                self.emit.assembler.store(width, reach.mem(), spare);
            }
            Pushed::Immediate(value) => {
                self.emit
                    .assembler
                    .store_imm(width, reach.mem(), value as i32);
            }
            Pushed::Register(register) => self.emit.assembler.store(width, reach.mem(), register),
        }
        self.emit.esp = self.emit.esp.wrapping_sub(bytes);
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
                    // PUSH stores the value that the stack pointer has before the push.
                    let stack = self.emit.map.stack();
                    self.emit.lea_stack(R11, Mem::base(stack, self.emit.esp));
                    if !self.emit.mode.flags.contains(ModeFlags::STACK32)
                        && self.emit.esp != 0
                        && width == Width::Dword
                    {
                        self.emit.flush_esp_first();
                        self.emit.assembler.mov32(R11, stack);
                    }
                    Pushed::Register(R11)
                } else {
                    Pushed::Guest(register)
                }
            }
            OpKind::Memory => {
                let bytes = width.bytes();
                let Ok(reach) = self.emit.reach_memory_operand(instruction, bytes, false) else {
                    return self.slow();
                };
                self.emit.assembler.load(width, R11, reach.mem());
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
                    self.emit.flush_esp_first();
                }
                let Ok(reach) = self.emit.reach_stack_operand(0, width.bytes(), false) else {
                    return self.slow();
                };
                let stack = self.emit.map.stack();
                let popped = reach.mem();
                if is_stack_pointer(register) {
                    // The popped value replaces the incremented pointer. Only with a 32-bit stack
                    // does the upper half of the incremented pointer matter.
                    if width != Width::Word {
                        self.emit.assembler.load(width, stack, popped);
                    } else if self.emit.mode.flags.contains(ModeFlags::STACK32) {
                        self.emit.assembler.load(width, R11, popped);
                        self.emit.lea_stack(R8, Mem::base(stack, bytes));
                        self.emit.assembler.mov16(R8, R11);
                        self.emit.mov_pointer(stack, R8);
                    } else {
                        self.emit.assembler.load16_keep(stack, popped);
                    }
                    return Flow::Next;
                }
                let guest = guest_number(register).unwrap_or(0);
                match self.emit.map.home(guest) {
                    Home::Host(to) if width == Width::Word => {
                        self.emit.assembler.load16_keep(to, popped);
                    }
                    Home::Host(to) => self.emit.assembler.load(width, to, popped),
                    Home::Slot => {
                        self.emit.assembler.load(width, R9, popped);
                        self.emit.assembler.store(width, self.emit.slot(guest), R9);
                    }
                }
                self.emit.esp = self.emit.esp.wrapping_add(bytes);
                Flow::Next
            }
            _ => {
                let Ok(reach) = self.emit.reach_stack_operand(0, width.bytes(), false) else {
                    return self.slow();
                };
                self.emit.assembler.load(width, R11, reach.mem());
                // An operand that names ESP uses the incremented value.
                self.emit.esp = self.emit.esp.wrapping_add(bytes);
                let bytes = width.bytes();
                let Ok(reach) = self.emit.reach_memory_operand(instruction, bytes, true) else {
                    self.emit.esp = self.emit.esp_at_start;
                    return self.slow();
                };
                self.emit.assembler.store(width, reach.mem(), R11);
                Flow::Next
            }
        }
    }

    /// LEAVE copies EBP to ESP, or BP to SP, and then pops EBP.
    pub(super) fn leave_instruction(&mut self, instruction: &Instruction) -> Flow {
        let width = width_of_leave(instruction);
        let has_wide_stack = self.emit.mode.flags.contains(ModeFlags::STACK32);
        if has_wide_stack && width == Width::Word {
            return self.slow();
        }
        // The new ESP is formed before the last host instruction, which commits. Until then the
        // state map says where the old ESP is.
        if self.leave_operand(width).is_err() {
            return self.slow();
        }
        self.emit.assembler.load(width, R11, Reach::Sum.mem());
        let stack = self.emit.map.stack();
        self.emit.assembler.mov(R8, stack);
        self.emit
            .note_state(crate::abi::state_map::Restore::one(Gpr::Rsp as u8, R8));
        let frame = self.emit.value(Register::EBP, RCX);
        let above = Mem::base(frame, width.bytes() as i32);
        if has_wide_stack {
            self.emit.lea_stack(stack, above);
        } else {
            self.emit.assembler.lea32(R9, above);
            self.emit.assembler.mov16(stack, R9);
        }
        self.emit.set_register(Register::EBP, R11, width);
        self.emit.esp = 0;
        Flow::Next
    }

    fn leave_operand(&mut self, width: Width) -> Result<(), OddSegment> {
        use tollgate_x86::SegmentRegister;
        if self.emit.mode.segment(SegmentRegister::Ss, false)
            == crate::policy::mode::SegmentClass::Odd
        {
            return Err(OddSegment);
        }
        let frame = self.emit.address_value(Register::EBP, R8);
        let offset = match self.emit.mode.flags.contains(ModeFlags::STACK32) {
            true => {
                if frame != R8 {
                    self.emit.mov_pointer(R8, frame);
                }
                Offset::Wide
            }
            false => {
                self.emit.assembler.movzx16(R8, frame);
                Offset::Word
            }
        };
        (self.emit).access_sum(SegmentRegister::Ss, offset, width.bytes(), false)
    }
}

fn width_of_leave(instruction: &Instruction) -> Width {
    match instruction.code() {
        iced_x86::Code::Leavew => Width::Word,
        iced_x86::Code::Leaveq => Width::Qword,
        _ => Width::Dword,
    }
}
