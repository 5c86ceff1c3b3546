//! CLI, STI, PUSHF and POPF, which work on the guest's own interrupt flag, or on EFLAGS.VIF where
//! CR4.VME or CR4.PVI give that flag to programs.
//!
//! EFLAGS.IF is kept in the context, together with the monitor's request (VIR), which says that an
//! interrupt is waiting. Rare cases are recognised before an instruction changes anything, and exit
//! to the monitor, which then executes the whole instruction. These cases are setting the flag
//! while an interrupt is waiting, and loading another value of TF, IOPL, NT, AC or ID. An example
//! is STI, which is executed inline unless the request is set:
//!
//! ```text
//! mov   r8, [r15+request]
//! lea   rcx, [r8-200h]
//! jrcxz leave
//! mov   qword ptr [r15+flag], 200h
//! ```
//!
//! EFLAGS.VIF is kept among the system flags. Interrupts do not depend on it, but an instruction
//! that would set VIF while VIP is set exits, because that is a fault.
//!
//! The shadow of STI costs nothing: the state map and the sites of the next instruction, which must
//! be in the same block, tell the monitor about the shadow.

use super::stack::Pushed;
use super::{Flow, Translator};
use crate::abi::context_displacements as at;
use crate::abi::flags::InterruptFlag;
use crate::abi::host::Host;
use crate::abi::host::*;
use crate::abi::register_map::ACCUMULATOR;
use crate::abi::signal_completion::{Completion, CompletionKind};
use crate::abi::sites::SiteKind;
use crate::abi::state_map::{Restore, Shadow};
use crate::decode::undefined::Undecoded;
use crate::emit::assembler::{Mem, Width};
use crate::policy::mode::{ModeFlags, SegmentClass};
use iced_x86::{Code, Decoder, Instruction, Mnemonic};
use tollgate_x86::flags::Flags;
use tollgate_x86::{Gpr, SegmentRegister};

const INTERRUPT_FLAG: i32 = Flags::IF.bits() as i32;

/// Width of the image that PUSHF and POPF move.
fn width_of(instruction: &Instruction) -> Width {
    match instruction.code() {
        Code::Pushfw | Code::Popfw => Width::Word,
        Code::Pushfq | Code::Popfq => Width::Qword,
        _ => Width::Dword,
    }
}

impl Translator {
    /// Translates CLI, STI, PUSHF or POPF.
    pub(super) fn sensitive(&mut self, instruction: &Instruction) -> Flow {
        use Mnemonic::*;
        if !self.runs_sensitive() {
            return self.helper(instruction);
        }
        let may_use_stack =
            |write| self.emit.mode.segment(SegmentRegister::Ss, write) != SegmentClass::Odd;
        let flag = match instruction.mnemonic() {
            Cli | Sti => self.emit.mode.interrupt_flag(),
            _ => self.interrupt_flag_of(width_of(instruction)),
        };
        let Some(flag) = flag else {
            return self.refuse();
        };
        match (instruction.mnemonic(), flag) {
            (Cli, InterruptFlag::Real) => self.clear_interrupt_flag(),
            (Cli, InterruptFlag::Virtual) => self.clear_virtual_interrupt_flag(),
            (Sti, InterruptFlag::Real) => self.set_interrupt_flag(instruction),
            (Sti, InterruptFlag::Virtual) => self.set_virtual_interrupt_flag(instruction),
            (Pushf | Pushfd | Pushfq, _) if may_use_stack(true) => {
                self.push_flags(instruction, flag)
            }
            (Popf | Popfd | Popfq, _) if may_use_stack(false) => self.pop_flags(instruction, flag),
            _ => self.helper(instruction),
        }
    }

    /// The flag that PUSHF, POPF and IRET show or load as bit 9 of an image of `width`; `None` if
    /// they must not run. `tollgate_emulate::virtual_8086::interrupt_flag_of_image` decides in the
    /// same way.
    pub(super) fn interrupt_flag_of(&self, width: Width) -> Option<InterruptFlag> {
        if !self.emit.mode.flags.contains(ModeFlags::VIRTUAL_8086) {
            return Some(InterruptFlag::Real);
        }
        let flag = self.emit.mode.interrupt_flag()?;
        (flag == InterruptFlag::Real || width == Width::Word).then_some(flag)
    }

    /// Whether sensitive instructions run in translated code, as far as the mode decides it.
    pub(super) fn runs_sensitive(&self) -> bool {
        self.virtual_interrupts.flag && !self.emit.mode.is_watched()
    }

