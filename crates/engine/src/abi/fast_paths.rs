//! The numbers and memos of fast paths: instructions that a routine executes without an exit.
//!
//! Translated code calls a routine of [`crate::gate::fast_path`], which executes the instruction if
//! it can and continues after the instruction. The routine compares with what the monitor found out
//! when it last executed such an instruction and stored here. Which instruction has which fast path
//! is decided when the instruction is translated (`policy/fast_path.rs`).

use crate::abi::context::{Context, SITE_NONE};
use crate::abi::link_layout::{BranchTable, ModeId, indirect_tag, table_offset};
use tollgate_exits::ExitKind;
use tollgate_x86::{Operation, Segment, SegmentRegister};

/// The routines, in the order of [`crate::Context::fast_path_counts`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum FastPath {
    /// CPUID, from the answers that the monitor gave before.
    Cpuid,
    /// MOV to or POP of DS, ES, FS or GS, in 32-bit code at level 0, if the descriptor is the
    /// one that the monitor loaded before.
    LoadSegment,
    /// IRETD from level 0 to level 3 outside IA-32e mode, if frame and descriptors are like those
    /// of one that the monitor has executed.
    Return,
    /// INT n or INT3 to level 0, from there in 64-bit code and from level 3, if gate and
    /// descriptors are those of one that the monitor has delivered.
    Interrupt,
    /// Far JMP, CALL and RET of 32-bit protected mode outside IA-32e mode and of 64-bit code,
    /// within the level, to a code segment that the monitor has entered so.
    Far,
    /// The load of the x87 and vector registers that a block needs: no instruction of its own.
    Vectors,
    /// What the monitor's function does for INVLPG ([`FastPathCall`]).
    Invlpg,
    /// The same for RDMSR and WRMSR.
    Msr,
    /// The same for MOV to control registers.
    ControlRegister,
    /// The same for others.
    Other,
    /// No instruction, but an entry of the software TLB that a load needed, made by
    /// [`crate::gate::miss`].
    ReadMiss,
    /// The same of a store.
    WriteMiss,
    /// IN of a port that the machine says is near: its register is a word of state.
    PortIn,
    /// OUT to such a port.
    PortOut,
    /// A load of such a register in device memory. Not called: a look-up's miss comes to it.
    MmioRead,
    /// A store to one, likewise.
    MmioWrite,
    /// What the monitor's function does for MOV to CR3: another space, which is kept, is loaded.
    LoadSpace,
    /// An instruction of a V86 task that is #GP(0): the fault.
    Refusal,
}

impl FastPath {
    /// All of them.
    pub const ALL: [Self; FAST_PATHS] = [
        Self::Cpuid,
        Self::LoadSegment,
        Self::Return,
        Self::Interrupt,
        Self::Far,
        Self::Vectors,
        Self::Invlpg,
        Self::Msr,
        Self::ControlRegister,
        Self::Other,
        Self::ReadMiss,
        Self::WriteMiss,
        Self::PortIn,
        Self::PortOut,
        Self::MmioRead,
        Self::MmioWrite,
        Self::LoadSpace,
        Self::Refusal,
    ];

    /// The kind of exit that its instructions would have been.
    pub const fn kind(self) -> ExitKind {
        match self {
            Self::Cpuid => ExitKind::Cpuid,
            Self::LoadSegment => ExitKind::SegmentLoad,
            Self::Return => ExitKind::Iret,
            Self::Interrupt => ExitKind::SoftwareInterrupt,
            Self::Far => ExitKind::FarTransfer,
            Self::Vectors => ExitKind::VectorLoad,
            Self::Invlpg => ExitKind::Invlpg,
            Self::Msr => ExitKind::Msr,
            Self::ControlRegister => ExitKind::ControlRegister,
            Self::Other => ExitKind::OtherInstruction,
            Self::ReadMiss => ExitKind::TlbMissRead,
            Self::WriteMiss => ExitKind::TlbMissWrite,
            Self::PortIn => ExitKind::PortIn,
            Self::PortOut => ExitKind::PortOut,
            Self::MmioRead => ExitKind::MmioRead,
            Self::MmioWrite => ExitKind::MmioWrite,
            Self::LoadSpace => ExitKind::Cr3Load,
            Self::Refusal => ExitKind::GuestException,
        }
    }

    /// The name in statistics.
    pub const fn name(self) -> &'static str {
        self.kind().name()
    }
}

/// How many routines there are.
pub const FAST_PATHS: usize = 18;

