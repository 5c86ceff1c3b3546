//! Feature bits by leaf and register, and which of them the monitor supports.

/// The feature bits of a processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FeatureWords {
    /// Leaf 1, ECX.
    pub basic_ecx: u32,
    /// Leaf 1, EDX.
    pub basic_edx: u32,
    /// Leaf 7, EBX.
    pub structured_ebx: u32,
    /// Leaf 7, ECX.
    pub structured_ecx: u32,
    /// Leaf 7, EDX.
    pub structured_edx: u32,
    /// Leaf 7 subleaf 1, EAX.
    pub structured_1_eax: u32,
    /// Leaf 0Dh subleaf 1, EAX.
    pub xsave_eax: u32,
    /// Leaf 8000_0001h, ECX.
    pub extended_ecx: u32,
    /// Leaf 8000_0001h, EDX.
    pub extended_edx: u32,
}

impl FeatureWords {
    /// No feature at all.
    pub const NONE: Self = Self {
        basic_ecx: 0,
        basic_edx: 0,
        structured_ebx: 0,
        structured_ecx: 0,
        structured_edx: 0,
        structured_1_eax: 0,
        xsave_eax: 0,
        extended_ecx: 0,
        extended_edx: 0,
    };

    /// The features that both sets have.
    pub const fn and(self, other: Self) -> Self {
        Self {
            basic_ecx: self.basic_ecx & other.basic_ecx,
            basic_edx: self.basic_edx & other.basic_edx,
            structured_ebx: self.structured_ebx & other.structured_ebx,
            structured_ecx: self.structured_ecx & other.structured_ecx,
            structured_edx: self.structured_edx & other.structured_edx,
            structured_1_eax: self.structured_1_eax & other.structured_1_eax,
            xsave_eax: self.xsave_eax & other.xsave_eax,
            extended_ecx: self.extended_ecx & other.extended_ecx,
            extended_edx: self.extended_edx & other.extended_edx,
        }
    }

    /// The features that at least one of the sets has.
    pub const fn or(self, other: Self) -> Self {
        Self {
            basic_ecx: self.basic_ecx | other.basic_ecx,
            basic_edx: self.basic_edx | other.basic_edx,
            structured_ebx: self.structured_ebx | other.structured_ebx,
            structured_ecx: self.structured_ecx | other.structured_ecx,
            structured_edx: self.structured_edx | other.structured_edx,
            structured_1_eax: self.structured_1_eax | other.structured_1_eax,
            xsave_eax: self.xsave_eax | other.xsave_eax,
            extended_ecx: self.extended_ecx | other.extended_ecx,
            extended_edx: self.extended_edx | other.extended_edx,
        }
    }

    /// The features of this set that `other` does not have.
    pub const fn without(self, other: Self) -> Self {
        self.and(Self {
            basic_ecx: !other.basic_ecx,
            basic_edx: !other.basic_edx,
            structured_ebx: !other.structured_ebx,
            structured_ecx: !other.structured_ecx,
            structured_edx: !other.structured_edx,
            structured_1_eax: !other.structured_1_eax,
            xsave_eax: !other.xsave_eax,
            extended_ecx: !other.extended_ecx,
            extended_edx: !other.extended_edx,
        })
    }

    /// Linux's names of the features, in the order of the leaves.
    pub fn names(self) -> Vec<&'static str> {
        let words = [
            (self.basic_edx, BASIC_EDX_NAMES),
            (self.basic_ecx, BASIC_ECX_NAMES),
            (self.structured_ebx, STRUCTURED_EBX_NAMES),
            (self.structured_ecx, STRUCTURED_ECX_NAMES),
            (self.structured_edx, STRUCTURED_EDX_NAMES),
            (self.structured_1_eax, STRUCTURED_1_EAX_NAMES),
            (self.xsave_eax, XSAVE_EAX_NAMES),
            (self.extended_ecx, EXTENDED_ECX_NAMES),
            (self.extended_edx, EXTENDED_EDX_NAMES),
        ];
        words
            .into_iter()
            .flat_map(|(word, names)| names.iter().filter(move |(bit, _)| word & bit != 0))
            .map(|(_, name)| *name)
            .collect()
    }
}

