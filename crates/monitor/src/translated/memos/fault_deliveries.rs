//! Repeats deliveries of faults and external interrupts: the monitor compares what it noted when it
//! last delivered the same vector from the same mode with what the guest's tables hold now.
//!
//! The plan of a delivery ([`tollgate_emulate::interrupt::Plan`]) says what the delivery does, and
//! which words of the gate, the descriptors and the TSS this follows from. So the plan is noted
//! together with the result ([`FaultDelivery`]), and need not be made again while the same bytes are
//! in the same places. All of them are read through the software TLB each time, so no notification
//! is needed when the guest writes to them, through whichever alias. The slow path handles the cases
//! that are not that simple:
//!
//! - an access that faults or might fault: a page of a table or of the stack that the software TLB
//!   does not have, a frame that straddles two pages or is next to code;
//! - task gates, handlers of level 1 and 2, V86 mode, tables in the LDT;
//! - flags and debug registers that change the delivery: TF, NT, VIF, VIP, breakpoints.
//!
//! The handler's block is found as the target of an indirect branch is.

use crate::execution::running::Running;
use crate::memory::guest_view::GuestView;
use crate::memory::ram_copies::copy_to;
use crate::translated::processor::Processor;
use crate::translated::{PendingLink, Translated};
use tollgate_emulate::interrupt::{Event, EventSource, Frame, FrameForm, Plan, Planned};
use tollgate_emulate::interrupt::{Reads, Target};
use tollgate_emulate::stack_access::frame_image;
use tollgate_engine::abi::context::Context;
use tollgate_engine::abi::descriptors::KnownDescriptors;
use tollgate_engine::abi::link_layout::ModeId;
use tollgate_engine::abi::memos::{Memo, MemoTable};
use tollgate_platform::Platform;
use tollgate_tlb::View;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::state::{Activity, TableRegister};
use tollgate_x86::{CpuState, Exception, Flags, LinearAddress, Segment};

/// The number of deliveries that are remembered.
const DELIVERIES: usize = 128;
/// Flags that prevent a repeated delivery, because a delivery clears them or depends on them.
const UNUSUAL: Flags = Flags::TF
    .union(Flags::NT)
    .union(Flags::VM)
    .union(Flags::VIF)
    .union(Flags::VIP);

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
    /// The vector, and the mode in which the delivery was made; see [`key_of`].
    key: u64,
    tables: Tables,
    plan: Plan,
    reads: Reads,
    /// SS before the delivery.
    stack: Segment,
    /// The mode of the handler.
    to: ModeId,
    /// What is known of the descriptors of the handler's segments.
    descriptors: KnownDescriptors,
}

/// A place for a delivery.
#[derive(Clone, Copy)]
struct Place(Option<FaultDelivery>);

impl Memo for Place {
    const NONE: Self = Self(None);

    fn key(&self) -> Option<u64> {
        self.0.as_ref().map(|delivery| delivery.key)
    }

    fn clear(&mut self) {
        self.0 = None;
    }
}

/// The key of the delivery of a vector from a mode, which includes the level and, in real mode, the
/// base of CS.
fn key_of(event: &Event, from: ModeId) -> u64 {
    u64::from(event.vector) | u64::from(from.0) << 8
}

/// The known deliveries.
pub(crate) struct FaultDeliveries {
    table: Box<MemoTable<Place, DELIVERIES>>,
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
            table: Box::new(MemoTable::NONE),
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
            self.table.forget();
        }
    }
}

/// The state of the processor before a delivery that is needed to note the delivery.
pub(crate) struct Before {
    from: ModeId,
    stack: Segment,
}

/// Whether eight bytes at a place lie in one page.
fn is_in_page(place: u64) -> bool {
    place % PAGE_SIZE <= PAGE_SIZE - 8
}

impl FaultDelivery {
    /// The delivery by this plan, if it is simple enough. `cpu` is the processor after the delivery.
    fn of(cpu: &CpuState, event: &Event, before: &Before, planned: &Planned) -> Option<Self> {
        let Target::Handler(plan) = planned.target else {
            return None;
        };
        let mut places = planned.reads.iter().map(|word| word.place);
        let has_places = planned.reads.is_complete()
            && places.all(is_in_page)
            && plan.stack.slot.is_none_or(|slot| is_in_page(slot.place));
        let stack = plan.stack.segment;
        let is_local = plan.form != FrameForm::VectorTable
            && (plan.code.selector.is_local()
                || stack.is_some_and(|stack| stack.selector.is_local()));
        (has_places && !is_local && plan.cpl == 0).then_some(Self {
            key: key_of(event, before.from),
            tables: Tables::of(cpu),
            plan,
            reads: planned.reads,
            stack: before.stack,
            to: before.from,
            descriptors: KnownDescriptors::of(cpu),
        })
    }

