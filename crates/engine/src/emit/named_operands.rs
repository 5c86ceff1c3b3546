//! The operands that an instruction names, as emission needs to know them.

use crate::abi::host::{Host, RSP};
use iced_x86::{Instruction, Mnemonic, OpCodeTableKind, OpKind, Register};
use tollgate_x86::SegmentRegister;

pub(crate) fn segment_of(register: Register) -> SegmentRegister {
    match register {
        Register::ES => SegmentRegister::Es,
        Register::CS => SegmentRegister::Cs,
        Register::SS => SegmentRegister::Ss,
        Register::FS => SegmentRegister::Fs,
        Register::GS => SegmentRegister::Gs,
        _ => SegmentRegister::Ds,
    }
}

/// The guest register that alone addresses the memory operand, and the displacement from it.
pub(crate) fn near_register(instruction: &Instruction, is_64_bit: bool) -> Option<(u8, i32)> {
    let base = instruction.memory_base();
    let (is_whole, displacement) = match is_64_bit {
        true => (base.is_gpr64(), instruction.memory_displacement64() as i32),
        false => (base.is_gpr32(), instruction.memory_displacement32() as i32),
    };
    let is_alone = is_whole && instruction.memory_index() == Register::None;
    is_alone.then(|| (base.number() as u8, displacement))
}

/// Whether an instruction with a memory operand is an x87 instruction.
pub(in crate::emit) fn is_x87(instruction: &Instruction) -> bool {
    let code = instruction.op_code();
    code.table() == OpCodeTableKind::Normal && matches!(code.op_code(), 0xd8..=0xdf)
}

/// Number of the guest general register that `register` is or is a part of.
pub(crate) fn guest_number(register: Register) -> Option<u8> {
    register
        .is_gpr()
        .then(|| register.full_register().number() as u8)
}

pub(crate) fn is_high_byte(register: Register) -> bool {
    matches!(
        register,
        Register::AH | Register::BH | Register::CH | Register::DH
    )
}

/// The part of `host` that corresponds to the part `like` of its own register.
pub(crate) fn name_of(host: Host, like: Register) -> Register {
    let number = u32::from(host.0 & 15);
    match like.size() {
        1 if is_high_byte(like) => Register::AH + (number & 3),
        1 if number < 4 => Register::AL + number,
        1 => Register::SPL + (number - 4),
        2 => Register::AX + number,
        4 => Register::EAX + number,
        _ => Register::RAX + number,
    }
}

/// The kinds of an instruction's operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Named {
    /// The general registers of which an operand is a part or the whole, one bit each.
    pub(crate) registers: u16,
    /// One operand is AH, BH, CH or DH.
    pub(crate) high: bool,
    /// One operand is in memory.
    pub(crate) memory: bool,
}

impl Named {
    /// Examines all operands once.
    pub(crate) fn of(instruction: &Instruction) -> Self {
        let mut named = Self::default();
        for index in 0..instruction.op_count() {
            match instruction.op_kind(index) {
                OpKind::Register => {
                    let register = instruction.op_register(index);
                    if let Some(guest) = guest_number(register) {
                        named.registers |= 1 << (guest & 15);
                        named.high |= is_high_byte(register);
                    }
                }
                OpKind::Memory => named.memory = true,
                _ => {}
            }
        }
        named
    }

    /// Whether an operand is the stack pointer or a part of it.
    pub(crate) fn stack_pointer(&self) -> bool {
        self.registers >> RSP.0 & 1 != 0
    }
}

/// Whether an operand is AH, BH, CH or DH.
pub(crate) fn has_high_byte(instruction: &Instruction) -> bool {
    register_operands(instruction).any(|(_, register)| is_high_byte(register))
}

/// Whether a copied instruction needs ECX in the host's RCX: as the count of a shift, or because it
/// uses ECX without naming it.
pub(crate) fn uses_count_in_place(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    match instruction.mnemonic() {
        Rol | Ror | Rcl | Rcr | Shl | Sal | Shr | Sar => instruction.op1_kind() == OpKind::Register,
        Shld | Shrd => instruction.op2_kind() == OpKind::Register,
        Cmpxchg8b | Cmpxchg16b | Pcmpestri | Pcmpestri64 | Pcmpistri | Vpcmpestri
        | Vpcmpestri64 | Vpcmpistri => true,
        _ => false,
    }
}

/// The explicit register operands, each with its index.
pub(crate) fn register_operands(
    instruction: &Instruction,
) -> impl Iterator<Item = (u32, Register)> + '_ {
    (0..instruction.op_count())
        .filter(|&index| instruction.op_kind(index) == OpKind::Register)
        .map(|index| (index, instruction.op_register(index)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::host::R9;
    use crate::policy::allow_list::{Copying, copying};
    use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpCodeOperandKind};
    use tollgate_test_support::Random;

    /// Whether an instruction uses ECX in another role than as an operand that can be any register
    /// or as part of its memory operand's address, according to iced-x86's tables.
    fn wants_count(instruction: &Instruction, info: &mut InstructionInfoFactory) -> bool {
        let mut unnamed = *instruction;
        for (index, register) in register_operands(instruction) {
            let kind = instruction.op_code().op_kind(index);
            if guest_number(register).is_some() && kind != OpCodeOperandKind::cl {
                let other = if is_high_byte(register) {
                    Register::R9L
                } else {
                    name_of(R9, register)
                };
                unnamed.set_op_register(index, other);
            }
        }
        if instruction.memory_base().is_gpr() || instruction.memory_index().is_gpr() {
            unnamed.set_memory_base(Register::R9);
            unnamed.set_memory_index(Register::None);
        }
        let used = info.info(&unnamed).used_registers();
        used.iter()
            .any(|it| it.register().full_register() == Register::RCX)
    }

    #[test]
    fn instructions_that_use_ecx_in_place_are_known() {
        let mut random = Random::new(7);
        let mut info = InstructionInfoFactory::new();
        let mut found = std::collections::BTreeSet::new();
        for _ in 0..1_000_000 {
            let mut bytes = [0_u8; 16];
            bytes.fill_with(|| random.below(256) as u8);
            match random.below(4) {
                0 => bytes[0] = 0x0f,
                1 => bytes[..3].copy_from_slice(&[0x66, 0x0f, 0x3a]),
                2 => {
                    bytes[0] = 0xc4;
                    bytes[1] = 0xe0 | random.below(4) as u8;
                }
                _ => {}
            }
            let bits = [16, 32, 64][random.below(3)];
            let instruction = Decoder::new(bits, &bytes, DecoderOptions::NONE).decode();
            if copying(&instruction) == Copying::Never {
                continue;
            }
            let wants = wants_count(&instruction, &mut info);
            assert_eq!(uses_count_in_place(&instruction), wants, "{instruction}");
            if wants {
                found.insert(instruction.mnemonic());
            }
        }
        // All instructions that the function names must be found, except those that are rare in
        // random bytes.
        assert!(found.len() >= 10, "{found:?}");
    }
}
