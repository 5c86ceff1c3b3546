//! What has been found out about encodings: asked once each, then looked up.
//!
//! Much of what the allow-list and iced-x86's tables say of an instruction follows from its
//! [`Code`] alone. Asking them costs as much as emitting the copy does, so the answers are kept.

use crate::decode::maker::Decoding;
use crate::policy::memory_operand::MemoryUse;
use iced_x86::{Code, EncodingKind, Instruction, Mnemonic};

bitflags::bitflags! {
    /// What is known of one encoding.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Known: u8 {
        /// Copied in every mode, whatever its operands are.
        const COPIED = 1 << 0;
        /// The next two bits count.
        const MEMORY_USE = 1 << 1;
        /// Its memory operand, if it has one, is read.
        const READ = 1 << 2;
        /// It is written.
        const WRITE = 1 << 3;
    }
}

/// The answers so far, for one guest's features.
pub(super) struct KnownEncodings {
    /// By number of the encoding.
    known: Box<[Known]>,
}

/// Whether the allow-list's answer depends on nothing but the encoding, once it is "copy".
fn depends_on_encoding_alone(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    // VEX depends on the mode, LAHF on the code's size, bits of a string on the operand's kind.
    instruction.encoding() == EncodingKind::Legacy
        && !matches!(instruction.mnemonic(), Lahf | Sahf | Bt | Btc | Btr | Bts)
}

impl KnownEncodings {
    /// Nothing is known.
    pub(super) fn new() -> Self {
        let encodings = Code::values().len();
        Self {
            known: vec![Known::empty(); encodings].into_boxed_slice(),
        }
    }

    /// The instruction is a general one that is copied; false: not known.
    pub(super) fn is_copied(&self, instruction: &Instruction) -> bool {
        self.known[instruction.code() as usize].contains(Known::COPIED)
    }

    /// The allow-list has said that a general instruction is copied.
    pub(super) fn note_copied(&mut self, instruction: &Instruction) {
        if depends_on_encoding_alone(instruction) {
            self.known[instruction.code() as usize] |= Known::COPIED;
        }
    }

    /// What the memory operand of an instruction, which has one, is for. `find` finds it out.
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

    /// Random instructions of all widths, those with operands of memory and of registers.
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