const BASIC_EDX_NAMES: &[(u32, &str)] = &[
    (basic_edx::FPU, "fpu"),
    (basic_edx::VME, "vme"),
    (basic_edx::DE, "de"),
    (basic_edx::PSE, "pse"),
    (basic_edx::TSC, "tsc"),
    (basic_edx::MSR, "msr"),
    (basic_edx::PAE, "pae"),
    (basic_edx::MCE, "mce"),
    (basic_edx::CX8, "cx8"),
    (basic_edx::APIC, "apic"),
    (basic_edx::SEP, "sep"),
    (basic_edx::MTRR, "mtrr"),
    (basic_edx::PGE, "pge"),
    (basic_edx::MCA, "mca"),
    (basic_edx::CMOV, "cmov"),
    (basic_edx::PAT, "pat"),
    (basic_edx::CLFSH, "clflush"),
    (basic_edx::MMX, "mmx"),
    (basic_edx::FXSR, "fxsr"),
    (basic_edx::SSE, "sse"),
    (basic_edx::SSE2, "sse2"),
];

const BASIC_ECX_NAMES: &[(u32, &str)] = &[
    (basic_ecx::SSE3, "sse3"),
    (basic_ecx::PCLMULQDQ, "pclmulqdq"),
    (basic_ecx::SSSE3, "ssse3"),
    (basic_ecx::FMA, "fma"),
    (basic_ecx::CX16, "cx16"),
    (basic_ecx::PCID, "pcid"),
    (basic_ecx::SSE4_1, "sse4_1"),
    (basic_ecx::SSE4_2, "sse4_2"),
    (basic_ecx::X2APIC, "x2apic"),
    (basic_ecx::MOVBE, "movbe"),
    (basic_ecx::POPCNT, "popcnt"),
    (basic_ecx::TSC_DEADLINE, "tsc_deadline_timer"),
    (basic_ecx::AES, "aes"),
    (basic_ecx::XSAVE, "xsave"),
    (basic_ecx::AVX, "avx"),
    (basic_ecx::F16C, "f16c"),
    (basic_ecx::RDRAND, "rdrand"),
    (basic_ecx::HYPERVISOR, "hypervisor"),
];

const STRUCTURED_EBX_NAMES: &[(u32, &str)] = &[
    (structured_ebx::FSGSBASE, "fsgsbase"),
    (structured_ebx::TSC_ADJUST, "tsc_adjust"),
    (structured_ebx::BMI1, "bmi1"),
    (structured_ebx::AVX2, "avx2"),
    (structured_ebx::SMEP, "smep"),
    (structured_ebx::BMI2, "bmi2"),
    (structured_ebx::AVX512F, "avx512f"),
    (structured_ebx::AVX512DQ, "avx512dq"),
    (structured_ebx::AVX512_IFMA, "avx512ifma"),
    (structured_ebx::AVX512CD, "avx512cd"),
    (structured_ebx::AVX512BW, "avx512bw"),
    (structured_ebx::AVX512VL, "avx512vl"),
    (structured_ebx::ERMS, "erms"),
    (structured_ebx::INVPCID, "invpcid"),
    (structured_ebx::RDSEED, "rdseed"),
    (structured_ebx::ADX, "adx"),
    (structured_ebx::SMAP, "smap"),
    (structured_ebx::CLFLUSHOPT, "clflushopt"),
    (structured_ebx::CLWB, "clwb"),
    (structured_ebx::SHA, "sha_ni"),
];

const STRUCTURED_ECX_NAMES: &[(u32, &str)] = &[
    (structured_ecx::UMIP, "umip"),
    (structured_ecx::PKU, "pku"),
    (structured_ecx::PKS, "pks"),
    (structured_ecx::AVX512_VBMI, "avx512vbmi"),
    (structured_ecx::AVX512_VBMI2, "avx512_vbmi2"),
    (structured_ecx::AVX512_VNNI, "avx512_vnni"),
    (structured_ecx::AVX512_BITALG, "avx512_bitalg"),
    (structured_ecx::AVX512_VPOPCNTDQ, "avx512_vpopcntdq"),
    (structured_ecx::GFNI, "gfni"),
    (structured_ecx::VAES, "vaes"),
    (structured_ecx::VPCLMULQDQ, "vpclmulqdq"),
    (structured_ecx::RDPID, "rdpid"),
    (structured_ecx::MOVDIRI, "movdiri"),
];

const STRUCTURED_EDX_NAMES: &[(u32, &str)] = &[
    (structured_edx::AVX512_VP2INTERSECT, "avx512_vp2intersect"),
    (structured_edx::AVX512_FP16, "avx512_fp16"),
];

