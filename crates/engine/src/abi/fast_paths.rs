//! The numbers of fast paths, and what is passed to their routines.
//!
//! A fast path is an instruction that a routine executes without an exit. Translated code calls the
//! routine ([`crate::gate::fast_path`]), which executes the instruction if it can and continues
//! after the instruction. The routine compares with a [memo](crate::abi::memos): what the monitor
//! found out when it last executed such an instruction. Which instruction has which fast path is
//! decided when the instruction is translated (`policy/fast_path.rs`).

use tollgate_exits::ExitKind;

/// The routines, in the order of [`crate::abi::context::groups::FastPathState::counts`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum FastPath {
    /// CPUID, with the answers that the monitor has given before.
    Cpuid,
    /// MOV to or POP of DS, ES, FS or GS in 32-bit code at level 0, if the descriptor is one that
    /// the monitor has loaded before.
    LoadSegment,
    /// IRETD from level 0 to level 3 outside IA-32e mode, if the frame and descriptors match those
    /// of an IRETD that the monitor has executed.
    Return,
    /// INT n or INT3 from level 3 to level 0, and within level 0 in 64-bit code, if the gate and
    /// the descriptors match those of an interrupt that the monitor has delivered.
    Interrupt,
    /// Far JMP, CALL and RET within the level, in 32-bit protected mode outside IA-32e mode and in
    /// 64-bit code, to a code segment that the monitor has entered in this way.
    Far,
    /// The load of the x87 and vector registers that a block needs; not an instruction.
    Vectors,
    /// INVLPG, by the monitor's function ([`FastPathCall`]).
    Invlpg,
    /// RDMSR and WRMSR, by the monitor's function.
    Msr,
    /// MOV to and from control registers, by the monitor's function.
    ControlRegister,
    /// Other instructions that the monitor's function executes.
    Other,
    /// An entry of the software TLB that a load needed, made by [`crate::gate::miss`]; not an
    /// instruction.
    ReadMiss,
    /// An entry of the software TLB that a store needed, made by [`crate::gate::miss`].
    WriteMiss,
    /// IN from a port that the machine declares to be near: its register is a word of state.
    PortIn,
    /// OUT to a near port.
    PortOut,
    /// A load from a near register in device memory. Emitted code does not call this routine; a
    /// miss of a look-up leads to it.
    MmioRead,
    /// A store to a near register in device memory, which is reached by a miss too.
    MmioWrite,
    /// MOV to CR3, by the monitor's function: it loads another space, which is kept.
    LoadSpace,
    /// An instruction of a V86 task that raises #GP(0): the fast path delivers this fault.
    Refusal,
}

impl FastPath {
    /// All routines, by number.
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

    /// The kind of exit that the routine's instructions would otherwise be.
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

/// The number of routines.
pub const FAST_PATHS: usize = 18;

/// What the monitor's function executes for a call
/// ([`FastPathState::function`](crate::abi::context::groups::FastPathState::function)). The
/// function executes the whole instruction or, if anything is unusual, changes nothing.
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
    /// The instruction of the site that was named, which reads table registers or descriptors.
    Execute,
    /// The instruction of the site that was named, which reads a control or debug register.
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
    /// LAR of a selector in a register. The operand's size in bytes is in the key's bits 8 to 15,
    /// and the number of the register to load in bits 16 to 23.
    LoadRights,
    /// LSL of a selector in a register, with the same numbers in the key as LAR.
    LoadLimit,
    /// VERR of a selector in a register.
    VerifyRead,
    /// VERW of a selector in a register.
    VerifyWrite,
    /// CLAC.
    ClearAccess,
    /// STAC.
    SetAccess,
}

impl FastPathCall {
    /// All calls, by number.
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

    /// The call that `key` names.
    #[inline]
    pub fn of_key(key: u64) -> Option<Self> {
        Self::ALL.get(usize::from(key as u8)).copied()
    }

    /// The key that is passed to the function; it contains two numbers that some calls use.
    pub const fn key(self, [first, second]: [u8; 2]) -> u64 {
        self as u64 | (first as u64) << 8 | (second as u64) << 16
    }

    /// The routine that the call is counted as.
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

/// Value of [`FastPathState::done`](crate::abi::context::groups::FastPathState::done): the mode has
/// changed, but not the privilege level.
pub const DONE_IN_LEVEL: u64 = 1;
/// Value of `FastPathState::done`: the privilege level has changed, and EFLAGS was
/// loaded.
pub const DONE_RETURN: u64 = 2;
/// Value of `FastPathState::done`: an interrupt's frame has been stored.
pub const DONE_DELIVERY: u64 = 3;
/// Value of `FastPathState::done`: the monitor's function has executed the
/// instruction, and a request to leave waits. EIP is not in the exit value.
pub const DONE_CALL: u64 = 4;
/// Value of `FastPathState::done`: a device's register was accessed, and more is due.
/// EIP is not that of the next instruction yet.
pub const DONE_DEVICE: u64 = 5;
/// Value of `FastPathState::done`: as [`DONE_CALL`], but the monitor must look for
/// what is due. The function itself sets this value.
pub const DONE_CALL_DUE: u64 = 6;

/// Result of a [`DeviceFastPath`]: it has changed nothing, and the exit is taken.
pub const DEVICE_EXIT: u64 = 0;
/// Result of a [`DeviceFastPath`]: it has executed the instruction.
pub const DEVICE_DONE: u64 = 1;
/// Result of a [`DeviceFastPath`]: it has executed the instruction, and the monitor must look for
/// what is due ([`DONE_DEVICE`]).
pub const DEVICE_DUE: u64 = 2;

/// In [`port_key`], the first bit of the port, if it is a constant.
pub const KEY_PORT: u32 = 8;
/// In [`port_key`], the bit that says that the port is a constant.
pub const KEY_PORT_KNOWN: u32 = 24;
/// In [`port_key`], the first bit of the routine's number.
pub const KEY_ROUTINE: u32 = 32;

/// In a key, the bit that says that the access is described by an entry of
/// [`DeviceState::accesses`](crate::abi::context::groups::DeviceState::accesses). The rest of the
/// key is the entry's number, and the value is the linear address of the access.
pub const KEY_MEMORY: u32 = 63;

/// The key that is passed to a [`DeviceFastPath`] for the repeated string instruction of the site.
pub const STRING_KEY: u64 = 1 << 62;

/// The key that is passed to a [`DeviceFastPath`] for RDMSR (`writes` is false) or WRMSR of one of
/// the machine's registers. The general registers are in the state, as for a [`FastPathFunction`].
pub const fn msr_key(writes: bool) -> u64 {
    (FastPath::Msr as u64) << KEY_ROUTINE | writes as u64
}

/// The number of address bits inside the window of display memory.
pub const DISPLAY_WINDOW_SHIFT: u32 = 17;

/// The key of an IN or OUT of `size` bytes. If `port` is `None`, the port is in R8.
pub const fn port_key(routine: FastPath, size: u8, port: Option<u8>) -> u64 {
    let port = match port {
        Some(port) => 1 << KEY_PORT_KNOWN | (port as u64) << KEY_PORT,
        None => 0,
    };
    (routine as u64) << KEY_ROUTINE | port | size as u64
}
