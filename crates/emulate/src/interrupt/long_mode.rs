//! Plans of deliveries in IA-32e mode (SDM volume 3, 6.14): gates of 16 bytes that lead to 64-bit
//! code; SS and RSP are always pushed; SS is null for an inner level; stacks are selected by number
//! (IST).

use super::plan::{FrameForm, FrameStack, Plan};
use super::reads::Reader;
use super::{Event, Target};
use crate::descriptor_table::{accessed_segment, has_valid_code_size, read_descriptor};
use crate::operand::read_system;
use crate::privilege_change::{StackSlot, check_code_offset, entered_code, long_inner_stack};
use tollgate_x86::descriptor::system_type;
use tollgate_x86::paging::Privilege;
use tollgate_x86::{Attributes, CpuState, Descriptor, Exception, Flags, Segment};

/// The target of a gate.
struct Gate {
    segment: Segment,
    offset: u64,
    /// Number of the stack in the interrupt stack table: 1 to 7, or 0 for none.
    stack_number: u8,
    clears_interrupt_flag: bool,
}

impl Event {
    /// Reads the gate, and checks it and its code segment.
    fn long_gate(&self, state: &CpuState, tables: &mut Reader) -> Result<Gate, Exception> {
        let external = self.source.external_bit();
        let refused = Exception::general_protection(self.gate_error_code());
        let offset = u32::from(self.vector) * 16;
        if offset + 15 > u32::from(state.idtr.limit) {
            return Err(refused);
        }
        let mut bytes = [0; 16];
        let base = state.idtr.base;
        read_system(state, tables, base, u64::from(offset), &mut bytes)?;
        let halves = u128::from_le_bytes(bytes);
        let (gate, high) = (Descriptor(halves as u64), (halves >> 64) as u64);
        let attributes = gate.attributes();
        let kind = attributes.kind();
        let is_gate = matches!(
            kind,
            system_type::INTERRUPT_GATE32 | system_type::TRAP_GATE32
        );
        if !is_gate || attributes.contains(Attributes::NOT_SYSTEM) {
            return Err(refused);
        }
        if self.source.is_checked_for_privilege() && attributes.dpl() < state.cpl() {
            return Err(refused);
        }
        if !attributes.contains(Attributes::PRESENT) {
            return Err(Exception::segment_not_present(self.gate_error_code()));
        }
        let selector = gate.gate_selector();
        let error_code = selector.error_code() | external;
        let refused = Exception::general_protection(error_code);
        let entry = read_descriptor(state, tables, selector)?.ok_or(refused)?;
        let code = entry.attributes();
        if !code.is_code() || code.dpl() > state.cpl() {
            return Err(refused);
        }
        if !entry.is_present() {
            return Err(Exception::segment_not_present(error_code));
        }
        if !code.is_long_code() || !has_valid_code_size(state, code) {
            return Err(refused);
        }
        let offset = u64::from(gate.gate_offset()) | high << 32;
        Ok(Gate {
            segment: accessed_segment(state, tables, entry)?,
            offset,
            stack_number: (gate.0 >> 32 & 7) as u8,
            clears_interrupt_flag: kind == system_type::INTERRUPT_GATE32,
        })
    }

    /// IA-32e mode, including compatibility mode.
    pub(super) fn plan_long(
        &self,
        state: &CpuState,
        tables: &mut Reader,
        target: &mut Target,
    ) -> Result<(), Exception> {
        let gate = self.long_gate(state, tables)?;
        let external = self.source.external_bit();
        let code = gate.segment.attributes;
        let changes_level = !code.is_conforming() && code.dpl() < state.cpl();
        let cpl = if changes_level {
            code.dpl()
        } else {
            state.cpl()
        };
        let slot = match gate.stack_number {
            0 if changes_level => Some(StackSlot::Level(cpl)),
            0 => None,
            number => Some(StackSlot::InterruptStack(number)),
        };
        let mut stack = FrameStack {
            segment: None,
            slot: None,
            is_64_bit: true,
            privilege: Privilege::of_cpl(cpl),
            error_code: external,
        };
        if let Some(slot) = slot {
            let inner = long_inner_stack(state, tables, slot, cpl, external)?;
            tables.reads.exempt(inner.slot.place, inner.slot.size);
            stack.slot = Some(inner.slot);
            // SS becomes null only where the level changes.
            stack.segment = changes_level.then_some(inner.stack.segment);
        }
        check_code_offset(state, &gate.segment, gate.offset, external)?;
        let mut cleared = Flags::TF | Flags::NT | Flags::RF | Flags::VM;
        if gate.clears_interrupt_flag {
            cleared |= Flags::IF;
        }
        *target = Target::Handler(Plan {
            form: FrameForm::OtherStack,
            size: 8,
            stack,
            code: entered_code(state, &gate.segment, cpl),
            rip: gate.offset,
            cpl,
            cleared,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