/// What the routine of calls has the monitor's function do ([`crate::Context::fast_path_function`]).
/// The function does all of it or, where anything is unusual, nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FastPathCall {
    /// INVLPG of a linear address.
    InvalidatePage,
    /// RDMSR.
    ReadMsr,
    /// WRMSR.
    WriteMsr,
    /// MOV of a value to CR0.
    WriteCr0,
    /// MOV of a value to CR2.
    WriteCr2,
    /// MOV of a value to CR4.
    WriteCr4,
    /// LGDT from a linear address.
    LoadGdt,
    /// LIDT from a linear address.
    LoadIdt,
    /// An instruction that reads table registers or descriptors: that of the site that was named.
    Execute,
    /// The same of one that reads a control or debug register.
    ReadControl,
    /// MOV of a value to CR3 in 64-bit code.
    WriteCr3,
    /// MOV of a value to DR7.
    WriteDr7,
    /// MOV from a debug register; its number is in the key's bits 8 to 15, and that of the general
    /// register in bits 16 to 23.
    ReadDebug,
    /// LMSW of a value.
    WriteStatus,
    /// LLDT of a selector.
    LoadLdt,
    /// SGDT to a linear address.
    StoreGdt,
    /// SIDT to a linear address.
    StoreIdt,
    /// LAR of a selector in a register. The bytes of the operand are in the key's bits 8 to 15, and
    /// the number of the register to load in bits 16 to 23.
    LoadRights,
    /// LSL of one, with the same.
    LoadLimit,
    /// VERR of one.
    VerifyRead,
    /// VERW of one.
    VerifyWrite,
    /// CLAC.
    ClearAccess,
    /// STAC.
    SetAccess,
}

impl FastPathCall {
    /// All of them.
    pub const ALL: [Self; 23] = [
        Self::InvalidatePage,
        Self::ReadMsr,
        Self::WriteMsr,
        Self::WriteCr0,
        Self::WriteCr2,
        Self::WriteCr4,
        Self::LoadGdt,
        Self::LoadIdt,
        Self::Execute,
        Self::ReadControl,
        Self::WriteCr3,
        Self::WriteDr7,
        Self::ReadDebug,
        Self::WriteStatus,
        Self::LoadLdt,
        Self::StoreGdt,
        Self::StoreIdt,
        Self::LoadRights,
        Self::LoadLimit,
        Self::VerifyRead,
        Self::VerifyWrite,
        Self::ClearAccess,
        Self::SetAccess,
    ];

    /// The one that the function is told by `key`.
    #[inline]
    pub fn of_key(key: u64) -> Option<Self> {
        Self::ALL.get(usize::from(key as u8)).copied()
    }

    /// What the function is told, with two numbers that some take.
    pub const fn key(self, [first, second]: [u8; 2]) -> u64 {
        self as u64 | (first as u64) << 8 | (second as u64) << 16
    }

    /// As which routine's it is counted.
    pub const fn routine(self) -> FastPath {
        match self {
            Self::InvalidatePage => FastPath::Invlpg,
            Self::ReadMsr | Self::WriteMsr => FastPath::Msr,
            Self::WriteCr0
            | Self::WriteCr2
            | Self::WriteCr4
            | Self::WriteDr7
            | Self::ReadDebug
            | Self::WriteStatus
            | Self::ReadControl => FastPath::ControlRegister,
            Self::WriteCr3 => FastPath::LoadSpace,
            Self::LoadGdt
            | Self::LoadIdt
            | Self::LoadLdt
            | Self::StoreGdt
            | Self::StoreIdt
            | Self::LoadRights
            | Self::LoadLimit
            | Self::VerifyRead
            | Self::VerifyWrite
            | Self::ClearAccess
            | Self::SetAccess
            | Self::Execute => FastPath::Other,
        }
    }
}

/// The monitor's function: gets the context, [`FastPathCall::key`] and the address or value that
/// goes with it. Returns 1 if it has done the instruction, 0 if it has changed nothing, another
/// number if it has done it and set [`Context::fast_path_done`], so that the exit is taken.
pub type FastPathFunction = unsafe extern "sysv64" fn(*mut Context, u64, u64) -> u64;

/// What is remembered has one of two places: this times its key has the number of the first in
/// its high 8 bits; the second is beside it.
pub const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Puts an entry into the first of its places, and what was there into the second.
fn put<T: Copy>(table: &mut [T; 1 << 8], key: u64, entry: T) {
    let first = (key.wrapping_mul(SPREAD) >> 56) as usize;
    table[first ^ 1] = table[first];
    table[first] = entry;
}

/// An answer of CPUID.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(32))]
pub struct CpuidAnswer {
    /// EAX before.
    pub leaf: u32,
    /// ECX before, in [`CpuidAnswers::by_both`].
    pub subleaf: u32,
    /// Not zero: this is an answer.
    pub is_known: u32,
    /// EAX, EBX, ECX and EDX behind it.
    pub registers: [u32; 4],
}

/// Entries of [`CpuidAnswers::by_leaf`].
pub const ANSWERS_BY_LEAF: usize = 128;
/// Entries of [`CpuidAnswers::by_both`].
pub const ANSWERS_BY_BOTH: usize = 256;

