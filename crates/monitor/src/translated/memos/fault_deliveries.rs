//! Repeats deliveries of faults and external interrupts: the monitor compares what it noted when it
//! last delivered the same vector from the same mode with what the guest's tables hold now.
//!
//! A delivery reads the gate, the descriptor of the gate's code segment and, if it changes the
//! stack, the TSS; its result follows from these and from registers. So the bytes are noted
//! together with the result ([`FaultDelivery`]), and the tests that led to the result need not be
//! made again while the same bytes are in the same places. All of them are read through the
//! software TLB each time, so no notification is needed when the guest writes to them, through
//! whichever alias. `tollgate_emulate::interrupt` handles the cases that are not that simple:
//!
//! - an access that faults or might fault: a page of a table or of the stack that the software TLB
//!   does not have, a frame that straddles two pages or is next to code;
//! - task gates, conforming handlers, handlers of level 1 and 2, 16-bit gates outside real mode,
//!   V86 mode, stacks that are not flat in protected mode;
//! - flags and debug registers that change the delivery: TF, NT, VIF, VIP, breakpoints.
//!
//! The handler's block is found as the target of an indirect branch is.

use crate::execution::running::Running;
use crate::memory::guest_view::GuestView;
use crate::translated::processor::Processor;
use crate::translated::{PendingLink, Translated};
use tollgate_engine::abi::context::Context;
use tollgate_engine::abi::descriptors::KnownDescriptors;
use tollgate_engine::abi::link_layout::ModeId;
use tollgate_engine::policy::access::Access;
use tollgate_engine::policy::mode::{Mode, ModeFlags, SegmentClass};
use tollgate_platform::Platform;
use tollgate_tlb::View;
use tollgate_x86::canonical::is_canonical;
use tollgate_x86::descriptor::system_type;
use tollgate_x86::state::{Activity, TableRegister};
use tollgate_x86::{
    Attributes, CpuState, Descriptor, Exception, Flags, Gpr, LinearAddress, Segment,
    SegmentRegister, Selector, Vector,
};

/// Number of vectors of exceptions.
const VECTORS: usize = 32;
/// Number of remembered interrupt vectors: one of those that have the same low bits.
const INTERRUPTS: usize = 16;
/// Size of a page in bytes.
const PAGE: u64 = 4096;
/// Flags that prevent a repeated delivery, because a delivery clears them or depends on them.
const UNUSUAL: Flags = Flags::TF
    .union(Flags::NT)
    .union(Flags::VM)
    .union(Flags::VIF)
    .union(Flags::VIP);
/// The alignment of a 64-bit frame in bytes (SDM volume 3, 6.14.2).
const FRAME_ALIGNMENT: u64 = 16;
/// Offsets in the TSS of SS0 and ESP0 or RSP0, and of IST1 (SDM volume 3, figures 8-2 and 8-11).
const STACK_0: u64 = 4;
const INTERRUPT_STACK_1: u64 = 0x24;

/// Bytes of a table that a delivery read.
#[derive(Clone, Copy)]
struct Word {
    place: u64,
    mask: u64,
    value: u64,
}

/// The stack on which the frame is pushed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FrameStack {
    /// The present stack.
    Current,
    /// The stack whose pointer is in this word of the TSS: 64 bits, or 32 outside IA-32e mode.
    Task { place: u64 },
}

/// The size of the values in a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    /// Real mode: values of 16 bits.
    Real,
    /// Protected mode: values of 32 bits.
    Protected,
    /// IA-32e mode: values of 64 bits, and always SS and RSP.
    Long,
}

/// The registers that point to the tables.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tables {
    idtr: TableRegister,
    gdtr: TableRegister,
    task: Segment,
}

impl Tables {
    fn of(cpu: &CpuState) -> Self {
        Self {
            idtr: cpu.idtr,
            gdtr: cpu.gdtr,
            task: cpu.tr,
        }
    }
}

/// A delivery that the monitor has made.
#[derive(Clone, Copy)]
struct FaultDelivery {
    vector: u8,
    /// The mode in which the delivery was made, which includes the level and, in real mode, the
    /// base of CS.
    from: ModeId,
    tables: Tables,
    /// The bytes that were read. Unused words have the mask 0.
    words: [Word; MOST_WORDS],
    format: Format,
    frame_stack: FrameStack,
    changes_level: bool,
    clears_interrupt_flag: bool,
    /// CS and SS after the delivery.
    code: Segment,
    stack: Segment,
    rip: u64,
    to: ModeId,
    descriptors: KnownDescriptors,
}

