//! Counts of guest instructions, and of the host instructions that are executed for them.
//!
//! If counts are wanted, each guest instruction adds to three fields of the context before its own
//! code:
//!
//! ```text
//! mov rcx, [r15+instructions]        ; one guest instruction
//! lea rcx, [rcx+1]
//! mov [r15+instructions], rcx
//! mov rcx, [r15+host_instructions]   ; the number of its host instructions
//! lea rcx, [rcx+...]
//! mov [r15+host_instructions], rcx
//! mov rcx, [r15+host_bytes]          ; the length of these in bytes
//! ...
//! ```
//!
//! The number of host instructions is known only when the code exists, so
//! [`Translator::count_host_code`] fills it in. It is the number of those that run if every look-up
//! hits and no exit is taken, without the counting itself. A conditional branch of the guest counts
//! up to its condition.

use super::Translator;
use crate::abi::context_displacements as at;
use crate::abi::host::*;
use crate::emit::assembler::{Mem, Width};
use crate::emit::host_code_count_patches::HostCodeCounts;
use crate::policy::mode::ModeFlags;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};

/// Placeholder for a count that is not known yet. It is larger than the count of any instruction,
/// and does not fit in a byte, so it is encoded as a 32-bit displacement.
const UNKNOWN: i32 = 0x0100_0000;

/// Numbers of host instructions and of their bytes on the way through `code`, as described above.
fn length_of_way(code: &[u8]) -> (u32, u32) {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let (mut instructions, mut bytes) = (0, 0);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        instructions += 1;
        bytes += instruction.len() as u32;
        let target = instruction.near_branch_target();
        let leads_on = target > instruction.next_ip() && target <= code.len() as u64;
        let skips = match instruction.flow_control() {
            FlowControl::ConditionalBranch => leads_on && instruction.mnemonic() == Mnemonic::Jrcxz,
            FlowControl::UnconditionalBranch if leads_on => true,
            FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => break,
            _ => false,
        };
        // The branch leads over an exit or over an island.
        if skips {
            if decoder.set_position(target as usize).is_err() {
                break;
            }
            decoder.set_ip(target);
        }
    }
    (instructions, bytes)
}

impl Translator {
    /// Emits the counting of the current instruction if counts are wanted. It comes before the
    /// instruction's own code, so that an instruction that is started again is not counted twice.
    /// An instruction that runs on the bounce buffer was already counted when it began.
    pub(super) fn count_instruction(&mut self) {
        self.emit.counts = None;
        if !self.counts_instructions || self.emit.mode.flags.contains(ModeFlags::BOUNCE) {
            return;
        }
        self.add_to(at::INSTRUCTIONS, 1);
        let instructions = self.add_to(at::HOST_INSTRUCTIONS, UNKNOWN);
        let bytes = self.add_to(at::HOST_BYTES, UNKNOWN);
        let begin = self.emit.assembler.position();
        self.emit.start = begin;
        self.emit.counts = Some(HostCodeCounts {
            instructions,
            bytes,
            begin,
        });
    }

    /// Emits an addition to a field. Returns the position of the displacement that is the addend.
    /// Uses RCX.
    fn add_to(&mut self, field: i32, more: i32) -> usize {
        let field = self.emit.field(field);
        let assembler = &mut self.emit.assembler;
        assembler.load(Width::Qword, RCX, field);
        assembler.lea64(RCX, Mem::base(RCX, more));
        let behind = assembler.position();
        assembler.store(Width::Qword, field, RCX);
        behind - size_of::<u32>()
    }

    /// Fills in the counts of the current instruction after its code is complete.
    pub(super) fn count_host_code(&mut self) {
        let Some(counts) = self.emit.counts.take() else {
            return;
        };
        let code = &self.emit.assembler.code()[counts.begin..];
        let (instructions, bytes) = length_of_way(code);
        self.emit
            .assembler
            .patch_imm32(counts.instructions, instructions);
        self.emit.assembler.patch_imm32(counts.bytes, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_leads_over_what_short_branches_skip() {
        // jrcxz +1; int3; nop; jmp +1; int3; ret
        let code = [0xe3, 1, 0xcc, 0x90, 0xeb, 1, 0xcc, 0xc3];
        assert_eq!(length_of_way(&code), (4, 6));
    }

    #[test]
    fn it_ends_where_the_code_goes_elsewhere() {
        // The code has a branch that is not taken, nop, and jmp, whose distance is not known yet.
        let code = [0xe3, 0, 0x90, 0xe9, 0, 0, 0, 0, 0x90];
        assert_eq!(length_of_way(&code), (3, 8));
    }

    #[test]
    fn a_conditional_branch_of_the_guest_goes_on() {
        // The code has jz and jmp, whose distances are not known yet.
        let code = [0x0f, 0x84, 0, 0, 0, 0, 0xe9, 0, 0, 0, 0];
        assert_eq!(length_of_way(&code), (2, 11));
    }
}
