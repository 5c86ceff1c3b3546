//! What an instruction does with its memory operand, and which alignment the operand must have.

use crate::decode::intel_amd_differences::Decoding;
use iced_x86::{
    CpuidFeature, EncodingKind, Instruction, InstructionInfoFactory, MemorySize, Mnemonic,
    OpAccess, OpKind,
};

/// How an instruction uses its memory operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryUse {
    /// The number of bytes accessed.
    pub size: u32,
    /// Whether the operand is read.
    pub read: bool,
    /// Whether the operand is written.
    pub write: bool,
}

/// How a copied instruction uses its memory operand, if it has one.
pub fn memory_use(
    info: &mut InstructionInfoFactory,
    instruction: &Instruction,
    decoding: Decoding,
) -> Option<MemoryUse> {
    let operand =
        (0..instruction.op_count()).find(|&index| instruction.op_kind(index) == OpKind::Memory)?;
    let (read, write) = match info.info(instruction).op_access(operand) {
        OpAccess::Read | OpAccess::CondRead => (true, false),
        OpAccess::Write => (false, true),
        OpAccess::None | OpAccess::NoMemAccess => (true, false),
        OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
    };
    let size = decoding.operand_bytes(instruction);
    Some(MemoryUse { size, read, write })
}

/// The alignment in bytes that the memory operand of a copied instruction must have. Otherwise a
/// processor raises #GP(0) before it translates the address (SDM volume 1, 11.8.2.1 and 14.9).
/// AMD's processors let the SHA instructions access any address.
pub fn required_alignment(instruction: &Instruction, decoding: Decoding) -> u32 {
    use Mnemonic::*;
    let size = instruction.memory_size().size() as u32;
    let mnemonic = instruction.mnemonic();
    let demands = match instruction.code().encoding() {
        EncodingKind::Legacy => {
            let tolerant = matches!(
                mnemonic,
                Movups
                    | Movupd
                    | Movdqu
                    | Lddqu
                    | Pcmpestri
                    | Pcmpestri64
                    | Pcmpestrm
                    | Pcmpestrm64
                    | Pcmpistri
                    | Pcmpistrm
            );
            let sha = instruction.cpuid_features().contains(&CpuidFeature::SHA);
            size == 16 && !tolerant && !(sha && decoding == Decoding::Amd)
        }
        EncodingKind::VEX => matches!(
            mnemonic,
            Vmovaps | Vmovapd | Vmovdqa | Vmovntps | Vmovntpd | Vmovntdq | Vmovntdqa
        ),
        EncodingKind::EVEX => matches!(
            mnemonic,
            Vmovaps | Vmovapd | Vmovdqa32 | Vmovdqa64 | Vmovntps | Vmovntpd | Vmovntdq | Vmovntdqa
        ),
        _ => false,
    };
    if demands { size.max(1) } else { 1 }
}

/// Whether parts of the memory operand that a mask register excludes may lie where the instruction
/// must not access, without a fault (SDM volume 2, 2.7.5). Some instructions with a mask fault all
/// the same, which is left to the host's processor.
pub fn suppresses_faults(instruction: &Instruction) -> bool {
    instruction.encoding() == EncodingKind::EVEX && instruction.has_op_mask()
}

/// The alignment in bytes that CR0.AM demands of a copied instruction's operand of `size` bytes
/// (SDM volume 3, table 6-7): that of the operand's element. Operands of 16 bytes and more are not
/// checked, as on the processors that we know; SSE operands that must be aligned cause #GP in any
/// case.
pub fn checked_alignment(instruction: &Instruction, size: u32) -> u32 {
    match instruction.memory_size() {
        MemorySize::Float80 | MemorySize::Bcd => 8,
        _ if matches!(size, 2 | 4 | 8) => size,
        _ => 1,
    }
}