/// The most words of tables that a delivery reads: the two of the gate, the descriptors of CS and
/// SS, and the selector of SS.
const MOST_WORDS: usize = 5;

/// The number of kinds of code that faults come from.
const ORIGINS: usize = 1 + Access::COUNT;

/// The kind of code at a level that causes an event: the kernel, or programs, which access memory
/// in one of several ways. The system switches between these ways often.
fn origin(level: u8, programs: Access) -> usize {
    match level {
        0 => 0,
        _ => 1 + programs as usize,
    }
}

/// The known deliveries.
pub(crate) struct FaultDeliveries {
    /// Deliveries of faults, by vector and by [`origin`].
    known: Box<[[Option<FaultDelivery>; ORIGINS]; VECTORS]>,
    /// Deliveries of interrupts, by the low bits of their vectors and by [`origin`].
    interrupts: Box<[[Option<FaultDelivery>; ORIGINS]; INTERRUPTS]>,
    /// Whether any delivery is known.
    knows_any: bool,
    /// How many deliveries were repeated.
    pub repeated: u64,
    /// Whether deliveries are repeated.
    pub enabled: bool,
}

impl Default for FaultDeliveries {
    fn default() -> Self {
        Self {
            known: Box::new([[None; ORIGINS]; VECTORS]),
            interrupts: Box::new([[None; ORIGINS]; INTERRUPTS]),
            knows_any: false,
            repeated: 0,
            enabled: true,
        }
    }
}

impl FaultDeliveries {
    /// Forgets all known deliveries.
    pub fn forget(&mut self) {
        if std::mem::take(&mut self.knows_any) {
            self.known.as_flattened_mut().fill(None);
            self.interrupts.as_flattened_mut().fill(None);
        }
    }

    /// The place for the delivery of this event from code of this kind.
    fn place(&mut self, event: Event, origin: usize) -> &mut Option<FaultDelivery> {
        match event {
            Event::Fault(vector) => &mut self.known[vector as usize % VECTORS][origin],
            Event::Interrupt(vector) => {
                &mut self.interrupts[usize::from(vector) % INTERRUPTS][origin]
            }
        }
    }

    /// The known delivery of this event from code of this kind.
    #[inline]
    fn find(&self, event: Event, origin: usize) -> Option<&FaultDelivery> {
        let known = match event {
            Event::Fault(vector) => &self.known[vector as usize % VECTORS][origin],
            Event::Interrupt(vector) => &self.interrupts[usize::from(vector) % INTERRUPTS][origin],
        };
        known
            .as_ref()
            .filter(|known| known.vector == event.vector())
    }
}

/// An event that is delivered.
#[derive(Clone, Copy)]
pub(crate) enum Event {
    /// An exception with this vector.
    Fault(Vector),
    /// An external interrupt with this vector.
    Interrupt(u8),
}

impl Event {
    fn vector(self) -> u8 {
        match self {
            Self::Fault(vector) => vector as u8,
            Self::Interrupt(vector) => vector,
        }
    }
}

/// The contents of a frame, and of registers, that do not follow from the delivery itself.
#[derive(Clone, Copy)]
struct Details {
    /// EFLAGS.RF, if the frame must have it set although the register has not.
    resume_flag: Flags,
    error_code: Option<u32>,
    /// The address for CR2.
    address: Option<LinearAddress>,
}

impl Details {
    /// The details of a fault.
    fn of(exception: Exception) -> Self {
        let has_code = exception.vector.has_error_code();
        Self {
            resume_flag: Flags::RF,
            error_code: has_code.then_some(exception.error_code),
            address: exception.address,
        }
    }

    /// The details of an interrupt, which has none of these.
    const NONE: Self = Self {
        resume_flag: Flags::empty(),
        error_code: None,
        address: None,
    };
}

/// The state of the processor before a delivery that is needed to note the delivery.
pub(crate) struct Before {
    from: ModeId,
    level: u8,
    stack: Segment,
}

/// The words of a delivery, while they are collected.
struct Words<'a> {
    view: &'a GuestView,
    cpu: &'a CpuState,
    found: [Word; MOST_WORDS],
    used: usize,
}

