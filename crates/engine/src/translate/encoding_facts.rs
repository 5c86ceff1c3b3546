//! A cache of facts about instruction encodings, each of which is determined once.
//!
//! Most of what the allow-list and iced-x86's tables say of an instruction follows from its
//! [`Code`] alone. Asking them costs as much as emitting the copy, so the answers are kept.

use crate::decode::intel_amd_differences::Decoding;
use crate::policy::memory_operand::MemoryUse;
use iced_x86::{Code, EncodingKind, Instruction, Mnemonic};

bitflags::bitflags! {
    /// What is known of one encoding.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Known: u8 {
        /// The instruction is copied in every mode, whatever its operands are.
        const COPIED = 1 << 0;
        /// The next two bits are valid.
        const MEMORY_USE = 1 << 1;
        /// The memory operand, if there is one, is read.
        const READ = 1 << 2;
        /// The memory operand, if there is one, is written.
        const WRITE = 1 << 3;
    }
}

/// The answers so far, for the features of one guest.
pub(super) struct KnownEncodings {
    /// The facts about each encoding, indexed by the number of its [`Code`].
    known: Box<[Known]>,
}

/// Whether an answer "copy" of the allow-list depends only on the encoding.
fn depends_on_encoding_alone(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    // VEX encodings depend on the mode, LAHF on the code size, and bit tests on the operand's kind.
    instruction.encoding() == EncodingKind::Legacy
        && !matches!(instruction.mnemonic(), Lahf | Sahf | Bt | Btc | Btr | Bts)
}

impl KnownEncodings {
    /// Makes an empty cache.
    pub(super) fn new() -> Self {
        let encodings = Code::values().len();
        Self {
            known: vec![Known::empty(); encodings].into_boxed_slice(),
        }
    }

    /// Whether the instruction is known to be a general one that is copied.
    pub(super) fn is_copied(&self, instruction: &Instruction) -> bool {
        self.known[instruction.code() as usize].contains(Known::COPIED)
    }

    /// Notes that the allow-list has said that a general instruction is copied.
    pub(super) fn note_copied(&mut self, instruction: &Instruction) {
        if depends_on_encoding_alone(instruction) {
            self.known[instruction.code() as usize] |= Known::COPIED;
        }
    }

    /// How an instruction with a memory operand uses that operand. `find` is called if the answer
    /// is not known yet.
    pub(super) fn memory_use(
        &mut self,
        instruction: &Instruction,
        decoding: Decoding,
        find: impl FnOnce() -> Option<MemoryUse>,
    ) -> Option<MemoryUse> {
        let known = &mut self.known[instruction.code() as usize];
        if known.contains(Known::MEMORY_USE) {
            return Some(MemoryUse {
                size: decoding.operand_bytes(instruction),
                read: known.contains(Known::READ),
                write: known.contains(Known::WRITE),
            });
        }
        let found = find()?;
        *known |= Known::MEMORY_USE;
        known.set(Known::READ, found.read);
        known.set(Known::WRITE, found.write);
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::allow_list::{Features, Treatment, treatment};
    use crate::policy::memory_operand::memory_use;
    use crate::policy::mode::Mode;
    use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory};
    use tollgate_test_support::Random;
    use tollgate_x86::CpuState;

    /// Random instructions of all code sizes, with operands in memory and in registers.
    fn instructions() -> impl Iterator<Item = Instruction> {
        let mut random = Random::new(11);
        (0..200_000).map(move |_| {
            let mut bytes = [0_u8; 16];
            bytes.fill_with(|| random.below(256) as u8);
            if random.below(2) == 0 {
                bytes[0] = 0x0f;
            }
            let bits = [16, 32, 64][random.below(3)];
            Decoder::new(bits, &bytes, DecoderOptions::NONE).decode()
        })
    }

    #[test]
    fn what_is_known_is_what_is_found_out() {
        let mut known = KnownEncodings::new();
        let mut info = InstructionInfoFactory::new();
        let features = Features::new(|_| true);
        let mode = Mode::of(&CpuState::at_reset());
        let mut again = 0;
        for instruction in instructions().filter(|instruction| !instruction.is_invalid()) {
            let copies = treatment(&instruction, &mode, &features) == Treatment::Copy;
            again += u32::from(known.is_copied(&instruction));
            assert!(copies || !known.is_copied(&instruction), "{instruction}");
            if copies {
                known.note_copied(&instruction);
            }
            let Some(found) = memory_use(&mut info, &instruction, Decoding::Intel) else {
                continue;
            };
            let known = known.memory_use(&instruction, Decoding::Intel, || Some(found));
            if copies {
                assert_eq!(known, Some(found), "{instruction}");
            }
        }
        assert!(again > 10_000);
    }
}
