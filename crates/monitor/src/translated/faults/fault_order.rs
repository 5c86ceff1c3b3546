//! Decides which fault is reported first, where the monitor finds a memory operand's fault before
//! other faults that the processor would report instead.
//!
//! Emitted code looks its operand up before the instruction itself runs on the host. Two faults of
//! the instruction have priority over a fault of the operand's page: a pending x87 error, for which
//! the instruction waits, and the misalignment of an SSE operand.

use crate::execution::x87_errors::is_error_pending;
use crate::translated::Translated;
use crate::translated::processor::Processor;
use tollgate_emulate::operand::memory_address;
use tollgate_engine::abi::sites::BlockId;
use tollgate_engine::policy::out_of_line::{OutOfLine, Traits};
use tollgate_x86::{Cr0, Exception, LinearAddress, Vector};

impl Processor<'_> {
    /// The fault that the instruction at CS:EIP raises. Its operand at `linear` was found to cause
    /// `exception` before the instruction ran; the instruction is one of this block. `None` means
    /// that emitted code looked up only a part of an instruction which the monitor executes as a
    /// whole if anything is unusual: one that makes several accesses, or whose mask excludes lanes.
    pub(crate) fn fault_of_operand(
        &mut self,
        block: BlockId,
        linear: LinearAddress,
        fault: Exception,
    ) -> Option<Exception> {
        let place = self.runner.instruction_place(block);
        let (engine, memory) = (&mut self.runner.engine, &self.view.memory);
        let (traits, alignment) = match engine.out_of_line_traits(place, memory) {
            Some(known) => known,
            None => match self.decode_current() {
                Ok(instruction) => (instruction.traits, instruction.required_alignment),
                Err(_) => return Some(fault),
            },
        };
        if traits.intersects(Traits::DONE_BY_MONITOR | Traits::SUPPRESSES_FAULTS) {
            return None;
        }
        let cpu = &self.runner.context.cpu;
        let reports = cpu.cr0().contains(Cr0::NE);
        if traits.contains(Traits::WAITS_FOR_X87) && reports && is_error_pending(cpu) {
            return Some(Exception::new(Vector::FloatingPoint));
        }
        if !linear.0.is_multiple_of(u64::from(alignment)) {
            return Some(Exception::general_protection(0));
        }
        Some(fault)
    }
}

impl Translated {
    /// The alignment fault of a copied instruction, which has priority over a fault of the limit,
    /// too.
    pub(crate) fn misalignment(&self, instruction: &OutOfLine) -> Option<Exception> {
        let alignment = u64::from(instruction.required_alignment);
        if alignment == 1 {
            return None;
        }
        let cpu = &self.context.cpu;
        let address = memory_address(cpu, &instruction.helper.instruction);
        let linear = cpu
            .segment_base(address.segment)
            .wrapping_add(address.offset);
        (!linear.is_multiple_of(alignment)).then(|| Exception::general_protection(0))
    }

    /// Whether the x87 instruction that just ran on the bounce buffer stored nothing, because it
    /// raised an unmasked exception other than precision (SDM volume 1, 8.5). An exception that had
    /// been pending before would have been raised instead.
    pub(crate) fn store_was_suppressed(&self, instruction: &OutOfLine) -> bool {
        const PRECISION: u8 = 1 << 5;
        let area = &self.context.cpu.vector.0;
        let raised = area[2] & !area[0] & 0x3f & !PRECISION;
        instruction.traits.contains(Traits::WAITS_FOR_X87) && raised != 0
    }
}
