//! What emitted code must not do, judged from single instructions and the decoder's facts about
//! them.
//!
//! The rules were written independently of those of the verifier.

use iced_x86::{
    Code, CpuidFeature, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory,
    Mnemonic, OpAccess, Register,
};
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::ops::Range;
use tollgate_engine::abi::context::{BIAS, Context, STORE_SIZES, SignalExit};
use tollgate_engine::abi::fast_paths::FAST_PATHS;
use tollgate_engine::abi::link_layout::{LINKS_BIAS, SLOTS_OFFSET, TABLES_BYTES};
use tollgate_engine::abi::memos::cpuid_answer::CpuidAnswers;
use tollgate_engine::abi::memos::delivery::{DELIVERIES, Delivery};
use tollgate_engine::abi::memos::known_code::{KNOWN_CODES, KnownCode};
use tollgate_engine::abi::memos::level_change::{LevelChange, LevelChangeKind};
use tollgate_engine::abi::memos::segment_load::{SEGMENT_LOADS, SegmentLoad};
use tollgate_engine::abi::strings::ROUTINES;
use tollgate_engine::policy::access::Access as ModeAccess;
use tollgate_engine::policy::mode::{Mode, ModeFlags};
use tollgate_tlb::View;
use tollgate_tlb::long_tlb::{
    DIRECT_TABLE_DISPLACEMENT, LONG_ROOT_DISPLACEMENT, LONG_WRITE_DISPLACEMENT, PARTS,
};
use tollgate_tlb::shadow_windows::BESIDE_WINDOW;
use tollgate_tlb::software_tlb::{
    NARROW_DELTA_OFFSET, SUPERVISOR_VIEW_OFFSET, WRITE_TABLE_OFFSET, limit_check_offset,
};
use tollgate_x86::CpuState;

/// Features whose instructions only compute.
const COMPUTING: &[CpuidFeature] = {
    use CpuidFeature::*;
    &[
        INTEL8086,
        INTEL186,
        INTEL286,
        INTEL386,
        INTEL486,
        X64,
        FPU,
        FPU287,
        FPU387,
        CMOV,
        CX8,
        CMPXCHG16B,
        MMX,
        SSE,
        SSE2,
        SSE3,
        SSSE3,
        SSE4_1,
        SSE4_2,
        POPCNT,
        AES,
        PCLMULQDQ,
        AVX,
        AVX2,
        FMA,
        F16C,
        BMI1,
        BMI2,
        LZCNT,
        ADX,
        MOVBE,
        RDRAND,
        RDSEED,
        SHA,
        GFNI,
        VAES,
        VPCLMULQDQ,
        SSE4A,
        AVX_VNNI,
        AVX_IFMA,
        AVX512F,
        AVX512CD,
        AVX512BW,
        AVX512DQ,
        AVX512VL,
        AVX512_IFMA,
        AVX512_VBMI,
        AVX512_VBMI2,
        AVX512_VNNI,
        AVX512_BITALG,
        AVX512_VPOPCNTDQ,
        AVX512_VP2INTERSECT,
        AVX512_BF16,
        AVX512_FP16,
        TSC,
        CLFSH,
        CLFLUSHOPT,
        CLWB,
        MOVDIRI,
        PAUSE,
    ]
};

/// Instructions of those features that do more than compute: they show or change the host's state.
fn is_strange(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Sgdt | Sidt | Sldt | Str | Smsw | Lar | Lsl | Verr | Verw | Arpl | Cld | Std | Cpuid
    )
}

