//! The displacements from R15 of the context's fields that emitted code names.
#![allow(
    missing_docs,
    reason = "each is the displacement of the field of that name"
)]

use crate::abi::context::{Context, STORE_SIZES, displacement};
use crate::abi::fast_paths::FastPath;
use crate::abi::memos::level_change::{LevelChange, LevelChangeKind, OuterReturn};
use crate::abi::strings::StringRoutine;
use std::mem::offset_of;
use tollgate_x86::state::TableRegister;
use tollgate_x86::{CpuState, Segment, Watched};

/// How emitted code may use a field of the context. Emitted code does not touch fields that
/// [`fields`] does not list: they belong to the monitor, and to [`crate::gate::entry`],
/// [`crate::gate::store_check`], [`crate::gate::string`] and [`crate::gate::fast_path`]. The
/// verifier enforces this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FieldUse {
    /// The field is read.
    Read,
    /// The field is read and written.
    Write,
    /// The field holds an address to which emitted code jumps.
    Jump,
}

/// A field, or several neighbouring ones, that emitted code uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// The displacement from R15 of the first byte.
    pub start: i32,
    /// The size in bytes.
    pub size: i32,
    /// How emitted code may use the field.
    pub access: FieldUse,
}

/// The size in bytes of the field that `_field` yields.
const fn size_of_field<T, F>(_field: fn(&T) -> &F) -> i32 {
    size_of::<F>() as i32
}

macro_rules! displacements {
    ($($name:ident = $field:ident $(. $part:ident)? $(: $access:ident)?,)+) => {
        $(pub const $name: i32 = displacement(offset_of!(Context, $field $(. $part)?));)+
        /// The named fields that emitted code uses.
        const NAMED: &[Option<Field>] = &[$(named!($name $field $(. $part)? $(, $access)?),)+];
    };
}

macro_rules! named {
    ($name:ident $field:ident $(. $part:ident)?) => {
        None
    };
    ($name:ident $field:ident $(. $part:ident)?, $access:ident) => {
        Some(Field {
            start: $name,
            size: size_of_field(|context: &Context| &context.$field $(. $part)?),
            access: FieldUse::$access,
        })
    };
}

displacements! {
    HOST_RSP = entry.host_rsp,
    EXIT_SITE = hot.exit_site: Write,
    ARITHMETIC = hot.arithmetic,
    EXIT_VALUE = hot.exit_value: Write,
    PENDING = hot.pending,
    VECTORS_OFF = hot.vectors_off: Read,
    LOAD_VECTORS = vectors.load,
    VECTORS_BEFORE = vectors.before,
    VECTORS_WERE_LIVE = vectors.were_live,
    VECTOR_COMPONENTS = vectors.components,
    COMPACTS_VECTORS = vectors.compacts,
    DIRECTION = hot.direction: Write,
    EXIT_ENTRY = hot.exit_entry: Jump,
    MISS_ENTRY = hot.miss_entry: Jump,
    TLB = hot.tlb: Write,
    LINKS = hot.links,
    TARGET = entry.target,
    BOUNCE_POINTER = hot.bounce_pointer: Read,
    TIME_STAMP_OFFSET = counters.time_stamp_offset: Read,
    X87_INSTRUCTION = x87.instruction: Write,
    X87_OPCODE = x87.opcode: Write,
    X87_OPERAND = x87.operand: Write,
    X87_OPERAND_OFFSET = x87.operand_offset: Write,
    X87_SELECTORS = x87.code_selector,
    CODE_SLIDE = registers.code_slide: Write,
    WINDOW = registers.window,
    CODE_LINES = store_test.lines,
    CODE_BYTES = store_test.bytes,
    STORE_RETURN = store_test.return_to,
    STORE_DELTA = store_test.delta,
    STORE_PASS = store_test.pass,
    LEVEL_CHANGED = transfers.changed: Write,
    SWITCH_IN = entry.switch_in,
    INTERRUPT_FLAG = hot.interrupt_flag: Write,
    INTERRUPT_REQUEST = hot.interrupt_request: Read,
    SYSTEM_FLAGS = hot.system_flags: Write,
    CODE_DESCRIPTOR = descriptors.code,
    STACK_DESCRIPTOR = descriptors.stack: Read,
    TASK_LIMIT = descriptors.task_limit: Read,
    INSTRUCTIONS = counters.instructions: Write,
    HOST_INSTRUCTIONS = counters.host_instructions: Write,
    HOST_BYTES = counters.host_bytes: Write,
    PROGRESS = counters.progress: Write,
    STRINGS = strings.routines: Jump,
    STRING_FLAGS = strings.flags,
    STRING_SHOWS_EACH = strings.shows_each,
    STRING_SOURCE_BASE = strings.source_base,
    OUTER_RETURN = transfers.outer_return: Read,
    VIRTUAL_RETURN = transfers.virtual_return,
    RETURNED_RIP = transfers.returned_rip: Write,
    FAST_PATHS = fast_paths.routines: Jump,
    FAST_PATH_COUNTS = fast_paths.counts,
    FAST_PATH_DONE = fast_paths.done,
    FAST_PATH_FUNCTION = fast_paths.function,
    MISS_FUNCTION = fast_paths.miss_function,
    DEVICE_FAST_PATH = devices.function,
    DEVICE_PAGE = devices.page,
    DEVICE_SPACE = devices.space,
    DISPLAY_WINDOW = devices.display_window,
    DISPLAY_BY_TABLES = devices.display_by_tables,
    DISPLAY_KNOWN = devices.display_known,
    DEVICE_ACCESSES = devices.accesses,
    CPU = cpu,
    CPUID_ANSWERS = fast_paths.cpuid_answers,
    SEGMENT_LOADS = fast_paths.segment_loads,
    DELIVERIES = fast_paths.deliveries,
    KNOWN_CODES = fast_paths.known_codes,
}

