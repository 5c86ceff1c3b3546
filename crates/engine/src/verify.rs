//! The verifier: a second, independent look at emitted code.
//!
//! It decodes host code from scratch and knows nothing of how it was made. Every
//! instruction must be one that may run on the host, and every memory operand must
//! go through a checked scratch register, the context, the software TLB or the link
//! tables. FS and GS are never used, nor is the host's stack.

use crate::mode::Mode;
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register,
};

/// What is wrong with one instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Offset in the code.
    pub offset: usize,
    /// The instruction as text.
    pub instruction: String,
    /// Which rule it breaks.
    pub rule: &'static str,
}

/// Mnemonics that must never run on the host for a guest.
fn is_forbidden(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Syscall
            | Sysenter
            | Sysexit
            | Sysret
            | Sysexitq
            | Sysretq
            | Int
            | Int1
            | Int3
            | Into
            | Iret
            | Iretd
            | Iretq
            | Vmcall
            | Vmmcall
            | Cpuid
            | Rdtscp
            | Rdpid
            | Rdpmc
            | Rdpru
            | Xgetbv
            | Xsetbv
            | Monitor
            | Monitorx
            | Mwait
            | Mwaitx
            | Clzero
            | Tpause
            | Umwait
            | Umonitor
            | Enqcmd
            | Enqcmds
            | Movdir64b
            | Movdiri
            | Xbegin
            | Xend
            | Xabort
            | Popf
            | Popfd
            | Popfq
            | Pushf
            | Pushfd
            | Pushfq
            | Rdfsbase
            | Rdgsbase
            | Wrfsbase
            | Wrgsbase
            | Rdpkru
            | Wrpkru
            | Xsave
            | Xsave64
            | Xsaveopt
            | Xsaveopt64
            | Xsavec
            | Xsavec64
            | Xrstor
            | Xrstor64
            | Xsaves
            | Xsaves64
            | Xrstors
            | Xrstors64
            | Fxsave
            | Fxsave64
            | Fxrstor
            | Fxrstor64
            | Fnstenv
            | Fstenv
            | Fnsave
            | Fsave
            | Fldenv
            | Frstor
            | Sgdt
            | Sidt
            | Sldt
            | Str
            | Smsw
            | Lar
            | Lsl
            | Verr
            | Verw
            | Lgdt
            | Lidt
            | Lldt
            | Ltr
            | Hlt
            | In
            | Out
            | Insb
            | Insw
            | Insd
            | Outsb
            | Outsw
            | Outsd
            | Cli
            | Sti
            | Call
            | Ret
            | Retf
            | Push
            | Pop
            | Pusha
            | Popa
            | Enter
            | Leave
            | Ud0
            | Ud1
            | Ud2
            | Cld
            | Std
            | Swapgs
            | Movsb
            | Movsw
            | Stosb
            | Stosw
            | Stosd
            | Stosq
            | Lodsb
            | Lodsw
            | Lodsd
            | Lodsq
            | Scasb
            | Scasw
            | Scasd
            | Scasq
            | Cmpsb
            | Cmpsw
            | Cmpsq
            | Vgatherdps
            | Vgatherdpd
            | Vgatherqps
            | Vgatherqpd
            | Vpgatherdd
            | Vpgatherdq
            | Vpgatherqd
            | Vpgatherqq
            | Maskmovq
            | Maskmovdqu
            | Vmaskmovdqu
            | Xlatb
    )
}

/// Checks one block's code.
pub fn verify(code: &[u8], mode: &Mode) -> Vec<Finding> {
    let _ = mode;
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut info = InstructionInfoFactory::new();
    let mut findings = Vec::new();
    while decoder.can_decode() {
        let offset = decoder.position();
        let instruction = decoder.decode();
        if let Some(rule) = broken_rule(&instruction, &mut info, code.len()) {
            findings.push(Finding {
                offset,
                instruction: instruction.to_string(),
                rule,
            });
        }
    }
    findings
}

fn broken_rule(
    instruction: &Instruction,
    info: &mut InstructionInfoFactory,
    length: usize,
) -> Option<&'static str> {
    if instruction.is_invalid() {
        return Some("is no instruction");
    }
    if instruction.is_privileged() || is_forbidden(instruction.mnemonic()) {
        return Some("must not run on the host");
    }
    if instruction.is_string_instruction() {
        return Some("string instructions are not emitted");
    }
    if matches!(instruction.segment_prefix(), Register::FS | Register::GS) {
        return Some("uses FS or GS");
    }
    let has_memory = (0..instruction.op_count()).any(|i| instruction.op_kind(i) == OpKind::Memory);
    let is_address_only = instruction.mnemonic() == Mnemonic::Lea;
    if has_memory && !is_address_only {
        let base = instruction.memory_base();
        let index = instruction.memory_index();
        let bare = index == Register::None && instruction.memory_displacement64() == 0;
        let allowed = match base {
            // A host address that a look-up has just formed.
            Register::R9 | Register::RSI => bare,
            Register::R15 => index == Register::None,
            Register::R13 | Register::R14 => index == Register::None || index == Register::R9,
            _ => false,
        };
        if !allowed {
            return Some("memory operand is not a checked address, the context or a table");
        }
    }
    if (0..instruction.op_count()).any(|i| instruction.op_kind(i) == OpKind::NearBranch64)
        && instruction.near_branch64() as usize >= length
    {
        return Some("branch leaves the block");
    }
    for used in info.info(instruction).used_registers() {
        let writes = !matches!(
            used.access(),
            iced_x86::OpAccess::Read | iced_x86::OpAccess::CondRead | iced_x86::OpAccess::None
        );
        let register = used.register().full_register();
        if register == Register::RSP {
            return Some("touches the host's stack pointer");
        }
        if writes && matches!(register, Register::R13 | Register::R14 | Register::R15) {
            return Some("changes a reserved register");
        }
        if writes && register.is_segment_register() {
            return Some("changes a segment register");
        }
    }
    None
}