/// The answers of CPUID that are known, in two tables.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CpuidAnswers {
    /// Those for which ECX does not count.
    pub by_leaf: [CpuidAnswer; ANSWERS_BY_LEAF],
    /// The others.
    pub by_both: [CpuidAnswer; ANSWERS_BY_BOTH],
}

impl CpuidAnswers {
    /// None is known.
    pub const NONE: Self = {
        const NONE: CpuidAnswer = CpuidAnswer {
            leaf: 0,
            subleaf: 0,
            is_known: 0,
            registers: [0; 4],
        };
        Self {
            by_leaf: [NONE; ANSWERS_BY_LEAF],
            by_both: [NONE; ANSWERS_BY_BOTH],
        }
    };

    /// Notes the answer to a leaf and a subleaf, which counts if `has_subleaves`.
    pub fn note(&mut self, leaf: u32, subleaf: u32, has_subleaves: bool, registers: [u32; 4]) {
        let answer = CpuidAnswer {
            leaf,
            subleaf,
            is_known: 1,
            registers,
        };
        if has_subleaves {
            let both = u64::from(subleaf) << 32 | u64::from(leaf);
            put(&mut self.by_both, both, answer);
        } else {
            self.by_leaf[(leaf >> 25 & 0x40 | leaf & 0x3f) as usize] = answer;
        }
    }
}

/// A load of a segment register that the monitor has done.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct SegmentLoad {
    /// As [`segment_load_key`] gives it, with the selector; zero: none.
    pub key: u64,
    /// Linear address of the descriptor; zero: the selector is null.
    pub place: u64,
    /// The descriptor, as it is in memory.
    pub descriptor: u64,
    /// The segment register behind the load.
    pub segment: Segment,
    /// Where indirect branches of the mode behind it find their targets: eighths of the bytes
    /// from the start of the link tables.
    pub table: u64,
    /// Added to the next instruction's EIP it gives the negative of the tag of its entry there.
    /// Zero: the mode stays as it is.
    pub tag: u64,
}

impl SegmentLoad {
    /// None.
    pub const NONE: Self = Self {
        key: 0,
        place: 0,
        descriptor: 0,
        segment: Segment {
            base: 0,
            limit: 0,
            selector: tollgate_x86::Selector(0),
            attributes: tollgate_x86::Attributes::empty(),
        },
        table: 0,
        tag: 0,
    };

    /// Notes this load in a table.
    pub fn note(self, table: &mut [Self; SEGMENT_LOADS]) {
        put(table, self.key, self);
    }

    /// Notes the mode behind the load, which uses `table` for its indirect branches.
    pub fn leads_to(&mut self, table: BranchTable, mode: ModeId) {
        self.table = table_offset(table) as u64 / 8;
        self.tag = indirect_tag(table, mode);
    }
}

/// In [`crate::Context::fast_path_done`]: the mode has changed, and the privilege level has not.
pub const DONE_IN_LEVEL: u64 = 1;
/// The same: the privilege level has, and EFLAGS was loaded.
pub const DONE_RETURN: u64 = 2;
/// The same: an interrupt's frame has been stored.
pub const DONE_DELIVERY: u64 = 3;
/// The same: the monitor's function has done the instruction, and there is a request to leave.
/// EIP is not in the exit value.
pub const DONE_CALL: u64 = 4;
/// The same: a device's register was accessed, and more is due. EIP is not behind the instruction
/// yet.
pub const DONE_DEVICE: u64 = 5;
/// As [`DONE_CALL`], but the monitor must look at what is due. The function itself sets this.
pub const DONE_CALL_DUE: u64 = 6;

/// What the routine of accesses to devices calls: `(context, value, key)`, where the value is what
/// the routine was told in R8, and the key as [`port_key`] gives it. General registers that
/// calls may change are in their slots, and vector registers are not in use. Returns one of the
/// `DEVICE_` values.
pub type DeviceFastPath = unsafe extern "sysv64" fn(*mut Context, u64, u64) -> u64;

/// A [`DeviceFastPath`] has done nothing: the exit is taken.
pub const DEVICE_EXIT: u64 = 0;
/// It has done the instruction.
pub const DEVICE_DONE: u64 = 1;
/// It has, and the monitor must look at what is due ([`DONE_DEVICE`]).
pub const DEVICE_DUE: u64 = 2;

/// In [`port_key`]: the port, if it is a constant.
pub const KEY_PORT: u32 = 8;
/// The same: this bit is set if it is.
pub const KEY_PORT_KNOWN: u32 = 24;
/// The same: the routine's number.
pub const KEY_ROUTINE: u32 = 32;