/// The displacement of the half of `Transfers::changed` that says that EFLAGS.RF was loaded within
/// a level: [`Changed::RESUME_FLAG`](crate::abi::context::groups::Changed::RESUME_FLAG).
pub const RESUME_FLAG_LOADED: i32 = LEVEL_CHANGED + 4;
/// The displacement of the selector of CS that a return to level 3 must have.
pub const OUTER_CODE_SELECTOR: i32 = OUTER_RETURN + offset_of!(OuterReturn, code_selector) as i32;
/// The displacement of the selector of SS that a return to level 3 must have.
pub const OUTER_STACK_SELECTOR: i32 = OUTER_RETURN + offset_of!(OuterReturn, stack_selector) as i32;
/// The displacement of the value that the descriptor of that CS must have.
pub const OUTER_CODE_DESCRIPTOR: i32 = OUTER_RETURN + offset_of!(OuterReturn, code) as i32;
/// The displacement of the value that the descriptor of that SS must have.
pub const OUTER_STACK_DESCRIPTOR: i32 = OUTER_RETURN + offset_of!(OuterReturn, stack) as i32;

/// The displacement of the address of the test for stores of `size` bytes, if there is one.
pub fn code_store(size: u8) -> Option<i32> {
    let index = STORE_SIZES.iter().position(|&known| known == size)?;
    Some(displacement(
        offset_of!(Context, store_test.routines) + index * 8,
    ))
}

/// The displacement of the address of the test for stores of `size` bytes, in modes whose memory is
/// reached through the long software TLB.
pub fn long_code_store(size: u8) -> Option<i32> {
    let from_other =
        offset_of!(Context, store_test.long_routines) - offset_of!(Context, store_test.routines);
    code_store(size).map(|at| at + from_other as i32)
}

/// The displacement of the address of a routine for a repeated string instruction.
pub const fn string_routine(routine: StringRoutine) -> i32 {
    STRINGS + 8 * routine.0 as i32
}

/// The displacement of the address of a fast path's routine.
pub const fn fast_path_routine(routine: FastPath) -> i32 {
    FAST_PATHS + 8 * routine as i32
}

/// The displacement of the count of how often a fast path has executed its instruction.
pub const fn fast_path_count(routine: FastPath) -> i32 {
    FAST_PATH_COUNTS + 8 * routine as i32
}

