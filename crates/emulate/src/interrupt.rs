//! Delivery of interrupts and exceptions (SDM volume 3, chapter 6 and 21.3; volume 2, INT n).
//!
//! Delivery is atomic: every step that can fault precedes the first change of a register.
//! [`crate::virtual_8086`] decides who handles INT n of V86 code. A task gate leads to another
//! task, and the faults of that task are raised after it has become the current one.

use crate::Outcome;
use crate::descriptor_table::{TableEntry, accessed_segment, read_descriptor};
use crate::operand::{next_rip, read_system};
use crate::privilege_change::{check_code_offset, enter_code, inner_stack};
use crate::stack_access::Stack;
use crate::task_switch::{Cause, find_task, switch_task};
use crate::virtual_8086::{
    SoftwareInterruptHandler, deliver_to_program, software_interrupt_handler,
};
use iced_x86::{Code, Instruction};
use tollgate_platform::Environment;
use tollgate_x86::descriptor::system_type;
use tollgate_x86::state::Activity;
use tollgate_x86::{
    Attributes, CpuState, Descriptor, Exception, Flags, Segment, SegmentRegister, Selector, Vector,
};

mod long_mode;

pub use crate::exception_delivery::{TripleFault, deliver_exception};

/// What causes a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventSource {
    /// An interrupt from outside the processor (maskable or NMI).
    External,
    /// The instruction INT n.
    Software {
        /// Length of the instruction in bytes. Only for reports: the return address is passed
        /// separately.
        length: u8,
    },
    /// The instruction INT3 or INTO.
    Int3OrInto {
        /// Length of the instruction in bytes. Only for reports: the return address is passed
        /// separately.
        length: u8,
    },
    /// A fault, trap or abort that the processor detected, or INT1.
    Exception,
}

impl EventSource {
    /// The EXT bit: set if the event was not caused by the running program's own instruction.
    const fn external_bit(self) -> u32 {
        match self {
            EventSource::External | EventSource::Exception => 1,
            EventSource::Software { .. } | EventSource::Int3OrInto { .. } => 0,
        }
    }

    /// Whether the gate's DPL is compared with the CPL.
    const fn is_checked_for_privilege(self) -> bool {
        self.external_bit() == 0
    }
}

/// Delivers an event through the IVT or IDT and makes the processor run its handler.
///
/// `return_rip` is stored in the frame: that of the faulting instruction for faults, of the next
/// one for traps, interrupts and software interrupts. `error_code` is pushed only in protected and
/// V86 mode. INT n in V86 mode may go to the V86 program itself, without leaving the mode. A halted
/// processor runs again. `shadow_rip` is left to the caller.
///
/// # Errors
///
/// The exception that the delivery raised (with the EXT bit in its error code where the manual sets
/// it); nothing has changed then except accessed bits of descriptors. Only the faults of a task
/// that a task gate led to belong to that task, and leave its registers.
pub fn deliver(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    vector: u8,
    source: EventSource,
    error_code: Option<u32>,
    return_rip: u64,
) -> Result<(), Exception> {
    let mut image = state.flags().image();
    if source == EventSource::Exception && is_fault(vector) {
        image |= Flags::RF.bits();
    }
    let event = Event {
        vector,
        source,
        error_code,
        return_rip,
        flags_image: image,
    };
    if state.is_long_mode() {
        event.deliver_long(state, environment)?;
    } else if state.is_protected() {
        event.deliver_protected(state, environment)?;
    } else {
        event.deliver_real(state, environment)?;
    }
    state.activity = Activity::Running;
    Ok(())
}

/// Whether the exception with this vector is a fault, whose frame has RF set (SDM volume 3,
/// 17.3.1.1). #DB counts as a trap: neither single steps nor instruction breakpoints set RF.
const fn is_fault(vector: u8) -> bool {
    !matches!(vector, 1 | 2 | 3 | 4 | 8 | 18) && vector < 32
}

/// The handler that an IDT entry leads to.
enum Handler {
    Code(Gate),
    /// Another task, by its TSS descriptor.
    Task(TableEntry),
}

struct Event {
    vector: u8,
    source: EventSource,
    error_code: Option<u32>,
    return_rip: u64,
    flags_image: u64,
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
    /// Real mode: the interrupt vector table (SDM volume 3, 21.1.4).
    fn deliver_real(
        &self,
        state: &mut CpuState,
        environment: &mut dyn Environment,
    ) -> Result<(), Exception> {
        let offset = u32::from(self.vector) * 4;
        if offset + 3 > u32::from(state.idtr.limit) {
            return Err(Exception::general_protection(offset + 2));
        }
        let mut entry = [0; 4];
        let base = state.idtr.base;
        read_system(state, environment, base, u64::from(offset), &mut entry)?;
        let [ip_low, ip_high, cs_low, cs_high] = entry;
        let mut stack = Stack::current(state);
        let frame = [
            self.flags_image,
            u64::from(state.cs().selector.0),
            self.return_rip,
        ];
        stack.push_all(state, environment, 2, &frame)?;
        stack.commit(state);
        let selector = u16::from_le_bytes([cs_low, cs_high]);
        state.load_real_mode_segment(SegmentRegister::Cs, selector);
        state.rip = u64::from(u16::from_le_bytes([ip_low, ip_high]));
        let cleared = Flags::IF | Flags::TF | Flags::AC | Flags::RF;
        state.flags &= !cleared.bits();
        Ok(())
    }

