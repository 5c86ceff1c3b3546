//! The allow-list: which guest instructions may be copied and run on the host unchanged.
//!
//! An instruction is copied only if it is listed here, its CPUID features are offered to the guest
//! and the mode permits it. The monitor executes every other instruction, or it is #UD. The lists
//! name mnemonics; if a mnemonic has a form that must not be copied, that form is excluded by its
//! `Code`.

use crate::decode::intel_amd_differences::Decoding;
use crate::policy::masked_access::is_masked_access;
use crate::policy::mode::{Mode, ModeFlags};
use iced_x86::{Code, CodeSize, CpuidFeature, EncodingKind, Instruction, Mnemonic, OpKind};
use tollgate_x86::Vector;

/// The CPUID features that the guest is offered.
#[derive(Clone)]
pub struct Features {
    offered: Vec<bool>,
    narrow_selectors: bool,
    lahf_in_64_bit_code: bool,
    decoding: Decoding,
}

impl Features {
    /// Asks `offers` about every feature once. LAHF is offered in 64-bit code, too.
    pub fn new(offers: impl Fn(CpuidFeature) -> bool) -> Self {
        let mut offered = Vec::new();
        for feature in CpuidFeature::values() {
            let index = feature as usize;
            if offered.len() <= index {
                offered.resize(index + 1, false);
            }
            offered[index] = offers(feature);
        }
        Self {
            offered,
            narrow_selectors: false,
            lahf_in_64_bit_code: true,
            decoding: Decoding::Intel,
        }
    }

    /// Sets which maker's processor the instruction bytes are decoded for.
    pub fn with_decoding(mut self, decoding: Decoding) -> Self {
        self.decoding = decoding;
        self
    }

    /// Which maker's processor the instruction bytes are decoded for.
    pub fn decoding(&self) -> Decoding {
        self.decoding
    }

    /// Sets whether PUSH and POP of a segment register access only the low word of a wider slot:
    /// the manual leaves this open (SDM volume 2, PUSH).
    pub fn with_narrow_selectors(mut self, are_narrow: bool) -> Self {
        self.narrow_selectors = are_narrow;
        self
    }

    /// Whether PUSH and POP of a segment register access only the low word of a wider slot.
    pub fn has_narrow_selectors(&self) -> bool {
        self.narrow_selectors
    }

    /// Sets whether LAHF and SAHF are offered in 64-bit code, for which there is no
    /// [`CpuidFeature`].
    pub fn with_lahf_in_64_bit_code(mut self, offered: bool) -> Self {
        self.lahf_in_64_bit_code = offered;
        self
    }

    /// Whether every feature that an instruction needs is offered. The feature of 64-bit forms is
    /// not checked: they are decoded in 64-bit code only, which the guest cannot enter without that
    /// feature.
    pub fn allow(&self, instruction: &Instruction) -> bool {
        let is_lahf = matches!(instruction.code(), Code::Lahf | Code::Sahf);
        if is_lahf && instruction.code_size() == CodeSize::Code64 {
            return self.lahf_in_64_bit_code;
        }
        instruction
            .cpuid_features()
            .iter()
            .filter(|&&f| f != CpuidFeature::X64)
            .all(|&f| self.offers(f))
    }

    /// Whether one feature is offered.
    pub fn offers(&self, feature: CpuidFeature) -> bool {
        let index = feature as usize;
        self.offered.get(index).copied().unwrap_or(false)
    }
}

