//! Which fault is reported first, where the monitor finds a memory operand's fault before others
//! that the processor would report instead.
//!
//! Emitted code looks its operand up before the instruction itself runs on the host. Two
//! faults of the instruction come before those of the operand's page: a pending x87
//! error, for which the instruction waits, and the misalignment of an SSE operand.

use crate::vcpu::Vcpu;
use crate::x87_errors::waits_for_x87;
use iced_x86::{Instruction, Mnemonic};
use tollgate_emulate::operand::memory_address;
use tollgate_engine::translate::copy::required_alignment;
use tollgate_platform::Platform;
use tollgate_x86::{Cr0, Exception, LinearAddress, Vector};

fn is_far_call(instruction: &Instruction) -> bool {
    instruction.is_call_far() || instruction.is_call_far_indirect()
}

impl<P: Platform> Vcpu<P> {
    /// The fault that the copied instruction at CS:EIP raises whose operand at `linear`
    /// was found to fault like that before the instruction ran.
    pub(crate) fn first_fault(&mut self, linear: LinearAddress, fault: Exception) -> Exception {
        let Ok(instruction) = self.decode_current() else {
            return fault;
        };
        let cpu = &self.context.cpu;
        if self.x87_error_pending() && cpu.cr0().contains(Cr0::NE) && waits_for_x87(&instruction) {
            return Exception::new(Vector::FloatingPoint);
        }
        let alignment = required_alignment(&instruction, self.features.decoding());
        if !linear.0.is_multiple_of(u64::from(alignment)) {
            return Exception::general_protection(0);
        }
        fault
    }

    /// The instruction at CS:EIP, part of which emitted code looked up, is one that the
    /// monitor does as a whole if anything is unusual: several accesses in one.
    pub(crate) fn is_done_by_monitor(&mut self) -> bool {
        use Mnemonic::*;
        self.decode_current().is_ok_and(|it| {
            matches!(
                it.mnemonic(),
                Int | Iret | Iretd | Iretq | Retf | Lds | Les | Lfs | Lgs | Lss
            ) || it.is_jmp_far_indirect()
                || is_far_call(&it)
                || (0..it.op_count()).any(|index| it.op_register(index).is_segment_register())
        })
    }

    /// The alignment fault of a copied instruction, which comes before the limit too.
    pub(crate) fn misalignment(&self, instruction: &Instruction) -> Option<Exception> {
        let cpu = &self.context.cpu;
        let address = memory_address(cpu, instruction);
        let linear = cpu
            .segment_base(address.segment)
            .wrapping_add(address.offset);
        let alignment = required_alignment(instruction, self.features.decoding());
        (!linear.is_multiple_of(u64::from(alignment))).then(|| Exception::general_protection(0))
    }

    /// The x87 instruction that just ran on the bounce buffer stored nothing: it raised an
    /// unmasked exception other than precision (SDM volume 1, 8.5). One that had been
    /// pending before would have been raised instead.
    pub(crate) fn store_was_suppressed(&self, instruction: &Instruction) -> bool {
        const PRECISION: u8 = 1 << 5;
        let area = &self.context.cpu.vector.0;
        let raised = area[2] & !area[0] & 0x3f & !PRECISION;
        waits_for_x87(instruction) && raised != 0
    }
}
