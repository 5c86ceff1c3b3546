//! Stores memos of deliveries of software interrupts and of the #GP of V86 tasks: what the monitor
//! did, where the fast path that delivers the next one finds it
//! ([`tollgate_engine::gate::interrupt_fast_path`]).
//!
//! A memo must follow from bytes that are in memory when the memo is stored, because the delivery
//! itself may have overwritten the bytes that decided it. If the present bytes do not lead to the
//! processor's present state, no memo is stored.

use crate::memory::addresses::view_of;
use crate::memory::guest_view::Inline;
use crate::translated::Translated;
use crate::translated::processor::Processor;
use iced_x86::Instruction;
use tollgate_engine::abi::context::groups::Changed;
use tollgate_engine::abi::descriptors::KnownDescriptors;
use tollgate_engine::abi::link_layout::FamilyId;
use tollgate_engine::abi::memos::delivery::{Delivery, error_of, refusal_key, task_key};
use tollgate_engine::abi::memos::{CodeAfter, Memo};
use tollgate_engine::policy::fast_path::FastInstruction;
use tollgate_engine::policy::mode::{Mode, ModeFlags};
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::canonical::is_canonical_range;
use tollgate_x86::descriptor::system_type;
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::{
    Attributes, CpuState, Descriptor, Exception, LinearAddress, Segment, SegmentRegister, Selector,
    Vector,
};

/// Offset of ESP0 and SS0 in a 32-bit TSS, and of RSP0 in a 64-bit TSS.
const STACK_OF_LEVEL_0: u64 = 4;
/// Offset of the first of the seven interrupt stacks in a 64-bit TSS.
const FIRST_INTERRUPT_STACK: u64 = 0x24;

/// The linear address of a descriptor of the GDT.
pub(crate) fn place_of(cpu: &CpuState, selector: Selector) -> Option<u64> {
    let offset = selector.table_offset();
    let is_there = !selector.is_null() && !selector.is_local() && offset | 7 <= cpu.gdtr.limit;
    is_there.then(|| linear(cpu, cpu.gdtr.base, offset.into()))
}

fn linear(cpu: &CpuState, base: u64, offset: u64) -> u64 {
    let sum = base.wrapping_add(offset);
    match cpu.is_long_mode() {
        true => sum,
        false => sum & 0xffff_ffff,
    }
}

/// A fault of a V86 task that a fast path may deliver.
pub(crate) struct Refusal {
    /// The family of the task's modes.
    family: FamilyId,
    /// The error code of the fault.
    code: u32,
    /// The entry of the IDT that the error code names: the entry of the INT n or INT3.
    gate: Option<u8>,
}

/// A delivery that has only its key and the registers that point to its tables.
fn begun(cpu: &CpuState, key: u64) -> Delivery {
    Delivery {
        key,
        idt_base: cpu.idtr.base,
        gdt_base: cpu.gdtr.base,
        task_base: cpu.tr.base,
        task_limit: cpu.tr.limit,
        idt_limit: cpu.idtr.limit,
        gdt_limit: cpu.gdtr.limit,
        ..Delivery::NONE
    }
}

/// Whether a segment is present, of level 0 and marked as accessed.
fn is_usable(attributes: Attributes) -> bool {
    let needed = Attributes::PRESENT | Attributes::NOT_SYSTEM | Attributes::ACCESSED;
    attributes.contains(needed) && attributes.dpl() == 0
}

/// The flat segment of level 0 that a code descriptor describes: 64-bit code in IA-32e mode,
/// otherwise 32-bit code. Conforming segments are excluded, because they would not change the
/// level.
fn code_segment(cpu: &CpuState, selector: Selector, raw: u64) -> Option<Segment> {
    let mut segment = Descriptor(raw).segment(Selector(selector.0 & !3));
    let attributes = segment.attributes;
    if !is_usable(attributes) || !attributes.is_code() || attributes.is_conforming() {
        return None;
    }
    let is_big = attributes.contains(Attributes::DEFAULT_BIG);
    if cpu.is_long_mode() {
        (segment.base, segment.limit) = (0, u32::MAX);
        return (attributes.is_long_code() && !is_big).then_some(segment);
    }
    (is_big && segment.base == 0 && segment.limit == u32::MAX).then_some(segment)
}