/// Replaces an instruction whose feature is not offered by the older instruction with the same
/// bytes: F3 did not affect BSF and BSR before TZCNT and LZCNT existed (SDM volume 2, TZCNT).
#[inline]
pub fn as_offered(instruction: &mut Instruction, offers: impl Fn(CpuidFeature) -> bool) {
    let (code, feature) = match instruction.code() {
        Code::Tzcnt_r16_rm16 => (Code::Bsf_r16_rm16, CpuidFeature::BMI1),
        Code::Tzcnt_r32_rm32 => (Code::Bsf_r32_rm32, CpuidFeature::BMI1),
        Code::Tzcnt_r64_rm64 => (Code::Bsf_r64_rm64, CpuidFeature::BMI1),
        Code::Lzcnt_r16_rm16 => (Code::Bsr_r16_rm16, CpuidFeature::LZCNT),
        Code::Lzcnt_r32_rm32 => (Code::Bsr_r32_rm32, CpuidFeature::LZCNT),
        Code::Lzcnt_r64_rm64 => (Code::Bsr_r64_rm64, CpuidFeature::LZCNT),
        _ => return,
    };
    if !offers(feature) {
        instruction.set_code(code);
    }
}

/// How an instruction is treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Treatment {
    /// The instruction is copied; it uses general registers, flags and at most one memory operand.
    Copy,
    /// The instruction is copied; it uses x87, MMX or vector registers too.
    CopyVector,
    /// The instruction does nothing that the guest can see.
    Nothing,
    /// The instruction raises this exception in this mode.
    Raise(Vector),
    /// The monitor executes the instruction.
    Helper,
}

/// Whether an instruction is ever copied, whatever the mode and the guest's features are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copying {
    /// The instruction is copied in no mode.
    Never,
    /// The instruction is copied where [`treatment`] returns [`Treatment::Copy`].
    General,
    /// The instruction is copied where [`treatment`] returns [`Treatment::CopyVector`].
    Vector,
}

/// What the lists say about an instruction alone: [`treatment`] copies no other instruction.
pub fn copying(instruction: &Instruction) -> Copying {
    let mnemonic = instruction.mnemonic();
    if instruction.code() == Code::INVALID
        || is_nothing(mnemonic)
        || !is_listed_encoding(instruction)
    {
        return Copying::Never;
    }
    if mnemonic == Mnemonic::Wait {
        return Copying::Vector;
    }
    if is_listed_general(mnemonic) {
        return match is_excluded_general(instruction) {
            true => Copying::Never,
            false => Copying::General,
        };
    }
    match is_listed_vector(instruction) && !is_nothing_on_x87(mnemonic) {
        true => Copying::Vector,
        false => Copying::Never,
    }
}

fn is_listed_encoding(instruction: &Instruction) -> bool {
    matches!(
        instruction.encoding(),
        EncodingKind::Legacy | EncodingKind::VEX | EncodingKind::EVEX
    )
}

/// Whether the instruction needs AVX-512's state: EVEX-encoded instructions do, and VEX-encoded
/// ones that use mask registers.
pub fn needs_avx_512(instruction: &Instruction) -> bool {
    instruction.encoding() == EncodingKind::EVEX
        || (0..instruction.op_count()).any(|index| instruction.op_register(index).is_k())
}

/// Instructions on general registers. Every form that is not excluded by its `Code` is unprivileged
/// and depends only on registers, flags and memory.
fn is_listed_general(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Adc | Add
            | Adcx
            | Adox
            | And
            | Andn
            | Bextr
            | Blsi
            | Blsmsk
            | Blsr
            | Bsf
            | Bsr
            | Bswap
            | Bt
            | Btc
            | Btr
            | Bts
            | Bzhi
            | Cbw
            | Cdq
            | Cdqe
            | Clc
            | Cmc
            | Cmova
            | Cmovae
            | Cmovb
            | Cmovbe
            | Cmove
            | Cmovg
            | Cmovge
            | Cmovl
            | Cmovle
            | Cmovne
            | Cmovno
            | Cmovnp
            | Cmovns
            | Cmovo
            | Cmovp
            | Cmovs
            | Cmp
            | Cmpxchg
            | Cmpxchg8b
            | Cmpxchg16b
            | Cqo
            | Crc32
            | Cwd
            | Cwde
            | Dec
            | Div
            | Idiv
            | Imul
            | Inc
            | Lahf
            | Lzcnt
            | Mov
            | Movbe
            | Movdiri
            | Movnti
            | Movsx
            | Movsxd
            | Movzx
            | Mul
            | Mulx
            | Neg
            | Not
            | Or
            | Pause
            | Pdep
            | Pext
            | Popcnt
            | Rcl
            | Rcr
            | Rdrand
            | Rdseed
            | Rol
            | Ror
            | Rorx
            | Sahf
            | Sal
            | Sar
            | Sarx
            | Sbb
            | Seta
            | Setae
            | Setb
            | Setbe
            | Sete
            | Setg
            | Setge
            | Setl
            | Setle
            | Setne
            | Setno
            | Setnp
            | Setns
            | Seto
            | Setp
            | Sets
            | Shl
            | Shld
            | Shlx
            | Shr
            | Shrd
            | Shrx
            | Stc
            | Sub
            | Test
            | Tzcnt
            | Xadd
            | Xchg
            | Xor
            | Lfence
            | Sfence
            | Mfence
            | Clflush
            | Clflushopt
            | Clwb
    )
}

