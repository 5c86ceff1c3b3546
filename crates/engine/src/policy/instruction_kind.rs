//! The kind, executor and effects of an instruction that leaves translated code for the monitor.
//!
//! These say what the exit counts as, which function executes the instruction, and what it may
//! change in addition to its operands. They are decided once, when the instruction's block is
//! translated.

use crate::policy::masked_access::is_masked_access;
use iced_x86::{Code, Instruction, Mnemonic, Register};
use tollgate_exits::ExitKind;

/// What executes an instruction that translated code leaves to the monitor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Executor {
    /// The monitor's out-of-line forms of near branches, stack and move instructions, which
    /// translated code executes itself where it can.
    Near,
    /// The monitor's hypercalls: VMCALL and VMMCALL.
    Hypercall,
    /// The crate `emulate`.
    Emulate,
}

bitflags::bitflags! {
    /// What may be different after an instruction, or is due then.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Effects: u16 {
        /// The mode word can change.
        const CHANGES_MODE = 1 << 0;
        /// The save area of the vector registers may have been written.
        const WRITES_VECTOR_AREA = 1 << 1;
        /// The stored results of SYSCALL, SYSRET, SYSENTER and SYSEXIT, and the memos of fast
        /// paths, may be invalid.
        const CHANGES_LEVEL_CHANGES = 1 << 2;
        /// The offset of the time-stamp counter may change.
        const CHANGES_CLOCK = 1 << 3;
        /// The instruction may enable interrupts, so that a waiting interrupt can be delivered.
        const LETS_INTERRUPTS_IN = 1 << 4;
        /// Another task may become the current task.
        const SWITCHES_TASKS = 1 << 5;
        /// The instruction enters a handler through the IDT, as an interrupt does (INT n, INT1,
        /// INT3, INTO).
        const ENTERS_HANDLER = 1 << 6;
        /// IRET: it loads EFLAGS.RF, and allows NMIs again even if it faults.
        const RETURNS_FROM_HANDLER = 1 << 7;
        /// SYSCALL and SYSRET: the TF that they leave decides whether a trap follows.
        const LOOKS_AT_TRAP_FLAG = 1 << 8;
        /// INT1: it raises #DB, but not as a fault.
        const RAISES_DEBUG = 1 << 9;
        /// The instruction names a debug register, an access that DR7.GD detects.
        const NAMES_DEBUG_REGISTER = 1 << 10;
        /// A string instruction, which may end between two iterations.
        const REPEATS = 1 << 11;
        /// A sensitive instruction: it reads or changes the interrupt flag (see
        /// [`crate::policy::virtual_interrupts`]).
        const SENSITIVE = 1 << 12;
        /// The instruction loads DS, ES, FS or GS: the mode word changes only if emitted code must
        /// use the segment in another way.
        const LOADS_DATA_SEGMENT = 1 << 13;
    }
}

/// Everything that an exit must know about its instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InstructionKind {
    /// The kind that the exit is counted as.
    pub exit: ExitKind,
    /// What executes the instruction.
    pub executor: Executor,
    /// What the instruction may change.
    pub effects: Effects,
}

