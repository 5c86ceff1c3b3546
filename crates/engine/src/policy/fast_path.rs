//! Which instructions have a fast path, and what is passed to its routine (see
//! [`crate::abi::fast_paths`]).

use crate::abi::fast_paths::{FastPath, FastPathCall, port_key};
use crate::abi::link_layout::FamilyId;
use crate::abi::memos::delivery::{delivery_key, refusal_key, task_key};
use crate::abi::memos::known_code::{FarTransfer, far_key};
use crate::abi::memos::level_change::from_mode;
use crate::abi::memos::segment_load::segment_load_key;
use crate::abi::register_map::RegisterMap;
use crate::policy::mode::{Mode, ModeFlags, SegmentClass};
use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use tollgate_x86::{SegmentRegister, Vector};

/// An instruction that has a fast path, and what is passed to the routine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FastInstruction {
    /// CPUID.
    Cpuid,
    /// A load of DS, ES, FS or GS.
    LoadSegment {
        /// The segment register.
        register: SegmentRegister,
        /// Whether the instruction is a POP of 32 bits.
        pops: bool,
    },
    /// An IRETD that leads to level 3.
    Return,
    /// INT n or INT3.
    Interrupt {
        /// The number of the IDT entry.
        vector: u8,
        /// Whether it is in 64-bit code.
        long: bool,
    },
    /// INT n or INT3 of a V86 task that goes through the IDT of the guest's own monitor.
    TaskInterrupt {
        /// The number of the IDT entry.
        vector: u8,
    },
    /// An instruction that raises #GP(0) in a V86 task.
    Refusal,
    /// A far JMP, CALL or RET.
    Far(FarTransfer),
    /// An instruction that a function of the monitor executes, and two numbers for the function.
    Call(FastPathCall, [u8; 2]),
    /// IN or OUT.
    Port {
        /// Whether the instruction is OUT.
        writes: bool,
        /// The size in bytes: 1, 2 or 4.
        size: u8,
        /// The port, if the instruction names it; otherwise the port is in DX.
        port: Option<u8>,
    },
}

impl FastInstruction {
    /// The fast path of an instruction in code of a mode, if it has one.
    pub fn of(instruction: &Instruction, mode: &Mode, map: &RegisterMap) -> Option<Self> {
        if mode.is_watched() || !map.has_namesakes_at_home() || instruction.has_lock_prefix() {
            return None;
        }
        if let Some(call) = Self::call(instruction, mode) {
            return Some(Self::Call(call, Self::numbers(call, instruction)));
        }
        match instruction.mnemonic() {
            Mnemonic::Cpuid => Self::cpuid(mode),
            Mnemonic::Mov | Mnemonic::Pop => Self::segment_load(instruction, mode),
            Mnemonic::Iretd => Self::outer_return(mode),
            Mnemonic::Jmp | Mnemonic::Call | Mnemonic::Retf => Self::far(instruction, mode),
            Mnemonic::Int | Mnemonic::Int3 => Self::interrupt(instruction, mode),
            Mnemonic::In => Self::port(instruction, mode, 0),
            Mnemonic::Out => Self::port(instruction, mode, 1),
            _ => None,
        }
    }

    /// The fast path of an instruction that is #GP(0) in code of a mode, if it has one: those of
    /// V86 tasks have one.
    pub fn of_refused(mode: &Mode, map: &RegisterMap) -> Option<Self> {
        let is_task = mode.flags.contains(ModeFlags::VIRTUAL_8086) && mode.code_limit == 0xffff;
        (is_task && !mode.is_watched() && map.has_namesakes_at_home()).then_some(Self::Refusal)
    }