    /// Whether the instruction needs its successor in its own block, because the successor's
    /// state-map entries must mention the interrupt shadow.
    pub(super) fn may_cast_shadow(&self, instruction: &Instruction) -> bool {
        match instruction.mnemonic() {
            Mnemonic::Sti => self.runs_sensitive(),
            _ => self.loads_stack_segment(instruction),
        }
    }

    /// Whether an instruction can begin with `bytes`, the rest of the page, at `rip`.
    pub(super) fn can_begin(&self, bytes: &[u8], rip: u64) -> bool {
        if bytes.is_empty() {
            return false;
        }
        let bitness = self.emit.mode.bitness();
        let decoding = self.features.decoding();
        let mut decoder = Decoder::with_ip(bitness, bytes, rip, decoding.options());
        let instruction = decoder.decode();
        if instruction.is_invalid() && self.lengths().classify(bytes) != Undecoded::Undefined {
            return false;
        }
        let length = instruction.len().max(1) as u64;
        let last = self.emit.mode.wrap(rip.wrapping_add(length - 1));
        !self.is_beyond_limit(last) && last >= rip
    }

    fn clear_interrupt_flag(&mut self) -> Flow {
        self.emit
            .assembler
            .store_imm(Width::Qword, self.emit.field(at::INTERRUPT_FLAG), 0);
        Flow::Next
    }

    fn set_interrupt_flag(&mut self, instruction: &Instruction) -> Flow {
        if !self.has_successor {
            return self.helper(instruction);
        }
        let kind = self.emit.helper_kind(instruction);
        let flag = self.emit.field(at::INTERRUPT_FLAG);
        if self.virtual_interrupts.request {
            let request = self.emit.field(at::INTERRUPT_REQUEST);
            self.emit.assembler.load(Width::Qword, R8, request);
            self.emit
                .leave_if_zero(kind, Mem::base(R8, -INTERRUPT_FLAG));
            self.emit
                .assembler
                .store_imm(Width::Qword, flag, INTERRUPT_FLAG);
        } else {
            // If the flag is already set, setting it changes nothing.
            self.emit.assembler.load(Width::Qword, R8, flag);
            self.emit.leave_if_zero(kind, Mem::base(R8, 0));
        }
        self.emit.casts_shadow = Shadow::Interrupts;
        Flow::Next
    }

    fn clear_virtual_interrupt_flag(&mut self) -> Flow {
        self.system_flags_but_virtual();
        let system_flags = self.emit.field(at::SYSTEM_FLAGS);
        self.emit.assembler.store(Width::Qword, system_flags, R8);
        Flow::Next
    }

    /// No interrupt depends on VIF, so there is neither a request nor an interrupt shadow.
    fn set_virtual_interrupt_flag(&mut self, instruction: &Instruction) -> Flow {
        let kind = self.emit.helper_kind(instruction);
        self.virtual_interrupt_pending();
        self.emit
            .leave_if_zero(kind, Mem::base(R9, -INTERRUPT_FLAG));
        self.emit.make_room();
        self.system_flags_but_virtual();
        self.emit
            .assembler
            .lea64(R8, Mem::base(R8, Flags::VIF.bits() as i32));
        let system_flags = self.emit.field(at::SYSTEM_FLAGS);
        self.emit.assembler.store(Width::Qword, system_flags, R8);
        Flow::Next
    }

    /// Computes the system flags with VIF clear in R8. Clobbers R9.
    pub(super) fn system_flags_but_virtual(&mut self) {
        let system_flags = self.emit.field(at::SYSTEM_FLAGS);
        self.emit.assembler.load(Width::Qword, R8, system_flags);
        self.emit.assembler.mov_imm32(R9, !Flags::VIF.bits() as u32);
        self.emit.assembler.pext(R8, R8, R9);
        self.emit.assembler.pdep(R8, R8, R9);
    }

    /// Computes VIP as bit 9 in R9. Clobbers RCX.
    fn virtual_interrupt_pending(&mut self) {
        let system_flags = self.emit.field(at::SYSTEM_FLAGS);
        self.emit.assembler.load(Width::Qword, RCX, system_flags);
        self.emit.assembler.mov_imm32(R9, Flags::VIP.bits() as u32);
        self.emit.assembler.pext(R9, RCX, R9);
        self.emit.assembler.rorx(R9, R9, 64 - 9);
    }

