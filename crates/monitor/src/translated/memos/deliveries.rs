//! Stores memos of deliveries of software interrupts and of the #GP of V86 tasks: what the monitor
//! did, where the fast path that delivers the next one finds it
//! ([`tollgate_engine::gate::interrupt_fast_path`]).
//!
//! What a delivery does, and which words of memory this follows from, is in its plan
//! ([`tollgate_emulate::interrupt::Plan`]). A memo is the part of a plan that the fast path needs.
//! [`memo_of`] decides which plans the fast path can carry out.

use crate::execution::running::Running;
use crate::memory::addresses::view_of;
use crate::memory::guest_view::{Inline, InlineAccess};
use crate::translated::Translated;
use crate::translated::processor::Processor;
use iced_x86::Instruction;
use tollgate_emulate::interrupt::{Event, EventSource, Planned, Target, plan};
use tollgate_engine::abi::context::groups::Changed;
use tollgate_engine::abi::descriptors::KnownDescriptors;
use tollgate_engine::abi::memos::delivery::{Delivery, error_of, refusal_key, task_key};
use tollgate_engine::abi::memos::{CodeAfter, Memo};
use tollgate_engine::policy::fast_path::FastInstruction;
use tollgate_platform::Platform;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::canonical::is_canonical_range;
use tollgate_x86::paging::Privilege;
use tollgate_x86::{
    Attributes, CpuState, Exception, Flags, LinearAddress, Segment, Selector, Vector, Watched,
};

/// A fault of a V86 task that a fast path may deliver.
pub(crate) struct Refusal {
    key: u64,
    /// The error code of the fault.
    code: u32,
    /// The gate that refused an INT n or INT3.
    gate: Watched,
}

/// Whether a segment has a base of zero, 4 GiB and a default size of 32 bits.
pub(super) fn is_flat(segment: &Segment) -> bool {
    let attributes = segment.attributes;
    segment.base == 0
        && segment.limit == u32::MAX
        && attributes.contains(Attributes::DEFAULT_BIG)
        && (attributes.is_code() || !attributes.is_expand_down())
}

/// The memo of a delivery to level 0, if the fast path can make this delivery: to 64-bit code from
/// 64-bit code, or to a flat code segment and a flat stack of the TSS from level 3 outside IA-32e
/// mode. `cpu` is the processor after the delivery. The code that follows is left out.
fn memo_of(cpu: &CpuState, planned: &Planned) -> Option<Delivery> {
    let Target::Handler(plan) = &planned.target else {
        return None;
    };
    let gate = match (&*planned.reads, plan.size) {
        ([low, high, _], 8) if low.place % PAGE_SIZE <= PAGE_SIZE - 16 => [*low, *high],
        ([gate, _, _, _], 4) => [*gate, Watched::NONE],
        _ => return None,
    };
    let (stack, slot) = (plan.stack.segment, plan.stack.slot);
    let is_flat = plan.size == 8
        || is_flat(&plan.code)
            && stack.is_some_and(|stack| is_flat(&stack))
            && slot.is_some_and(|slot| slot.size == 4);
    // In the memo, a place of zero says that there is no such word.
    let has_places = gate[0].place != 0 && slot.is_none_or(|slot| slot.place != 0);
    let known = KnownDescriptors::of(cpu);
    let is_known = known.code != Watched::NEVER && known.stack != Watched::NEVER;
    let is_plain = planned.reads.is_complete() && plan.cpl == 0;
    (is_plain && is_flat && is_known && has_places).then_some(Delivery {
        idt_base: cpu.idtr.base,
        gdt_base: cpu.gdtr.base,
        task_base: cpu.tr.base,
        task_limit: cpu.tr.limit,
        idt_limit: cpu.idtr.limit,
        gdt_limit: cpu.gdtr.limit,
        gate,
        stack_slot: slot.map_or(0, |slot| slot.place),
        target: plan.rip,
        changed: match stack {
            Some(_) => Changed::LEVEL,
            None => Changed::empty(),
        },
        interrupt_mask: match plan.cleared.contains(Flags::IF) {
            true => 0,
            false => u64::MAX,
        },
        code: plan.code,
        stack: stack.unwrap_or(Segment::null_stack(Selector(0), 0)),
        code_descriptor: known.code,
        stack_descriptor: known.stack,
        ..Delivery::NONE
    })
}