/// The displacement of a guest register's slot.
pub const fn slot(guest: u8) -> i32 {
    let guest = guest as usize & 15;
    let slots = if guest < 8 {
        offset_of!(Context, registers.spilled)
    } else {
        offset_of!(Context, cpu) + offset_of!(CpuState, gpr)
    };
    displacement(slots + guest * 8)
}

/// The displacement of the vector registers' save area.
pub const VECTOR_AREA: i32 = displacement(offset_of!(Context, cpu) + offset_of!(CpuState, vector));

/// The displacement of a segment register's base.
pub const fn segment_base(register: tollgate_x86::SegmentRegister) -> i32 {
    segment(register) + offset_of!(tollgate_x86::Segment, base) as i32
}

/// The displacement of a segment register's limit.
pub const fn segment_limit(register: tollgate_x86::SegmentRegister) -> i32 {
    segment(register) + offset_of!(tollgate_x86::Segment, limit) as i32
}

/// The displacement of the memo of a change of the privilege level.
pub const fn level_change(kind: LevelChangeKind) -> i32 {
    displacement(
        offset_of!(Context, transfers.level_changes) + kind as usize * size_of::<LevelChange>(),
    )
}

/// The displacement of a segment register: its base, then limit, selector and attributes.
pub const fn segment_register(register: tollgate_x86::SegmentRegister) -> i32 {
    segment(register)
}

/// The displacements of registers of the processor that guest code reads or swaps.
pub mod register {
    use super::{Context, CpuState, displacement, offset_of};
    const fn cpu(offset: usize) -> i32 {
        displacement(offset_of!(Context, cpu) + offset)
    }
    /// The flags as they were when guest code was entered, or when the privilege level last
    /// changed.
    pub const FLAGS: i32 = cpu(offset_of!(CpuState, flags));
    pub const CR0: i32 = cpu(offset_of!(CpuState, cr0));
    pub const CR2: i32 = cpu(offset_of!(CpuState, cr2));
    pub const CR3: i32 = cpu(offset_of!(CpuState, cr3));
    pub const CR4: i32 = cpu(offset_of!(CpuState, cr4));
    pub const LSTAR: i32 = cpu(offset_of!(CpuState, lstar));
    pub const SYSENTER_EIP: i32 = cpu(offset_of!(CpuState, sysenter_eip));
    pub const SYSENTER_ESP: i32 = cpu(offset_of!(CpuState, sysenter_esp));
    pub const KERNEL_GS_BASE: i32 = cpu(offset_of!(CpuState, kernel_gs_base));
    pub const TSC_AUX: i32 = cpu(offset_of!(CpuState, tsc_aux));
}

/// The displacement of a segment register's selector; the attributes are the upper half of that
/// doubleword.
pub const fn segment_selector(register: tollgate_x86::SegmentRegister) -> i32 {
    const SELECTOR: usize = offset_of!(tollgate_x86::Segment, selector);
    const _: () = assert!(offset_of!(tollgate_x86::Segment, attributes) == SELECTOR + 2);
    segment(register) + SELECTOR as i32
}

/// The displacement of the selector of LDTR.
pub const LDT_SELECTOR: i32 = displacement(
    offset_of!(Context, cpu) + offset_of!(CpuState, ldtr) + offset_of!(Segment, selector),
);
/// The displacement of the selector of TR.
pub const TASK_SELECTOR: i32 = displacement(
    offset_of!(Context, cpu) + offset_of!(CpuState, tr) + offset_of!(Segment, selector),
);
/// The displacement of the IDT's linear address.
pub const IDT_BASE: i32 = IDTR + offset_of!(TableRegister, base) as i32;
/// The displacement of the TSS's linear address.
pub const TASK_BASE: i32 =
    displacement(offset_of!(Context, cpu) + offset_of!(CpuState, tr) + offset_of!(Segment, base));
