//! Effective addresses: the sum of an instruction's base, index and displacement, as an offset in a
//! segment.

use super::emitter::Emitter;
use crate::abi::host::Host;
use crate::abi::host::*;
use crate::emit::assembler::{Mem, Width};
use iced_x86::{Instruction, Register};

/// What is known at translation of an offset in a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offset {
    /// The offset may have 32 bits, or more in 64-bit code.
    Wide,
    /// The offset has at most 16 bits.
    Word,
    /// The offset is this constant.
    Constant(u32),
}

/// Size of the memory operand's address: 2, 4 or 8 bytes.
pub(crate) fn address_bytes(instruction: &Instruction) -> usize {
    match (instruction.memory_base(), instruction.memory_index()) {
        (Register::None, Register::None) => instruction.memory_displ_size() as usize,
        (Register::None, index) => index.size(),
        (base, _) => base.size(),
    }
}

impl Emitter {
    /// Computes the effective address (offset in the segment) of the memory operand in R8,
    /// truncated to the address size.
    pub(crate) fn effective_address(&mut self, instruction: &Instruction) -> Offset {
        if self.is_64_bit() {
            self.long_effective_address(instruction, R8, Width::Qword);
            return Offset::Wide;
        }
        let base = instruction.memory_base();
        let index = instruction.memory_index();
        let wide = match (base, index) {
            (Register::None, Register::None) => instruction.memory_displ_size() != 2,
            (Register::None, index) => index.size() == 4,
            (base, _) => base.size() == 4,
        };
        let mut total = instruction.memory_displacement32();
        if base.full_register32() == Register::ESP {
            total = total.wrapping_add(self.esp as u32);
        }
        if base == Register::None && index == Register::None {
            let total = if wide { total } else { total & 0xffff };
            self.assembler.mov_imm32(R8, total);
            return Offset::Constant(total);
        }
        // A base register that lives in a slot is loaded into R8, and an index register into R9.
        let base = (base != Register::None).then(|| self.address_value(base, R8));
        let index = (index != Register::None).then(|| {
            let scale = instruction.memory_index_scale() as u8;
            (self.value(index, R9), scale)
        });
        let only = match (base, index) {
            (Some(only), None) | (None, Some((only, 1))) if total == 0 => Some(only),
            _ => None,
        };
        if let (Some(only), false) = (only, wide) {
            self.assembler.movzx16(R8, only);
            return Offset::Word;
        }
        if base != Some(R8) || index.is_some() || total != 0 {
            let displacement = total as i32;
            let operand = Mem::new(base, index, displacement);
            self.assembler.lea32(R8, operand);
        }
        if wide {
            return Offset::Wide;
        }
        self.assembler.movzx16(R8, R8);
        Offset::Word
    }

    /// Computes the effective address of the memory operand in 64-bit code in `to`, truncated to
    /// the address size, and to 32 bits if `width` is a doubleword.
    pub(crate) fn long_effective_address(
        &mut self,
        instruction: &Instruction,
        to: Host,
        width: Width,
    ) {
        let base = instruction.memory_base();
        let index = instruction.memory_index();
        let wide = match (base, index) {
            (Register::None, Register::None) => instruction.memory_displ_size() == 8,
            (Register::EIP, _) => false,
            (Register::None, index) => index.size() != 4,
            (base, _) => base.size() != 4,
        };
        let wide = wide && width == Width::Qword;
        let displacement = instruction.memory_displacement64();
        if instruction.is_ip_rel_memory_operand() {
            let width = if wide { Width::Qword } else { Width::Dword };
            self.code_address(to, R8, displacement, width);
            return;
        }
        if base == Register::None && index == Register::None {
            let mask = if wide { u64::MAX } else { 0xffff_ffff };
            self.assembler.mov_value(to, displacement & mask);
            return;
        }
        let mut displacement = displacement as i32;
        // A base register that lives in a slot is loaded into R8, and an index register into R9.
        let base = if base.full_register() == Register::RSP {
            let stack = self.map.stack();
            match displacement.checked_add(self.esp) {
                Some(sum) => {
                    displacement = sum;
                    Some(stack)
                }
                None => {
                    self.assembler.lea64(R8, Mem::base(stack, self.esp));
                    Some(R8)
                }
            }
        } else {
            (base != Register::None).then(|| self.value(base, R8))
        };
        let index = (index != Register::None).then(|| {
            let scale = instruction.memory_index_scale() as u8;
            (self.value(index, R9), scale)
        });
        if wide && index.is_none() && displacement == 0 && base == Some(to) {
            return;
        }
        let operand = Mem::new(base, index, displacement);
        if wide {
            self.assembler.lea64(to, operand);
        } else {
            self.assembler.lea32(to, operand);
        }
    }
}
