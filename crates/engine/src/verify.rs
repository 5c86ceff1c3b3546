//! The verifier: a second, independent look at emitted code.
//!
//! It decodes host code from scratch and knows nothing of how it was made. Every
//! instruction must be one that may run on the host, and every memory operand must
//! go through a checked scratch register, the context, the software TLB or the link
//! tables. FS and GS are never used, nor is the host's stack. Which registers those are
//! it takes from the register map.

use crate::abi::at;
use crate::abi::context::{BIAS, Context};
use crate::abi::host::Host;
use crate::abi::level_change::{LevelChange, LevelChangeKind};
use crate::abi::register_map::RegisterMap;
use crate::policy::mode::{Mode, ModeFlags};
use iced_x86::{
    Code, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register,
};
use std::mem::offset_of;
use tollgate_tlb::long_tlb::{LONG_ROOT_DISPLACEMENT, LONG_WRITE_DISPLACEMENT};

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
            | Movsq
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

/// Checks one block's code, whose registers are as `map` says.
pub fn verify(code: &[u8], mode: &Mode, map: &RegisterMap) -> Vec<Finding> {
    let long = mode.flags.contains(ModeFlags::LONG);
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut info = InstructionInfoFactory::new();
    let mut findings = Vec::new();
    let mut before = Before::default();
    while decoder.can_decode() {
        let offset = decoder.position();
        let instruction = decoder.decode();
        let rule = broken_rule(&instruction, &mut info, code.len(), map)
            .filter(|_| !makes_transition(&instruction, &before, map))
            .or_else(|| broken_memory_rule(&instruction, &before, map, long));
        if let Some(rule) = rule {
            findings.push(Finding {
                offset,
                instruction: instruction.to_string(),
                rule,
            });
        }
        before.note(instruction);
    }
    findings
}

/// What stands before an instruction, the last first.
#[derive(Default)]
struct Before {
    previous: Instruction,
    /// Without direct jumps: an island of jumps may stand in any sequence.
    steps: [Instruction; 3],
}

impl Before {
    fn note(&mut self, instruction: Instruction) {
        self.previous = instruction;
        if !instruction.is_jmp_short_or_near() {
            self.steps = [instruction, self.steps[0], self.steps[1]];
        }
    }
}

/// CLI or UD2 where an exit has just been named: a transition to the monitor.
fn makes_transition(instruction: &Instruction, before: &Before, map: &RegisterMap) -> bool {
    let names_exit = &before.previous;
    matches!(instruction.mnemonic(), Mnemonic::Cli | Mnemonic::Ud2)
        && names_exit.code() == Code::Mov_rm32_imm32
        && names_exit.memory_base() == register_of(map.context)
        && names_exit.memory_index() == Register::None
        && names_exit.memory_displacement64() as i64 == i64::from(at::EXIT_SITE)
}

fn register_of(host: Host) -> Register {
    Register::RAX + u32::from(host.0 & 15)
}

/// The instruction's memory operand, if it has one, is none that guest code may reach.
fn broken_memory_rule(
    instruction: &Instruction,
    before: &Before,
    map: &RegisterMap,
    long: bool,
) -> Option<&'static str> {
    let has_memory = (0..instruction.op_count()).any(|i| instruction.op_kind(i) == OpKind::Memory);
    if !has_memory || instruction.mnemonic() == Mnemonic::Lea {
        return None;
    }
    let base = instruction.memory_base();
    let index = instruction.memory_index();
    let displacement = instruction.memory_displacement64();
    let bare = index == Register::None && displacement == 0;
    let allowed = if base == Register::R9 {
        // A host address that a look-up has just formed, or a slot of the long software TLB.
        bare || long && reads_write_slot(instruction, before, map)
    } else if base == register_of(map.pointer) {
        // The same, borrowed just before.
        let previous = &before.previous;
        let borrows = previous.mnemonic() == Mnemonic::Mov
            && previous.op_count() == 2
            && previous.op0_register() == base
            && previous.op1_register() == Register::R9;
        bare && borrows
    } else if base == register_of(map.context) {
        let start = (displacement as i64).wrapping_add(i64::from(BIAS));
        index == Register::None && (0..size_of::<Context>() as i64).contains(&start)
    } else if base == register_of(map.tlb) && long {
        reads_root(instruction) && forms_index(&before.steps[0], map)
    } else if base == register_of(map.tlb) || base == register_of(map.links) {
        index == Register::None || index == Register::R9
    } else {
        false
    };
    (!allowed).then_some("memory operand is not a checked address, the context or a table")
}

