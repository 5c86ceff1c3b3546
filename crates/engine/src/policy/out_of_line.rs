//! What the monitor must know of an instruction that it executes out of line, since the operand
//! cannot be accessed inline.
//!
//! It is decided once for each place in a block.

use crate::abi::relocation::Relocation;
use crate::decode::length::MAX_INSTRUCTION_LENGTH;
use crate::policy::allow_list::{Features, Treatment, as_offered, treatment};
use crate::policy::instruction_kind::Helper;
use crate::policy::memory_operand::{
    MemoryUse, checked_alignment, memory_use, required_alignment, suppresses_faults,
};
use crate::policy::mode::Mode;
use iced_x86::{CpuidFeature, Instruction, InstructionInfoFactory, Mnemonic};

/// The most bytes that an instruction can have (SDM volume 2, 2.3.11).
pub const LONGEST_INSTRUCTION: usize = MAX_INSTRUCTION_LENGTH;

/// The size in bytes of the largest memory operand that fits in the bounce buffer.
pub const MOST_BOUNCED: usize = 64;

bitflags::bitflags! {
    /// Properties of an instruction in addition to its kind.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Traits: u8 {
        /// Translated code copies the instruction.
        const COPIED = 1 << 0;
        /// The instruction belongs to the x87.
        const X87 = 1 << 1;
        /// An x87 or MMX instruction that checks for pending x87 exceptions first (SDM volume 1,
        /// 8.3.11).
        const WAITS_FOR_X87 = 1 << 2;
        /// The instruction makes several accesses, of which emitted code looks some up. If one of
        /// them is unusual, the monitor executes the whole instruction.
        const DONE_BY_MONITOR = 1 << 3;
        /// The instruction [suppresses faults](suppresses_faults) of masked elements.
        const SUPPRESSES_FAULTS = 1 << 4;
    }
}

/// An instruction, and everything that its execution out of line must know about it.
#[derive(Clone, Copy, Debug)]
pub struct OutOfLine {
    /// The instruction and its kind.
    pub helper: Helper,
    /// What the instruction does with its memory operand, if it has one that fits in the bounce
    /// buffer.
    pub memory: Option<MemoryUse>,
    /// The alignment in bytes that the memory operand must always have.
    pub required_alignment: u32,
    /// The alignment in bytes that CR0.AM demands of the memory operand.
    pub checked_alignment: u32,
    /// Further properties of the instruction.
    pub traits: Traits,
}

impl OutOfLine {
    /// Decodes the first instruction of `bytes`, which lie at `rip` in code of this mode.
    pub fn decode(bytes: &[u8], rip: u64, mode: &Mode, features: &Features) -> Self {
        let mut instruction = features.decoding().decode(mode.bitness(), bytes, rip);
        as_offered(&mut instruction, |feature| features.offers(feature));
        Self::new(&instruction, mode, features)
    }

    fn new(instruction: &Instruction, mode: &Mode, features: &Features) -> Self {
        let decoding = features.decoding();
        let mut info = InstructionInfoFactory::new();
        let memory = memory_use(&mut info, instruction, decoding)
            .filter(|memory| memory.size as usize <= MOST_BOUNCED);
        let is_copied = matches!(
            treatment(instruction, mode, features),
            Treatment::Copy | Treatment::CopyVector
        );
        let mut traits = Traits::empty();
        traits.set(Traits::COPIED, is_copied);
        traits.set(Traits::X87, is_x87(instruction));
        traits.set(Traits::WAITS_FOR_X87, waits_for_x87(instruction));
        traits.set(Traits::DONE_BY_MONITOR, is_done_by_monitor(instruction));
        traits.set(Traits::SUPPRESSES_FAULTS, suppresses_faults(instruction));
        Self {
            helper: Helper::new(*instruction),
            memory,
            required_alignment: required_alignment(instruction, decoding),
            checked_alignment: memory.map_or(1, |it| checked_alignment(instruction, it.size)),
            traits,
        }
    }