    /// The fast path by a function of the monitor, in 32-bit code outside IA-32e mode and in 64-bit
    /// code. The only operands in memory that it serves lie in a segment without base and limit.
    fn call(instruction: &Instruction, mode: &Mode) -> Option<FastPathCall> {
        let is_long = mode.flags.contains(ModeFlags::LONG);
        let is_own_size = match is_long {
            true => mode.flags.contains(ModeFlags::CODE64),
            false => mode.flags.contains(ModeFlags::CODE32 | ModeFlags::STACK32),
        };
        if !is_own_size {
            return None;
        }
        if let Some(call) = Self::store_of_table(instruction) {
            let call = match Self::has_flat_operand(instruction, mode, true) {
                true => call,
                false => FastPathCall::Execute,
            };
            return Some(call);
        }
        let is_kernel = mode.flags.contains(ModeFlags::KERNEL);
        if is_kernel && Self::reads_debug(instruction) {
            return Some(FastPathCall::ReadDebug);
        }
        if let Some(call) = Self::read_of_system(instruction) {
            return Some(call);
        }
        if !is_kernel {
            return None;
        }
        let call = match instruction.code() {
            Code::Invlpg_m => FastPathCall::InvalidatePage,
            Code::Clac => FastPathCall::ClearAccess,
            Code::Stac => FastPathCall::SetAccess,
            Code::Rdmsr => FastPathCall::ReadMsr,
            // Elsewhere the base of FS or GS may be part of the mode.
            Code::Wrmsr => FastPathCall::WriteMsr,
            Code::Mov_cr_r32 | Code::Mov_cr_r64 => match instruction.op0_register() {
                Register::CR0 => FastPathCall::WriteCr0,
                Register::CR2 => FastPathCall::WriteCr2,
                Register::CR4 => FastPathCall::WriteCr4,
                // Only IA-32e mode has process-context identifiers.
                Register::CR3 if is_long => FastPathCall::WriteCr3,
                _ => return None,
            },
            Code::Mov_dr_r32 | Code::Mov_dr_r64 if instruction.op0_register() == Register::DR7 => {
                FastPathCall::WriteDr7
            }
            Code::Lmsw_rm16 | Code::Lmsw_r32m16 | Code::Lmsw_r64m16
                if instruction.op0_kind() == OpKind::Register =>
            {
                FastPathCall::WriteStatus
            }
            Code::Lldt_rm16 | Code::Lldt_r32m16 | Code::Lldt_r64m16
                if instruction.op0_kind() == OpKind::Register =>
            {
                FastPathCall::LoadLdt
            }
            Code::Lgdt_m1632 | Code::Lgdt_m1664 => FastPathCall::LoadGdt,
            Code::Lidt_m1632 | Code::Lidt_m1664 => FastPathCall::LoadIdt,
            _ => return None,
        };
        let has_memory = instruction.op_count() != 0 && instruction.op0_kind() == OpKind::Memory;
        (!has_memory || Self::has_flat_operand(instruction, mode, false)).then_some(call)
    }

    /// The numbers for the monitor's function, from the instruction's registers.
    fn numbers(call: FastPathCall, instruction: &Instruction) -> [u8; 2] {
        let general = instruction.op0_register();
        match call {
            FastPathCall::ReadDebug => [
                instruction.op1_register().number() as u8,
                general.number() as u8,
            ],
            FastPathCall::LoadRights | FastPathCall::LoadLimit => {
                [general.size() as u8, general.number() as u8]
            }
            _ => [0; 2],
        }
    }

    /// The fast path of SGDT or SIDT.
    fn store_of_table(instruction: &Instruction) -> Option<FastPathCall> {
        match instruction.mnemonic() {
            Mnemonic::Sgdt => Some(FastPathCall::StoreGdt),
            Mnemonic::Sidt => Some(FastPathCall::StoreIdt),
            _ => None,
        }
    }

    /// Whether the instruction is a MOV from DR0 to DR3, DR6 or DR7. The meaning of the others
    /// depends on CR4.DE.
    fn reads_debug(instruction: &Instruction) -> bool {
        use Register::*;
        instruction.mnemonic() == Mnemonic::Mov
            && matches!(
                instruction.op1_register(),
                DR0 | DR1 | DR2 | DR3 | DR6 | DR7
            )
    }

    /// Whether the operand in memory lies in a segment without base and limit, and its address has
    /// the size of the code's addresses.
    fn has_flat_operand(instruction: &Instruction, mode: &Mode, write: bool) -> bool {
        let is_flat = match instruction.memory_segment() {
            Register::DS => mode.segment(SegmentRegister::Ds, write) == SegmentClass::Flat,
            Register::SS => mode.segment(SegmentRegister::Ss, write) == SegmentClass::Flat,
            _ => false,
        };
        let size = match (instruction.memory_base(), instruction.memory_index()) {
            (Register::None, Register::None) => instruction.memory_displ_size() as usize,
            (Register::None, index) => index.size(),
            (base, _) => base.size(),
        };
        is_flat && (mode.flags.contains(ModeFlags::LONG) || size == 4)
    }