impl Words<'_> {
    /// Reads `size` bytes of a table, of which only the bits in `mask` are compared later. `None`
    /// means that the bytes cannot be read in this way.
    fn read(&mut self, base: u64, offset: u64, size: usize, mask: u64) -> Option<u64> {
        let wrap = if self.cpu.is_long_mode() {
            u64::MAX
        } else {
            u64::from(u32::MAX)
        };
        let place = base.wrapping_add(offset) & wrap;
        if place % PAGE + 8 > PAGE {
            // Eight bytes are read and compared, whatever the size.
            return None;
        }
        let value = self.view.read_table(self.cpu, LinearAddress(place))?;
        let mask = mask & (u64::MAX >> (64 - 8 * size));
        *self.found.get_mut(self.used)? = Word {
            place,
            mask,
            value: value & mask,
        };
        self.used += 1;
        Some(value & mask)
    }

    /// A descriptor of the GDT that is present and marked as accessed.
    fn descriptor(&mut self, selector: Selector) -> Option<Descriptor> {
        let gdtr = self.cpu.gdtr;
        let offset = selector.table_offset();
        if selector.is_null() || selector.is_local() || offset | 7 > gdtr.limit {
            return None;
        }
        let read = self.read(gdtr.base, u64::from(offset), 8, u64::MAX)?;
        let descriptor = Descriptor(read);
        let loaded = Attributes::PRESENT | Attributes::NOT_SYSTEM | Attributes::ACCESSED;
        descriptor
            .attributes()
            .contains(loaded)
            .then_some(descriptor)
    }

    /// The code segment of level 0 that a gate leads to.
    fn code(&mut self, selector: Selector) -> Option<Segment> {
        let descriptor = self.descriptor(selector)?;
        let attributes = descriptor.attributes();
        let fits = attributes.is_code() && !attributes.is_conforming() && attributes.dpl() == 0;
        let level_0 = Selector(selector.0 & !3);
        fits.then(|| descriptor.segment(level_0))
    }
}

/// A frame that is being built, from its highest value down.
struct Frame {
    bytes: [u8; 48],
    /// Offset of the lowest value.
    start: usize,
    size: usize,
}

impl Frame {
    fn new(size: usize) -> Self {
        Self {
            bytes: [0; 48],
            start: 48,
            size,
        }
    }