impl<P: Platform> Running<'_, Translated, P> {
    /// The fault that a V86 task is about to get, if a fast path may deliver it: the fault of an
    /// instruction that the task's monitor must emulate, or of an INT n whose gate refuses the
    /// task.
    pub(crate) fn refusal_of_task(&mut self, exception: Exception) -> Option<Refusal> {
        let cpu = &self.runner.context.cpu;
        if exception.vector != Vector::GeneralProtection || !cpu.is_virtual_8086() {
            return None;
        }
        let mode = self.runner.mode_of_state();
        if mode.is_watched() || mode != *self.runner.engine.mode(self.runner.mode) {
            return None;
        }
        let family = self.runner.engine.family(self.runner.mode);
        let code = exception.error_code;
        let (key, gate) = match code {
            0 => (refusal_key(family), Watched::NONE),
            // The error code names an entry of the IDT, and the event is not external (SDM volume
            // 3, 6.13).
            _ if code & 7 == 2 => {
                let vector = u8::try_from(code >> 3).ok()?;
                (
                    task_key(vector, family),
                    self.gate_that_raises(exception, vector)?,
                )
            }
            _ => return None,
        };
        Some(Refusal { key, code, gate })
    }

    /// The gate of this vector, if it is the reason why an INT n of the present code raises this
    /// exception.
    fn gate_that_raises(&mut self, exception: Exception, vector: u8) -> Option<Watched> {
        let event = Event {
            vector,
            // Unlike INT n, INT3 asks the gate only.
            source: EventSource::Int3OrInto,
            error_code: None,
            return_rip: 0,
        };
        let mut planned = Planned::nothing();
        let (cpu, mut environment) = self.parts();
        let result = plan(cpu, &mut environment, &event, &mut planned);
        match *planned.reads {
            [gate] if result == Err(exception) && gate.place != 0 => Some(gate),
            _ => None,
        }
    }
}

impl Processor<'_> {
    /// Stores a memo of the INT n or INT3 that the monitor has just delivered by this plan.
    pub(crate) fn remember_delivery(&mut self, instruction: &Instruction, planned: &Planned) {
        let from = *self.runner.engine.mode(self.runner.mode);
        let map = self.runner.engine.map_of(&from);
        let family = self.runner.engine.family(self.runner.mode);
        if let Some(
            fast_path @ (FastInstruction::Interrupt { .. } | FastInstruction::TaskInterrupt { .. }),
        ) = FastInstruction::of(instruction, &from, map)
            && let Some(key) = fast_path.key(self.runner.mode.0, family)
            && let Some(delivery) = memo_of(&self.runner.context.cpu, planned)
        {
            self.note_known_delivery(Delivery { key, ..delivery });
        }
    }

    /// Stores a memo of this fault, which the monitor has just delivered by this plan.
    pub(crate) fn remember_refusal(&mut self, refusal: &Refusal, planned: &Planned) {
        if let Some(delivery) = memo_of(&self.runner.context.cpu, planned) {
            self.note_known_delivery(Delivery {
                key: refusal.key,
                error: error_of(refusal.code),
                refused: refusal.gate,
                ..delivery
            });
        }
    }

    /// Stores a memo of the delivery that has led to the present state, where the fast path finds
    /// it.
    fn note_known_delivery(&mut self, mut delivery: Delivery) {
        let (from, to) = (self.runner.mode, self.runner.mode_of_state());
        let places = [
            delivery.gate[0].place,
            delivery.code_descriptor.place,
            delivery.stack_descriptor.place,
            delivery.stack_slot,
            delivery.refused.place,
        ];
        let mut places = places.into_iter().filter(|&place| place != 0);
        if to.is_watched() || !places.all(|place| self.makes_readable(place)) {
            return;
        }
        let Some(to) = self.intern_for_memo(to) else {
            return;
        };
        if from != to {
            delivery.changed |= Changed::MODE;
        }
        let cpu = &self.runner.context.cpu;
        delivery.tlb = (self.view.translations).table(cpu, view_of(Privilege::Supervisor));
        delivery.then = CodeAfter::of(self.runner.engine.branch_table(to), to);
        self.runner.context.fast_paths.deliveries.note(delivery);
    }

    /// Makes eight bytes of a table readable through the supervisor's view of the software TLB, by
    /// one look-up. Returns whether they are.
    pub(crate) fn makes_readable(&mut self, place: u64) -> bool {
        let cpu = &self.runner.context.cpu;
        let is_reachable = place % PAGE_SIZE <= PAGE_SIZE - 8
            && (!cpu.is_long_mode() || is_canonical_range(place, 8));
        is_reachable
            && matches!(
                (self.view).make_inline(cpu, LinearAddress(place), InlineAccess::TABLE_LOAD),
                Ok(Inline::Yes)
            )
    }
}
