//! The families of instructions that the oracle must cover.

use iced_x86::{CpuidFeature, EncodingKind, FlowControl, Instruction, Mnemonic, OpKind};

macro_rules! families {
    ($($name:ident $text:literal,)+) => {
        /// A family of instructions, for which states are counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "each name is what it holds")]
        pub enum Family { $($name,)+ }

        impl Family {
            /// All families, in the order of tables.
            pub const ALL: &'static [Family] = &[$(Family::$name,)+];

            /// The family's name on the command line and in tables.
            pub fn name(self) -> &'static str {
                match self { $(Family::$name => $text,)+ }
            }
        }
    };
}

families! {
    Integer "integer",
    Carry "carry-chains",
    Shift "shifts",
    DoubleShift "double-shifts",
    Multiply "multiply-divide",
    Decimal "decimal",
    BitTest "bit-tests",
    BitScan "bit-scans",
    Bmi "bmi-adx",
    ByteOrder "byte-order-crc",
    CompareExchange "compare-exchange",
    Locked "locked",
    Condition "setcc-cmovcc",
    Branch "branches",
    Stack "stack",
    Frame "enter-leave",
    FlagControl "flag-control",
    Bound "bound-into",
    Translate "xlat-convert",
    String "strings",
    Repeated "repeated-strings",
    SegmentLoad "segment-loads",
    Privileged "privileged",
    X87 "x87",
    X87Image "x87-images",
    Mmx "mmx",
    Sse "sse",
    Sse2 "sse2",
    Sse3 "sse3-ssse3",
    Sse4 "sse4",
    Aes "aes-pclmul-sha",
    Avx "avx",
    Avx2 "avx2",
    Fma "fma-f16c",
    Image "state-images",
    Masked "masked",
    Gather "gathers",
    Avx512 "avx-512",
    Avx512Masked "avx-512-masked",
    Avx512Memory "avx-512-memory",
    Avx512Mask "avx-512-mask-registers",
    Avx512Gather "avx-512-gathers",
    Hint "hints-fences",
    NotOffered "not-offered",
    RandomBytes "random-bytes",
    Program "programs",
}

