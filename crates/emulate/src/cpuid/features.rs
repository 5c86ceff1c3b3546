//! Feature bits by leaf and register, and which of them the monitor handles.

/// Bits of leaf 1, EDX.
pub mod basic_edx {
    pub const FPU: u32 = 1 << 0;
    pub const PSE: u32 = 1 << 3;
    pub const TSC: u32 = 1 << 4;
    pub const MSR: u32 = 1 << 5;
    pub const PAE: u32 = 1 << 6;
    pub const CX8: u32 = 1 << 8;
    pub const APIC: u32 = 1 << 9;
    pub const SEP: u32 = 1 << 11;
    pub const PGE: u32 = 1 << 13;
    pub const CMOV: u32 = 1 << 15;
    pub const PAT: u32 = 1 << 16;
    pub const CLFSH: u32 = 1 << 19;
    pub const MMX: u32 = 1 << 23;
    pub const FXSR: u32 = 1 << 24;
    pub const SSE: u32 = 1 << 25;
    pub const SSE2: u32 = 1 << 26;
    /// What the monitor handles. Not VME, DE (I/O breakpoints), MCE, MTRR, PSE-36.
    pub const HANDLED: u32 = FPU
        | PSE
        | TSC
        | MSR
        | PAE
        | CX8
        | APIC
        | SEP
        | PGE
        | CMOV
        | PAT
        | CLFSH
        | MMX
        | FXSR
        | SSE
        | SSE2;
    /// The bits that AMD repeats in leaf 8000_0001h.
    pub const REPEATED_BY_AMD: u32 = 0x0183_f3ff;
}

/// Bits of leaf 1, ECX.
pub mod basic_ecx {
    pub const SSE3: u32 = 1 << 0;
    pub const PCLMULQDQ: u32 = 1 << 1;
    pub const SSSE3: u32 = 1 << 9;
    pub const FMA: u32 = 1 << 12;
    pub const CX16: u32 = 1 << 13;
    pub const SSE4_1: u32 = 1 << 19;
    pub const SSE4_2: u32 = 1 << 20;
    pub const MOVBE: u32 = 1 << 22;
    pub const POPCNT: u32 = 1 << 23;
    pub const TSC_DEADLINE: u32 = 1 << 24;
    pub const AES: u32 = 1 << 25;
    pub const XSAVE: u32 = 1 << 26;
    pub const OSXSAVE: u32 = 1 << 27;
    pub const AVX: u32 = 1 << 28;
    pub const F16C: u32 = 1 << 29;
    pub const RDRAND: u32 = 1 << 30;
    pub const HYPERVISOR: u32 = 1 << 31;
    /// What is offered if the host has it.
    pub const HANDLED: u32 = SSE3
        | PCLMULQDQ
        | SSSE3
        | FMA
        | CX16
        | SSE4_1
        | SSE4_2
        | MOVBE
        | POPCNT
        | AES
        | XSAVE
        | AVX
        | F16C
        | RDRAND;
    pub const NEEDS_AVX: u32 = FMA | F16C;
}

/// Bits of leaf 7, EBX.
pub mod structured_ebx {
    /// IA32_TSC_ADJUST, which needs nothing of the host.
    pub const TSC_ADJUST: u32 = 1 << 1;
    pub const BMI1: u32 = 1 << 3;
    pub const AVX2: u32 = 1 << 5;
    pub const BMI2: u32 = 1 << 8;
    pub const ERMS: u32 = 1 << 9;
    pub const RDSEED: u32 = 1 << 18;
    pub const ADX: u32 = 1 << 19;
    pub const CLFLUSHOPT: u32 = 1 << 23;
    pub const SHA: u32 = 1 << 29;
    /// What is offered if the host has it.
    pub const HANDLED: u32 = BMI1 | AVX2 | BMI2 | ERMS | RDSEED | ADX | CLFLUSHOPT | SHA;
    /// Encoded with VEX, which needs AVX's state.
    pub const NEEDS_AVX: u32 = BMI1 | AVX2 | BMI2;
}

/// Bits of leaf 8000_0001h.
pub mod extended {
    pub const ECX_LZCNT: u32 = 1 << 5;
    pub const ECX_PREFETCHW: u32 = 1 << 8;
    /// AMD: leaf 8000_001Dh describes the caches.
    pub const ECX_TOPOLOGY: u32 = 1 << 22;
    pub const EDX_NX: u32 = 1 << 20;
    pub const EDX_MMXEXT: u32 = 1 << 22;
    /// AMD, leaf 8000_0021h EAX: LFENCE always waits for earlier instructions.
    pub const LFENCE_SERIALIZES: u32 = 1 << 2;
}