impl InstructionKind {
    /// The kind of an instruction.
    pub fn of(instruction: &Instruction) -> Self {
        let ExitOf { exit, changes_mode } = exit_of(instruction);
        let mut effects = Effects::empty();
        effects.set(Effects::CHANGES_MODE, changes_mode);
        effects.set(Effects::WRITES_VECTOR_AREA, writes_vector_area(instruction));
        effects.set(Effects::SENSITIVE, is_sensitive(instruction.mnemonic()));
        effects |= match exit {
            ExitKind::ControlRegister if changes_mode => Effects::CHANGES_LEVEL_CHANGES,
            ExitKind::Msr if changes_mode => {
                Effects::CHANGES_LEVEL_CHANGES | Effects::CHANGES_CLOCK
            }
            ExitKind::Sti => Effects::LETS_INTERRUPTS_IN,
            ExitKind::FarTransfer => Effects::SWITCHES_TASKS,
            ExitKind::Iret => Effects::SWITCHES_TASKS | Effects::RETURNS_FROM_HANDLER,
            ExitKind::SoftwareInterrupt => Effects::SWITCHES_TASKS | Effects::ENTERS_HANDLER,
            _ => Effects::empty(),
        };
        effects |= match instruction.mnemonic() {
            Mnemonic::Syscall | Mnemonic::Sysret | Mnemonic::Sysretq => Effects::LOOKS_AT_TRAP_FLAG,
            Mnemonic::Int1 => Effects::RAISES_DEBUG,
            Mnemonic::Lgdt | Mnemonic::Xsetbv => Effects::CHANGES_LEVEL_CHANGES,
            _ => Effects::empty(),
        };
        if loads_data_segment(instruction) {
            effects.remove(Effects::CHANGES_MODE);
            effects.insert(Effects::LOADS_DATA_SEGMENT);
        }
        let is_debug = instruction.op0_register().is_dr() || instruction.op1_register().is_dr();
        effects.set(Effects::NAMES_DEBUG_REGISTER, is_debug);
        effects.set(Effects::REPEATS, instruction.is_string_instruction());
        Self {
            exit,
            executor: Executor::of(instruction),
            effects,
        }
    }
}

/// An instruction that the monitor executes, and its kind.
#[derive(Clone, Copy, Debug)]
pub struct Helper {
    /// The instruction as it was decoded in the guest's mode.
    pub instruction: Instruction,
    /// The kind of the instruction.
    pub kind: InstructionKind,
}

impl Helper {
    /// Classifies an instruction.
    pub fn new(instruction: Instruction) -> Self {
        Self {
            instruction,
            kind: InstructionKind::of(&instruction),
        }
    }
}

impl Executor {
    /// What executes an instruction, if translated code does not.
    fn of(instruction: &Instruction) -> Self {
        use Mnemonic::*;
        let is_far = instruction.is_jmp_far()
            || instruction.is_jmp_far_indirect()
            || instruction.is_call_far()
            || instruction.is_call_far_indirect();
        let names_segment =
            instruction.op_count() > 0 && instruction.op0_register().is_segment_register();
        if is_far || names_segment {
            return Self::Emulate;
        }
        match instruction.mnemonic() {
            Vmcall | Vmmcall => Self::Hypercall,
            Push | Pop | Leave | Call | Jmp | Ret | Loop | Loope | Loopne | Xlatb | Salc => {
                Self::Near
            }
            Mov if is_moffs(instruction.code()) => Self::Near,
            _ => Self::Emulate,
        }
    }
}

/// Whether the instruction is a MOV between the accumulator and an offset in the instruction.
fn is_moffs(code: Code) -> bool {
    matches!(
        code,
        Code::Mov_AL_moffs8
            | Code::Mov_AX_moffs16
            | Code::Mov_EAX_moffs32
            | Code::Mov_RAX_moffs64
            | Code::Mov_moffs8_AL
            | Code::Mov_moffs16_AX
            | Code::Mov_moffs32_EAX
            | Code::Mov_moffs64_RAX
    )
}

/// How the exit of an instruction is counted, and whether the instruction may change the mode.
struct ExitOf {
    exit: ExitKind,
    changes_mode: bool,
}

const fn keeps_mode(exit: ExitKind) -> ExitOf {
    ExitOf {
        exit,
        changes_mode: false,
    }
}

const fn changes_mode(exit: ExitKind) -> ExitOf {
    ExitOf {
        exit,
        changes_mode: true,
    }
}