    /// An error code that refers to the event's own gate.
    fn gate_error_code(&self) -> u32 {
        u32::from(self.vector) * 8 + 2 + self.source.external_bit()
    }

    /// Reads the gate, and checks it and its code segment.
    fn gate(
        &self,
        state: &CpuState,
        environment: &mut dyn Environment,
    ) -> Result<Handler, Exception> {
        let external = self.source.external_bit();
        let refused = Exception::general_protection(self.gate_error_code());
        let offset = u32::from(self.vector) * 8;
        if offset + 7 > u32::from(state.idtr.limit) {
            return Err(refused);
        }
        let mut bytes = [0; 8];
        let base = state.idtr.base;
        read_system(state, environment, base, u64::from(offset), &mut bytes)?;
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
            let task = find_task(state, environment, selector, self.cause())?;
            return Ok(Handler::Task(task));
        }
        let selector = gate.gate_selector();
        let error_code = selector.error_code() | external;
        let refused = Exception::general_protection(error_code);
        let entry: TableEntry = read_descriptor(state, environment, selector)?.ok_or(refused)?;
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
            segment: accessed_segment(state, environment, entry)?,
            offset: u64::from(offset),
            size,
            clears_interrupt_flag: matches!(
                kind,
                system_type::INTERRUPT_GATE16 | system_type::INTERRUPT_GATE32
            ),
        }))
    }

    /// The cause of a task switch by this event.
    fn cause(&self) -> Cause {
        Cause::Event {
            error_code: self.error_code,
            external: self.source.external_bit(),
        }
    }

    /// Protected and V86 mode: the IDT (SDM volume 3, 6.12.1).
    fn deliver_protected(
        &self,
        state: &mut CpuState,
        environment: &mut dyn Environment,
    ) -> Result<(), Exception> {
        let was_virtual_8086 = state.is_virtual_8086();
        if was_virtual_8086 && matches!(self.source, EventSource::Software { .. }) {
            match software_interrupt_handler(state, environment, self.vector)? {
                SoftwareInterruptHandler::DescriptorTable => {}
                SoftwareInterruptHandler::Program => {
                    deliver_to_program(state, environment, self.vector, self.return_rip)?;
                    return Ok(());
                }
            }
        }
        let gate = match self.gate(state, environment)? {
            Handler::Code(gate) => gate,
            Handler::Task(task) => {
                let (rip, flags) = (self.return_rip, self.flags_image);
                switch_task(state, environment, task, self.cause(), rip, flags)?;
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

        let mut frame = Frame::default();
        let mut stack = if changes_level {
            if was_virtual_8086 {
                for register in [
                    SegmentRegister::Gs,
                    SegmentRegister::Fs,
                    SegmentRegister::Ds,
                    SegmentRegister::Es,
                ] {
                    frame.add(state.segment(register).selector.0);
                }
            }
            frame.add(state.ss().selector.0);
            frame.add(state.register(tollgate_x86::Gpr::Rsp));
            inner_stack(state, environment, cpl, external)?
        } else {
            let mut stack = Stack::current(state);
            stack.error_code = external;
            stack
        };
        frame.add(self.flags_image);
        frame.add(state.cs().selector.0);
        frame.add(self.return_rip);
        if let Some(error_code) = self.error_code {
            frame.add(error_code);
        }
        check_code_offset(state, &gate.segment, gate.offset, external)?;
        stack.push_all(state, environment, gate.size, frame.values())?;

        stack.commit(state);
        enter_code(state, gate.segment, gate.offset, cpl);
        let mut cleared = Flags::TF | Flags::NT | Flags::RF | Flags::VM;
        if gate.clears_interrupt_flag {
            cleared |= Flags::IF;
        }
        state.flags &= !cleared.bits();
        if was_virtual_8086 {
            for register in [
                SegmentRegister::Gs,
                SegmentRegister::Fs,
                SegmentRegister::Ds,
                SegmentRegister::Es,
            ] {
                *state.segment_mut(register) = Segment::null(Selector(0));
            }
        }
        Ok(())
    }
}

/// The values to push, in order.
#[derive(Default)]
struct Frame {
    values: [u64; 10],
    used: usize,
}

impl Frame {
    fn add(&mut self, value: impl Into<u64>) {
        if let Some(place) = self.values.get_mut(self.used) {
            *place = value.into();
            self.used += 1;
        }
    }

    fn values(&self) -> &[u64] {
        &self.values[..self.used]
    }
}

/// INT n, INT3, INTO and INT1.
///
/// # Errors
///
/// Those of [`deliver`].
pub fn software_interrupt(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let length = instruction.len() as u8;
    // RF is cleared first: the frame of a software interrupt has RF clear (SDM volume 3, 17.3.1.1).
    state.flags &= !Flags::RF.bits();
    let (vector, source) = match instruction.code() {
        Code::Int_imm8 => (instruction.immediate8(), EventSource::Software { length }),
        Code::Int3 => (Vector::Breakpoint as u8, EventSource::Int3OrInto { length }),
        Code::Into if !state.flags().contains(Flags::OF) => return Ok(Outcome::Next),
        Code::Into => (Vector::Overflow as u8, EventSource::Int3OrInto { length }),
        Code::Int1 => (Vector::Debug as u8, EventSource::Exception),
        _ => return Err(Exception::invalid_opcode()),
    };
    let return_rip = next_rip(state, instruction);
    deliver(state, environment, vector, source, None, return_rip)?;
    Ok(Outcome::Jumped)
}

#[cfg(test)]
mod tests;
