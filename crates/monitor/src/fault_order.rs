//! Which fault comes first, where a memory operand's is met too early.
//!
//! Emitted code looks its operand up before the instruction itself runs on the host. Two
//! faults of the instruction come before those of the operand's page: a pending x87
//! error, for which the instruction waits, and the misalignment of an SSE operand.

use crate::vcpu::Vcpu;
use iced_x86::{CpuidFeature, EncodingKind, Instruction, Mnemonic};
use tollgate_platform::Platform;
use tollgate_x86::{Cr0, Exception, LinearAddress, Vector};

/// FSW.ES: an unmasked x87 exception is pending.
const ERROR_SUMMARY: u8 = 0x80;

/// An x87 or MMX instruction that looks for pending x87 exceptions first
/// (SDM volume 1, 8.3.11).
fn waits_for_x87(instruction: &Instruction) -> bool {
    use CpuidFeature::{FPU, FPU287, FPU387};
    let is_x87 = instruction
        .cpuid_features()
        .iter()
        .any(|feature| matches!(feature, FPU | FPU287 | FPU387))
        || instruction.mnemonic() == Mnemonic::Fisttp;
    let is_mmx = (0..instruction.op_count()).any(|index| instruction.op_register(index).is_mm());
    (is_x87 || is_mmx) && !matches!(instruction.mnemonic(), Mnemonic::Fnstcw | Mnemonic::Fnstsw)
}

/// The alignment without which the instruction is #GP(0), in bytes
/// (SDM volume 2, tables 2-18 to 2-21).
fn required_alignment(instruction: &Instruction) -> u64 {
    use Mnemonic::*;
    let size = instruction.memory_size().size() as u64;
    let mnemonic = instruction.mnemonic();
    let demands = match instruction.encoding() {
        EncodingKind::Legacy => {
            size == 16
                && !matches!(
                    mnemonic,
                    Movups
                        | Movupd
                        | Movdqu
                        | Lddqu
                        | Pcmpestri
                        | Pcmpestrm
                        | Pcmpistri
                        | Pcmpistrm
                )
        }
        EncodingKind::VEX => matches!(
            mnemonic,
            Vmovaps | Vmovapd | Vmovdqa | Vmovntps | Vmovntpd | Vmovntdq | Vmovntdqa
        ),
        _ => false,
    };
    if demands { size.max(1) } else { 1 }
}

impl<P: Platform> Vcpu<P> {
    /// The fault that the instruction at CS:EIP raises whose operand at `linear` faults
    /// like that.
    pub(crate) fn first_fault(&mut self, linear: LinearAddress, fault: Exception) -> Exception {
        let Ok(instruction) = self.decode_current() else {
            return fault;
        };
        let cpu = &self.context.cpu;
        if cpu.vector.0[2] & ERROR_SUMMARY != 0
            && cpu.cr0().contains(Cr0::NE)
            && waits_for_x87(&instruction)
        {
            return Exception::new(Vector::FloatingPoint);
        }
        if linear.0 % required_alignment(&instruction) != 0 {
            return Exception::general_protection(0);
        }
        fault
    }
}