/// The flat stack of level 0 that a descriptor describes outside IA-32e mode.
fn stack_segment(selector: Selector, raw: u64) -> Option<Segment> {
    let segment = Descriptor(raw).segment(selector);
    let attributes = segment.attributes;
    let fits = is_usable(attributes)
        && attributes.is_writable_data()
        && !attributes.is_expand_down()
        && attributes.contains(Attributes::DEFAULT_BIG)
        && selector.rpl() == 0;
    (fits && segment.base == 0 && segment.limit == u32::MAX).then_some(segment)
}

impl Translated {
    /// The fault that a V86 task is about to get, if a fast path may deliver it: the fault of an
    /// instruction that the task's monitor must emulate, or of an INT n whose gate refuses the
    /// task.
    pub(crate) fn refusal_of_task(&self, exception: Exception) -> Option<Refusal> {
        let cpu = &self.context.cpu;
        if exception.vector != Vector::GeneralProtection || !cpu.is_virtual_8086() {
            return None;
        }
        let mode = self.mode_of_state();
        if mode.is_watched() || mode != *self.engine.mode(self.mode) {
            return None;
        }
        let code = exception.error_code;
        let gate = match code {
            0 => None,
            // The error code names an entry of the IDT, and the event is not external (SDM volume
            // 3, 6.13).
            _ if code & 7 == 2 => Some(u8::try_from(code >> 3).ok()?),
            _ => return None,
        };
        let family = self.engine.family(self.mode);
        Some(Refusal { family, code, gate })
    }
}