/// The kind of exit that an emulated instruction counts as, and whether it can change the mode
/// word.
fn exit_of(instruction: &Instruction) -> ExitOf {
    use Mnemonic::*;
    match instruction.mnemonic() {
        In | Insb | Insw | Insd => keeps_mode(ExitKind::PortIn),
        Out | Outsb | Outsw | Outsd => keeps_mode(ExitKind::PortOut),
        Cli => keeps_mode(ExitKind::Cli),
        Sti => keeps_mode(ExitKind::Sti),
        Pushf | Pushfd | Pushfq => keeps_mode(ExitKind::Pushf),
        Popf | Popfd | Popfq => changes_mode(ExitKind::Popf),
        Iret | Iretd | Iretq => changes_mode(ExitKind::Iret),
        Int | Int1 | Int3 | Into => changes_mode(ExitKind::SoftwareInterrupt),
        Sysenter | Sysexit | Sysexitq | Syscall | Sysret | Sysretq => {
            changes_mode(ExitKind::FastSystemCall)
        }
        Jmp | Call | Retf => changes_mode(ExitKind::FarTransfer),
        Lds | Les | Lss | Lfs | Lgs => changes_mode(ExitKind::SegmentLoad),
        Push => keeps_mode(ExitKind::SegmentLoad),
        Pop => changes_mode(ExitKind::SegmentLoad),
        Mov if instruction.op0_register() == iced_x86::Register::CR3 => {
            keeps_mode(ExitKind::Cr3Load)
        }
        Mov if instruction.op0_register().is_cr() => changes_mode(ExitKind::ControlRegister),
        Mov if instruction.op0_register().is_segment_register() => {
            changes_mode(ExitKind::SegmentLoad)
        }
        Mov if instruction.op1_register().is_segment_register() => {
            keeps_mode(ExitKind::OtherInstruction)
        }
        Mov if instruction.op0_register().is_dr() => changes_mode(ExitKind::ControlRegister),
        Mov => keeps_mode(ExitKind::ControlRegister),
        Clts | Lmsw => changes_mode(ExitKind::ControlRegister),
        Smsw => keeps_mode(ExitKind::ControlRegister),
        Invlpg | Invpcid => keeps_mode(ExitKind::Invlpg),
        Rdmsr => keeps_mode(ExitKind::Msr),
        Wrmsr => changes_mode(ExitKind::Msr),
        Cpuid => keeps_mode(ExitKind::Cpuid),
        Vmcall | Vmmcall => keeps_mode(ExitKind::Hypercall),
        Rdtsc | Rdtscp => keeps_mode(ExitKind::TimeStamp),
        Hlt => keeps_mode(ExitKind::Halt),
        Movsb | Movsw | Movsd | Movsq | Stosb | Stosw | Stosd | Stosq | Lodsb | Lodsw | Lodsd
        | Lodsq | Scasb | Scasw | Scasd | Scasq | Cmpsb | Cmpsw | Cmpsd | Cmpsq => {
            keeps_mode(ExitKind::StringInstruction)
        }
        Fxsave | Fxrstor | Fxsave64 | Fxrstor64 | Fnsave | Fsave | Frstor | Fnstenv | Fstenv
        | Fldenv | Xsave | Xsaveopt | Xsavec | Xsaves | Xrstor | Xrstors | Xsave64 | Xsaveopt64
        | Xsavec64 | Xsaves64 | Xrstor64 | Xrstors64 => keeps_mode(ExitKind::VectorImage),
        // FS and GS have a base in every mode word of 64-bit code.
        Swapgs | Rdfsbase | Rdgsbase | Wrfsbase | Wrgsbase => {
            keeps_mode(ExitKind::OtherInstruction)
        }
        // These instructions change no segment, control register or system flag.
        Pusha | Pushad | Popa | Popad | Enter | Bound | Bt | Btc | Btr | Bts | Daa | Das | Aaa
        | Aas | Aam | Aad | Sgdt | Sidt | Sldt | Str | Lar | Lsl | Verr | Verw | Xgetbv | Rdpmc
        | Wbinvd | Wbnoinvd | Invd | Rdpkru | Wrpkru => keeps_mode(ExitKind::OtherInstruction),
        _ => changes_mode(ExitKind::OtherInstruction),
    }
}

/// Whether an instruction reads or changes the interrupt flag.
fn is_sensitive(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Cli | Sti | Pushf | Pushfd | Pushfq | Popf | Popfd | Popfq | Iret | Iretd | Iretq | Int
    )
}

/// Whether an instruction loads DS, ES, FS or GS.
fn loads_data_segment(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    match instruction.mnemonic() {
        Lds | Les | Lfs | Lgs => true,
        Mov | Pop => matches!(
            instruction.op0_register(),
            Register::DS | Register::ES | Register::FS | Register::GS
        ),
        _ => false,
    }
}

