//! The memos of delivered software interrupts and of faults of V86 tasks.
//!
//! The monitor writes a memo when it delivers such an event, and the fast path that delivers the
//! next one compares with it ([`crate::gate::interrupt_fast_path`]).

use crate::abi::descriptors::Expected;
use crate::abi::fast_paths::SPREAD;
use crate::abi::link_layout::{BranchTable, FamilyId, ModeId, indirect_tag, table_offset};
use tollgate_x86::{Attributes, Segment, Selector, Vector};

/// INT n or INT3 that led through an interrupt or trap gate to a handler at level 0, from there or
/// from level 3; or the #GP of a V86 task.
///
/// What it read from memory stands here beside where it lies; the fast path reads it again and
/// compares. The tables' registers are compared too, so that no write of them must be noted.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Delivery {
    /// As [`delivery_key`] gives it; zero: none.
    pub key: u64,
    /// Base of the IDT.
    pub idt_base: u64,
    /// Base of the GDT.
    pub gdt_base: u64,
    /// Base of the TSS.
    pub task_base: u64,
    /// Limit of the TSS.
    pub task_limit: u32,
    /// Limit of the IDT.
    pub idt_limit: u16,
    /// Limit of the GDT.
    pub gdt_limit: u16,
    /// Linear address of the gate.
    pub gate: u64,
    /// The gate: of 32-bit handlers only the first half.
    pub gate_bytes: [u64; 2],
    /// Linear address of the handler's code descriptor.
    pub code_place: u64,
    /// That descriptor.
    pub code_bytes: u64,
    /// Linear address of the stack pointer in the TSS; zero: the stack stays the same.
    pub stack_slot: u64,
    /// Outside IA-32e mode: linear address of the stack's descriptor.
    pub stack_place: u64,
    /// That descriptor.
    pub stack_bytes: u64,
    /// RIP of the handler.
    pub target: u64,
    /// The software TLB of level 0 (R14 in guest code).
    pub tlb: u64,
    /// Where indirect branches of the handler's mode find their targets: eighths of the bytes
    /// from the start of the link tables.
    pub table: u64,
    /// Added to the handler's RIP it gives the negative of the tag of its entry there.
    pub tag: u64,
    /// Ored into [`crate::Context::level_changed`].
    pub level_changed: u64,
    /// What remains of the interrupt flag: all ones, or zero.
    pub interrupt_mask: u64,
    /// CS in the handler.
    pub code: Segment,
    /// SS in the handler, if the stack is another one.
    pub stack: Segment,
    /// [`crate::Context::code_descriptor`] in the handler.
    pub code_expected: Expected,
    /// [`crate::Context::stack_descriptor`] in the handler, if the level changes.
    pub stack_expected: Expected,
    /// Not zero: it is a fault with this error code ([`error_of`]).
    pub error: u64,
    /// Linear address of the gate of the INT n or INT3 that is refused with that fault; zero: none.
    pub refused_gate: u64,
    /// That gate.
    pub refused_bytes: u64,
}

/// [`Delivery::error`] of a fault with an error code.
pub const fn error_of(code: u32) -> u64 {
    1 << 32 | code as u64
}

/// Deliveries that are remembered.
pub const DELIVERIES: usize = 64;
/// Shifted right by this, the product of key and [`SPREAD`] is the number of the first of two
/// places for an entry; the second is beside it.
pub const DELIVERY_SHIFT: u32 = 58;
const _: () = assert!(DELIVERIES == 1 << (64 - DELIVERY_SHIFT));

/// In [`delivery_key`]: 64-bit code.
pub const KEY_LONG: u32 = 8;
/// In [`task_key`]: set.
pub const KEY_TASK: u32 = 9;
/// In [`refusal_key`]: set.
pub const KEY_REFUSED: u32 = 10;
/// The same: the mode, or its family, plus one.
const KEY_MODE: u32 = 32;

/// What tells a software interrupt from others: the vector, whether it is 64-bit code's, and the
/// mode.
pub const fn delivery_key(vector: u8, long: bool, mode: u32) -> u64 {
    vector as u64 | (long as u64) << KEY_LONG | (mode as u64 + 1) << KEY_MODE
}

/// The same of INT n and INT3 of V86 tasks. Nothing depends on the base of CS, in which modes of
/// a family differ.
pub const fn task_key(vector: u8, family: FamilyId) -> u64 {
    vector as u64 | 1 << KEY_TASK | (family.0 as u64 + 1) << KEY_MODE
}

/// The same of an instruction of V86 tasks that is #GP(0).
pub const fn refusal_key(family: FamilyId) -> u64 {
    task_key(Vector::GeneralProtection as u8, family) | 1 << KEY_REFUSED
}

const NO_SEGMENT: Segment = Segment {
    base: 0,
    limit: 0,
    selector: Selector(0),
    attributes: Attributes::empty(),
};

impl Delivery {
    /// None.
    pub const NONE: Self = Self {
        key: 0,
        idt_base: 0,
        gdt_base: 0,
        task_base: 0,
        task_limit: 0,
        idt_limit: 0,
        gdt_limit: 0,
        gate: 0,
        gate_bytes: [0; 2],
        code_place: 0,
        code_bytes: 0,
        stack_slot: 0,
        stack_place: 0,
        stack_bytes: 0,
        target: 0,
        tlb: 0,
        table: 0,
        tag: 0,
        level_changed: 0,
        interrupt_mask: 0,
        code: NO_SEGMENT,
        stack: NO_SEGMENT,
        code_expected: Expected::NEVER,
        stack_expected: Expected::NEVER,
        error: 0,
        refused_gate: 0,
        refused_bytes: 0,
    };

    /// Notes the mode of the handler, which uses `table` for its indirect branches.
    pub fn leads_to(&mut self, table: BranchTable, mode: ModeId) {
        self.table = table_offset(table) as u64 / 8;
        self.tag = indirect_tag(table, mode);
    }

    /// Puts it into one of its places: where it is already, where none is, or into the first, and
    /// what was there into the second.
    pub fn note(self, known: &mut [Self; DELIVERIES]) {
        let first = (self.key.wrapping_mul(SPREAD) >> DELIVERY_SHIFT) as usize;
        let places = [first, first ^ 1];
        let known_already = |&place: &usize| known[place].key == self.key;
        let vacant = |&place: &usize| known[place].key == 0;
        let place = places.into_iter().find(known_already);
        match place.or_else(|| places.into_iter().find(vacant)) {
            Some(place) => known[place] = self,
            None => {
                known[first ^ 1] = known[first];
                known[first] = self;
            }
        }
    }
}

/// Forgets them all.
pub fn forget(known: &mut [Delivery; DELIVERIES]) {
    for delivery in known {
        delivery.key = 0;
    }
}