/// Fields of the context that emitted code must not write, and whether it may read them.
fn protected() -> Vec<(Range<i64>, bool)> {
    macro_rules! field {
        ($($name:ident).+, $type:ty, $readable:expr) => {{
            let start = offset_of!(Context, $($name).+) as i64 - i64::from(BIAS);
            (start..start + size_of::<$type>() as i64, $readable)
        }};
    }
    let mut all = vec![
        field!(entry.host_rsp, u64, false),
        field!(hot.pending, u32, false),
        field!(hot.exit_entry, u64, false),
        field!(hot.miss_entry, u64, false),
        field!(hot.links, u64, false),
        field!(hot.bounce_pointer, u64, true),
        field!(store_test.routines, [u64; STORE_SIZES.len()], false),
        field!(store_test.long_routines, [u64; STORE_SIZES.len()], false),
        field!(store_test.lines, u64, false),
        field!(store_test.bytes, u64, false),
        field!(store_test.return_to, u64, false),
        field!(store_test.delta, u64, false),
        field!(store_test.pass, u64, false),
        field!(vectors.load, u64, false),
        field!(hot.vectors_off, u64, true),
        field!(vectors.were_live, u64, false),
        field!(vectors.components, u64, false),
        field!(vectors.compacts, u64, false),
        field!(entry.switch_in, u64, false),
        field!(entry.target, u64, false),
        field!(signal, SignalExit, false),
        field!(strings.routines, [u64; ROUTINES], false),
        field!(strings.flags, u16, false),
        field!(strings.shows_each, u64, false),
        field!(strings.source_base, u64, false),
        field!(fast_paths.routines, [u64; FAST_PATHS], false),
        field!(fast_paths.counts, [u64; FAST_PATHS], false),
        field!(fast_paths.done, u64, false),
        field!(fast_paths.function, u64, false),
        field!(fast_paths.miss_function, u64, false),
        field!(fast_paths.environment, u64, false),
        field!(fast_paths.cpuid_answers, CpuidAnswers, false),
        field!(
            fast_paths.segment_loads,
            [SegmentLoad; SEGMENT_LOADS],
            false
        ),
        field!(fast_paths.deliveries, [Delivery; DELIVERIES], false),
        field!(fast_paths.known_codes, [KnownCode; KNOWN_CODES], false),
        field!(vectors.before, u64, false),
        field!(
            transfers.level_changes,
            [LevelChange; LevelChangeKind::ALL.len()],
            true
        ),
    ];
    // The rest of the processor's state: control registers, model-specific registers, vectors.
    let cpu = offset_of!(Context, cpu) as i64 - i64::from(BIAS);
    let behind_controls = offset_of!(CpuState, cr4) + 8;
    let parts = [
        (offset_of!(CpuState, cr0)..behind_controls, true),
        (behind_controls..offset_of!(CpuState, sysenter_cs), false),
        (
            offset_of!(CpuState, vector)..offset_of!(CpuState, vector) + 64,
            false,
        ),
    ];
    all.extend(parts.map(|(part, readable)| {
        let range = cpu + part.start as i64..cpu + part.end as i64;
        (range, readable)
    }));
    all
}

fn writes(access: OpAccess) -> bool {
    use OpAccess::*;
    matches!(access, Write | CondWrite | ReadWrite | ReadCondWrite)
}

/// The harm that a block's code may do, if any. `links` are the places of the distances that may
/// later lead to other blocks.
pub fn harm(code: &[u8], mode: &Mode, links: &[u32]) -> Option<String> {
    let instructions: Vec<Instruction> = Decoder::with_ip(64, code, 0, DecoderOptions::NONE)
        .into_iter()
        .collect();
    let starts: BTreeSet<u64> = instructions.iter().map(Instruction::ip).collect();
    for link in links {
        let is_branch = instructions.iter().any(|it| {
            let near = it.is_jmp_near() || it.is_jcc_near();
            near && it.next_ip() == u64::from(*link) + 4
        });
        if !is_branch {
            return Some(format!("the link at {link:#x} is not in a branch"));
        }
    }
    let mut info = InstructionInfoFactory::new();
    let mut before = Instruction::default();
    for instruction in &instructions {
        let reason = harm_of(instruction, &before, &mut info, &starts, mode);
        if let Some(reason) = reason {
            return Some(format!("{instruction}: {reason}"));
        }
        before = *instruction;
    }
    let ends = !matches!(
        before.flow_control(),
        FlowControl::Next | FlowControl::ConditionalBranch
    );
    (!ends).then(|| "control runs off the end".to_owned())
}

/// Whether the instruction is `mov dword ptr [exit_site], number`.
fn names_exit(instruction: &Instruction) -> bool {
    instruction.code() == Code::Mov_rm32_imm32
        && instruction.memory_base() == Register::R15
        && instruction.memory_displacement64() as i64
            == offset_of!(Context, hot.exit_site) as i64 - i64::from(BIAS)
}