const STRUCTURED_1_EAX_NAMES: &[(u32, &str)] = &[
    (structured_1_eax::AVX_VNNI, "avx_vnni"),
    (structured_1_eax::AVX512_BF16, "avx512_bf16"),
    (structured_1_eax::AVX_IFMA, "avx_ifma"),
];

const XSAVE_EAX_NAMES: &[(u32, &str)] = &[
    (xsave_eax::XSAVEOPT, "xsaveopt"),
    (xsave_eax::XSAVEC, "xsavec"),
    (xsave_eax::XGETBV_1, "xgetbv1"),
    (xsave_eax::XSAVES, "xsaves"),
];

const EXTENDED_ECX_NAMES: &[(u32, &str)] = &[
    (extended::ECX_LAHF, "lahf_lm"),
    (extended::ECX_LZCNT, "abm"),
    (extended::ECX_SSE4A, "sse4a"),
    (extended::ECX_PREFETCHW, "3dnowprefetch"),
    (extended::ECX_TOPOLOGY, "topoext"),
];

const EXTENDED_EDX_NAMES: &[(u32, &str)] = &[
    (extended::EDX_SYSCALL, "syscall"),
    (extended::EDX_NX, "nx"),
    (extended::EDX_MMXEXT, "mmxext"),
    (extended::EDX_PDPE1GB, "pdpe1gb"),
    (extended::EDX_RDTSCP, "rdtscp"),
    (extended::EDX_LM, "lm"),
];

/// Bits of leaf 1, EDX.
pub mod basic_edx {
    pub const FPU: u32 = 1 << 0;
    /// Virtual interrupts, CR4.VME and CR4.PVI, which do not depend on the host.
    pub const VME: u32 = 1 << 1;
    /// Breakpoints on ports, CR4.DE, which do not depend on the host.
    pub const DE: u32 = 1 << 2;
    pub const PSE: u32 = 1 << 3;
    pub const TSC: u32 = 1 << 4;
    pub const MSR: u32 = 1 << 5;
    pub const PAE: u32 = 1 << 6;
    pub const MCE: u32 = 1 << 7;
    pub const CX8: u32 = 1 << 8;
    pub const APIC: u32 = 1 << 9;
    pub const SEP: u32 = 1 << 11;
    pub const MTRR: u32 = 1 << 12;
    pub const PGE: u32 = 1 << 13;
    pub const MCA: u32 = 1 << 14;
    pub const CMOV: u32 = 1 << 15;
    pub const PAT: u32 = 1 << 16;
    pub const CLFSH: u32 = 1 << 19;
    pub const MMX: u32 = 1 << 23;
    pub const FXSR: u32 = 1 << 24;
    pub const SSE: u32 = 1 << 25;
    pub const SSE2: u32 = 1 << 26;
    /// The features that the monitor supports. PSE-36 is not among them.
    pub const HANDLED: u32 = FPU
        | VME
        | DE
        | PSE
        | TSC
        | MSR
        | PAE
        | MCE
        | CX8
        | APIC
        | SEP
        | MTRR
        | PGE
        | MCA
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
    /// Process-context identifiers, which do not depend on the host.
    pub const PCID: u32 = 1 << 17;
    pub const SSE4_1: u32 = 1 << 19;
    pub const SSE4_2: u32 = 1 << 20;
    /// x2APIC mode, which does not depend on the host.
    pub const X2APIC: u32 = 1 << 21;
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
    /// The features that are offered if the host has them.
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
    /// The features that the monitor and the machine implement themselves.
    pub const EMULATED: u32 = PCID | X2APIC | TSC_DEADLINE | HYPERVISOR;
    pub const NEEDS_AVX: u32 = FMA | F16C;
}

