//! CLI, STI, PUSHF and POPF on the guest's own interrupt flag, or on EFLAGS.VIF where CR4.VME
//! or CR4.PVI give programs that.
//!
//! EFLAGS.IF lives in the context, beside the request of the monitor (VIR) that says that an
//! interrupt waits. What follows from that is decided before an instruction changes
//! anything, and what is rare leaves for the monitor, which then does the whole
//! instruction: to set the flag while an interrupt waits, and to load another TF, IOPL, NT,
//! AC or ID. An example: STI, which is done unless the request is set.
//!
//! ```text
//! mov   r10, rcx
//! mov   rcx, [r15+request]
//! lea   rcx, [rcx-200h]
//! jrcxz leave
//! mov   rcx, r10
//! mov   qword ptr [r15+flag], 200h
//! ```
//!
//! EFLAGS.VIF has its place among the system flags. No interrupt asks for it, but where VIP
//! is set, who would set it leaves: that is a fault.
//!
//! The shadow of STI costs nothing: marks and sites of the next instruction, which must be
//! in the same block, tell the monitor of it.

use super::length::is_too_long;
use super::stack::Pushed;
use super::{Flow, RESUME_AFTER, Translator};
use crate::abi::at;
use crate::abi::completion::{Completion, CompletionKind};
use crate::abi::flags::InterruptFlag;
use crate::abi::host::Host;
use crate::abi::host::*;
use crate::abi::marks::{Restore, Shadow};
use crate::abi::register_map::ACCUMULATOR;
use crate::abi::sites::{SiteKind, pack_site};
use crate::emit::assembler::{Mem, Width};
use crate::policy::instruction_kind::Helper;
use crate::policy::mode::{ModeFlags, SegmentClass};
use crate::policy::virtual_interrupts::{TASK_SWITCH, TRAP, Transition};
use iced_x86::{Code, Decoder, DecoderError, DecoderOptions, Instruction, Mnemonic};
use tollgate_x86::flags::Flags;
use tollgate_x86::{Gpr, SegmentRegister, Vector};

const INTERRUPT_FLAG: i32 = Flags::IF.bits() as i32;
/// Room for what loads the flags, which no island may interrupt.
const FLAG_LOAD_STEP: usize = 110;
/// The same for what loads VIF too.
const VIRTUAL_FLAG_LOAD_STEP: usize = 150;

/// The instructions that read or change the interrupt flag.
fn is_sensitive(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Cli | Sti | Pushf | Pushfd | Pushfq | Popf | Popfd | Popfq | Iret | Iretd | Iretq | Int
    )
}

/// Bytes of the image that PUSHF and POPF move.
fn width_of(instruction: &Instruction) -> Width {
    match instruction.code() {
        Code::Pushfw | Code::Popfw => Width::Word,
        Code::Pushfq | Code::Popfq => Width::Qword,
        _ => Width::Dword,
    }
}