    /// The instruction with the addresses at which its block runs.
    pub fn moved(&self, relocation: Relocation) -> Self {
        let mut moved = *self;
        moved.helper.instruction = relocation.instruction(&self.helper.instruction);
        moved
    }

    /// The memory operand of the instruction, if the instruction can be run on the bounce buffer.
    pub fn bounced(&self) -> Option<MemoryUse> {
        self.memory.filter(|_| self.traits.contains(Traits::COPIED))
    }
}

/// Whether the instruction belongs to the x87.
fn is_x87(instruction: &Instruction) -> bool {
    use CpuidFeature::{FPU, FPU287, FPU387};
    matches!(instruction.mnemonic(), Mnemonic::Fisttp | Mnemonic::Wait)
        || instruction
            .cpuid_features()
            .iter()
            .any(|feature| matches!(feature, FPU | FPU287 | FPU387))
}

/// Whether [`Traits::WAITS_FOR_X87`] applies to an instruction.
fn waits_for_x87(instruction: &Instruction) -> bool {
    use Mnemonic::{Fnclex, Fninit, Fnsave, Fnstcw, Fnstenv, Fnstsw};
    let is_mmx = instruction.mnemonic() == Mnemonic::Emms
        || (0..instruction.op_count()).any(|index| instruction.op_register(index).is_mm());
    (is_x87(instruction) || is_mmx)
        && !matches!(
            instruction.mnemonic(),
            Fnclex | Fninit | Fnsave | Fnstcw | Fnstenv | Fnstsw
        )
}

/// Whether [`Traits::DONE_BY_MONITOR`] applies to an instruction.
fn is_done_by_monitor(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        instruction.mnemonic(),
        Int | Iret
            | Iretd
            | Iretq
            | Retf
            | Lds
            | Les
            | Lfs
            | Lgs
            | Lss
            | Pusha
            | Pushad
            | Popa
            | Popad
    ) || instruction.is_jmp_far_indirect()
        || instruction.is_call_far()
        || instruction.is_call_far_indirect()
        || (0..instruction.op_count()).any(|index| {
            let register = instruction.op_register(index);
            register.is_segment_register()
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_x86::CpuState;

    fn decode(bytes: &[u8]) -> OutOfLine {
        let mode = Mode::of(&CpuState::at_reset());
        OutOfLine::decode(bytes, 0, &mode, &Features::new(|_| true))
    }

    #[test]
    fn an_instruction_is_known_by_its_operand_and_its_traits() {
        // 16-bit code: add [bx],ax
        let add = decode(&[0x01, 0x07]);
        let memory = add.bounced().expect("translated code copies ADD");
        assert_eq!((memory.size, memory.read, memory.write), (2, true, true));
        assert_eq!((add.required_alignment, add.checked_alignment), (1, 2));
        assert_eq!(add.traits, Traits::COPIED);
        // fld tbyte [bx]
        let load = decode(&[0xdb, 0x2f]);
        assert_eq!(load.checked_alignment, 8);
        assert_eq!(
            load.traits,
            Traits::COPIED | Traits::X87 | Traits::WAITS_FOR_X87
        );
        // fnstsw [bx]
        assert!(!decode(&[0xdd, 0x3f]).traits.contains(Traits::WAITS_FOR_X87));
        // movaps xmm0,[bx]
        assert_eq!(decode(&[0x0f, 0x28, 0x07]).required_alignment, 16);
    }

    #[test]
    fn what_the_monitor_executes_is_not_bounced() {
        // lds ax,[bx]; mov ds,[bx]; call far [bx]; pusha; popad
        let codes: [&[u8]; 5] = [
            &[0xc5, 0x07],
            &[0x8e, 0x1f],
            &[0xff, 0x1f],
            &[0x60],
            &[0x66, 0x61],
        ];
        for code in codes {
            let instruction = decode(code);
            assert!(instruction.traits.contains(Traits::DONE_BY_MONITOR));
            assert!(instruction.bounced().is_none());
        }
        // The operand of fxsave [bx] is too long.
        assert!(decode(&[0x0f, 0xae, 0x07]).bounced().is_none());
    }
}
