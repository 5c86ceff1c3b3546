//! General, control and extended-feature registers.

/// General registers in encoding order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "each name is the manual's")]
pub enum Gpr {
    Rax = 0,
    Rcx = 1,
    Rdx = 2,
    Rbx = 3,
    Rsp = 4,
    Rbp = 5,
    Rsi = 6,
    Rdi = 7,
    R8 = 8,
    R9 = 9,
    R10 = 10,
    R11 = 11,
    R12 = 12,
    R13 = 13,
    R14 = 14,
    R15 = 15,
}

bitflags::bitflags! {
    /// Bits of CR0 (SDM volume 3, 2.5).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Cr0: u64 {
        /// Protected mode.
        const PE = 1 << 0;
        /// Monitor coprocessor.
        const MP = 1 << 1;
        /// Emulate coprocessor.
        const EM = 1 << 2;
        /// Task switched.
        const TS = 1 << 3;
        /// Extension type: always one.
        const ET = 1 << 4;
        /// Numeric error: native x87 error reporting.
        const NE = 1 << 5;
        /// Supervisor writes obey read-only pages.
        const WP = 1 << 16;
        /// Alignment mask.
        const AM = 1 << 18;
        /// Not write-through.
        const NW = 1 << 29;
        /// Cache disable.
        const CD = 1 << 30;
        /// Paging.
        const PG = 1 << 31;
    }

    /// Bits of CR4 (SDM volume 3, 2.5).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Cr4: u64 {
        /// Virtual-8086 mode extensions.
        const VME = 1 << 0;
        /// Protected-mode virtual interrupts.
        const PVI = 1 << 1;
        /// RDTSC is permitted only at CPL 0.
        const TSD = 1 << 2;
        /// Debugging extensions.
        const DE = 1 << 3;
        /// 4 MiB pages.
        const PSE = 1 << 4;
        /// Physical address extension.
        const PAE = 1 << 5;
        /// Machine check.
        const MCE = 1 << 6;
        /// Global pages.
        const PGE = 1 << 7;
        /// RDPMC is permitted at any CPL.
        const PCE = 1 << 8;
        /// FXSAVE and SSE.
        const OSFXSR = 1 << 9;
        /// Unmasked SIMD exceptions raise #XM.
        const OSXMMEXCPT = 1 << 10;
        /// User-mode instruction prevention.
        const UMIP = 1 << 11;
        /// 57-bit linear addresses.
        const LA57 = 1 << 12;
        /// RDFSBASE, RDGSBASE, WRFSBASE and WRGSBASE.
        const FSGSBASE = 1 << 16;
        /// Process-context identifiers.
        const PCIDE = 1 << 17;
        /// XSAVE and extended states.
        const OSXSAVE = 1 << 18;
        /// Supervisor-mode execution prevention.
        const SMEP = 1 << 20;
        /// Supervisor-mode access prevention.
        const SMAP = 1 << 21;
        /// Protection keys for user pages.
        const PKE = 1 << 22;
        /// Protection keys for supervisor pages.
        const PKS = 1 << 24;
    }

    /// Bits of IA32_EFER (SDM volume 4, MSR C000_0080h).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Efer: u64 {
        /// SYSCALL enable.
        const SCE = 1 << 0;
        /// Long mode enable.
        const LME = 1 << 8;
        /// Long mode active.
        const LMA = 1 << 10;
        /// Execute-disable enable.
        const NXE = 1 << 11;
    }
}