fn harm_of(
    instruction: &Instruction,
    before: &Instruction,
    info: &mut InstructionInfoFactory,
    starts: &BTreeSet<u64>,
    mode: &Mode,
) -> Option<&'static str> {
    if instruction.is_invalid() {
        return Some("it is not an instruction");
    }
    let transition = matches!(instruction.mnemonic(), Mnemonic::Cli | Mnemonic::Ud2);
    if transition && names_exit(before) {
        return None;
    }
    if instruction.is_privileged()
        || instruction.is_stack_instruction()
        || instruction.is_save_restore_instruction()
        || is_strange(instruction.mnemonic())
    {
        return Some("it uses state of the host");
    }
    if !(instruction.cpuid_features().iter()).all(|feature| COMPUTING.contains(feature)) {
        return Some("its feature does more than compute");
    }
    match instruction.flow_control() {
        FlowControl::Next => {}
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
            if !starts.contains(&instruction.near_branch64()) {
                return Some("it leads where no instruction begins");
            }
        }
        FlowControl::IndirectBranch if instruction.code() == Code::Jmp_rm64 => {}
        _ => return Some("it leads out of the block"),
    }
    let info = info.info(instruction);
    for used in info.used_registers() {
        let register = used.register().full_register();
        let view = register == Register::R14
            && instruction.code() == Code::Mov_r64_rm64
            && instruction.memory_base() == Register::R15;
        let own = [Register::RSP, Register::R13, Register::R14, Register::R15];
        if writes(used.access()) && (own.contains(&register) && !view) {
            return Some("it changes a register of the translator");
        }
        if writes(used.access()) && register.is_segment_register() {
            return Some("it loads a segment register");
        }
    }
    if info.used_memory().len() > 1 {
        return Some("it makes two accesses");
    }
    if instruction.mnemonic() == Mnemonic::Lea {
        return None;
    }
    for memory in info.used_memory() {
        if memory.segment() == Register::FS {
            return Some("it uses FS");
        }
        let access = Access {
            index: memory.index(),
            scale: memory.scale(),
            displacement: memory.displacement() as i64,
            size: memory.memory_size().size() as i64,
            write: writes(memory.access()),
        };
        if memory.segment() == Register::GS {
            let reason = access.harm_by_anchor(memory.base(), mode);
            if reason.is_some() {
                return reason;
            }
            continue;
        }
        if let Some(reason) = access.harm(memory.base(), instruction, mode) {
            return Some(reason);
        }
    }
    None
}

/// Displacements from R14 above this one lead to the table of shadow windows, the others to the
/// root.
const FIRST_WINDOW: i64 = DIRECT_TABLE_DISPLACEMENT as i64 / 2;

struct Access {
    index: Register,
    scale: u32,
    displacement: i64,
    size: i64,
    write: bool,
}