    #[inline]
    fn push(&mut self, value: u64) {
        let start = self.start - self.size;
        self.bytes[start..self.start].copy_from_slice(&value.to_le_bytes()[..self.size]);
        self.start = start;
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

/// Whether an exception is a fault, whose frame has RF set, and not a double fault.
fn is_fault(vector: Vector) -> bool {
    !matches!(
        vector,
        Vector::Debug
            | Vector::NonMaskableInterrupt
            | Vector::Breakpoint
            | Vector::Overflow
            | Vector::DoubleFault
            | Vector::MachineCheck
    )
}

/// The stack pointer that a delivery starts with, and a mask of the bits of RSP that change.
fn stack_pointer(delivery: &FaultDelivery, view: &GuestView, cpu: &CpuState) -> Option<(u64, u64)> {
    let current = cpu.gpr[Gpr::Rsp as usize];
    let pointer = match delivery.frame_stack {
        FrameStack::Current => current,
        FrameStack::Task { place } => view.read_table(cpu, LinearAddress(place))?,
    };
    match delivery.format {
        Format::Real => Some((pointer & 0xffff, 0xffff)),
        Format::Protected => Some((pointer & 0xffff_ffff, 0xffff_ffff)),
        Format::Long => {
            let fits = delivery.frame_stack == FrameStack::Current || is_canonical(pointer);
            fits.then_some((pointer & !(FRAME_ALIGNMENT - 1), u64::MAX))
        }
    }
}

impl FaultDelivery {
    /// Whether the delivery can be repeated on this processor: everything that it depends on is
    /// unchanged.
    #[inline]
    fn holds(&self, mode: ModeId, view: &GuestView, cpu: &CpuState) -> bool {
        let keeps_stack = self.changes_level || *cpu.ss() == self.stack;
        self.from == mode
            && self.tables == Tables::of(cpu)
            && (keeps_stack || self.format == Format::Real)
            && self.words.iter().all(|word| {
                let value = || view.read_table(cpu, LinearAddress(word.place));
                word.mask == 0 || value().is_some_and(|it| it & word.mask == word.value)
            })
    }

    /// Repeats the delivery. Returns false if something may fault; then nothing has changed.
    #[inline]
    fn make(&self, view: &GuestView, context: &mut Context, details: Details) -> bool {
        let cpu = &mut context.cpu;
        let Some((pointer, mask)) = stack_pointer(self, view, cpu) else {
            return false;
        };
        let size = match self.format {
            Format::Real => 2,
            Format::Protected => 4,
            Format::Long => 8,
        };
        let mut frame = Frame::new(size);
        if self.changes_level || self.format == Format::Long {
            frame.push(u64::from(cpu.ss().selector.0));
            frame.push(cpu.gpr[Gpr::Rsp as usize]);
        }
        frame.push(cpu.flags().image() | details.resume_flag.bits());
        frame.push(u64::from(cpu.cs().selector.0));
        frame.push(cpu.rip);
        if let Some(code) = details.error_code
            && self.format != Format::Real
        {
            frame.push(u64::from(code));
        }
        let length = frame.bytes().len() as u64;
        let base = match self.format {
            Format::Real => cpu.ss().base,
            Format::Protected | Format::Long => 0,
        };
        let Some(start) = pointer.checked_sub(length) else {
            return false;
        };
        let linear = match self.format {
            Format::Long => start,
            Format::Real | Format::Protected => base.wrapping_add(start) & 0xffff_ffff,
        };
        let fits =
            linear % PAGE + length <= PAGE && (self.format != Format::Long || is_canonical(linear));
        if !fits {
            return false;
        }
        let place = LinearAddress(linear);
        let host = (view.translations).look_up(cpu, View::Supervisor, true, place);
        let Some(host) = host else { return false };
        // No step can fail from here on.
        crate::memory::ram_copies::copy_to(host as *mut u8, frame.bytes());
        if let Some(address) = details.address {
            cpu.cr2 = address.0;
        }
        let stack_register = &mut cpu.gpr[Gpr::Rsp as usize];
        *stack_register = match mask {
            0xffff => *stack_register & !mask | start,
            _ => start,
        };
        cpu.rip = self.rip;
        let mut cleared = Flags::RF | Flags::TF | Flags::NT;
        if self.clears_interrupt_flag {
            cleared |= Flags::IF;
        }
        if self.format == Format::Real {
            cleared = Flags::RF | Flags::TF | Flags::AC | Flags::IF;
        } else {
            *cpu.segment_mut(SegmentRegister::Ss) = self.stack;
            context.descriptors.code = self.descriptors.code;
            context.descriptors.stack = self.descriptors.stack;
            context.descriptors.task_limit = self.descriptors.task_limit;
        }
        let cpu = &mut context.cpu;
        *cpu.segment_mut(SegmentRegister::Cs) = self.code;
        cpu.flags &= !cleared.bits();
        cpu.end_shadow();
        context.hot.tlb = view.translations.table(&context.cpu, View::Supervisor);
        context.scatter_flags();
        true
    }
}

impl<P: Platform> Running<'_, Translated, P> {
    /// Delivers an exception of the instruction at CS:RIP by repeating an earlier delivery. Returns
    /// false if none is known or it is not that simple; then nothing has changed.
    #[inline]
    pub(crate) fn deliver_as_before(&mut self, exception: Exception) -> bool {
        let event = Event::Fault(exception.vector);
        self.make_as_before(event, Details::of(exception))
    }

    /// Delivers an interrupt that was acknowledged, at an instruction boundary, by repeating an
    /// earlier delivery.
    pub(crate) fn interrupt_as_before(&mut self, vector: u8) -> bool {
        self.settle_resume_flag();
        let is_made = self.make_as_before(Event::Interrupt(vector), Details::NONE);
        if is_made {
            self.runner.context.cpu.activity = Activity::Running;
            self.due.events = true;
        }
        is_made
    }

    #[inline]
    fn make_as_before(&mut self, event: Event, details: Details) -> bool {
        if self.before_delivery(event).is_none() {
            return false;
        }
        let runner = &mut *self.runner;
        let origin = origin(runner.context.cpu.cpl(), runner.program_access);
        let Some(delivery) = runner.fault_deliveries.find(event, origin) else {
            return false;
        };
        if !delivery.holds(runner.mode, self.view, &runner.context.cpu)
            || !delivery.make(self.view, &mut runner.context, details)
        {
            return false;
        }
        runner.mode = delivery.to;
        runner.code_base = delivery.code.base;
        runner.fault_deliveries.repeated += 1;
        runner.resume = None;
        runner.link = PendingLink::Handler;
        true
    }

    /// The state before the delivery of this event, if the delivery may be noted or repeated.
    pub(crate) fn before_delivery(&self, event: Event) -> Option<Before> {
        let is_simple = match event {
            Event::Fault(vector) => is_fault(vector),
            Event::Interrupt(_) => true,
        };
        let cpu = &self.runner.context.cpu;
        let is_usual = self.runner.fault_deliveries.enabled
            && !self.due.mode
            && is_simple
            && !cpu.flags().intersects(UNUSUAL)
            && cpu.shadow_rip != cpu.rip
            && !cpu.has_breakpoints()
            && self.non_register.breakpoint_hits == 0
            && !self.work.traps()
            && !self.view.memory.has_map_changes();
        is_usual.then(|| Before {
            from: self.runner.mode,
            level: cpu.cpl(),
            stack: *cpu.ss(),
        })
    }
}

impl Processor<'_> {
    /// Notes a delivery that the monitor has just made, with its result.
    pub(crate) fn note_delivery(&mut self, event: Event, before: &Before) {
        let Some(mut delivery) = self.fault_delivery(event.vector(), before) else {
            return;
        };
        let Some(to) = self.intern_for_memo(self.runner.mode_of_state()) else {
            return;
        };
        delivery.to = to;
        let origin = origin(before.level, self.runner.program_access);
        let known = &mut self.runner.fault_deliveries;
        *known.place(event, origin) = Some(delivery);
        known.knows_any = true;
        // The next exit looks the handler's block up as the target of an indirect branch.
        self.runner.link = PendingLink::Indirect;
    }