    /// The fast path of an instruction that reads system registers or descriptors. After everything
    /// that can fault, such an instruction changes only its operand and arithmetic flags.
    fn read_of_system(instruction: &Instruction) -> Option<FastPathCall> {
        use Mnemonic::*;
        match instruction.mnemonic() {
            Lar if instruction.op1_kind() == OpKind::Register => Some(FastPathCall::LoadRights),
            Lsl if instruction.op1_kind() == OpKind::Register => Some(FastPathCall::LoadLimit),
            Verr if instruction.op0_kind() == OpKind::Register => Some(FastPathCall::VerifyRead),
            Verw if instruction.op0_kind() == OpKind::Register => Some(FastPathCall::VerifyWrite),
            Sldt | Str | Lar | Lsl | Verr | Verw | Xgetbv | Rdpkru => Some(FastPathCall::Execute),
            Smsw => Some(FastPathCall::ReadControl),
            Mov if instruction.op1_register().is_dr() => Some(FastPathCall::ReadControl),
            _ => None,
        }
    }

    /// The fast path of IRETD, from code and stack of 32 bits at level 0, outside IA-32e mode,
    /// where IRET does nothing unusual.
    fn outer_return(mode: &Mode) -> Option<Self> {
        let kernel = ModeFlags::KERNEL | ModeFlags::CODE32 | ModeFlags::STACK32;
        let rare = ModeFlags::LONG | ModeFlags::RARE_FLAGS | ModeFlags::NMI_BLOCKED;
        let has_flat_stack = mode.segment(SegmentRegister::Ss, false) == SegmentClass::Flat;
        let does = mode.flags.contains(kernel) && !mode.flags.intersects(rare) && has_flat_stack;
        does.then_some(Self::Return)
    }

    /// The fast path of INT n and INT3: from 64-bit code of level 0 or 3, and from code and stack
    /// of 32 bits of level 3 outside IA-32e mode. (32-bit code of level 0 delivers its own
    /// interrupts.) From V86 tasks only where the IDT alone decides: INT3, and INT n at IOPL 3
    /// without CR4.VME.
    fn interrupt(instruction: &Instruction, mode: &Mode) -> Option<Self> {
        let vector = match instruction.code() {
            Code::Int_imm8 => instruction.immediate8(),
            Code::Int3 => Vector::Breakpoint as u8,
            _ => return None,
        };
        let has = |flags| mode.flags.contains(flags);
        if has(ModeFlags::VIRTUAL_8086) {
            let is_table_s = instruction.code() == Code::Int3
                || has(ModeFlags::IO_PRIVILEGED) && !has(ModeFlags::VIRTUAL_INTERRUPTS);
            let does = is_table_s
                && !has(ModeFlags::RARE_FLAGS)
                && instruction.next_ip() <= u64::from(mode.code_limit)
                && mode.code_limit == 0xffff;
            return does.then_some(Self::TaskInterrupt { vector });
        }
        let long = has(ModeFlags::LONG | ModeFlags::CODE64);
        let does = if long {
            mode.flags.intersects(ModeFlags::KERNEL | ModeFlags::USER)
        } else {
            has(ModeFlags::PROTECTED | ModeFlags::USER | ModeFlags::CODE32 | ModeFlags::STACK32)
                && !has(ModeFlags::LONG)
        };
        (does && !has(ModeFlags::RARE_FLAGS)).then_some(Self::Interrupt { vector, long })
    }

    /// The fast path of far transfers: in 64-bit code, and in flat code of 32 bits with a flat
    /// stack in protected mode outside IA-32e mode, at level 0 or 3.
    fn far(instruction: &Instruction, mode: &Mode) -> Option<Self> {
        let (calls, returns, size) = match instruction.code() {
            Code::Jmp_ptr1632 | Code::Jmp_m1632 => (false, false, 4),
            Code::Jmp_m1664 => (false, false, 8),
            Code::Call_ptr1632 | Code::Call_m1632 => (true, false, 4),
            Code::Call_m1664 => (true, false, 8),
            Code::Retfd | Code::Retfd_imm16 => (false, true, 4),
            Code::Retfq | Code::Retfq_imm16 => (false, true, 8),
            _ => return None,
        };
        let has = |flags| mode.flags.contains(flags);
        let long = has(ModeFlags::LONG | ModeFlags::CODE64);
        let narrow = ModeFlags::PROTECTED | ModeFlags::CODE32 | ModeFlags::STACK32;
        let does = mode.flags.intersects(ModeFlags::KERNEL | ModeFlags::USER)
            && (long
                || has(narrow)
                    && !mode
                        .flags
                        .intersects(ModeFlags::LONG | ModeFlags::VIRTUAL_8086)
                    && mode.code_base == 0
                    && mode.code_limit == u32::MAX
                    && mode.segment(SegmentRegister::Ss, true) == SegmentClass::Flat);
        does.then_some(Self::Far(FarTransfer {
            calls,
            returns,
            size,
            long,
            user: has(ModeFlags::USER),
        }))
    }

