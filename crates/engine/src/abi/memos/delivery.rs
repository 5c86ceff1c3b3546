//! The memos of delivered software interrupts and of faults of V86 tasks.
//!
//! The monitor writes a memo when it delivers such an event, and the fast path that delivers the
//! next one compares with it ([`crate::gate::interrupt_fast_path`]).

use crate::abi::changed::Changed;
use crate::abi::descriptors::Expected;
use crate::abi::link_layout::FamilyId;
use crate::abi::memos::{CodeAfter, Memo, MemoTable};
use tollgate_x86::{Attributes, Segment, Selector, Vector};

/// The memo of an INT n or INT3 that led through an interrupt or trap gate to a handler at level 0,
/// from level 0 or level 3, or of the #GP of a V86 task.
///
/// It contains what the delivery read from memory, with the addresses; the fast path reads the same
/// memory again and compares. The registers of the tables are compared too, so that writes to them
/// need not discard memos.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Delivery {
    /// The key that [`delivery_key`], [`task_key`] or [`refusal_key`] returns; zero if the place is
    /// vacant.
    pub key: u64,
    /// The base of the IDT.
    pub idt_base: u64,
    /// The base of the GDT.
    pub gdt_base: u64,
    /// The base of the TSS.
    pub task_base: u64,
    /// The limit of the TSS.
    pub task_limit: u32,
    /// The limit of the IDT.
    pub idt_limit: u16,
    /// The limit of the GDT.
    pub gdt_limit: u16,
    /// The linear address of the gate.
    pub gate: u64,
    /// The gate's bytes; for 32-bit handlers only the first half is used.
    pub gate_bytes: [u64; 2],
    /// The linear address of the handler's code descriptor.
    pub code_place: u64,
    /// The bytes of the code descriptor.
    pub code_bytes: u64,
    /// The linear address of the stack pointer in the TSS; zero if the stack does not change.
    pub stack_slot: u64,
    /// The linear address of the stack's descriptor, outside IA-32e mode.
    pub stack_place: u64,
    /// The bytes of the stack's descriptor.
    pub stack_bytes: u64,
    /// RIP of the handler.
    pub target: u64,
    /// The software TLB of level 0 (R14 in guest code).
    pub tlb: u64,
    /// The handler's code, as indirect branches find it.
    pub then: CodeAfter,
    /// The bits that the fast path sets in [`crate::abi::context::groups::Transfers::changed`].
    pub changed: Changed,
    /// What the interrupt flag is ANDed with: all ones, or zero.
    pub interrupt_mask: u64,
    /// CS in the handler.
    pub code: Segment,
    /// SS in the handler, if the stack changes.
    pub stack: Segment,
    /// [`crate::abi::descriptors::KnownDescriptors::code`] in the handler.
    pub code_expected: Expected,
    /// [`crate::abi::descriptors::KnownDescriptors::stack`] in the handler, if the level changes.
    pub stack_expected: Expected,
    /// The error code, as [`error_of`] encodes it, if the event is a fault with one; otherwise
    /// zero.
    pub error: u64,
    /// The linear address of the gate of the INT n or INT3 that is refused with that fault; zero if
    /// there is none.
    pub refused_gate: u64,
    /// The bytes of that gate.
    pub refused_bytes: u64,
}

/// [`Delivery::error`] of a fault with an error code.
pub const fn error_of(code: u32) -> u64 {
    1 << 32 | code as u64
}

/// The number of deliveries that are remembered.
pub const DELIVERIES: usize = 64;
/// The table of known deliveries.
pub type DeliveryTable = MemoTable<Delivery, DELIVERIES>;

/// In [`delivery_key`], the bit that says that the instruction is in 64-bit code.
pub const KEY_LONG: u32 = 8;
/// In [`task_key`], the bit that says that the instruction is that of a V86 task.
pub const KEY_TASK: u32 = 9;
/// In [`refusal_key`], the bit that says that the event is a fault.
pub const KEY_REFUSED: u32 = 10;
/// In all keys, the lowest bit of the mode, or its family, plus one.
const KEY_MODE: u32 = 32;

/// The key of a software interrupt: its vector, whether it is in 64-bit code, and its mode.
pub const fn delivery_key(vector: u8, long: bool, mode: u32) -> u64 {
    vector as u64 | (long as u64) << KEY_LONG | (mode as u64 + 1) << KEY_MODE
}

/// The key of INT n and INT3 of V86 tasks. The base of CS, in which modes of a family differ, does
/// not matter.
pub const fn task_key(vector: u8, family: FamilyId) -> u64 {
    vector as u64 | 1 << KEY_TASK | (family.0 as u64 + 1) << KEY_MODE
}

/// The key of an instruction of V86 tasks that is #GP(0).
pub const fn refusal_key(family: FamilyId) -> u64 {
    task_key(Vector::GeneralProtection as u8, family) | 1 << KEY_REFUSED
}

const NO_SEGMENT: Segment = Segment {
    base: 0,
    limit: 0,
    selector: Selector(0),
    attributes: Attributes::empty(),
};

impl Memo for Delivery {
    const NONE: Self = Self {
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
        then: CodeAfter::NONE,
        changed: Changed::empty(),
        interrupt_mask: 0,
        code: NO_SEGMENT,
        stack: NO_SEGMENT,
        code_expected: Expected::NEVER,
        stack_expected: Expected::NEVER,
        error: 0,
        refused_gate: 0,
        refused_bytes: 0,
    };

    fn key(&self) -> Option<u64> {
        (self.key != 0).then_some(self.key)
    }

    fn clear(&mut self) {
        self.key = 0;
    }
}