    /// The delivery of this vector that follows from the present contents of the tables, if it
    /// leads to the processor's present state and is simple enough. The mode after the delivery is
    /// left out.
    fn fault_delivery(&self, vector: u8, before: &Before) -> Option<FaultDelivery> {
        let cpu = &self.runner.context.cpu;
        let (from, to) = (
            self.runner.engine.mode(before.from),
            self.runner.mode_of_state(),
        );
        if from.is_watched() || to.is_watched() || cpu.is_virtual_8086() {
            return None;
        }
        let protected = to.flags.contains(ModeFlags::PROTECTED);
        let format = match (protected, cpu.is_long_mode()) {
            (true, true) => Format::Long,
            (true, false) => Format::Protected,
            (false, _) => Format::Real,
        };
        const NONE: Word = Word {
            place: 0,
            mask: 0,
            value: 0,
        };
        let mut words = Words {
            view: self.view,
            cpu,
            found: [NONE; MOST_WORDS],
            used: 0,
        };
        let mut delivery = FaultDelivery {
            vector,
            from: before.from,
            tables: Tables::of(cpu),
            words: words.found,
            format,
            frame_stack: FrameStack::Current,
            changes_level: before.level != 0,
            clears_interrupt_flag: true,
            code: *cpu.cs(),
            stack: before.stack,
            rip: cpu.rip,
            to: before.from,
            descriptors: KnownDescriptors::of(cpu),
        };
        match format {
            Format::Real => delivery.real(&mut words, vector, from)?,
            Format::Protected => delivery.protected(&mut words, vector, &to)?,
            Format::Long => delivery.long(&mut words, vector)?,
        }
        delivery.words = words.found;
        let is_here = *cpu.cs() == delivery.code
            && cpu.rip == delivery.rip
            && (format == Format::Real || *cpu.ss() == delivery.stack);
        is_here.then_some(delivery)
    }
}

impl FaultDelivery {
    /// A delivery through the interrupt vector table of real mode, with a stack of 64 KiB.
    fn real(&mut self, words: &mut Words, vector: u8, from: &Mode) -> Option<()> {
        let idtr = self.tables.idtr;
        let offset = u16::from(vector) * 4;
        let class = from.segment(SegmentRegister::Ss, true);
        let is_narrow = !from.flags.contains(ModeFlags::STACK32);
        let rare = from.flags.contains(ModeFlags::RARE_FLAGS);
        // The limit need not be checked again, because it is part of the segment class.
        if offset + 3 > idtr.limit || !is_narrow || rare || class != SegmentClass::Limited64K {
            return None;
        }
        let entry = words.read(idtr.base, u64::from(offset), 4, u64::MAX)?;
        self.rip = entry & 0xffff;
        let selector = (entry >> 16) as u16;
        self.code.selector = Selector(selector);
        self.code.base = u64::from(selector) << 4;
        Some(())
    }