impl Access {
    /// The harm of an access by the anchor in GS. Only programs make such accesses, near an address
    /// in a register that is not the translator's. One instruction alone does not show which
    /// address.
    fn harm_by_anchor(&self, base: Register, mode: &Mode) -> Option<&'static str> {
        if mode.reaches_by_gs() {
            // One instruction alone does not show whether both registers hold 32 bits.
            let registers = [base, self.index];
            let own = [Register::RSP, Register::R13, Register::R14, Register::R15];
            let is_sum = registers
                .iter()
                .all(|it| it.is_gpr64() && !own.contains(it))
                && self.scale == 1
                && self.displacement == 0
                && mode.access == ModeAccess::Direct;
            return (!is_sum).then_some("it is not at an offset in a segment");
        }
        let is_program = mode.access == ModeAccess::Anchored
            && (mode.flags).contains(ModeFlags::LONG | ModeFlags::CODE64 | ModeFlags::USER);
        let own = [Register::RSP, Register::R13, Register::R14, Register::R15];
        let is_free = base.is_gpr64() && !own.contains(&base) && self.index == Register::None;
        let is_near = self.displacement.unsigned_abs() <= BESIDE_WINDOW;
        (!is_program || !is_free || !is_near).then_some("it is not near an address by the anchor")
    }

    fn harm(&self, base: Register, instruction: &Instruction, mode: &Mode) -> Option<&'static str> {
        let is_long = mode.flags.contains(ModeFlags::LONG);
        let bare = self.index == Register::None && self.displacement == 0;
        let is_direct = is_long && mode.access.is_direct();
        match base {
            // The sum of a shadow window's delta and an address, or a constant address. One
            // instruction alone does not show which address; nothing is mapped next to a window.
            Register::RCX | Register::R11
                if is_direct && (self.index == Register::None || self.scale == 1) =>
            {
                let is_constant = self.index == Register::None && self.displacement >= 0;
                let is_near = self.displacement.unsigned_abs() <= BESIDE_WINDOW || is_constant;
                (!is_near).then_some("it is not at the sum of a delta and an address")
            }
            // The delta of a part's shadow window.
            Register::R14
                if is_direct
                    && !self.write
                    && self.size == 8
                    && self.displacement > FIRST_WINDOW =>
            {
                let table = i64::from(DIRECT_TABLE_DISPLACEMENT);
                let is_delta = match self.index {
                    Register::None => {
                        let parts = -8 * PARTS / 2..8 * PARTS / 2;
                        let at = self.displacement - table;
                        parts.contains(&at) && at % 8 == 0
                    }
                    _ => self.scale == 8 && self.displacement == table,
                };
                (!is_delta).then_some("it is not a delta of a window")
            }
            Register::R15 => self.harm_to_context(instruction),
            Register::R11 => {
                let inside = self.index == Register::None
                    && self.displacement >= 0
                    && self.displacement + self.size <= 128;
                (!inside).then_some("it is not within a shared look-up")
            }
            Register::R9 => (!bare).then_some("it is not at R9"),
            Register::RCX => {
                let sum = self.index == Register::R8 && self.scale == 1 && self.displacement == 0;
                let tables = [0, i64::from(LONG_WRITE_DISPLACEMENT)];
                let slot = is_long
                    && !self.write
                    && self.index == Register::R9
                    && self.scale == 8
                    && tables.contains(&self.displacement);
                (!sum && !slot && !bare).then_some("it is not at the sum of RCX and R8")
            }
            // The only word of a 32-bit guest's shadow window.
            Register::R14
                if !self.write
                    && !is_long
                    && mode.access == ModeAccess::Direct
                    && self.index == Register::None
                    && self.size == 8 =>
            {
                let is_delta = self.displacement == i64::from(NARROW_DELTA_OFFSET);
                (!is_delta).then_some("it is not the window's delta")
            }
            // A byte that checks the limit of a segment, at an offset of 32 bits: nothing else uses
            // the bytes after the tables. One instruction alone does not show which offset.
            Register::R14 if !self.write && !is_long && self.scale == 1 => {
                let view = match mode.flags.contains(ModeFlags::USER) {
                    true => View::User,
                    false => View::Supervisor,
                };
                let behind = self.displacement - i64::from(limit_check_offset(view));
                let fits = self.size == 1
                    && (0..4096).contains(&behind)
                    && self.index.is_gpr64()
                    && instruction.code() == Code::Movzx_r32_rm8;
                (!fits).then_some("it does not check a limit")
            }
            Register::R14 if !self.write && self.scale == 8 => {
                let tables = match is_long {
                    true => [LONG_ROOT_DISPLACEMENT; 3],
                    false => [0, WRITE_TABLE_OFFSET, SUPERVISOR_VIEW_OFFSET],
                };
                let register = match is_long {
                    true => Register::RCX,
                    false => Register::R9,
                };
                let fits =
                    self.index == register && tables.map(i64::from).contains(&self.displacement);
                (!fits).then_some("it is not a slot of the software TLB")
            }
            Register::R13 if !self.write && self.size == 8 => {
                let last = i64::from(TABLES_BYTES);
                let offset = self.displacement + i64::from(LINKS_BIAS);
                let fits = match self.index {
                    Register::None => offset >= i64::from(SLOTS_OFFSET),
                    Register::R9 => self.scale == 8 && offset >= 0,
                    _ => false,
                };
                (!fits || offset >= last).then_some("it is not an entry of the tables")
            }
            _ => Some("it is at an unknown address"),
        }
    }

    fn harm_to_context(&self, instruction: &Instruction) -> Option<&'static str> {
        let start = -i64::from(BIAS);
        let end = start + size_of::<Context>() as i64;
        let place = self.displacement..self.displacement + self.size;
        if self.index != Register::None || place.start < start || place.end > end {
            return Some("it is not in the context");
        }
        let is_jump = instruction.code() == Code::Jmp_rm64;
        let offset = place.start - start;
        let jumps = [
            offset_of!(Context, hot.exit_entry),
            offset_of!(Context, hot.miss_entry),
            offset_of!(Context, store_test.routines),
            offset_of!(Context, strings.routines),
            offset_of!(Context, fast_paths.routines),
        ];
        if is_jump {
            // The tests of stores for both software TLBs.
            let tests = 2 * 8 * STORE_SIZES.len() as i64;
            let strings = 8 * ROUTINES as i64;
            let fast_paths = 8 * FAST_PATHS as i64;
            let fits = offset == jumps[0] as i64
                || offset == jumps[1] as i64
                || (0..tests).contains(&(offset - jumps[2] as i64)) && offset % 8 == 0
                || (0..strings).contains(&(offset - jumps[3] as i64)) && offset % 8 == 0
                || (0..fast_paths).contains(&(offset - jumps[4] as i64)) && offset % 8 == 0;
            return (!fits).then_some("it does not jump to an address in the context");
        }
        let touches = |part: &Range<i64>| part.start < place.end && place.start < part.end;
        for (part, readable) in protected() {
            if touches(&part) && (self.write || !readable) {
                return Some("the field belongs to the monitor");
            }
        }
        None
    }
}
