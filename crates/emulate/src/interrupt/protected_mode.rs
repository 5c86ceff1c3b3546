//! Plans of deliveries in protected and V86 mode (SDM volume 3, 6.12): gates of 8 bytes in the IDT,
//! which lead to code of 16 or 32 bits, or to another task.

use super::plan::{FrameForm, FrameStack, Plan};
use super::reads::Reader;
use super::{Event, EventSource, Target};
use crate::descriptor_table::{TableEntry, accessed_segment, read_descriptor};
use crate::operand::read_system;
use crate::privilege_change::{check_code_offset, entered_code, inner_stack};
use crate::stack_access::Stack;
use crate::task_switch::find_task;
use crate::virtual_8086::{SoftwareInterruptHandler, software_interrupt_handler};
use tollgate_x86::descriptor::system_type;
use tollgate_x86::{Attributes, CpuState, Descriptor, Exception, Flags, Segment};

/// The handler that an IDT entry leads to.
enum Handler {
    Code(Gate),
    /// Another task, by its TSS descriptor.
    Task(TableEntry),
}

/// The target of a gate, and its effect on the flags.
struct Gate {
    segment: Segment,
    offset: u64,
    /// Size in bytes of each pushed value, 2 or 4.
    size: u32,
    clears_interrupt_flag: bool,
}

impl Event {
    /// Reads the gate, and checks it and its code segment.
    fn gate(&self, state: &CpuState, tables: &mut Reader) -> Result<Handler, Exception> {
        let external = self.source.external_bit();
        let refused = Exception::general_protection(self.gate_error_code());
        let offset = u32::from(self.vector) * 8;
        if offset + 7 > u32::from(state.idtr.limit) {
            return Err(refused);
        }
        let mut bytes = [0; 8];
        let base = state.idtr.base;
        read_system(state, tables, base, u64::from(offset), &mut bytes)?;
        let gate = Descriptor(u64::from_le_bytes(bytes));
        let attributes = gate.attributes();
        let kind = attributes.kind();
        let size = match kind {
            system_type::INTERRUPT_GATE16 | system_type::TRAP_GATE16 => 2,
            system_type::INTERRUPT_GATE32 | system_type::TRAP_GATE32 => 4,
            system_type::TASK_GATE => 0,
            _ => return Err(refused),
        };
        if attributes.contains(Attributes::NOT_SYSTEM) {
            return Err(refused);
        }
        if self.source.is_checked_for_privilege() && attributes.dpl() < state.cpl() {
            return Err(refused);
        }
        if !attributes.contains(Attributes::PRESENT) {
            return Err(Exception::segment_not_present(self.gate_error_code()));
        }
        if kind == system_type::TASK_GATE {
            let selector = gate.gate_selector();
            let task = find_task(state, tables, selector, self.cause())?;
            return Ok(Handler::Task(task));
        }
        let selector = gate.gate_selector();
        let error_code = selector.error_code() | external;
        let refused = Exception::general_protection(error_code);
        let entry: TableEntry = read_descriptor(state, tables, selector)?.ok_or(refused)?;
        let code = entry.attributes();
        // From V86 mode, only a non-conforming segment of level 0 is allowed.
        let privilege_fits = if state.is_virtual_8086() {
            code.dpl() == 0 && !code.is_conforming()
        } else {
            code.dpl() <= state.cpl()
        };
        if !code.is_code() {
            return Err(refused);
        }
        if code.dpl() > state.cpl() {
            return Err(refused);
        }
        if !entry.is_present() {
            return Err(Exception::segment_not_present(error_code));
        }
        if !privilege_fits {
            return Err(refused);
        }
        let offset = gate.gate_offset() & if size == 2 { 0xffff } else { u32::MAX };
        Ok(Handler::Code(Gate {
            segment: accessed_segment(state, tables, entry)?,
            offset: u64::from(offset),
            size,
            clears_interrupt_flag: matches!(
                kind,
                system_type::INTERRUPT_GATE16 | system_type::INTERRUPT_GATE32
            ),
        }))
    }

    /// Protected and V86 mode: the IDT (SDM volume 3, 6.12.1), or a V86 program's own handler.
    pub(super) fn plan_protected(
        &self,
        state: &CpuState,
        tables: &mut Reader,
        target: &mut Target,
    ) -> Result<(), Exception> {
        let is_virtual_8086 = state.is_virtual_8086();
        if is_virtual_8086 && self.source == EventSource::Software {
            match software_interrupt_handler(state, tables, self.vector)? {
                SoftwareInterruptHandler::DescriptorTable => {}
                SoftwareInterruptHandler::Program => {
                    return self.plan_to_program(state, tables, target);
                }
            }
        }
        let gate = match self.gate(state, tables)? {
            Handler::Code(gate) => gate,
            Handler::Task(task) => {
                *target = Target::Task(task);
                return Ok(());
            }
        };
        let external = self.source.external_bit();
        let code = gate.segment.attributes;
        let changes_level = !code.is_conforming() && code.dpl() < state.cpl();
        let cpl = if changes_level {
            code.dpl()
        } else {
            state.cpl()
        };
        let stack = if changes_level {
            let inner = inner_stack(state, tables, cpl, external)?;
            tables.reads.exempt(inner.slot.place, inner.slot.size);
            FrameStack::inner(&inner)
        } else {
            FrameStack {
                error_code: external,
                ..FrameStack::current(&Stack::current(state))
            }
        };
        check_code_offset(state, &gate.segment, gate.offset, external)?;
        let mut cleared = Flags::TF | Flags::NT | Flags::RF | Flags::VM;
        if gate.clears_interrupt_flag {
            cleared |= Flags::IF;
        }
        *target = Target::Handler(Plan {
            form: match changes_level {
                true if is_virtual_8086 => FrameForm::Task,
                true => FrameForm::OtherStack,
                false => FrameForm::SameStack,
            },
            size: gate.size,
            stack,
            code: entered_code(state, &gate.segment, cpl),
            rip: gate.offset,
            cpl,
            cleared,
        });
        Ok(())
    }
}