    /// The fast path of CPUID. Intel's processors do not offer SYSCALL in compatibility code, so in
    /// IA-32e mode the memo has answers for 64-bit code only.
    fn cpuid(mode: &Mode) -> Option<Self> {
        let is_long = mode.flags.contains(ModeFlags::LONG);
        (is_long == mode.flags.contains(ModeFlags::CODE64)).then_some(Self::Cpuid)
    }

    /// The fast path of segment loads, in code of 32 bits at level 0 outside IA-32e mode.
    fn segment_load(instruction: &Instruction, mode: &Mode) -> Option<Self> {
        let kernel = ModeFlags::KERNEL | ModeFlags::CODE32 | ModeFlags::STACK32;
        if !mode.flags.contains(kernel) || mode.flags.contains(ModeFlags::LONG) {
            return None;
        }
        let register = match instruction.op0_register() {
            Register::DS => SegmentRegister::Ds,
            Register::ES => SegmentRegister::Es,
            Register::FS => SegmentRegister::Fs,
            Register::GS => SegmentRegister::Gs,
            _ => return None,
        };
        let pops = match instruction.code() {
            Code::Popd_DS | Code::Popd_ES | Code::Popd_FS | Code::Popd_GS => true,
            _ if instruction.mnemonic() == Mnemonic::Mov => false,
            _ => return None,
        };
        Some(Self::LoadSegment { register, pops })
    }

    /// The fast path of IN and OUT, where the level permits all ports. `register` is the number of
    /// the operand that is not the port.
    fn port(instruction: &Instruction, mode: &Mode, register: u32) -> Option<Self> {
        // V86 mode uses the bitmap whatever IOPL is (SDM volume 1, 19.5.2).
        let is_permitted = mode.flags.contains(ModeFlags::IO_PRIVILEGED)
            && !mode.flags.contains(ModeFlags::VIRTUAL_8086);
        let is_named = instruction.op_kind(1 - register) == OpKind::Immediate8;
        is_permitted.then(|| Self::Port {
            writes: register == 1,
            size: instruction.op_register(register).size() as u8,
            port: is_named.then(|| instruction.immediate8()),
        })
    }

    /// Whether the fast path stands for an instruction that a monitor executes, rather than for a
    /// transfer of control or a load of a segment register.
    pub fn is_executed_for_guest(self) -> bool {
        matches!(self, Self::Cpuid | Self::Call(..) | Self::Port { .. })
    }

    /// The routine of the fast path.
    pub fn routine(self) -> FastPath {
        match self {
            Self::Cpuid => FastPath::Cpuid,
            Self::LoadSegment { .. } => FastPath::LoadSegment,
            Self::Return => FastPath::Return,
            Self::Interrupt { .. } | Self::TaskInterrupt { .. } => FastPath::Interrupt,
            Self::Refusal => FastPath::Refusal,
            Self::Far(_) => FastPath::Far,
            Self::Call(call, _) => call.routine(),
            Self::Port { writes: false, .. } => FastPath::PortIn,
            Self::Port { writes: true, .. } => FastPath::PortOut,
        }
    }

    /// Whether control continues after the instruction, at the address in R11.
    pub fn comes_back(self) -> bool {
        matches!(self, Self::Cpuid | Self::LoadSegment { .. })
    }

    /// What the routine expects in R9, in code of this mode of this family; `None` if it expects
    /// nothing.
    pub fn key(self, mode: u32, family: FamilyId) -> Option<u64> {
        match self {
            Self::Cpuid => None,
            Self::LoadSegment { register, pops } => Some(segment_load_key(register, pops, mode)),
            Self::Return => Some(from_mode(mode)),
            Self::Interrupt { vector, long } => Some(delivery_key(vector, long, mode)),
            Self::TaskInterrupt { vector } => Some(task_key(vector, family)),
            Self::Refusal => Some(refusal_key(family)),
            Self::Far(transfer) => Some(far_key(transfer, mode)),
            Self::Call(call, numbers) => Some(call.key(numbers)),
            Self::Port { size, port, .. } => Some(port_key(self.routine(), size, port)),
        }
    }
}