impl Translator {
    /// CLI, STI, PUSHF, POPF.
    pub(super) fn sensitive(&mut self, instruction: &Instruction) -> Flow {
        use Mnemonic::*;
        if !self.runs_sensitive() {
            return self.helper(instruction);
        }
        let may_use_stack =
            |write| self.mode.segment(SegmentRegister::Ss, write) != SegmentClass::Odd;
        let flag = match instruction.mnemonic() {
            Cli | Sti => self.mode.interrupt_flag(),
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

    /// The flag that PUSHF, POPF and IRET show or load as bit 9 of an image of `width`, if
    /// they may run: as `tollgate_emulate::virtual_8086::interrupt_flag_of_image`.
    pub(super) fn interrupt_flag_of(&self, width: Width) -> Option<InterruptFlag> {
        if !self.mode.flags.contains(ModeFlags::VIRTUAL_8086) {
            return Some(InterruptFlag::Real);
        }
        let flag = self.mode.interrupt_flag()?;
        (flag == InterruptFlag::Real || width == Width::Word).then_some(flag)
    }

    /// The instruction is #GP(0), whatever else holds: that is what the monitor is told.
    pub(super) fn refuse(&mut self) -> Flow {
        self.exit(SiteKind::Fault(Vector::GeneralProtection));
        Flow::End
    }

    /// Sensitive instructions run in translated code, as far as the mode goes.
    pub(super) fn runs_sensitive(&self) -> bool {
        self.virtual_interrupts.flag && !self.mode.is_watched()
    }

    /// The instruction needs its successor in its own block, for the marks.
    pub(super) fn may_cast_shadow(&self, instruction: &Instruction) -> bool {
        match instruction.mnemonic() {
            Mnemonic::Sti => self.runs_sensitive(),
            _ => self.loads_stack_segment(instruction),
        }
    }

    /// An instruction can begin with `bytes`, the rest of the page, at `rip`.
    pub(super) fn can_begin(&self, bytes: &[u8], rip: u64) -> bool {
        if bytes.is_empty() {
            return false;
        }
        let bitness = self.mode.bitness();
        let mut decoder = Decoder::with_ip(bitness, bytes, rip, DecoderOptions::NONE);
        let instruction = decoder.decode();
        if decoder.last_error() == DecoderError::NoMoreBytes
            || instruction.is_invalid() && is_too_long(bitness, bytes)
        {
            return false;
        }
        let length = instruction.len().max(1) as u64;
        let last = self.mode.wrap(rip.wrapping_add(length - 1));
        !self.is_beyond_limit(last) && last >= rip
    }

    /// The exit of a sensitive instruction goes to the monitor as the choice of
    /// [`crate::policy::virtual_interrupts::Transition`] says: the only place that knows.
    pub(super) fn emit_sensitive_exit(&mut self, site: usize) {
        let packed = pack_site(self.block, site);
        self.assembler
            .store_imm(Width::Dword, self.field(at::EXIT_SITE), packed as i32);
        match self.virtual_interrupts.transition {
            Transition::Call => self.assembler.jmp_memory(self.field(at::EXIT_ENTRY)),
            Transition::Trap => self.assembler.raw(&TRAP),
            Transition::Task => self.assembler.raw(&TASK_SWITCH),
        }
    }

    /// Whether a site is the exit of a sensitive instruction.
    pub(super) fn is_sensitive_exit(&self, site: usize) -> bool {
        match self.sites[site].kind {
            SiteKind::Helper(helper) => {
                is_sensitive(self.helpers[usize::from(helper)].instruction.mnemonic())
            }
            _ => false,
        }
    }

    /// What the monitor is told if the current instruction turns out to be its own.
    pub(super) fn helper_kind(&mut self, instruction: &Instruction) -> SiteKind {
        let known = self.helpers.last();
        if known.is_none_or(|known| known.instruction.ip() != instruction.ip()) {
            self.helpers.push(Helper::new(*instruction));
        }
        // It comes back without them.
        self.vectors_loaded = false;
        SiteKind::Helper(self.helpers.len() as u16 - 1)
    }

    /// Leaves for the monitor if the sum of two registers and a number is zero.
    pub(super) fn leave_if_zero(&mut self, kind: SiteKind, sum: Mem) {
        self.make_room();
        self.free_rcx();
        self.assembler.lea64(RCX, sum);
        self.miss_if_zero(kind);
        self.return_rcx();
    }

    /// Leaves for the monitor unless the sum of two registers and a number is zero.
    pub(super) fn leave_unless_zero(&mut self, kind: SiteKind, sum: Mem) {
        self.make_room();
        self.free_rcx();
        self.assembler.lea64(RCX, sum);
        let zero = self.assembler.jrcxz();
        self.return_rcx();
        let site = self.new_site(kind, self.rip, self.esp_at_start, RESUME_AFTER);
        self.emit_exit(site);
        self.assembler.patch_rel8_here(zero);
        self.mark(self.rcx_freed());
        self.return_rcx();
    }

    fn clear_interrupt_flag(&mut self) -> Flow {
        self.assembler
            .store_imm(Width::Qword, self.field(at::INTERRUPT_FLAG), 0);
        Flow::Next
    }

    fn set_interrupt_flag(&mut self, instruction: &Instruction) -> Flow {
        if !self.has_successor {
            return self.helper(instruction);
        }
        let kind = self.helper_kind(instruction);
        let flag = self.field(at::INTERRUPT_FLAG);
        if self.virtual_interrupts.request {
            let request = self.field(at::INTERRUPT_REQUEST);
            self.assembler.load(Width::Qword, R8, request);
            self.leave_if_zero(kind, Mem::base(R8, -INTERRUPT_FLAG));
            self.assembler.store_imm(Width::Qword, flag, INTERRUPT_FLAG);
        } else {
            // Setting it anew would change nothing.
            self.assembler.load(Width::Qword, R8, flag);
            self.leave_if_zero(kind, Mem::base(R8, 0));
        }
        self.casts_shadow = Shadow::Interrupts;
        Flow::Next
    }

    fn clear_virtual_interrupt_flag(&mut self) -> Flow {
        self.system_flags_but_virtual();
        let system_flags = self.field(at::SYSTEM_FLAGS);
        self.assembler.store(Width::Qword, system_flags, R8);
        Flow::Next
    }

    /// No interrupt asks for VIF: there is neither a request nor a shadow.
    fn set_virtual_interrupt_flag(&mut self, instruction: &Instruction) -> Flow {
        let kind = self.helper_kind(instruction);
        self.virtual_interrupt_pending();
        self.leave_if_zero(kind, Mem::base(R9, -INTERRUPT_FLAG));
        self.make_room();
        self.system_flags_but_virtual();
        self.assembler
            .lea64(R8, Mem::base(R8, Flags::VIF.bits() as i32));
        let system_flags = self.field(at::SYSTEM_FLAGS);
        self.assembler.store(Width::Qword, system_flags, R8);
        Flow::Next
    }

    /// The system flags in R8, VIF clear. Clobbers R9.
    pub(super) fn system_flags_but_virtual(&mut self) {
        let system_flags = self.field(at::SYSTEM_FLAGS);
        self.assembler.load(Width::Qword, R8, system_flags);
        self.assembler.mov_imm32(R9, !Flags::VIF.bits() as u32);
        self.assembler.pext(R8, R8, R9);
        self.assembler.pdep(R8, R8, R9);
    }

    /// VIP in R9, as bit 9. Clobbers R10.
    fn virtual_interrupt_pending(&mut self) {
        let system_flags = self.field(at::SYSTEM_FLAGS);
        self.assembler.load(Width::Qword, R10, system_flags);
        self.assembler.mov_imm32(R9, Flags::VIP.bits() as u32);
        self.assembler.pext(R9, R10, R9);
        self.assembler.rorx(R9, R9, 64 - 9);
    }

    /// The image of the flags in R11: as PUSHFQ stores it, or of 16 bits as a V86 program
    /// with a virtual interrupt flag sees it. Clobbers R8, R9 and R10.
    pub(super) fn flags_image(&mut self, interrupt: InterruptFlag) {
        self.arithmetic_image();
        self.make_room();
        match interrupt {
            InterruptFlag::Real => {
                for field in [at::INTERRUPT_FLAG, at::SYSTEM_FLAGS] {
                    self.assembler.load(Width::Qword, R8, self.field(field));
                    self.add_to_image(R8);
                }
            }
            InterruptFlag::Virtual => {
                let system_flags = self.field(at::SYSTEM_FLAGS);
                self.assembler.load(Width::Qword, R10, system_flags);
                let shown = [(Flags::VIF, 9), (Flags::NT, 14)];
                for (flag, place) in shown {
                    self.assembler.mov_imm32(R9, flag.bits() as u32);
                    self.assembler.pext(R8, R10, R9);
                    self.assembler.rorx(R8, R8, 64 - place);
                    self.add_to_image(R8);
                }
                let privilege = Flags::IOPL.bits() as i32;
                self.assembler.lea64(R11, Mem::base(R11, privilege));
            }
        }
        // +1 becomes 0, -1 becomes DF.
        let direction = self.field(at::DIRECTION);
        self.assembler.load(Width::Qword, R8, direction);
        self.assembler.not(R8);
        self.assembler.lea64(R8, Mem::base(R8, 2));
        self.assembler.rorx(R8, R8, 64 - 9);
        self.add_to_image(R8);
    }

    /// The arithmetic flags and what is always set, in R11. Clobbers R8 and R10.
    fn arithmetic_image(&mut self) {
        self.assembler.mov(R10, ACCUMULATOR);
        self.mark(Restore::one(Gpr::Rax as u8, R10));
        self.assembler.lahf();
        self.assembler.seto_al();
        self.assembler.movzx16(R8, RAX);
        self.assembler.mov(ACCUMULATOR, R10);
        self.mark(Restore::NONE);
        // LAHF's byte with bit 1 set; OF from bit 0 to its place.
        self.assembler.rorx(R11, R8, 8);
        self.assembler.movzx8(R11, R11);
        self.assembler.rorx(R8, R8, 64 - 11);
        self.assembler.movzx16(R8, R8);
        self.add_to_image(R8);
    }

    fn add_to_image(&mut self, flags: Host) {
        self.assembler.lea64(R11, Mem::indexed(R11, flags, 1, 0));
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
        if self.stack_operand(0, width.bytes(), false).is_err() {
            return self.helper(instruction);
        }
        self.assembler.load(width, R11, Mem::base(R9, 0));
        let kind = self.helper_kind(instruction);
        // In protected mode without the right to it IF stays.
        let interrupt = (flag == InterruptFlag::Virtual
            || self.mode.flags.contains(ModeFlags::IO_PRIVILEGED))
        .then_some(flag);
        self.demand_loadable(kind, flag, width != Width::Word);
        if let Some(flag) = interrupt {
            self.demand_no_request(kind, flag);
        }
        self.esp = self.esp.wrapping_add(width.bytes() as i32);
        self.assembler.mov(R10, ACCUMULATOR);
        let done = (self.next_rip, self.esp, Restore::one(Gpr::Rax as u8, R10));
        self.load_flags(interrupt, done);
        self.assembler.mov(ACCUMULATOR, R10);
        Flow::Next
    }

    /// Leaves if the image in R11, which a POPF or a 16-bit IRET loads, changes flags that
    /// guest code does not. IOPL stays where VIF is loaded.
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

    /// Leaves unless the flags in `kept` of the image in R11 are the current ones; of those
    /// that are not among [`crate::abi::flags::SYSTEM_FLAGS`], unless they are clear.
    pub(super) fn demand_system_flags(&mut self, kind: SiteKind, kept: Flags) {
        self.make_room();
        self.assembler.mov_imm32(R9, kept.bits() as u32);
        self.assembler.pext(R8, R11, R9);
        let current = self.field(at::SYSTEM_FLAGS);
        self.assembler.load(Width::Qword, R10, current);
        self.assembler.pext(R9, R10, R9);
        self.assembler.not(R9);
        self.leave_unless_zero(kind, Mem::indexed(R8, R9, 1, 1));
    }

    /// Leaves if the image in R11 sets the flag and the monitor must know of that. Clobbers
    /// R8, R9 and R10.
    pub(super) fn demand_no_request(&mut self, kind: SiteKind, flag: InterruptFlag) {
        self.make_room();
        self.interrupt_flag_of_image();
        if flag == InterruptFlag::Virtual {
            self.virtual_interrupt_pending();
            self.leave_if_zero(kind, Mem::indexed(R8, R9, 1, -2 * INTERRUPT_FLAG));
        } else if self.virtual_interrupts.request {
            let request = self.field(at::INTERRUPT_REQUEST);
            self.assembler.load(Width::Qword, R9, request);
            self.leave_if_zero(kind, Mem::indexed(R8, R9, 1, -2 * INTERRUPT_FLAG));
        } else {
            let flag = self.field(at::INTERRUPT_FLAG);
            self.assembler.load(Width::Qword, R9, flag);
            self.assembler.not(R9);
            self.leave_if_zero(kind, Mem::indexed(R8, R9, 1, 1 - INTERRUPT_FLAG));
        }
    }

    /// Bit 9 of the image in R11, in R8. Clobbers R9.
    fn interrupt_flag_of_image(&mut self) {
        self.assembler.mov_imm32(R9, INTERRUPT_FLAG as u32);
        self.assembler.pext(R8, R11, R9);
        self.assembler.rorx(R8, R8, 64 - 9);
    }

    /// Loads the arithmetic flags, DF and, from bit 9, `interrupt` from the image in R11. With
    /// the first host instruction the guest's is `done`: EIP, the adjustment of ESP and
    /// where registers are from then on. Clobbers RAX, R8 and R9.
    pub(super) fn load_flags(
        &mut self,
        interrupt: Option<InterruptFlag>,
        done: (u64, i32, Restore),
    ) {
        self.make_room_for(match interrupt {
            Some(InterruptFlag::Virtual) => VIRTUAL_FLAG_LOAD_STEP,
            _ => FLAG_LOAD_STEP,
        });
        let (rip, esp, restore) = done;
        self.mark_as(rip, esp, restore);
        let start = self.assembler.position() as u32;
        match interrupt {
            Some(InterruptFlag::Real) => {
                self.interrupt_flag_of_image();
                let flag = self.field(at::INTERRUPT_FLAG);
                self.assembler.store(Width::Qword, flag, R8);
            }
            Some(InterruptFlag::Virtual) => {
                self.system_flags_but_virtual();
                self.assembler.mov_imm32(R9, INTERRUPT_FLAG as u32);
                self.assembler.pext(R9, R11, R9);
                self.assembler.rorx(R9, R9, 64 - 19);
                self.assembler.lea64(R8, Mem::indexed(R8, R9, 1, 0));
                let system_flags = self.field(at::SYSTEM_FLAGS);
                self.assembler.store(Width::Qword, system_flags, R8);
            }
            None => {}
        }
        self.assembler.mov_imm32(R9, Flags::DF.bits() as u32);
        self.assembler.pext(R8, R11, R9);
        // 0 becomes +1, 1 becomes -1.
        self.assembler.not(R8);
        let twice = Mem {
            base: None,
            index: Some((R8, 2)),
            displacement: 3,
        };
        self.assembler.lea64(R8, twice);
        let direction = self.field(at::DIRECTION);
        self.assembler.store(Width::Qword, direction, R8);
        self.assembler.mov_imm32(R9, Flags::OF.bits() as u32);
        self.assembler.pext(R8, R11, R9);
        self.assembler.rorx(RAX, R11, 64 - 8);
        // Overflows if OF is to be set; SAHF leaves OF as it is.
        self.assembler.add8(R8, 0x7f);
        self.assembler.sahf();
        self.completions.push(Completion {
            start,
            end: self.assembler.position() as u32,
            kind: CompletionKind::Flags { interrupt },
        });
    }
}
