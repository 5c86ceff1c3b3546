//! Operands in slots, which host instructions use directly as their memory operands.
//!
//! The value of a guest register that lives in a slot is usually loaded into a scratch register,
//! and stored back if it has changed (`operands`). Many instructions can name the slot itself
//! instead, if one of their operands may be a register or memory:
//!
//! ```text
//! mov r8,rax          mov [slot.r8],rax
//! add rax,r8          add rax,[slot.r8]
//! add r8,rax          add [slot.r8],rax
//! ```
//!
//! A 32-bit operand that is written cannot be a slot, because the upper half of the register would
//! not be cleared.

use super::emitter::Emitter;
use super::named_operands::{Named, guest_number};
use super::operand_access::{has_one_register_twice, plain_accesses};
use crate::abi::context_displacements as at;
use crate::emit::assembler::Width;
use iced_x86::{
    Code, EncodingKind, Instruction, Mnemonic, OpAccess, OpCodeOperandKind, OpKind, Register,
};

/// Instructions whose result and all flags are the same for a memory operand as for a register of
/// the same size. Shifts are not among them: processors differ in the flags that shifts leave
/// undefined.
fn may_write_slot(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Mov | Add | Or | Adc | Sbb | And | Sub | Xor | Inc | Dec | Neg | Not
    )
}

/// Size in bytes of an operand that may be a register or memory.
fn size_in_memory(kind: OpCodeOperandKind) -> Option<u32> {
    match kind {
        OpCodeOperandKind::r8_or_mem => Some(1),
        OpCodeOperandKind::r16_or_mem => Some(2),
        OpCodeOperandKind::r32_or_mem => Some(4),
        OpCodeOperandKind::r64_or_mem => Some(8),
        _ => None,
    }
}

/// The encoding with the roles of its two register operands exchanged.
fn turned(code: Code) -> Option<Code> {
    use Code::*;
    Some(match code {
        Mov_rm8_r8 => Mov_r8_rm8,
        Mov_rm32_r32 => Mov_r32_rm32,
        Mov_rm64_r64 => Mov_r64_rm64,
        Mov_r8_rm8 => Mov_rm8_r8,
        Mov_r64_rm64 => Mov_rm64_r64,
        Add_rm32_r32 => Add_r32_rm32,
        Add_rm64_r64 => Add_r64_rm64,
        Add_r64_rm64 => Add_rm64_r64,
        Or_rm32_r32 => Or_r32_rm32,
        Or_rm64_r64 => Or_r64_rm64,
        Or_r64_rm64 => Or_rm64_r64,
        Adc_rm32_r32 => Adc_r32_rm32,
        Adc_rm64_r64 => Adc_r64_rm64,
        Sbb_rm32_r32 => Sbb_r32_rm32,
        Sbb_rm64_r64 => Sbb_r64_rm64,
        And_rm32_r32 => And_r32_rm32,
        And_rm64_r64 => And_r64_rm64,
        And_r64_rm64 => And_rm64_r64,
        Sub_rm32_r32 => Sub_r32_rm32,
        Sub_rm64_r64 => Sub_r64_rm64,
        Sub_r64_rm64 => Sub_rm64_r64,
        Xor_rm32_r32 => Xor_r32_rm32,
        Xor_rm64_r64 => Xor_r64_rm64,
        Xor_r64_rm64 => Xor_rm64_r64,
        Cmp_rm32_r32 => Cmp_r32_rm32,
        Cmp_rm64_r64 => Cmp_r64_rm64,
        Cmp_r32_rm32 => Cmp_rm32_r32,
        Cmp_r64_rm64 => Cmp_rm64_r64,
        _ => return None,
    })
}

impl Emitter {
    /// Whether a guest register lives in a slot and no scratch register holds it.
    pub(crate) fn is_in_slot(&self, register: Register) -> bool {
        guest_number(register).is_some_and(|guest| {
            self.slot_mask >> guest & 1 != 0 && self.held.holder(guest).is_none()
        })
    }

    /// The instruction, which has no memory operand, with a slot as its memory operand. `None` if
    /// none of its operands is in a slot, or none where memory is allowed.
    pub(crate) fn with_slot(
        &mut self,
        instruction: &Instruction,
        named: &Named,
    ) -> Option<Instruction> {
        if !self.is_64_bit() || named.registers & self.slot_mask == 0 {
            return None;
        }
        // If one register were both a memory operand and a register operand, a scratch register
        // would hold the same value as the slot.
        if has_one_register_twice(instruction) {
            return None;
        }
        if let Some(found) = self.with_slot_as_it_is(instruction) {
            return Some(found);
        }
        // The order of the operands of TEST does not matter.
        let mut other = *instruction;
        if matches!(
            instruction.code(),
            Code::Test_rm32_r32 | Code::Test_rm64_r64
        ) {
            other.set_op0_register(instruction.op1_register());
            other.set_op1_register(instruction.op0_register());
        } else {
            other.set_code(turned(instruction.code())?);
            // If the result goes to a scratch register, nothing is gained.
            if self.is_in_slot(other.op0_register()) && other.op0_register().size() == 4 {
                return None;
            }
        }
        self.with_slot_as_it_is(&other)
    }

    pub(crate) fn with_slot_as_it_is(&mut self, instruction: &Instruction) -> Option<Instruction> {
        use Mnemonic::*;
        if !matches!(
            instruction.encoding(),
            EncodingKind::Legacy | EncodingKind::VEX
        ) {
            return None;
        }
        // BT and its relatives may access memory beyond their operand, and XCHG would lock the bus.
        if matches!(instruction.mnemonic(), Bt | Btc | Btr | Bts | Xchg) {
            return None;
        }
        let kinds = instruction.op_code();
        for index in 0..instruction.op_count() {
            let register = instruction.op_register(index);
            if instruction.op_kind(index) != OpKind::Register || !self.is_in_slot(register) {
                continue;
            }
            let Some(size) = size_in_memory(kinds.op_kind(index)) else {
                continue;
            };
            let access = match plain_accesses(instruction) {
                Some(accesses) if index < 3 => accesses[index as usize],
                _ => self.info.info(instruction).op_access(index),
            };
            let is_read_only = matches!(access, OpAccess::Read | OpAccess::CondRead);
            let may_write = may_write_slot(instruction.mnemonic())
                && size != 4
                && instruction.encoding() == EncodingKind::Legacy;
            if !is_read_only && !may_write {
                return None;
            }
            let guest = guest_number(register)?;
            let mut copy = *instruction;
            copy.set_op_kind(index, OpKind::Memory);
            copy.set_memory_base(Register::R15);
            copy.set_memory_index(Register::None);
            copy.set_memory_index_scale(1);
            copy.set_memory_displacement64(i64::from(at::slot(guest)) as u64);
            copy.set_memory_displ_size(8);
            return Some(copy);
        }
        None
    }

    /// Emits `mov register, constant` as one store to the register's slot, if that is possible.
    /// Returns whether it was.
    pub(crate) fn constant_to_slot(&mut self, instruction: &Instruction) -> bool {
        let value = match instruction.code() {
            Code::Mov_r32_imm32 => u64::from(instruction.immediate32()),
            Code::Mov_r64_imm64 => instruction.immediate64(),
            _ => return false,
        };
        let register = instruction.op0_register();
        let (true, Ok(value), Some(guest)) = (
            self.is_in_slot(register),
            i32::try_from(value as i64),
            guest_number(register),
        ) else {
            return false;
        };
        let slot = self.slot(guest);
        self.assembler.store_imm(Width::Qword, slot, value);
        true
    }
}