/// `sarx r10,r8,r14`: the index of a pointer in the root of the long software TLB.
fn forms_index(instruction: &Instruction, map: &RegisterMap) -> bool {
    let operands = [0, 1, 2].map(|index| instruction.op_register(index));
    instruction.code() == Code::VEX_Sarx_r64_rm64_r64
        && operands == [Register::R10, Register::R8, register_of(map.tlb)]
}

/// `mov r10,[r14+r10*8+root]`, but for its base.
fn reads_root(instruction: &Instruction) -> bool {
    instruction.code() == Code::Mov_r64_rm64
        && instruction.op0_register() == Register::R10
        && instruction.memory_index() == Register::R10
        && instruction.memory_index_scale() == 8
        && instruction.memory_displacement64() as i64 == i64::from(LONG_ROOT_DISPLACEMENT)
}

/// `mov rcx,[r9+stores]` behind `mov r10,[root]; lea r9,[r10+r9*8]; mov r10,rcx`.
fn reads_write_slot(instruction: &Instruction, before: &Before, map: &RegisterMap) -> bool {
    let [saves, forms, root] = &before.steps;
    let reads = instruction.code() == Code::Mov_r64_rm64
        && instruction.op0_register() == Register::RCX
        && instruction.memory_index() == Register::None
        && instruction.memory_displacement64() as i64 == i64::from(LONG_WRITE_DISPLACEMENT);
    let saves_rcx = saves.mnemonic() == Mnemonic::Mov
        && saves.op0_register() == Register::R10
        && saves.op1_register() == Register::RCX;
    let forms_slot = forms.code() == Code::Lea_r64_m
        && forms.op0_register() == Register::R9
        && forms.memory_base() == Register::R10
        && forms.memory_index() == Register::R9
        && forms.memory_index_scale() == 8
        && forms.memory_displacement64() == 0;
    let root = root.memory_base() == register_of(map.tlb) && reads_root(root);
    reads && saves_rcx && forms_slot && root
}

/// `mov r14,[r15+...]` of the software TLB that belongs to a change of the privilege level.
fn loads_view(instruction: &Instruction, map: &RegisterMap) -> bool {
    let tlb = offset_of!(LevelChange, tlb) as i32;
    let displacement = instruction.memory_displacement64() as i64;
    instruction.code() == Code::Mov_r64_rm64
        && instruction.op0_register() == register_of(map.tlb)
        && instruction.memory_base() == register_of(map.context)
        && instruction.memory_index() == Register::None
        && LevelChangeKind::ALL
            .iter()
            .any(|kind| i64::from(at::level_change(*kind) + tlb) == displacement)
}

