//! PUSHA and POPA without an exit.
//!
//! The eight words are looked up as one operand: if any of them cannot be accessed, the monitor
//! executes the instruction. After the look-up nothing can fault, and a request to leave guest code
//! lets the instruction run to its end.

use super::{Flow, Translator};
use crate::abi::host::*;
use crate::abi::register_map::Home;
use crate::abi::state_map::Restore;
use crate::emit::assembler::{Mem, Width};
use crate::emit::effective_address::Offset;
use crate::emit::guest_operand_form::Reach;
use crate::emit::look_up::OddSegment;
use crate::policy::mode::{ModeFlags, SegmentClass};
use iced_x86::{Code, Instruction, Register};
use tollgate_x86::{Gpr, SegmentRegister};

/// The registers in the order in which they lie on the stack, from the lowest address up.
const ALL: [(Gpr, Register); 8] = [
    (Gpr::Rdi, Register::EDI),
    (Gpr::Rsi, Register::ESI),
    (Gpr::Rbp, Register::EBP),
    (Gpr::Rsp, Register::ESP),
    (Gpr::Rbx, Register::EBX),
    (Gpr::Rdx, Register::EDX),
    (Gpr::Rcx, Register::ECX),
    (Gpr::Rax, Register::EAX),
];

/// Width of each word.
fn width_of(instruction: &Instruction) -> Width {
    match instruction.code() {
        Code::Pushaw | Code::Popaw => Width::Word,
        _ => Width::Dword,
    }
}

impl Translator {
    /// Whether the eight words are adjacent wherever the look-up finds all of them. With a 16-bit
    /// stack, each word wraps at 64 KiB by itself, which must then be the end of a page or of the
    /// segment.
    fn are_in_one_piece(&self, write: bool) -> bool {
        let segment = self.emit.mode.segment(SegmentRegister::Ss, write);
        self.emit.mode.flags.contains(ModeFlags::STACK32)
            || matches!(segment, SegmentClass::Flat | SegmentClass::Limited64K)
    }

    /// Computes the host address of the words in R11. The lowest word is `offset` bytes above the
    /// stack pointer.
    fn reach_all(&mut self, offset: i32, width: Width, write: bool) -> Result<(), OddSegment> {
        if self.emit.mode.segment(SegmentRegister::Ss, write) == SegmentClass::Odd {
            return Err(OddSegment);
        }
        if self.emit.mode.access.is_direct() {
            // Without a look-up, one of several stores could fault on the host after others were
            // done.
            self.emit.look_up_always(true);
        }
        let lowest = Mem::base(self.emit.map.stack(), self.emit.esp.wrapping_add(offset));
        let kind = match self.emit.mode.flags.contains(ModeFlags::STACK32) {
            true => {
                self.emit.lea_stack(R8, lowest);
                Offset::Wide
            }
            false => {
                self.emit.assembler.lea32(R8, lowest);
                self.emit.assembler.movzx16(R8, R8);
                Offset::Word
            }
        };
        let bytes = ALL.len() as u32 * width.bytes();
        (self.emit).access_sum(SegmentRegister::Ss, kind, bytes, write)?;
        self.emit.assembler.lea64(R11, Reach::Sum.mem());
        self.emit.note_state(Restore::UNDIVIDED);
        Ok(())
    }

    /// PUSHA and PUSHAD: SP is pushed with the value that it has before the instruction.
    pub(super) fn push_all(&mut self, instruction: &Instruction) -> Flow {
        if !self.are_in_one_piece(true) {
            return self.helper(instruction);
        }
        let width = width_of(instruction);
        let has_wide_stack = self.emit.mode.flags.contains(ModeFlags::STACK32);
        if !has_wide_stack && width == Width::Dword {
            // All of ESP is pushed, but an adjustment that is folded into displacements applies to
            // SP only.
            self.emit.flush_esp_first();
        }
        let bytes = width.bytes() as i32;
        let below = -(ALL.len() as i32) * bytes;
        if self.reach_all(below, width, true).is_err() {
            return self.slow();
        }
        for (place, (guest, register)) in (0..).zip(ALL) {
            let stack = self.emit.map.stack();
            let value = match (guest, self.emit.esp) {
                (Gpr::Rsp, 0) => stack,
                (Gpr::Rsp, folded) => {
                    self.emit.lea_stack(R9, Mem::base(stack, folded));
                    R9
                }
                _ => self.emit.value(register, R9),
            };
            let word = Mem::base(R11, place * bytes);
            self.emit.assembler.store(width, word, value);
        }
        self.emit.esp = self.emit.esp.wrapping_add(below);
        Flow::Next
    }

    /// POPA and POPAD: the value for SP is skipped.
    pub(super) fn pop_all(&mut self, instruction: &Instruction) -> Flow {
        if !self.are_in_one_piece(false) {
            return self.helper(instruction);
        }
        let width = width_of(instruction);
        let bytes = width.bytes() as i32;
        if self.reach_all(0, width, false).is_err() {
            return self.slow();
        }
        let popped = (0..).zip(ALL).filter(|(_, (guest, _))| *guest != Gpr::Rsp);
        for (place, (guest, register)) in popped {
            let word = Mem::base(R11, place * bytes);
            match (self.emit.map.home(guest as u8), width) {
                (Home::Host(to), Width::Word) => self.emit.assembler.load16_keep(to, word),
                (Home::Host(to), _) => self.emit.assembler.load(width, to, word),
                (Home::Slot, _) => {
                    self.emit.assembler.load(width, R9, word);
                    self.emit.set_register(register, R9, width);
                }
            }
        }
        self.emit.esp = self.emit.esp.wrapping_add(ALL.len() as i32 * bytes);
        Flow::Next
    }
}
