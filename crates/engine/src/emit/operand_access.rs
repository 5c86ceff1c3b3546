//! A fast answer to how the most frequent instructions access their operands.
//!
//! iced-x86's tables have the answer for every instruction, but compute a list of everything that
//! the instruction uses on the way. That costs as much as the rest of placing the operands.

use iced_x86::{ConditionCode, Instruction, Mnemonic, OpAccess, OpKind};

/// Maximum number of operands of the instructions in this file.
const OPERANDS: usize = 3;

/// The accesses to each operand of an instruction that uses no general registers except those that
/// it names. `None` if iced-x86's tables must be asked.
pub(super) fn plain_accesses(instruction: &Instruction) -> Option<[OpAccess; OPERANDS]> {
    use Mnemonic::*;
    use OpAccess::{Read, ReadWrite, Write};
    let source_is_register = instruction.op1_kind() == OpKind::Register;
    // With some operands these instructions do not read their destination or do not change it.
    let is_special = match instruction.mnemonic() {
        Add | Cmp | Test | Mov | Movzx | Movsx | Movsxd | Inc | Dec | Neg | Not => false,
        And | Or => !source_is_register || has_one_register_twice(instruction),
        Adc | Sub | Sbb | Xor => has_one_register_twice(instruction),
        Shl | Sal | Shr | Sar | Rol | Ror => {
            instruction.op1_kind() == OpKind::Immediate8
                && !(1..=7).contains(&instruction.immediate8())
        }
        _ => false,
    };
    if is_special {
        return None;
    }
    Some(match instruction.mnemonic() {
        Mov | Movzx | Movsx | Movsxd => [Write, Read, Read],
        Add | Or | Adc | Sbb | And | Sub | Xor | Inc | Dec | Neg | Not => [ReadWrite, Read, Read],
        Cmp | Test => [Read; OPERANDS],
        Shl | Sal | Shr | Sar | Rol | Ror => [ReadWrite, Read, Read],
        Imul if instruction.op_count() == 2 => [ReadWrite, Read, Read],
        Imul if instruction.op_count() == 3 => [Write, Read, Read],
        // This arm is for SETcc.
        _ if instruction.condition_code() != ConditionCode::None
            && instruction.op_count() == 1
            && !instruction.is_jcc_short_or_near()
            && matches!(instruction.op0_kind(), OpKind::Register | OpKind::Memory) =>
        {
            [Write, Read, Read]
        }
        _ => return None,
    })
}

/// Whether the first two operands are the same register.
pub(super) fn has_one_register_twice(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register
        && instruction.op0_register() == instruction.op1_register()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::allow_list::{Copying, copying};
    use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory};
    use std::collections::BTreeSet;
    use tollgate_test_support::Random;

    #[test]
    fn the_tables_say_the_same() {
        let mut random = Random::new(31);
        let mut info = InstructionInfoFactory::new();
        let mut found = BTreeSet::new();
        for _ in 0..1_000_000 {
            let mut bytes = [0_u8; 16];
            bytes.fill_with(|| random.below(256) as u8);
            match random.below(4) {
                0 => bytes[0] = 0x0f,
                1 => bytes[..2].copy_from_slice(&[0x48, 0x0f]),
                _ => {}
            }
            let bits = [16, 32, 64][random.below(3)];
            let instruction = Decoder::new(bits, &bytes, DecoderOptions::NONE).decode();
            if copying(&instruction) == Copying::Never {
                continue;
            }
            let Some(plain) = plain_accesses(&instruction) else {
                continue;
            };
            found.insert(instruction.mnemonic());
            let known = info.info(&instruction);
            let mut named = 0;
            for index in 0..instruction.op_count() {
                let access = known.op_access(index);
                assert_eq!(plain[index as usize], access, "{instruction}");
                named |= match instruction.op_kind(index) {
                    OpKind::Register => bit(instruction.op_register(index)),
                    _ => 0,
                };
            }
            named |= bit(instruction.memory_base()) | bit(instruction.memory_index());
            for used in known.used_registers() {
                assert_eq!(bit(used.register()) & !named, 0, "{instruction}");
            }
        }
        assert!(found.len() >= 30, "{found:?}");
    }

    fn bit(register: iced_x86::Register) -> u16 {
        match register.is_gpr() {
            true => 1 << register.full_register().number(),
            false => 0,
        }
    }
}