fn broken_rule(
    instruction: &Instruction,
    info: &mut InstructionInfoFactory,
    length: usize,
    map: &RegisterMap,
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
        let is_reserved = register.is_gpr() && map.reserved() & 1 << register.number() != 0;
        if writes && is_reserved && !loads_view(instruction, map) {
            return Some("changes a reserved register");
        }
        if writes && register.is_segment_register() {
            return Some("changes a segment register");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_x86::CpuState;

    fn rules(code: &[u8]) -> Vec<&'static str> {
        let mode = Mode::of(&CpuState::at_reset());
        let findings = verify(code, &mode, &RegisterMap::LEGACY);
        findings.iter().map(|finding| finding.rule).collect()
    }

    fn long_findings(code: &[u8]) -> usize {
        let mut mode = Mode::of(&CpuState::at_reset());
        mode.flags |= ModeFlags::LONG | ModeFlags::CODE64;
        verify(code, &mode, &RegisterMap::LONG).len()
    }

    #[test]
    fn slots_of_the_long_software_tlb_are_reached_by_its_look_up_only() {
        let index: &[u8] = &[0xc4, 0x42, 0x8a, 0xf7, 0xd0]; // sarx r10,r8,r14
        let root: &[u8] = &[0x4f, 0x8b, 0x54, 0xd6, 0xd9]; // mov r10,[r14+r10*8-27h]
        let slot: &[u8] = &[0x4f, 0x8d, 0x0c, 0xca]; // lea r9,[r10+r9*8]
        let save: &[u8] = &[0x49, 0x89, 0xca]; // mov r10,rcx
        let read: &[u8] = &[0x49, 0x8b, 0x89, 0, 0, 0, 0x80]; // mov rcx,[r9-80000000h]
        let all = [index, root, slot, save, read];
        assert_eq!(long_findings(&all.concat()), 0);
        let island: &[u8] = &[0xeb, 0]; // jmp short over nothing
        assert_eq!(
            long_findings(&[index, root, slot, island, save, read].concat()),
            0
        );
        // No step can be left out, and none is allowed to other guests.
        for missing in 0..4 {
            let mut some = all.to_vec();
            some.remove(missing);
            assert_ne!(long_findings(&some.concat()), 0, "{missing}");
        }
        assert_eq!(rules(&all.concat()).len(), 2);
        // Nothing is stored there, and nothing read elsewhere.
        let store: &[u8] = &[0x49, 0x89, 0x89, 0, 0, 0, 0x80];
        assert_eq!(long_findings(&[index, root, slot, save, store].concat()), 1);
        let beyond: &[u8] = &[0x49, 0x8b, 0x89, 8, 0, 0, 0x80];
        assert_eq!(
            long_findings(&[index, root, slot, save, beyond].concat()),
            1
        );
        let flat: &[u8] = &[0x4b, 0x8b, 0x0c, 0xce]; // mov rcx,[r14+r9*8]
        assert_eq!(long_findings(flat), 1);
    }

    #[test]
    fn memory_is_reached_through_a_checked_address() {
        assert_eq!(rules(&[0x41, 0x8b, 0x01]), [""; 0]); // mov eax,[r9]
        assert_eq!(rules(&[0x41, 0x8b, 0x41, 1]).len(), 1); // mov eax,[r9+1]
        assert_eq!(rules(&[0x41, 0x8b, 0x00]).len(), 1); // mov eax,[r8]
        assert_eq!(rules(&[0x8b, 0x03]).len(), 1); // mov eax,[rbx]
    }

    #[test]
    fn a_borrowed_pointer_is_one_only_just_behind_its_loan() {
        let (borrow, use_): (&[u8], &[u8]) = (&[0x4c, 0x89, 0xce], &[0x8a, 0x26]);
        assert_eq!(rules(&[borrow, use_].concat()), [""; 0]); // mov rsi,r9; mov ah,[rsi]
        assert_eq!(rules(use_).len(), 1);
        assert_eq!(rules(&[borrow, &[0x90], use_].concat()).len(), 1);
        assert_eq!(rules(&[borrow, &[0x8a, 0x66, 1]].concat()).len(), 1); // [rsi+1]
        assert_eq!(rules(&[&[0x4c, 0x89, 0xcf], use_].concat()).len(), 1); // mov rdi,r9
    }

    #[test]
    fn the_context_is_reached_as_far_as_it_goes() {
        assert_eq!(rules(&[0x4d, 0x8b, 0x5f, 0x54]), [""; 0]); // mov r11,[r15+54h]
        assert_eq!(rules(&[0x4d, 0x8b, 0x9f, 0, 0, 0, 1]).len(), 1); // [r15+1000000h]
        assert_eq!(rules(&[0x4d, 0x8b, 0x5f, 0x80]).len(), 1); // [r15-80h]
        assert_eq!(rules(&[0x47, 0x8b, 0x1c, 0x0f]).len(), 1); // mov r11d,[r15+r9]
    }

    #[test]
    fn registers_of_the_translator_stay_as_they_are() {
        assert_eq!(rules(&[0x49, 0x89, 0xc7]), ["changes a reserved register"]); // mov r15,rax
        assert_eq!(rules(&[0x49, 0x89, 0xc6]), ["changes a reserved register"]);
        assert_eq!(rules(&[0x49, 0x89, 0xc4]), [""; 0]); // mov r12,rax
        assert_eq!(rules(&[0x48, 0x89, 0xc4]).len(), 1); // mov rsp,rax
    }
}