/// Bits of leaf 7, EBX.
pub mod structured_ebx {
    /// RDFSBASE and related instructions, which the monitor executes on any host.
    pub const FSGSBASE: u32 = 1 << 0;
    /// IA32_TSC_ADJUST, which does not depend on the host.
    pub const TSC_ADJUST: u32 = 1 << 1;
    pub const BMI1: u32 = 1 << 3;
    pub const AVX2: u32 = 1 << 5;
    /// CR4.SMEP, which the page walker checks on any host.
    pub const SMEP: u32 = 1 << 7;
    pub const BMI2: u32 = 1 << 8;
    pub const AVX512F: u32 = 1 << 16;
    pub const AVX512DQ: u32 = 1 << 17;
    pub const AVX512_IFMA: u32 = 1 << 21;
    pub const AVX512CD: u32 = 1 << 28;
    pub const AVX512BW: u32 = 1 << 30;
    pub const AVX512VL: u32 = 1 << 31;
    pub const ERMS: u32 = 1 << 9;
    /// INVPCID, which the monitor executes on any host.
    pub const INVPCID: u32 = 1 << 10;
    pub const RDSEED: u32 = 1 << 18;
    pub const ADX: u32 = 1 << 19;
    /// CR4.SMAP, which the page walker checks. No model has it unless it is added.
    pub const SMAP: u32 = 1 << 20;
    pub const CLFLUSHOPT: u32 = 1 << 23;
    pub const CLWB: u32 = 1 << 24;
    pub const SHA: u32 = 1 << 29;
    /// The features that are offered if the host has them.
    pub const HANDLED: u32 =
        BMI1 | AVX2 | BMI2 | ERMS | RDSEED | ADX | CLFLUSHOPT | CLWB | SHA | NEEDS_AVX_512;
    /// The features that the monitor implements itself.
    pub const EMULATED: u32 = FSGSBASE | TSC_ADJUST | SMEP | INVPCID;
    /// Features whose instructions are encoded with VEX, which need AVX's state.
    pub const NEEDS_AVX: u32 = BMI1 | AVX2 | BMI2;
    /// Features whose instructions are encoded with EVEX, which need AVX-512's state.
    pub const NEEDS_AVX_512: u32 =
        AVX512F | AVX512DQ | AVX512_IFMA | AVX512CD | AVX512BW | AVX512VL;
}

/// Bits of leaf 7, ECX.
pub mod structured_ecx {
    /// CR4.UMIP, for instructions that the monitor executes on any host.
    pub const UMIP: u32 = 1 << 2;
    /// Protection keys, which the page walker checks. No model has them unless they are added.
    pub const PKU: u32 = 1 << 3;
    /// Protection keys for supervisor pages. No model has them unless they are added.
    pub const PKS: u32 = 1 << 31;
    /// The guest has set CR4.PKE.
    pub const OSPKE: u32 = 1 << 4;
    pub const AVX512_VBMI: u32 = 1 << 1;
    pub const AVX512_VBMI2: u32 = 1 << 6;
    pub const AVX512_VNNI: u32 = 1 << 11;
    pub const AVX512_BITALG: u32 = 1 << 12;
    pub const AVX512_VPOPCNTDQ: u32 = 1 << 14;
    pub const GFNI: u32 = 1 << 8;
    pub const VAES: u32 = 1 << 9;
    pub const VPCLMULQDQ: u32 = 1 << 10;
    /// RDPID, which reads one of the guest's own registers.
    pub const RDPID: u32 = 1 << 22;
    pub const MOVDIRI: u32 = 1 << 27;
    /// The features that are offered if the host has them.
    pub const HANDLED: u32 = GFNI | VAES | VPCLMULQDQ | MOVDIRI | NEEDS_AVX_512;
    /// The features that the monitor implements itself.
    pub const EMULATED: u32 = UMIP | RDPID;
    /// Features whose instructions are encoded with VEX, which need AVX's state.
    pub const NEEDS_AVX: u32 = VAES | VPCLMULQDQ;
    /// Features whose instructions are encoded with EVEX, which need AVX-512's state.
    pub const NEEDS_AVX_512: u32 =
        AVX512_VBMI | AVX512_VBMI2 | AVX512_VNNI | AVX512_BITALG | AVX512_VPOPCNTDQ;
}

/// Bits of leaf 7 subleaf 1, EAX.
pub mod structured_1_eax {
    pub const AVX_VNNI: u32 = 1 << 4;
    pub const AVX512_BF16: u32 = 1 << 5;
    pub const AVX_IFMA: u32 = 1 << 23;
    /// The features that are offered if the host has them.
    pub const HANDLED: u32 = AVX_VNNI | AVX512_BF16 | AVX_IFMA;
    /// Features whose instructions are encoded with VEX, which need AVX's state.
    pub const NEEDS_AVX: u32 = AVX_VNNI | AVX_IFMA;
    /// Features whose instructions are encoded with EVEX, which need AVX-512's state.
    pub const NEEDS_AVX_512: u32 = AVX512_BF16;
}

/// Bits of leaf 0Dh subleaf 1, EAX. The monitor executes all of these instructions, so they only
/// need XSAVE on the host.
pub mod xsave_eax {
    pub const XSAVEOPT: u32 = 1 << 0;
    /// XSAVEC, and XRSTOR of images in the compacted format.
    pub const XSAVEC: u32 = 1 << 1;
    /// XGETBV with ECX = 1.
    pub const XGETBV_1: u32 = 1 << 2;
    /// XSAVES, XRSTORS and IA32_XSS.
    pub const XSAVES: u32 = 1 << 3;
    /// The features that are offered together with XSAVE.
    pub const EMULATED: u32 = XSAVEOPT | XSAVEC | XGETBV_1 | XSAVES;
}

