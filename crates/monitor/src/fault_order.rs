//! Which fault comes first, where a memory operand's is met too early.
//!
//! Emitted code looks its operand up before the instruction itself runs on the host. Two
//! faults of the instruction come before those of the operand's page: a pending x87
//! error, for which the instruction waits, and the misalignment of an SSE operand.

use crate::vcpu::Vcpu;
use crate::x87_errors::waits_for_x87;
use iced_x86::{EncodingKind, Instruction, Mnemonic};
use tollgate_platform::Platform;
use tollgate_x86::{Cr0, Exception, LinearAddress, Vector};

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
        if self.x87_error_pending() && cpu.cr0().contains(Cr0::NE) && waits_for_x87(&instruction) {
            return Exception::new(Vector::FloatingPoint);
        }
        if !linear.0.is_multiple_of(required_alignment(&instruction)) {
            return Exception::general_protection(0);
        }
        fault
    }
}