/// Whether an instruction may write the save area of the vector registers.
fn writes_vector_area(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    let loads_state = matches!(
        instruction.mnemonic(),
        Fxrstor
            | Fxrstor64
            | Fnsave
            | Fsave
            | Frstor
            | Fnstenv
            | Fstenv
            | Fldenv
            | Xrstor
            | Xrstor64
            | Xrstors
            | Xrstors64
            | Xsetbv
    );
    loads_state || is_masked_access(instruction)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn kind(bits: u32, code: &[u8]) -> InstructionKind {
        let instruction = Decoder::new(bits, code, DecoderOptions::NONE).decode();
        assert!(!instruction.is_invalid());
        InstructionKind::of(&instruction)
    }

    #[test]
    fn near_forms_are_told_from_far_ones_and_from_those_of_segments() {
        assert_eq!(kind(32, &[0xff, 0xd0]).executor, Executor::Near); // call eax
        assert_eq!(kind(32, &[0xff, 0x18]).executor, Executor::Emulate); // call far [eax]
        assert_eq!(kind(32, &[0x50]).executor, Executor::Near); // push eax
        assert_eq!(kind(32, &[0x1e]).executor, Executor::Emulate); // push ds
        assert_eq!(kind(32, &[0xa1, 0, 0, 0, 0]).executor, Executor::Near); // mov eax,[0]
        assert_eq!(kind(32, &[0x0f, 1, 0xc1]).executor, Executor::Hypercall); // vmcall
    }

    #[test]
    fn an_instruction_has_the_effects_that_its_exit_must_heed() {
        let sti = kind(32, &[0xfb]);
        assert_eq!(sti.exit, ExitKind::Sti);
        assert_eq!(
            sti.effects,
            Effects::LETS_INTERRUPTS_IN | Effects::SENSITIVE
        );
        let iret = kind(32, &[0xcf]);
        assert_eq!(
            iret.effects,
            Effects::CHANGES_MODE
                | Effects::SWITCHES_TASKS
                | Effects::RETURNS_FROM_HANDLER
                | Effects::SENSITIVE
        );
        let write = kind(32, &[0x0f, 0x30]); // wrmsr
        assert_eq!(
            write.effects,
            Effects::CHANGES_MODE | Effects::CHANGES_LEVEL_CHANGES | Effects::CHANGES_CLOCK
        );
        assert_eq!(kind(32, &[0x0f, 0x32]).effects, Effects::empty()); // rdmsr
        assert_eq!(kind(32, &[0x0f, 0x20, 0xd0]).effects, Effects::empty()); // mov eax,cr2
        for load in [&[0x8e, 0xd8][..], &[0x1f], &[0x0f, 0xa1], &[0xc5, 0x03]] {
            // mov ds,eax; pop ds; pop fs; lds eax,[ebx]
            assert_eq!(kind(32, load).effects, Effects::LOADS_DATA_SEGMENT);
        }
        for load in [&[0x8e, 0xd0][..], &[0x17], &[0x0f, 0xb2, 0x03]] {
            // mov ss,eax; pop ss; lss eax,[ebx]
            assert_eq!(kind(32, load).effects, Effects::CHANGES_MODE);
        }
        let debug = kind(32, &[0x0f, 0x23, 0xc0]); // mov dr0,eax
        assert!(debug.effects.contains(Effects::NAMES_DEBUG_REGISTER));
        assert_eq!(kind(32, &[0x6c]).effects, Effects::REPEATS); // insb
        let int1 = kind(32, &[0xf1]);
        assert!(
            int1.effects
                .contains(Effects::RAISES_DEBUG | Effects::ENTERS_HANDLER)
        );
        let area = kind(64, &[0x0f, 0xae, 0x08]); // fxrstor [rax]
        assert!(area.effects.contains(Effects::WRITES_VECTOR_AREA));
        let out = kind(32, &[0xee]);
        assert_eq!(
            (out.exit, out.effects),
            (ExitKind::PortOut, Effects::empty())
        );
    }
}