    /// Computes the image of the flags in R11: as PUSHFQ stores it, or the 16 bits that a V86
    /// program with a virtual interrupt flag sees. Clobbers R8, R9 and RCX.
    pub(super) fn flags_image(&mut self, interrupt: InterruptFlag) {
        self.arithmetic_image();
        self.emit.make_room();
        match interrupt {
            InterruptFlag::Real => {
                for field in [at::INTERRUPT_FLAG, at::SYSTEM_FLAGS] {
                    self.emit
                        .assembler
                        .load(Width::Qword, R8, self.emit.field(field));
                    self.add_to_image(R8);
                }
            }
            InterruptFlag::Virtual => {
                let system_flags = self.emit.field(at::SYSTEM_FLAGS);
                self.emit.assembler.load(Width::Qword, RCX, system_flags);
                let shown = [(Flags::VIF, 9), (Flags::NT, 14)];
                for (flag, place) in shown {
                    self.emit.assembler.mov_imm32(R9, flag.bits() as u32);
                    self.emit.assembler.pext(R8, RCX, R9);
                    self.emit.assembler.rorx(R8, R8, 64 - place);
                    self.add_to_image(R8);
                }
                let privilege = Flags::IOPL.bits() as i32;
                self.emit.assembler.lea64(R11, Mem::base(R11, privilege));
            }
        }
        // A direction of +1 becomes 0, and -1 becomes DF.
        let direction = self.emit.field(at::DIRECTION);
        self.emit.assembler.load(Width::Qword, R8, direction);
        self.emit.assembler.not(R8);
        self.emit.assembler.lea64(R8, Mem::base(R8, 2));
        self.emit.assembler.rorx(R8, R8, 64 - 9);
        self.add_to_image(R8);
    }

    /// Computes the arithmetic flags and the bit that is always set in R11. Clobbers R8 and RCX.
    fn arithmetic_image(&mut self) {
        self.emit.assembler.mov(RCX, ACCUMULATOR);
        self.emit.note_state(Restore::one(Gpr::Rax as u8, RCX));
        self.emit.assembler.lahf();
        self.emit.assembler.seto_al();
        self.emit.assembler.movzx16(R8, RAX);
        self.emit.assembler.mov(ACCUMULATOR, RCX);
        self.emit.note_state(Restore::NONE);
        // LAHF's byte has bit 1 set; OF moves from bit 0 to its place.
        self.emit.assembler.rorx(R11, R8, 8);
        self.emit.assembler.movzx8(R11, R11);
        self.emit.assembler.rorx(R8, R8, 64 - 11);
        self.emit.assembler.movzx16(R8, R8);
        self.add_to_image(R8);
    }

    fn add_to_image(&mut self, flags: Host) {
        self.emit
            .assembler
            .lea64(R11, Mem::indexed(R11, flags, 1, 0));
    }

    fn push_flags(&mut self, instruction: &Instruction, flag: InterruptFlag) -> Flow {
        self.flags_image(flag);
        match self.push(Pushed::Register(R11), width_of(instruction)) {
            Ok(()) => Flow::Next,
            Err(_) => self.helper(instruction),
        }
    }

    fn pop_flags(&mut self, instruction: &Instruction, flag: InterruptFlag) -> Flow {
        let width = width_of(instruction);
        if self.emit.stack_operand(0, width.bytes(), false).is_err() {
            return self.helper(instruction);
        }
        self.emit.assembler.load(width, R11, Mem::base(R9, 0));
        let kind = self.emit.helper_kind(instruction);
        // In protected mode, IF does not change without the privilege to change it.
        let interrupt = (flag == InterruptFlag::Virtual
            || self.emit.mode.flags.contains(ModeFlags::IO_PRIVILEGED))
        .then_some(flag);
        self.demand_loadable(kind, flag, width != Width::Word);
        if let Some(flag) = interrupt {
            self.demand_no_request(kind, flag);
        }
        self.emit.esp = self.emit.esp.wrapping_add(width.bytes() as i32);
        self.emit.assembler.mov(RCX, ACCUMULATOR);
        let done = (
            self.emit.next_rip,
            self.emit.esp,
            Restore::one(Gpr::Rax as u8, RCX),
        );
        self.load_flags(interrupt, done);
        self.emit.assembler.mov(ACCUMULATOR, RCX);
        Flow::Next
    }

    /// Emits an exit that is taken if the image in R11, which a POPF or a 16-bit IRET loads,
    /// changes flags that guest code does not change. Where VIF is loaded, IOPL does not change.
    pub(super) fn demand_loadable(&mut self, kind: SiteKind, flag: InterruptFlag, wide: bool) {
        let mut kept = Flags::TF | Flags::NT;
        if flag == InterruptFlag::Real {
            kept |= Flags::IOPL;
        }
        if wide {
            kept |= Flags::AC | Flags::ID;
        }
        self.demand_system_flags(kind, kept);
    }