/// The family of an instruction that the guest is offered.
pub fn family_of(instruction: &Instruction) -> Family {
    use CpuidFeature as F;
    use Mnemonic as M;
    if instruction.has_lock_prefix() {
        return Family::Locked;
    }
    if crate::exclusions::loads_segment(instruction) {
        return Family::SegmentLoad;
    }
    let repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    if instruction.is_string_instruction() {
        return if repeated {
            Family::Repeated
        } else {
            Family::String
        };
    }
    let features = instruction.cpuid_features();
    let has = |feature: F| features.contains(&feature);
    if instruction.is_privileged() {
        return Family::Privileged;
    }
    match instruction.mnemonic() {
        M::Adc | M::Sbb | M::Inc | M::Dec | M::Adcx | M::Adox => Family::Carry,
        M::Rol | M::Ror | M::Rcl | M::Rcr | M::Shl | M::Sal | M::Shr | M::Sar => Family::Shift,
        M::Shld | M::Shrd => Family::DoubleShift,
        M::Mul | M::Imul | M::Div | M::Idiv => Family::Multiply,
        M::Daa | M::Das | M::Aaa | M::Aas | M::Aam | M::Aad => Family::Decimal,
        M::Bt | M::Bts | M::Btr | M::Btc => Family::BitTest,
        M::Bsf | M::Bsr | M::Tzcnt | M::Lzcnt | M::Popcnt => Family::BitScan,
        M::Movbe | M::Bswap | M::Crc32 => Family::ByteOrder,
        M::Cmpxchg | M::Cmpxchg8b | M::Cmpxchg16b | M::Xadd | M::Xchg => Family::CompareExchange,
        M::Push
        | M::Pop
        | M::Pusha
        | M::Pushad
        | M::Popa
        | M::Popad
        | M::Pushf
        | M::Pushfd
        | M::Pushfq
        | M::Popf
        | M::Popfd
        | M::Popfq => Family::Stack,
        M::Enter | M::Leave => Family::Frame,
        M::Lahf | M::Sahf | M::Cmc | M::Clc | M::Stc | M::Cld | M::Std => Family::FlagControl,
        M::Bound | M::Into | M::Int | M::Int1 | M::Int3 | M::Ud0 | M::Ud1 | M::Ud2 => Family::Bound,
        M::Xlatb | M::Cbw | M::Cwde | M::Cwd | M::Cdq | M::Cdqe | M::Cqo | M::Arpl => {
            Family::Translate
        }
        M::Cli | M::Sti | M::In | M::Out => Family::Privileged,
        M::Fnsave | M::Frstor | M::Fnstenv | M::Fldenv => Family::X87Image,
        M::Fxsave
        | M::Fxrstor
        | M::Xsave
        | M::Xrstor
        | M::Xsaveopt
        | M::Fxsave64
        | M::Fxrstor64
        | M::Xsave64
        | M::Xrstor64
        | M::Xsaveopt64
        | M::Xsavec
        | M::Xsavec64
        | M::Ldmxcsr
        | M::Stmxcsr
        | M::Vldmxcsr
        | M::Vstmxcsr => Family::Image,
        M::Maskmovq
        | M::Maskmovdqu
        | M::Vmaskmovdqu
        | M::Vmaskmovps
        | M::Vmaskmovpd
        | M::Vpmaskmovd
        | M::Vpmaskmovq => Family::Masked,
        M::Nop
        | M::Reservednop
        | M::Pause
        | M::Lfence
        | M::Sfence
        | M::Mfence
        | M::Clflush
        | M::Clflushopt
        | M::Clwb
        | M::Prefetcht0
        | M::Prefetcht1
        | M::Prefetcht2
        | M::Prefetchnta
        | M::Prefetchw
        | M::Prefetch
        | M::Prefetchwt1
        | M::Endbr32
        | M::Endbr64
        | M::Wait => Family::Hint,
        _ if instruction.is_vsib() && instruction.encoding() == EncodingKind::EVEX => {
            Family::Avx512Gather
        }
        _ if instruction.is_vsib() => Family::Gather,
        _ if instruction.encoding() == EncodingKind::EVEX => avx_512(instruction),
        _ if (0..instruction.op_count()).any(|op| instruction.op_register(op).is_k()) => {
            Family::Avx512Mask
        }
        _ if has(F::BMI1) || has(F::BMI2) || has(F::ADX) => Family::Bmi,
        _ if has(F::FMA) || has(F::F16C) => Family::Fma,
        _ if has(F::AVX2) => Family::Avx2,
        _ if has(F::AVX) || instruction.encoding() == EncodingKind::VEX => Family::Avx,
        _ if has(F::AES) || has(F::PCLMULQDQ) || has(F::SHA) || has(F::GFNI) => Family::Aes,
        _ if has(F::SSE4_1) || has(F::SSE4_2) || has(F::SSE4A) => Family::Sse4,
        _ if has(F::SSE3) || has(F::SSSE3) => Family::Sse3,
        _ if has(F::SSE2) => Family::Sse2,
        _ if has(F::SSE) => Family::Sse,
        _ if has(F::MMX) => Family::Mmx,
        _ if has(F::FPU) || has(F::FPU287) || has(F::FPU387) => Family::X87,
        _ if instruction.flow_control() != FlowControl::Next => Family::Branch,
        _ => {
            let text = format!("{:?}", instruction.mnemonic());
            if text.starts_with("Set") || text.starts_with("Cmov") {
                Family::Condition
            } else {
                Family::Integer
            }
        }
    }
}

/// The family of an instruction with EVEX encoding.
fn avx_512(instruction: &Instruction) -> Family {
    let is_memory = |op: u32| instruction.op_kind(op) == OpKind::Memory;
    let has_memory = (0..instruction.op_count()).any(is_memory);
    match (has_memory, instruction.has_op_mask()) {
        (true, false) => Family::Avx512Memory,
        (_, true) => Family::Avx512Masked,
        (false, false) => Family::Avx512,
    }
}

/// Whether the guest may execute the instruction.
pub fn is_offered(instruction: &Instruction) -> bool {
    let policy = tollgate_emulate::cpuid::policy_of(tollgate_x86::CpuModel::Host);
    let legacy_meaning = matches!(
        instruction.mnemonic(),
        // Without their feature, the older instruction is executed.
        Mnemonic::Tzcnt | Mnemonic::Lzcnt
    );
    legacy_meaning
        || (matches!(
            instruction.encoding(),
            EncodingKind::Legacy | EncodingKind::VEX | EncodingKind::EVEX
        ) && instruction
            .cpuid_features()
            .iter()
            .all(|&feature| policy.offers(feature)))
}

/// Whether an instruction belongs to AMD's virtualization. No guest is offered it, but which fault
/// a program gets depends on the maker: under a hypervisor, which has set EFER.SVME, AMD's
/// processors check the privilege level first (APM volume 3, VMRUN).
pub fn is_svm(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Vmrun
            | Mnemonic::Vmload
            | Mnemonic::Vmsave
            | Mnemonic::Stgi
            | Mnemonic::Clgi
            | Mnemonic::Skinit
            | Mnemonic::Invlpga
    )
}
