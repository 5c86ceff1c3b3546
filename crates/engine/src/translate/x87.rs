//! Notes of the last x87 instruction's address, operand and opcode (SDM volume 1, 8.1.8).
//!
//! The host's own registers for these would hold host addresses, and some processors keep them only
//! while an exception is pending. So each x87 instruction that updates them makes a note in the
//! context. The note follows the instruction, so an instruction that faults is not noted. Code that
//! interrupts the guest before the note is complete makes the note instead ([`X87Note`]).

use super::Translator;
use crate::abi::context_displacements as at;
use crate::abi::host::*;
use crate::abi::signal_completion::X87Note;
use crate::abi::x87_pointers::{X87_FRESH, X87_OPERAND_FRESH};
use crate::emit::assembler::{Mem, Width};
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use tollgate_x86::SegmentRegister;
use tollgate_x86::prefix::is_prefix;

/// Whether the instruction is a control instruction, which does not change the pointers.
fn is_control(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Fnclex | Fclex | Fldcw | Fnstcw | Fstcw | Fnstsw | Fstsw | Wait
    )
}

fn segment_number(register: Register) -> u32 {
    match register {
        Register::ES => 0,
        Register::CS => 1,
        Register::SS => 2,
        Register::FS => 4,
        Register::GS => 5,
        _ => 3,
    }
}

impl Translator {
    /// Notes the x87 instruction that was just copied.
    pub(super) fn note_x87(&mut self, instruction: &Instruction) {
        let Some(opcode) = self.x87_opcode() else {
            return;
        };
        if is_control(instruction.mnemonic()) {
            return;
        }
        self.emit.note_state_as(
            self.emit.next_rip,
            self.emit.esp,
            crate::abi::state_map::Restore::NONE,
        );
        let start = self.emit.assembler.position() as u32;
        let (instruction, opcode) =
            if matches!(instruction.mnemonic(), Mnemonic::Fninit | Mnemonic::Finit) {
                self.emit.assembler.store_imm(
                    Width::Qword,
                    self.emit.field(at::X87_OPERAND_OFFSET),
                    0,
                );
                self.emit
                    .assembler
                    .store_imm(Width::Dword, self.emit.field(at::X87_SELECTORS), 0);
                (0, 0)
            } else {
                (self.emit.rip, self.operand_note(instruction, opcode))
            };
        let place = self.emit.field(at::X87_INSTRUCTION);
        let settles = self.emit.mode.has_real_mode_segments() && opcode & X87_FRESH != 0;
        if self.emit.is_64_bit() || settles || self.emit.relocates {
            // R8 holds the operand's address until everything is noted.
            match opcode {
                0 => self.emit.assembler.mov_value(R9, instruction),
                _ if self.emit.is_64_bit() => {
                    self.emit.code_address(R9, R9, instruction, Width::Qword);
                }
                _ => self.emit.code_address(R9, R9, instruction, Width::Dword),
            }
            self.emit.assembler.store(Width::Qword, place, R9);
        } else {
            self.emit
                .assembler
                .store_imm(Width::Dword, place, instruction as i32);
        }
        let mut noted = opcode;
        if settles {
            self.note_segments(opcode);
            noted &= !(X87_FRESH | X87_OPERAND_FRESH);
        }
        self.store_opcode(noted);
        self.emit.add_x87_note(X87Note {
            start,
            end: self.emit.assembler.position() as u32,
            instruction,
            opcode,
        });
    }

    /// Stores the opcode. If the instruction has no operand, the note of the last instruction that
    /// had one is kept for [`gather_x87_pointers`](crate::Context::gather_x87_pointers).
    fn store_opcode(&mut self, noted: u32) {
        let place = self.emit.field(at::X87_OPCODE);
        let is_alone = noted & X87_FRESH != 0 && noted & X87_OPERAND_FRESH == 0;
        let width = if is_alone { Width::Word } else { Width::Dword };
        self.emit.assembler.store_imm(width, place, noted as i32);
    }

    /// Notes the operand's address, if there is one, and returns the note of the opcode.
    fn operand_note(&mut self, instruction: &Instruction, opcode: u16) -> u32 {
        let has_memory =
            (0..instruction.op_count()).any(|index| instruction.op_kind(index) == OpKind::Memory);
        let mut note = u32::from(opcode) | X87_FRESH;
        if has_memory {
            // R8 still has the linear address from the look-up: no register operand used R8,
            // because x87 instructions with a memory operand have no general register as operand.
            note |= (segment_number(instruction.memory_segment()) + 1) << 16 | X87_OPERAND_FRESH;
            self.emit
                .assembler
                .store(Width::Qword, self.emit.field(at::X87_OPERAND), R8);
        }
        note
    }

    /// Notes the selectors and the operand's offset now. In other modes the monitor notes them,
    /// because there an exit comes before segment registers change.
    fn note_segments(&mut self, opcode: u32) {
        let code = self.emit.field(at::segment_selector(SegmentRegister::Cs));
        self.emit.assembler.load(Width::Word, R9, code);
        self.emit
            .assembler
            .store(Width::Word, self.emit.field(at::X87_SELECTORS), R9);
        let Some(register) = (opcode >> 16 & 7).checked_sub(1) else {
            return;
        };
        let register = SegmentRegister::ALL[register as usize % 6];
        let data = self.emit.field(at::segment_selector(register));
        self.emit.assembler.load(Width::Word, R9, data);
        self.emit
            .assembler
            .store(Width::Word, self.emit.field(at::X87_SELECTORS + 2), R9);
        // offset = linear + not(base) + 1
        let base = self.emit.field(at::segment_base(register));
        self.emit.assembler.load(Width::Qword, R9, base);
        self.emit.assembler.not(R9);
        self.emit.assembler.lea32(R9, Mem::indexed(R8, R9, 1, 1));
        let place = self.emit.field(at::X87_OPERAND_OFFSET);
        self.emit.assembler.store(Width::Qword, place, R9);
    }

    /// The 11-bit opcode of the current instruction, if it is an x87 instruction.
    pub(super) fn x87_opcode(&self) -> Option<u16> {
        let is_64_bit = self.emit.is_64_bit();
        let start = (self.raw.iter()).position(|&byte| !is_prefix(byte, is_64_bit))?;
        let [first, second] = [*self.raw.get(start)?, *self.raw.get(start + 1)?];
        (0xd8..=0xdf)
            .contains(&first)
            .then(|| u16::from(first & 7) << 8 | u16::from(second))
    }
}