/// Bits of leaf 7, EDX.
pub mod structured_edx {
    pub const AVX512_VP2INTERSECT: u32 = 1 << 8;
    pub const AVX512_FP16: u32 = 1 << 23;
    pub const ARCH_CAPABILITIES: u32 = 1 << 29;
    /// The features that are offered if the host has them. All are encoded with EVEX.
    pub const HANDLED: u32 = AVX512_VP2INTERSECT | AVX512_FP16;
}

/// Bits of leaf 8000_0001h and of the following extended leaves.
pub mod extended {
    /// LAHF and SAHF in 64-bit mode.
    pub const ECX_LAHF: u32 = 1 << 0;
    pub const ECX_LZCNT: u32 = 1 << 5;
    /// AMD: EXTRQ, INSERTQ, MOVNTSS, MOVNTSD.
    pub const ECX_SSE4A: u32 = 1 << 6;
    pub const ECX_PREFETCHW: u32 = 1 << 8;
    /// AMD: leaf 8000_001Dh describes the caches.
    pub const ECX_TOPOLOGY: u32 = 1 << 22;
    pub const EDX_SYSCALL: u32 = 1 << 11;
    pub const EDX_NX: u32 = 1 << 20;
    pub const EDX_MMXEXT: u32 = 1 << 22;
    pub const EDX_PDPE1GB: u32 = 1 << 26;
    pub const EDX_RDTSCP: u32 = 1 << 27;
    pub const EDX_LM: u32 = 1 << 29;
    /// The features that the monitor implements itself, so that they do not depend on the host.
    pub const EDX_EMULATED: u32 = EDX_SYSCALL | EDX_NX | EDX_PDPE1GB | EDX_RDTSCP | EDX_LM;
    /// AMD, leaf 8000_0008h EBX: the x87 pointers are saved and restored even if no exception is
    /// pending (APM volume 3, CPUID Fn8000_0008_EBX\[RstrFpErrPtrs\]).
    pub const ERROR_POINTERS_RESTORED: u32 = 1 << 2;
    /// AMD, leaf 8000_0008h EBX: not vulnerable to branch type confusion.
    pub const BTC_NO: u32 = 1 << 29;
    /// AMD, leaf 8000_0021h EAX: LFENCE always waits for earlier instructions.
    pub const LFENCE_SERIALIZES: u32 = 1 << 2;
    /// AMD, leaf 8000_0021h EAX: a null selector clears the segment's base.
    pub const NULL_CLEARS_BASE: u32 = 1 << 6;
    /// AMD, leaf 8000_0021h EAX: not vulnerable to speculative return stack overflow.
    pub const SRSO_NO: u32 = 1 << 29;
    /// AMD, leaf 8000_0021h ECX: not vulnerable to either of two transient scheduler attacks.
    pub const TSA_NO: u32 = 1 << 1 | 1 << 2;
}

/// IA32_ARCH_CAPABILITIES (SDM volume 4), see [`super::CpuidPolicy::arch_capabilities`].
pub mod arch_capabilities {
    const RDCL_NO: u64 = 1 << 0;
    const SKIP_L1DFL_VMENTRY: u64 = 1 << 3;
    const MDS_NO: u64 = 1 << 5;
    const IF_PSCHANGE_MC_NO: u64 = 1 << 6;
    const TAA_NO: u64 = 1 << 8;
    const SBDR_SSDP_NO: u64 = 1 << 13;
    const FBSDP_NO: u64 = 1 << 14;
    const PSDP_NO: u64 = 1 << 15;
    const BHI_NO: u64 = 1 << 20;
    const GDS_NO: u64 = 1 << 26;
    const RFDS_NO: u64 = 1 << 27;
    const ITS_NO: u64 = 1 << 62;
    /// The value that the guest reads.
    pub const OFFERED: u64 = RDCL_NO
        | SKIP_L1DFL_VMENTRY
        | MDS_NO
        | IF_PSCHANGE_MC_NO
        | TAA_NO
        | SBDR_SSDP_NO
        | FBSDP_NO
        | PSDP_NO
        | BHI_NO
        | GDS_NO
        | RFDS_NO
        | ITS_NO;
}