    /// Whether the delivery can be repeated on this processor: everything that it depends on is
    /// unchanged.
    #[inline]
    fn holds(&self, view: &GuestView, cpu: &CpuState) -> bool {
        // What is known of SS's descriptor follows from SS. Real mode does not use it.
        let keeps_stack = self.plan.stack.segment.is_some()
            || self.plan.form == FrameForm::VectorTable
            || *cpu.ss() == self.stack;
        self.tables == Tables::of(cpu)
            && keeps_stack
            && self.reads.iter().all(|word| {
                let value = view.read_table(cpu, LinearAddress(word.place));
                value.is_some_and(|value| word.matches(value))
            })
    }

    /// Repeats the delivery. `None` means that something may fault; then nothing has changed.
    #[inline]
    fn make(
        &self,
        view: &GuestView,
        context: &mut Context,
        event: &Event,
        address: Option<LinearAddress>,
    ) -> Option<()> {
        let cpu = &mut context.cpu;
        let pointer = match self.plan.stack.slot {
            Some(slot) => Some(slot.pointer_in(view.read_table(cpu, LinearAddress(slot.place))?)),
            None => None,
        };
        let mut stack = self.plan.stack(cpu, pointer)?;
        let frame = self.plan.frame(cpu, event);
        let mut image = [0; Frame::MOST_VALUES * 8];
        let image = frame_image(self.plan.size, frame.values(), &mut image);
        let length = image.len() as u64;
        let place = stack.place_below(length)?;
        if place.0 % PAGE_SIZE + length > PAGE_SIZE {
            return None;
        }
        let host = (view.translations).look_up(cpu, View::Supervisor, true, place)?;
        // No step can fail from here on.
        copy_to(host as *mut u8, image);
        if let Some(address) = address {
            cpu.cr2 = address.0;
        }
        stack.advance(-(length as i64));
        self.plan.enter(cpu, &stack);
        cpu.end_shadow();
        if self.plan.form != FrameForm::VectorTable {
            context.descriptors = self.descriptors;
        }
        context.hot.tlb = view.translations.table(&context.cpu, View::Supervisor);
        context.scatter_flags();
        Some(())
    }
}

impl<P: Platform> Running<'_, Translated, P> {
    /// Delivers an exception of the instruction at CS:RIP by repeating an earlier delivery. Returns
    /// false if none is known or it is not that simple; then nothing has changed.
    #[inline]
    pub(crate) fn deliver_as_before(&mut self, event: &Event, exception: Exception) -> bool {
        self.make_as_before(event, exception.address)
    }

    /// Delivers an interrupt that was acknowledged, at an instruction boundary, by repeating an
    /// earlier delivery.
    pub(crate) fn interrupt_as_before(&mut self, event: &Event) -> bool {
        self.settle_resume_flag();
        let is_made = self.make_as_before(event, None);
        if is_made {
            self.runner.context.cpu.activity = Activity::Running;
            self.due.events = true;
        }
        is_made
    }

    #[inline]
    fn make_as_before(&mut self, event: &Event, address: Option<LinearAddress>) -> bool {
        if self.before_delivery(event).is_none() {
            return false;
        }
        let runner = &mut *self.runner;
        let known = (runner.fault_deliveries.table).find(key_of(event, runner.mode));
        let Some(Place(Some(delivery))) = known else {
            return false;
        };
        if !delivery.holds(self.view, &runner.context.cpu)
            || (delivery.make(self.view, &mut runner.context, event, address)).is_none()
        {
            return false;
        }
        runner.mode = delivery.to;
        runner.code_base = delivery.plan.code.base;
        runner.fault_deliveries.repeated += 1;
        runner.resume = None;
        runner.link = PendingLink::Handler;
        true
    }

    /// The state before the delivery of this event, if the delivery may be noted or repeated.
    pub(crate) fn before_delivery(&self, event: &Event) -> Option<Before> {
        let cpu = &self.runner.context.cpu;
        let is_usual = self.runner.fault_deliveries.enabled
            && !self.due.mode
            && (event.source == EventSource::External || event.is_fault())
            && !cpu.flags().intersects(UNUSUAL)
            && cpu.shadow_rip != cpu.rip
            && !cpu.has_breakpoints()
            && self.non_register.breakpoint_hits == 0
            && !self.work.traps()
            && !self.view.memory.has_map_changes();
        is_usual.then(|| Before {
            from: self.runner.mode,
            stack: *cpu.ss(),
        })
    }
}

impl Processor<'_> {
    /// Notes a delivery that the monitor has just made by this plan, with its result.
    pub(crate) fn note_delivery(&mut self, event: &Event, before: &Before, planned: &Planned) {
        let to = self.runner.mode_of_state();
        if self.runner.engine.mode(before.from).is_watched() || to.is_watched() {
            return;
        }
        let delivery = FaultDelivery::of(&self.runner.context.cpu, event, before, planned);
        let Some(mut delivery) = delivery else { return };
        let Some(to) = self.intern_for_memo(to) else {
            return;
        };
        delivery.to = to;
        let known = &mut self.runner.fault_deliveries;
        known.table.note(Place(Some(delivery)));
        known.knows_any = true;
        // The handler counts as the target of an indirect branch: the next look-up of its block
        // makes an entry for it, by which the fast path finds it.
        self.runner.link = PendingLink::Indirect;
    }
}