/// In a key: this bit is set if the access is that of an entry of
/// [`Context::device_accesses`], whose number the key is beside it, and the value its linear
/// address.
pub const KEY_MEMORY: u32 = 63;

/// What a [`DeviceFastPath`] is told for a repeated string instruction, which is the site's.
pub const STRING_KEY: u64 = 1 << 62;

/// What a [`DeviceFastPath`] is told for RDMSR (`writes` false) or WRMSR of one of the machine's
/// registers. The general registers are in the state, as a [`FastPathFunction`] has them.
pub const fn msr_key(writes: bool) -> u64 {
    (FastPath::Msr as u64) << KEY_ROUTINE | writes as u64
}

/// Bits of an address inside of the window of display memory.
pub const DISPLAY_WINDOW_SHIFT: u32 = 17;

/// Entries of [`Context::device_accesses`]. That of a site has the number that this times
/// the site has in its high 7 bits.
pub const DEVICE_ACCESSES: usize = 128;
/// See [`DEVICE_ACCESSES`].
pub const SPREAD_SITES: u32 = 0x1e37_79b1;

/// What the instruction of a site does, whose look-up missed because a device lies there.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeviceAccess {
    /// As [`pack_site`](crate::abi::sites::pack_site) names it; [`SITE_NONE`]:
    /// the entry is free.
    pub site: u32,
    /// What it does with its operands, of which one is in memory.
    pub operation: Operation,
    /// The guest register that is the other operand, which is not RSP; `NO_REGISTER`: the constant is,
    /// if there is another one.
    pub register: u8,
    /// Bytes of memory: 1, 2, 4 or 8.
    pub size: u8,
    /// Some of the `FORM_` bits.
    pub form: u8,
    /// The constant, which is to be sign-extended.
    pub constant: i32,
    /// Bytes of the register.
    pub register_size: u8,
    /// Host address behind the instruction.
    pub behind: u64,
    /// Guest address behind it.
    pub next_rip: u64,
}

/// In [`DeviceAccess::form`]: bits 8 to 15 of the register.
pub const FORM_HIGH_BYTE: u8 = 1 << 0;
/// The same: the register is the destination.
pub const FORM_TO_REGISTER: u8 = 1 << 1;
/// The same: the instruction has met display memory.
pub const FORM_DISPLAY: u8 = 1 << 2;
/// The same: behind the access, the pointer of a single LODS or STOS advances, RSI of a load, RDI of a
/// store: 16 bits of it.
pub const FORM_ADVANCES_16: u8 = 1 << 3;
/// The same of 32 bits.
pub const FORM_ADVANCES_32: u8 = 1 << 4;
/// The same of 64 bits.
pub const FORM_ADVANCES_64: u8 = 1 << 5;

/// In [`DeviceAccess::register`].
pub const NO_REGISTER: u8 = 0xff;

impl DeviceAccess {
    /// A free entry.
    pub const NONE: Self = Self {
        site: SITE_NONE,
        operation: Operation::Move,
        register: NO_REGISTER,
        size: 0,
        form: 0,
        constant: 0,
        register_size: 0,
        behind: 0,
        next_rip: 0,
    };

    /// The number of a site's entry.
    pub const fn number(site: u32) -> usize {
        (site.wrapping_mul(SPREAD_SITES) >> 25) as usize
    }

    /// Memory is loaded.
    pub const fn loads(&self) -> bool {
        self.form & FORM_TO_REGISTER != 0 || self.operation.reads_destination()
    }

    /// Memory is stored.
    pub const fn stores(&self) -> bool {
        matches!(self.operation, Operation::Exchange)
            || self.form & FORM_TO_REGISTER == 0 && self.operation.writes_destination()
    }
}

/// What tells IN and OUT of `size` bytes from others. Without a constant `port` it is in R8.
pub const fn port_key(routine: FastPath, size: u8, port: Option<u8>) -> u64 {
    let port = match port {
        Some(port) => 1 << KEY_PORT_KNOWN | (port as u64) << KEY_PORT,
        None => 0,
    };
    (routine as u64) << KEY_ROUTINE | port | size as u64
}

/// Loads that are remembered.
pub const SEGMENT_LOADS: usize = 1 << 8;

/// In [`segment_load_key`]: the number of the segment register.
pub const KEY_REGISTER: u32 = 16;
/// The same: this bit is set for POP, which moves ESP by 4.
pub const KEY_POPS: u32 = 19;
/// The same: the mode plus one.
pub const KEY_MODE: u32 = 32;

/// What tells a load of a segment register from others, without the selector, which the low 16
/// bits take.
pub const fn segment_load_key(register: SegmentRegister, pops: bool, mode: u32) -> u64 {
    (register as u64) << KEY_REGISTER | (pops as u64) << KEY_POPS | (mode as u64 + 1) << KEY_MODE
}