/// State images and masked accesses, which are never copied although their features are listed.
fn is_excluded_vector(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    let is_image = matches!(
        instruction.mnemonic(),
        Fxsave
            | Fxsave64
            | Fxrstor
            | Fxrstor64
            | Fnsave
            | Fsave
            | Frstor
            | Fnstenv
            | Fstenv
            | Fldenv
            | Xsave
            | Xsaveopt
            | Xsavec
            | Xsaves
            | Xrstor
            | Xrstors
            | Xgetbv
            | Xsetbv
            | Frstpm
    );
    is_image || is_masked_access(instruction)
}

fn is_vector_feature(feature: CpuidFeature) -> bool {
    use CpuidFeature::*;
    matches!(
        feature,
        FPU | FPU287
            | FPU387
            | MMX
            | SSE
            | SSE2
            | SSE3
            | SSSE3
            | SSE4_1
            | SSE4_2
            | AES
            | PCLMULQDQ
            | AVX
            | AVX2
            | FMA
            | F16C
            | SSE4A
            | AVX_VNNI
            | AVX_IFMA
            | SHA
            | GFNI
            | VAES
            | VPCLMULQDQ
            | AVX512F
            | AVX512CD
            | AVX512BW
            | AVX512DQ
            | AVX512VL
            | AVX512_IFMA
            | AVX512_VBMI
            | AVX512_VBMI2
            | AVX512_VNNI
            | AVX512_BITALG
            | AVX512_VPOPCNTDQ
            | AVX512_VP2INTERSECT
            | AVX512_BF16
            | AVX512_FP16
    )
}

/// Hints and fences, which do not affect the guest's state.
fn is_nothing(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Nop | Endbr32
            | Endbr64
            | Prefetchnta
            | Prefetcht0
            | Prefetcht1
            | Prefetcht2
            | Prefetchw
            | Prefetch
            | Prefetchwt1
            | Reservednop
    )
}

/// Whether the instruction names an operand in memory.
pub(crate) fn has_memory(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|index| instruction.op_kind(index) == OpKind::Memory)
}

/// Decides how one instruction is treated in a mode.
pub fn treatment(instruction: &Instruction, mode: &Mode, features: &Features) -> Treatment {
    let mnemonic = instruction.mnemonic();
    let is_undefined = matches!(mnemonic, Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2);
    if is_undefined || instruction.code() == Code::INVALID {
        return Treatment::Raise(Vector::InvalidOpcode);
    }
    if is_nothing(mnemonic) {
        return Treatment::Nothing;
    }
    let vex = matches!(
        instruction.encoding(),
        EncodingKind::VEX | EncodingKind::EVEX
    );
    if !is_listed_encoding(instruction) {
        return Treatment::Raise(Vector::InvalidOpcode);
    }
    let real =
        !mode.flags.contains(ModeFlags::PROTECTED) || mode.flags.contains(ModeFlags::VIRTUAL_8086);
    if vex && real {
        return Treatment::Raise(Vector::InvalidOpcode);
    }
    if mnemonic == Mnemonic::Wait {
        let trap = mode
            .flags
            .contains(ModeFlags::TASK_SWITCHED | ModeFlags::MONITOR_COPROCESSOR);
        return if trap {
            Treatment::Raise(Vector::DeviceNotAvailable)
        } else {
            Treatment::CopyVector
        };
    }
    if is_listed_general(mnemonic) {
        return general_treatment(instruction, features);
    }
    if !is_listed_vector(instruction) {
        return Treatment::Helper;
    }
    if !features.allow(instruction) {
        return Treatment::Raise(Vector::InvalidOpcode);
    }
    vector_treatment(instruction, mode, vex)
}