/// The displacement of the IDT's limit.
pub const IDT_LIMIT: i32 = IDTR + offset_of!(TableRegister, limit) as i32;
/// The displacement of the TSS's limit.
pub const TASK_SEGMENT_LIMIT: i32 =
    displacement(offset_of!(Context, cpu) + offset_of!(CpuState, tr) + offset_of!(Segment, limit));
/// The displacement of the GDT's linear address.
pub const GDT_BASE: i32 = GDTR + offset_of!(TableRegister, base) as i32;
/// The displacement of the GDT's limit.
pub const GDT_LIMIT: i32 = GDTR + offset_of!(TableRegister, limit) as i32;
const GDTR: i32 = displacement(offset_of!(Context, cpu) + offset_of!(CpuState, gdtr));
const IDTR: i32 = displacement(offset_of!(Context, cpu) + offset_of!(CpuState, idtr));
/// The displacements of the values in `work`.
pub const WORK: [i32; 3] = {
    let first = displacement(offset_of!(Context, transfers.work));
    [first, first + 8, first + 16]
};

/// The displacement of the slots of the guest registers 0 to 7; those of 8 to 15 are at
/// [`CPU_SLOTS`].
pub const SPILLED_SLOTS: i32 = slot(0);
/// The displacement of the slots of the guest registers 8 to 15.
pub const CPU_SLOTS: i32 = slot(8);
/// The size in bytes of eight slots.
pub const SLOTS_SIZE: i32 = 64;

/// What emitted code uses in addition to the fields of the table above: parts of fields, and fields
/// of the processor.
const PARTS: [Field; 25] = {
    const fn part(start: i32, size: i32, access: FieldUse) -> Field {
        Field {
            start,
            size,
            access,
        }
    }
    use FieldUse::{Jump, Read, Write};
    const STORES: i32 = (STORE_SIZES.len() * 8) as i32;
    const MASK: i32 = offset_of!(Watched, mask) as i32;
    // The mask is directly followed by the bits.
    const _: () = assert!(MASK + 16 == size_of::<Watched>() as i32);
    [
        part(SPILLED_SLOTS, SLOTS_SIZE, Write),
        part(CPU_SLOTS, SLOTS_SIZE, Write),
        part(
            displacement(offset_of!(Context, store_test.routines)),
            STORES,
            Jump,
        ),
        part(
            displacement(offset_of!(Context, store_test.long_routines)),
            STORES,
            Jump,
        ),
        part(CODE_DESCRIPTOR, MASK, Read),
        part(CODE_DESCRIPTOR + MASK, 16, Write),
        part(X87_SELECTORS, 4, Write),
        part(WORK[0], 24, Write),
        part(
            displacement(offset_of!(Context, transfers.level_changes)),
            size_of::<[LevelChange; LevelChangeKind::ALL.len()]>() as i32,
            Read,
        ),
        part(
            segment(tollgate_x86::SegmentRegister::Es),
            size_of::<[Segment; 6]>() as i32,
            Write,
        ),
        part(LDT_SELECTOR, 2, Read),
        part(TASK_SELECTOR, 2, Read),
        part(IDT_BASE, 8, Read),
        part(IDT_LIMIT, 2, Read),
        part(TASK_BASE, 8, Read),
        part(register::FLAGS, 8, Write),
        part(register::CR0, 8, Read),
        part(register::CR2, 8, Read),
        part(register::CR3, 8, Read),
        part(register::CR4, 8, Read),
        part(register::LSTAR, 8, Read),
        part(register::KERNEL_GS_BASE, 8, Write),
        part(register::TSC_AUX, 8, Read),
        part(register::SYSENTER_ESP, 8, Read),
        part(register::SYSENTER_EIP, 8, Read),
    ]
};
/// Everything in the context that emitted code uses. No access goes beyond one of these fields.
pub fn fields() -> impl Iterator<Item = Field> {
    let named = NAMED.iter().copied().flatten();
    named.chain(PARTS)
}

const fn segment(register: tollgate_x86::SegmentRegister) -> i32 {
    let size = std::mem::size_of::<tollgate_x86::Segment>();
    displacement(
        offset_of!(Context, cpu) + offset_of!(CpuState, segments) + register as usize * size,
    )
}