impl Processor<'_> {
    /// Stores a memo of the INT n, INT3 or INTO that the monitor has just delivered.
    pub(crate) fn remember_delivery(&mut self, instruction: &Instruction) {
        if let Some((delivery, to)) = self.delivery(instruction) {
            self.note_known_delivery(delivery, to);
        }
    }

    /// Stores a memo of this fault, which the monitor has just delivered.
    pub(crate) fn remember_refusal(&mut self, refusal: &Refusal) {
        let Refusal { family, code, gate } = *refusal;
        let key = match gate {
            Some(vector) => task_key(vector, family),
            None => refusal_key(family),
        };
        let fault = Vector::GeneralProtection as u8;
        let delivery = self.delivery_of_task(key, fault, Some(code));
        let Some((mut delivery, to)) = delivery else {
            return;
        };
        if let Some(vector) = gate
            && self.read_refused_gate(&mut delivery, vector).is_none()
        {
            return;
        }
        self.note_known_delivery(delivery, to);
    }

    /// Stores a memo of a delivery that led to code of mode `to`, where the fast path finds it.
    fn note_known_delivery(&mut self, mut delivery: Delivery, to: Mode) {
        let from = self.runner.mode;
        let Some(to) = self.intern_for_memo(to) else {
            return;
        };
        if from != to {
            delivery.changed |= Changed::MODE;
        }
        delivery.then = CodeAfter::of(self.runner.engine.branch_table(to), to);
        self.runner.context.fast_paths.deliveries.note(delivery);
    }

    /// A memo of the delivery that was just made, and the mode of its handler.
    fn delivery(&mut self, instruction: &Instruction) -> Option<(Delivery, Mode)> {
        let from = *self.runner.engine.mode(self.runner.mode);
        let map = self.runner.engine.map_of(&from);
        let fast_path = FastInstruction::of(instruction, &from, map)?;
        let (mode, family) = (
            self.runner.mode.0,
            self.runner.engine.family(self.runner.mode),
        );
        let key = fast_path.key(mode, family)?;
        let (vector, long) = match fast_path {
            FastInstruction::Interrupt { vector, long } => (vector, long),
            FastInstruction::TaskInterrupt { vector } => {
                return self.delivery_of_task(key, vector, None);
            }
            _ => return None,
        };
        let cpu = &self.runner.context.cpu;
        let to = self.runner.mode_of_state();
        if cpu.cpl() != 0 || cpu.is_long_mode() != long || to.is_watched() {
            return None;
        }
        let is_user = from.flags.contains(ModeFlags::USER);
        let mut delivery = Delivery {
            changed: match is_user {
                true => Changed::LEVEL,
                false => Changed::empty(),
            },
            ..begun(cpu, key)
        };
        let handler = self.read_gate(&mut delivery, vector, is_user)?;
        self.read_code(&mut delivery, handler)?;
        let gate = delivery.gate_bytes[0];
        if long {
            self.read_long_stack(&mut delivery, (gate >> 32 & 7) as u8, is_user)?;
        } else {
            self.read_stack(&mut delivery)?;
        }
        self.complete(&mut delivery);
        Some((delivery, to))
    }

    /// A memo of a delivery from a V86 task. `code` is the error code, if the event was a fault.
    fn delivery_of_task(
        &mut self,
        key: u64,
        vector: u8,
        code: Option<u32>,
    ) -> Option<(Delivery, Mode)> {
        let cpu = &self.runner.context.cpu;
        let to = self.runner.mode_of_state();
        let is_level_0 = cpu.cpl() == 0 && cpu.is_protected() && !cpu.is_virtual_8086();
        if !is_level_0 || cpu.is_long_mode() || to.is_watched() {
            return None;
        }
        let mut delivery = Delivery {
            changed: Changed::LEVEL,
            error: code.map_or(0, error_of),
            ..begun(cpu, key)
        };
        // The gate of a fault may have any privilege level.
        let handler = self.read_gate(&mut delivery, vector, code.is_none())?;
        self.read_code(&mut delivery, handler)?;
        self.read_stack(&mut delivery)?;
        self.complete(&mut delivery);
        Some((delivery, to))
    }

    /// Reads the entry of the IDT for which an INT n was refused: the entry is not a gate, or V86
    /// tasks may not use it (SDM volume 3, 6.12.1.1 and 20.3.1).
    fn read_refused_gate(&mut self, delivery: &mut Delivery, vector: u8) -> Option<()> {
        let cpu = &self.runner.context.cpu;
        let offset = u16::from(vector) * 8;
        if offset + 7 > cpu.idtr.limit {
            return None;
        }
        delivery.refused_gate = linear(cpu, cpu.idtr.base, offset.into());
        delivery.refused_bytes = self.read_known(delivery.refused_gate)?;
        let attributes = Descriptor(delivery.refused_bytes).attributes();
        let is_gate = matches!(
            attributes.kind(),
            system_type::INTERRUPT_GATE16
                | system_type::TRAP_GATE16
                | system_type::INTERRUPT_GATE32
                | system_type::TRAP_GATE32
                | system_type::TASK_GATE
        ) && !attributes.contains(Attributes::NOT_SYSTEM);
        (!is_gate || attributes.dpl() != 3).then_some(())
    }

    /// Adds the rest of the handler's state, in addition to its segments, to the memo.
    fn complete(&self, delivery: &mut Delivery) {
        let cpu = &self.runner.context.cpu;
        let known = KnownDescriptors::of(cpu);
        (delivery.code_expected, delivery.stack_expected) = (known.code, known.stack);
        delivery.tlb = self
            .view
            .translations
            .table(cpu, view_of(Privilege::Supervisor));
    }

    /// Reads the gate, and returns the selector in it. With `is_user`, programs must be allowed to
    /// use the gate.
    fn read_gate(
        &mut self,
        delivery: &mut Delivery,
        vector: u8,
        is_user: bool,
    ) -> Option<Selector> {
        let cpu = &self.runner.context.cpu;
        let long = cpu.is_long_mode();
        let size = if long { 16 } else { 8 };
        let offset = u16::from(vector) * size;
        if offset + (size - 1) > cpu.idtr.limit {
            return None;
        }
        delivery.gate = linear(cpu, cpu.idtr.base, offset.into());
        let (place, rip) = (delivery.gate, cpu.rip);
        delivery.gate_bytes[0] = self.read_known(place)?;
        let mut target = 0;
        if long {
            // The gate must begin at a multiple of eight; otherwise both halves need not be in one
            // page.
            let second = place.wrapping_add(8);
            if place % PAGE_SIZE > PAGE_SIZE - 16 {
                return None;
            }
            delivery.gate_bytes[1] = self.read_known(second)?;
            target = delivery.gate_bytes[1] << 32;
        }
        let gate = Descriptor(delivery.gate_bytes[0]);
        let attributes = gate.attributes();
        let kind = attributes.kind();
        let clears = kind == system_type::INTERRUPT_GATE32;
        let is_gate = (clears || kind == system_type::TRAP_GATE32)
            && attributes.contains(Attributes::PRESENT)
            && !attributes.contains(Attributes::NOT_SYSTEM);
        if !is_gate || is_user && attributes.dpl() != 3 {
            return None;
        }
        delivery.interrupt_mask = if clears { 0 } else { u64::MAX };
        target |= u64::from(gate.gate_offset());
        delivery.target = target;
        (target == rip).then_some(gate.gate_selector())
    }

    fn read_code(&mut self, delivery: &mut Delivery, handler: Selector) -> Option<()> {
        delivery.code_place = place_of(&self.runner.context.cpu, handler)?;
        delivery.code_bytes = self.read_known(delivery.code_place)?;
        let cpu = &self.runner.context.cpu;
        delivery.code = code_segment(cpu, handler, delivery.code_bytes)?;
        (delivery.code == *cpu.cs()).then_some(())
    }

    /// The stack pointer of the handler in IA-32e mode: RSP0, an interrupt stack, or the present
    /// RSP.
    fn read_long_stack(
        &mut self,
        delivery: &mut Delivery,
        interrupt_stack: u8,
        is_user: bool,
    ) -> Option<()> {
        let cpu = &self.runner.context.cpu;
        delivery.stack = Segment::null_stack(Selector(0), 0);
        if is_user && *cpu.ss() != delivery.stack {
            return None;
        }
        let offset = match interrupt_stack {
            0 if !is_user => return Some(()),
            0 => STACK_OF_LEVEL_0,
            number => FIRST_INTERRUPT_STACK + u64::from(number - 1) * 8,
        };
        if !cpu.tr.is_usable() || offset + 7 > u64::from(cpu.tr.limit) {
            return None;
        }
        delivery.stack_slot = linear(cpu, cpu.tr.base, offset);
        self.read_known(delivery.stack_slot).map(|_| ())
    }

    /// Reads the handler's stack, of level 0, outside IA-32e mode.
    fn read_stack(&mut self, delivery: &mut Delivery) -> Option<()> {
        let cpu = &self.runner.context.cpu;
        let task = &cpu.tr;
        let kind = task.attributes.kind();
        let is_wide = matches!(kind, system_type::TSS32_AVAILABLE | system_type::TSS32_BUSY);
        if !task.is_usable() || !is_wide || STACK_OF_LEVEL_0 + 5 > u64::from(task.limit) {
            return None;
        }
        let selector = cpu.ss().selector;
        delivery.stack_slot = linear(cpu, task.base, STACK_OF_LEVEL_0);
        delivery.stack_place = place_of(cpu, selector)?;
        self.read_known(delivery.stack_slot)?;
        delivery.stack_bytes = self.read_known(delivery.stack_place)?;
        delivery.stack = stack_segment(selector, delivery.stack_bytes)?;
        let ss = self.runner.context.cpu.segment(SegmentRegister::Ss);
        (delivery.stack == *ss).then_some(())
    }

    /// Reads eight bytes in one page, if the supervisor's view of the software TLB has the page.
    pub(crate) fn read_known(&mut self, place: u64) -> Option<u64> {
        let cpu = &self.runner.context.cpu;
        let is_reachable = place != 0
            && place % PAGE_SIZE <= PAGE_SIZE - 8
            && (!cpu.is_long_mode() || is_canonical_range(place, 8));
        if !is_reachable {
            return None;
        }
        let (kind, privilege) = (AccessKind::Read, Privilege::System);
        let place = LinearAddress(place);
        let inline = (self.view).make_inline(cpu, place, 8, kind, false, privilege);
        match inline {
            Ok(Inline::Yes) => self.view.read_table(cpu, place),
            _ => None,
        }
    }
}