/// x87, MMX, SSE, AVX and AVX-512 instructions that run unchanged. Instructions whose addresses are
/// in a vector register are excluded, since they have many operands in memory.
fn is_listed_vector(instruction: &Instruction) -> bool {
    let features = instruction.cpuid_features();
    !is_excluded_vector(instruction) && features.iter().any(|&feature| is_vector_feature(feature))
}

/// Control instructions of the 8087 and the 287 that do nothing today (SDM volume 3, "Architecture
/// Compatibility").
fn is_nothing_on_x87(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Fneni | Mnemonic::Fndisi | Mnemonic::Fnsetpm
    )
}

/// Forms of listed mnemonics that are not copied: those that use system registers, and those that
/// select a bit of a string in memory, which may be anywhere.
fn is_excluded_general(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    let mnemonic = instruction.mnemonic();
    let touches_system_register = (0..instruction.op_count()).any(|index| {
        let register = instruction.op_register(index);
        register.is_segment_register() || register.is_cr() || register.is_dr() || register.is_tr()
    });
    let far_bit_string = matches!(mnemonic, Bt | Btc | Btr | Bts)
        && has_memory(instruction)
        && !has_immediate(instruction);
    touches_system_register || far_bit_string
}

fn general_treatment(instruction: &Instruction, features: &Features) -> Treatment {
    if is_excluded_general(instruction) {
        return Treatment::Helper;
    }
    if !features.allow(instruction) {
        return Treatment::Raise(Vector::InvalidOpcode);
    }
    Treatment::Copy
}

fn has_immediate(instruction: &Instruction) -> bool {
    instruction.op_kind(instruction.op_count() - 1) == OpKind::Immediate8
}

/// Checks the conditions of SDM volume 2, tables 2-19 to 2-30 and 22-1, and volume 3, 13.1.
fn vector_treatment(instruction: &Instruction, mode: &Mode, vex: bool) -> Treatment {
    use CpuidFeature::*;
    let x87 = instruction
        .cpuid_features()
        .iter()
        .any(|f| matches!(f, FPU | FPU287 | FPU387))
        || instruction.mnemonic() == Mnemonic::Fisttp;
    let mmx_registers =
        (0..instruction.op_count()).any(|index| instruction.op_register(index).is_mm());
    let ts = mode.flags.contains(ModeFlags::TASK_SWITCHED);
    let em = mode.flags.contains(ModeFlags::EMULATE_X87);
    if x87 {
        return if em || ts {
            Treatment::Raise(Vector::DeviceNotAvailable)
        } else if is_nothing_on_x87(instruction.mnemonic()) {
            Treatment::Nothing
        } else {
            Treatment::CopyVector
        };
    }
    let enabled = if needs_avx_512(instruction) {
        mode.flags.contains(ModeFlags::AVX_512)
    } else if vex {
        mode.flags.contains(ModeFlags::AVX)
    } else if instruction.cpuid_features().contains(&MMX)
        || (mmx_registers && !touches_xmm(instruction))
    {
        !em
    } else {
        !em && mode.flags.contains(ModeFlags::OSFXSR)
    };
    if !enabled {
        return Treatment::Raise(Vector::InvalidOpcode);
    }
    if ts {
        Treatment::Raise(Vector::DeviceNotAvailable)
    } else {
        Treatment::CopyVector
    }
}

fn touches_xmm(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|index| instruction.op_register(index).is_vector_register())
}
