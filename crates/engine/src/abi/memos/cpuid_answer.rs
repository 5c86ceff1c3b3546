//! The memos of CPUID: answers that the monitor has given.

use crate::abi::memos::{Memo, MemoTable};

/// One answer of CPUID.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(32))]
pub struct CpuidAnswer {
    /// EAX before the instruction.
    pub leaf: u32,
    /// ECX before the instruction, in [`CpuidAnswers::by_both`].
    pub subleaf: u32,
    /// Zero if the place is vacant.
    pub is_known: u32,
    /// EAX, EBX, ECX and EDX after the instruction.
    pub registers: [u32; 4],
}

impl Memo for CpuidAnswer {
    const NONE: Self = Self {
        leaf: 0,
        subleaf: 0,
        is_known: 0,
        registers: [0; 4],
    };

    fn key(&self) -> Option<u64> {
        let key = u64::from(self.subleaf) << 32 | u64::from(self.leaf);
        (self.is_known != 0).then_some(key)
    }

    fn clear(&mut self) {
        self.is_known = 0;
    }
}

/// The number of entries in [`CpuidAnswers::by_leaf`].
pub const ANSWERS_BY_LEAF: usize = 128;
/// The number of entries in [`CpuidAnswers::by_both`].
pub const ANSWERS_BY_BOTH: usize = 256;

/// The known answers of CPUID, in two tables.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CpuidAnswers {
    /// Answers that do not depend on ECX. The index consists of the leaf's low bits and one bit for
    /// extended leaves.
    pub by_leaf: [CpuidAnswer; ANSWERS_BY_LEAF],
    /// Answers that depend on ECX.
    pub by_both: MemoTable<CpuidAnswer, ANSWERS_BY_BOTH>,
}

impl CpuidAnswers {
    /// Tables without answers.
    pub const NONE: Self = Self {
        by_leaf: [CpuidAnswer::NONE; ANSWERS_BY_LEAF],
        by_both: MemoTable::NONE,
    };

    /// Notes the answer to a leaf and a subleaf. The answer depends on the subleaf if
    /// `has_subleaves`.
    pub fn note(&mut self, leaf: u32, subleaf: u32, has_subleaves: bool, registers: [u32; 4]) {
        let answer = CpuidAnswer {
            leaf,
            subleaf,
            is_known: 1,
            registers,
        };
        if has_subleaves {
            self.by_both.note(answer);
        } else {
            self.by_leaf[(leaf >> 25 & 0x40 | leaf & 0x3f) as usize] = answer;
        }
    }
}
