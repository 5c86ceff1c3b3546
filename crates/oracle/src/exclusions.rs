//! Instructions that the oracle never runs, and the reasons.

use crate::case::components;
use iced_x86::{Code, CpuidFeature, Instruction, Mnemonic};

/// Why an instruction is excluded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// It enters the host's kernel: INT 80h, SYSENTER, SYSCALL.
    SystemCall,
    /// The segment of its target need not exist on the other side, and natively it may enter 64-bit
    /// code: far CALL, JMP, RET, and IRET. The bare-metal guests test them.
    FarTransfer,
    /// Its result depends on time or chance, or differs between host and guest by design.
    NotRepeatable,
    /// It reports on descriptors and tables, which differ in the host's kernel; some of these
    /// instructions are emulated by the host's kernel for UMIP.
    SystemTables,
    /// WAIT and the following instruction, which iced-x86 decodes as one.
    TwoInstructions,
    /// It changes state that the test itself depends on: protection keys, transactions.
    HostState,
    /// LOOPE and LOOPNE after F2h or F3h, which is reserved and may do anything (SDM volume 2,
    /// 2.1.1): Intel's processors ignore the prefix, AMD's take the condition from it.
    ReservedPrefix,
}

/// Why this instruction is excluded, if it is. Privileged instructions are not excluded: at ring 3
/// each raises its exception on both sides.
pub fn reason(instruction: &Instruction) -> Option<Reason> {
    use Mnemonic as M;
    let code = instruction.code();
    if code.op_code().fwait() {
        return Some(Reason::TwoInstructions);
    }
    match instruction.mnemonic() {
        M::Int if instruction.immediate8() == 0x80 => Some(Reason::SystemCall),
        M::Syscall | M::Sysenter | M::Sysret | M::Sysretq | M::Sysexit | M::Sysexitq => {
            Some(Reason::SystemCall)
        }
        M::Retf | M::Iret | M::Iretd | M::Iretq => Some(Reason::FarTransfer),
        M::Jmp | M::Call
            if instruction.is_jmp_far()
                || instruction.is_call_far()
                || instruction.is_jmp_far_indirect()
                || instruction.is_call_far_indirect() =>
        {
            Some(Reason::FarTransfer)
        }
        M::Cpuid
        | M::Rdtsc
        | M::Rdtscp
        | M::Rdpid
        | M::Rdpmc
        | M::Rdpru
        | M::Rdrand
        | M::Rdseed
        | M::Xgetbv
        | M::Vmcall
        | M::Vmmcall
        | M::Vmfunc => Some(Reason::NotRepeatable),
        M::Sgdt | M::Sidt | M::Sldt | M::Str | M::Smsw | M::Lar | M::Lsl | M::Verr | M::Verw => {
            Some(Reason::SystemTables)
        }
        M::Loope | M::Loopne if instruction.has_rep_prefix() || instruction.has_repne_prefix() => {
            Some(Reason::ReservedPrefix)
        }
        M::Wrpkru | M::Rdpkru | M::Xbegin | M::Xend | M::Xabort | M::Xtest => {
            Some(Reason::HostState)
        }
        _ => None,
    }
}

/// Whether it would harm the host to run this state: XSAVE and XRSTOR of components that the host
/// has and the guest lacks (protection keys) would change the test's own state.
pub fn harms_host(instruction: &Instruction, gpr: &[u64; 16]) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Xsave
            | Mnemonic::Xsave64
            | Mnemonic::Xsavec
            | Mnemonic::Xsavec64
            | Mnemonic::Xsaveopt
            | Mnemonic::Xsaveopt64
            | Mnemonic::Xrstor
            | Mnemonic::Xrstor64
    ) && (gpr[0] as u32 & !(components() as u32) != 0 || gpr[2] as u32 != 0)
}

/// Whether these bytes contain a sequence that would enter the host's kernel if control reached it.
pub fn enters_kernel(code: &[u8]) -> bool {
    code.windows(2)
        .any(|pair| matches!(pair, [0xcd, 0x80] | [0x0f, 0x05] | [0x0f, 0x34]))
}

/// Whether the instruction loads a segment register, which must only be run with selectors that
/// both sides have.
pub fn loads_segment(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    match instruction.mnemonic() {
        M::Lds | M::Les | M::Lss | M::Lfs | M::Lgs => true,
        M::Mov | M::Pop => {
            instruction.op_count() > 0 && instruction.op0_register().is_segment_register()
        }
        _ => false,
    }
}

/// Whether this encoding does nothing where its feature is missing, instead of raising #UD. If the
/// feature is hidden it may do either, which the engine's own tests cover.
pub fn is_hint_space(instruction: &Instruction) -> bool {
    instruction.cpuid_features().iter().any(|feature| {
        matches!(
            feature,
            CpuidFeature::CET_SS
                | CpuidFeature::CET_IBT
                | CpuidFeature::MPX
                | CpuidFeature::CLDEMOTE
                | CpuidFeature::PREFETCHWT1
                | CpuidFeature::PREFETCHW
                | CpuidFeature::PREFETCHITI
                | CpuidFeature::WAITPKG
                | CpuidFeature::CLWB
                | CpuidFeature::HRESET
        )
    }) || matches!(
        instruction.code(),
        Code::Xstore_16 | Code::Xstore_32 | Code::Xstore_64 | Code::Wbnoinvd
    )
}
