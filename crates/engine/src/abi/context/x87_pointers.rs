//! Moves the x87 pointers between the processor's state and the notes that emitted code makes.

use super::Context;
use crate::abi::signal_completion::X87Note;
use crate::abi::x87_pointers::{X87_FRESH, X87_OPERAND_FRESH};
use std::mem::offset_of;
use tollgate_x86::{Segment, SegmentRegister};

/// The half of [`X87Pointers::opcode`](crate::abi::x87_pointers::X87Pointers::opcode) that only
/// instructions with an operand and FNINIT store.
const OPERAND_NOTE: u32 = 0xffff << 16;

// FNINIT clears both selectors with one store.
const _: () =
    assert!(offset_of!(Context, x87.data_selector) == offset_of!(Context, x87.code_selector) + 2);

impl Context {
    /// Puts the x87 pointers into the save area, which otherwise contains the host's. Each has 64
    /// bits if the processor is in 64-bit mode, otherwise 32 bits and a selector. To be called
    /// after each exit that saved the vector registers.
    pub fn gather_x87_pointers(&mut self) {
        if self.x87.opcode & X87_FRESH != 0 {
            let is_operand_fresh = self.x87.opcode & X87_OPERAND_FRESH != 0;
            self.x87.opcode &= !(X87_FRESH | X87_OPERAND_FRESH);
            // The notes of 64-bit code have no selectors.
            let wide = self.cpu.is_64_bit();
            let mask = if wide { u64::MAX } else { 0xffff_ffff };
            let selector = |segment: &Segment| if wide { 0 } else { segment.selector.0 };
            self.x87.instruction &= mask;
            self.x87.code_selector = selector(self.cpu.cs());
            if is_operand_fresh && let Some(register) = (self.x87.opcode >> 16 & 7).checked_sub(1) {
                let register = SegmentRegister::ALL[register as usize % 6];
                let base = self.cpu.segment_base(register);
                self.x87.operand_offset = self.x87.operand.wrapping_sub(base) & mask;
                self.x87.data_selector = selector(self.cpu.segment(register));
            }
        }
        let pointer =
            |offset: u64, selector: u16| (offset | u64::from(selector) << 32).to_le_bytes();
        let area = &mut self.cpu.vector.0;
        area[6..8].copy_from_slice(&(self.x87.opcode as u16 & 0x7ff).to_le_bytes());
        area[8..16].copy_from_slice(&pointer(self.x87.instruction, self.x87.code_selector));
        area[16..24].copy_from_slice(&pointer(self.x87.operand_offset, self.x87.data_selector));
    }

    /// Makes the notes that emitted code makes after an x87 instruction. `linear` is the address of
    /// the instruction's operand, if it has one.
    pub fn note_x87(&mut self, note: &X87Note, linear: u64) {
        let mut opcode = note.opcode;
        if note.opcode & X87_FRESH == 0 {
            self.x87.operand_offset = 0;
            self.x87.code_selector = 0;
            self.x87.data_selector = 0;
        } else if note.opcode >> 16 & 7 != 0 {
            self.x87.operand = linear;
        } else {
            opcode |= self.x87.opcode & OPERAND_NOTE;
        }
        self.x87.instruction = note.instruction;
        self.x87.opcode = opcode;
    }

    /// Replaces the operand's linear address in the note of an x87 instruction that ran on the
    /// bounce buffer.
    pub fn note_x87_operand(&mut self, linear: u64) {
        if self.x87.opcode >> 16 & 7 != 0 {
            self.x87.operand = linear;
            self.x87.opcode |= X87_FRESH | X87_OPERAND_FRESH;
            self.gather_x87_pointers();
        }
    }

    /// Takes the x87 pointers from the save area, after an emulated instruction has written it.
    pub fn scatter_x87_pointers(&mut self) {
        let area = &self.cpu.vector.0;
        let word = |at: usize| u16::from_le_bytes([area[at], area[at + 1]]);
        let double = |at: usize| u64::from(word(at)) | u64::from(word(at + 2)) << 16;
        self.x87.opcode = u32::from(word(6) & 0x7ff);
        self.x87.instruction = double(8);
        self.x87.operand_offset = double(16);
        if self.cpu.is_64_bit() {
            self.x87.instruction |= double(12) << 32;
            self.x87.operand_offset |= double(20) << 32;
            self.x87.code_selector = 0;
            self.x87.data_selector = 0;
            return;
        }
        self.x87.code_selector = word(12);
        self.x87.data_selector = word(20);
    }
}