    /// A delivery through a 32-bit gate, to a flat stack.
    fn protected(&mut self, words: &mut Words, vector: u8, to: &Mode) -> Option<()> {
        let idtr = self.tables.idtr;
        let offset = u16::from(vector) * 8;
        if offset + 7 > idtr.limit || !has_flat_stack(to) {
            return None;
        }
        let gate = words.read(idtr.base, u64::from(offset), 8, u64::MAX)?;
        let gate = Descriptor(gate);
        self.clears_interrupt_flag = clears_interrupt_flag(gate)?;
        self.code = words.code(gate.gate_selector())?;
        self.rip = u64::from(gate.gate_offset());
        if self.rip > u64::from(self.code.limit) {
            return None;
        }
        if !self.changes_level {
            return Some(());
        }
        let task = self.tables.task;
        let is_wide = matches!(
            task.attributes.kind(),
            system_type::TSS32_AVAILABLE | system_type::TSS32_BUSY
        );
        if !task.is_usable() || !is_wide || task.limit < STACK_0 as u32 + 7 {
            return None;
        }
        let selector = words.read(task.base, STACK_0, 8, 0xffff << 32)? >> 32;
        let selector = Selector(selector as u16);
        self.frame_stack = FrameStack::Task {
            place: task.base.wrapping_add(STACK_0) & 0xffff_ffff,
        };
        let descriptor = words.descriptor(selector)?;
        let attributes = descriptor.attributes();
        if selector.rpl() != 0 || attributes.dpl() != 0 || !attributes.is_writable_data() {
            return None;
        }
        self.stack = descriptor.segment(selector);
        Some(())
    }

    /// A delivery through a 64-bit gate.
    fn long(&mut self, words: &mut Words, vector: u8) -> Option<()> {
        let idtr = self.tables.idtr;
        let offset = u16::from(vector) * 16;
        if offset + 15 > idtr.limit {
            return None;
        }
        let low = words.read(idtr.base, u64::from(offset), 8, u64::MAX)?;
        let high = words.read(idtr.base, u64::from(offset) + 8, 8, u64::MAX)?;
        let gate = Descriptor(low);
        self.clears_interrupt_flag = clears_interrupt_flag(gate)?;
        self.code = words.code(gate.gate_selector())?;
        let attributes = self.code.attributes;
        if !attributes.is_long_code() || attributes.contains(Attributes::DEFAULT_BIG) {
            return None;
        }
        (self.code.base, self.code.limit) = (0, u32::MAX);
        self.rip = u64::from(gate.gate_offset()) | high << 32;
        let slot = match low >> 32 & 7 {
            0 if !self.changes_level => None,
            0 => Some(STACK_0),
            number => Some(INTERRUPT_STACK_1 + (number - 1) * 8),
        };
        let task = self.tables.task;
        if let Some(slot) = slot {
            let place = task.base.wrapping_add(slot);
            if !task.is_usable() || slot + 7 > u64::from(task.limit) || place % PAGE + 8 > PAGE {
                return None;
            }
            self.frame_stack = FrameStack::Task { place };
        }
        if self.changes_level {
            self.stack = Segment::null_stack(Selector(0), 0);
        }
        Some(())
    }
}

/// Whether a gate clears IF. `None` means that the gate is not a 32-bit (or 64-bit) interrupt or
/// trap gate, or not present.
fn clears_interrupt_flag(gate: Descriptor) -> Option<bool> {
    let attributes = gate.attributes();
    if attributes.contains(Attributes::NOT_SYSTEM) || !attributes.contains(Attributes::PRESENT) {
        return None;
    }
    match attributes.kind() {
        system_type::INTERRUPT_GATE32 => Some(true),
        system_type::TRAP_GATE32 => Some(false),
        _ => None,
    }
}

/// Whether the stack has 4 GiB and 32 bits.
fn has_flat_stack(mode: &Mode) -> bool {
    mode.flags.contains(ModeFlags::STACK32)
        && mode.segment(SegmentRegister::Ss, true) == SegmentClass::Flat
}
