//! The memos of delivered software interrupts and of faults of V86 tasks.
//!
//! The monitor writes a memo when it delivers such an event, and the fast path that delivers the
//! next one compares with it ([`crate::gate::interrupt_fast_path`]).

use crate::abi::changed::Changed;
use crate::abi::link_layout::FamilyId;
use crate::abi::memos::{CodeAfter, Memo, MemoTable};
use tollgate_x86::{Segment, Selector, Vector, Watched};

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
    /// The gate's words; for 32-bit handlers only the first one is used.
    pub gate: [Watched; 2],
    /// The linear address of the stack pointer in the TSS; zero if the stack does not change.
    pub stack_slot: u64,
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
    /// The descriptor of that CS, which is
    /// [`crate::abi::descriptors::KnownDescriptors::code`] in the handler.
    pub code_descriptor: Watched,
    /// [`crate::abi::descriptors::KnownDescriptors::stack`] in the handler, if the level changes.
    /// Outside IA-32e mode it is the descriptor of that SS.
    pub stack_descriptor: Watched,
    /// The error code, as [`error_of`] encodes it, if the event is a fault with one; otherwise
    /// zero.
    pub error: u64,
    /// The gate of the INT n or INT3 that is refused with that fault, if there is one.
    pub refused: Watched,
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

impl Memo for Delivery {
    const NONE: Self = Self {
        key: 0,
        idt_base: 0,
        gdt_base: 0,
        task_base: 0,
        task_limit: 0,
        idt_limit: 0,
        gdt_limit: 0,
        gate: [Watched::NONE; 2],
        stack_slot: 0,
        target: 0,
        tlb: 0,
        then: CodeAfter::NONE,
        changed: Changed::empty(),
        interrupt_mask: 0,
        code: Segment::null(Selector(0)),
        stack: Segment::null(Selector(0)),
        code_descriptor: Watched::NEVER,
        stack_descriptor: Watched::NEVER,
        error: 0,
        refused: Watched::NONE,
    };

    fn key(&self) -> Option<u64> {
        (self.key != 0).then_some(self.key)
    }

    fn clear(&mut self) {
        self.key = 0;
    }
}