    /// Emits an exit that is taken unless the flags in `kept` have their current values in the
    /// image in R11. Flags that are not among [`crate::abi::flags::SYSTEM_FLAGS`] must be clear.
    pub(super) fn demand_system_flags(&mut self, kind: SiteKind, kept: Flags) {
        self.emit.make_room();
        self.emit.assembler.mov_imm32(R9, kept.bits() as u32);
        self.emit.assembler.pext(R8, R11, R9);
        let current = self.emit.field(at::SYSTEM_FLAGS);
        self.emit.assembler.load(Width::Qword, RCX, current);
        self.emit.assembler.pext(R9, RCX, R9);
        self.emit.assembler.not(R9);
        self.emit
            .leave_unless_zero(kind, Mem::indexed(R8, R9, 1, 1));
    }

    /// Emits an exit that is taken if the image in R11 sets the flag and the monitor must be
    /// notified. Clobbers R8, R9 and RCX.
    pub(super) fn demand_no_request(&mut self, kind: SiteKind, flag: InterruptFlag) {
        self.emit.make_room();
        self.interrupt_flag_of_image();
        if flag == InterruptFlag::Virtual {
            self.virtual_interrupt_pending();
            self.emit
                .leave_if_zero(kind, Mem::indexed(R8, R9, 1, -2 * INTERRUPT_FLAG));
        } else if self.virtual_interrupts.request {
            let request = self.emit.field(at::INTERRUPT_REQUEST);
            self.emit.assembler.load(Width::Qword, R9, request);
            self.emit
                .leave_if_zero(kind, Mem::indexed(R8, R9, 1, -2 * INTERRUPT_FLAG));
        } else {
            let flag = self.emit.field(at::INTERRUPT_FLAG);
            self.emit.assembler.load(Width::Qword, R9, flag);
            self.emit.assembler.not(R9);
            self.emit
                .leave_if_zero(kind, Mem::indexed(R8, R9, 1, 1 - INTERRUPT_FLAG));
        }
    }

    /// Extracts bit 9 of the image in R11 to R8. Clobbers R9.
    fn interrupt_flag_of_image(&mut self) {
        self.emit.assembler.mov_imm32(R9, INTERRUPT_FLAG as u32);
        self.emit.assembler.pext(R8, R11, R9);
        self.emit.assembler.rorx(R8, R8, 64 - 9);
    }

    /// Loads the arithmetic flags, DF and, from bit 9, `interrupt` from the image in R11. From the
    /// first host instruction on, the guest's instruction is complete; `done` is the EIP, the
    /// adjustment of ESP and the places of registers from then on. Clobbers RAX, R8 and R9.
    pub(super) fn load_flags(
        &mut self,
        interrupt: Option<InterruptFlag>,
        done: (u64, i32, Restore),
    ) {
        self.emit.make_room();
        let (rip, esp, restore) = done;
        self.emit.note_state_as(rip, esp, restore);
        let start = self.emit.assembler.position() as u32;
        match interrupt {
            Some(InterruptFlag::Real) => {
                self.interrupt_flag_of_image();
                let flag = self.emit.field(at::INTERRUPT_FLAG);
                self.emit.assembler.store(Width::Qword, flag, R8);
            }
            Some(InterruptFlag::Virtual) => {
                self.system_flags_but_virtual();
                self.emit.assembler.mov_imm32(R9, INTERRUPT_FLAG as u32);
                self.emit.assembler.pext(R9, R11, R9);
                self.emit.assembler.rorx(R9, R9, 64 - 19);
                self.emit.assembler.lea64(R8, Mem::indexed(R8, R9, 1, 0));
                let system_flags = self.emit.field(at::SYSTEM_FLAGS);
                self.emit.assembler.store(Width::Qword, system_flags, R8);
            }
            None => {}
        }
        self.emit.assembler.mov_imm32(R9, Flags::DF.bits() as u32);
        self.emit.assembler.pext(R8, R11, R9);
        // 0 becomes +1, and 1 becomes -1.
        self.emit.assembler.not(R8);
        let twice = Mem::new(None, Some((R8, 2)), 3);
        self.emit.assembler.lea64(R8, twice);
        let direction = self.emit.field(at::DIRECTION);
        self.emit.assembler.store(Width::Qword, direction, R8);
        self.emit.assembler.mov_imm32(R9, Flags::OF.bits() as u32);
        self.emit.assembler.pext(R8, R11, R9);
        self.emit.assembler.rorx(RAX, R11, 64 - 8);
        // This addition overflows if OF should be set; SAHF does not change OF.
        self.emit.assembler.add8(R8, 0x7f);
        self.emit.assembler.sahf();
        self.emit.add_completion(Completion {
            start,
            end: self.emit.assembler.position() as u32,
            kind: CompletionKind::Flags { interrupt },
        });
    }
}
