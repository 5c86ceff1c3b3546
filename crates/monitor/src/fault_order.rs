//! Which of an instruction's faults comes first.
//!
//! Copied code finds out about the pages of its operand before the host's processor sees
//! the instruction. A pending x87 exception (#MF) and a misaligned operand (#GP) come
//! before page faults and limits (SDM volume 3, table 6-2), so whoever is about to raise
//! one of those asks here first.

use crate::vcpu::Vcpu;
use iced_x86::{CpuidFeature, EncodingKind, Instruction, Mnemonic};
use tollgate_emulate::operand::memory_address;
use tollgate_platform::Platform;
use tollgate_x86::{Cr0, Exception, Vector};

/// The instruction is one of the x87's.
pub(crate) fn is_x87(instruction: &Instruction) -> bool {
    use CpuidFeature::{FPU, FPU287, FPU387};
    matches!(instruction.mnemonic(), Mnemonic::Fisttp | Mnemonic::Wait)
        || instruction
            .cpuid_features()
            .iter()
            .any(|feature| matches!(feature, FPU | FPU287 | FPU387))
}

/// The instruction raises #MF if an x87 exception is pending (SDM volume 1, 8.7 and
/// 9.5.5): WAIT, all of the x87 but the no-wait forms, and those that use MMX registers.
pub(crate) fn waits_for_x87(instruction: &Instruction) -> bool {
    use Mnemonic::{Fnclex, Fninit, Fnsave, Fnstcw, Fnstenv, Fnstsw};
    if is_x87(instruction) {
        return !matches!(
            instruction.mnemonic(),
            Fnclex | Fninit | Fnsave | Fnstcw | Fnstenv | Fnstsw
        );
    }
    instruction.mnemonic() == Mnemonic::Emms
        || (0..instruction.op_count()).any(|index| instruction.op_register(index).is_mm())
}

/// The alignment that the memory operand must have, in bytes; 1 if any will do (SDM
/// volume 1, 14.9, and volume 2, 2.4).
fn demanded_alignment(instruction: &Instruction) -> u64 {
    use Mnemonic::*;
    let vector = (0..instruction.op_count()).any(|index| {
        let register = instruction.op_register(index);
        register.is_vector_register() || register.is_mm()
    });
    let size = instruction.memory_size().size() as u64;
    let mnemonic = instruction.mnemonic();
    match instruction.encoding() {
        EncodingKind::VEX => match mnemonic {
            Vmovaps | Vmovapd | Vmovdqa | Vmovntps | Vmovntpd | Vmovntdq | Vmovntdqa => size,
            _ => 1,
        },
        EncodingKind::Legacy if vector && size == 16 => match mnemonic {
            Movups | Movupd | Movdqu | Lddqu | Pcmpestri | Pcmpestrm | Pcmpistri | Pcmpistrm => 1,
            _ => 16,
        },
        _ => 1,
    }
}

impl<P: Platform> Vcpu<P> {
    /// The x87 instruction that just ran on the bounce buffer stored nothing: it raised an
    /// unmasked exception other than precision (SDM volume 1, 8.5). One that had been
    /// pending before would have been raised instead.
    pub(crate) fn store_was_suppressed(&self, instruction: &Instruction) -> bool {
        const PRECISION: u8 = 1 << 5;
        let area = &self.context.cpu.vector.0;
        let raised = area[2] & !area[0] & 0x3f & !PRECISION;
        waits_for_x87(instruction) && raised != 0
    }

    /// The fault of a copied instruction that comes before any of its memory operand's
    /// limit and pages. The save area holds the vector registers.
    pub(crate) fn earlier_fault(&mut self, instruction: &Instruction) -> Option<Exception> {
        let cpu = &self.context.cpu;
        let pending = cpu.vector.0[512] & 1 != 0 && cpu.vector.0[2] & 0x80 != 0;
        if pending && waits_for_x87(instruction) {
            if !cpu.cr0().contains(Cr0::NE) {
                self.platform.signal_fpu_error();
            }
            return Some(Exception::new(Vector::FloatingPoint));
        }
        let alignment = demanded_alignment(instruction);
        let address = memory_address(cpu, instruction);
        let linear = cpu
            .segment(address.segment)
            .base
            .wrapping_add(address.offset);
        (!linear.is_multiple_of(alignment)).then(|| Exception::general_protection(0))
    }
}
