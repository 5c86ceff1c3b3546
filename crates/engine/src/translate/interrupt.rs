//! INT n and IRET that stay at the same privilege level: in a flat code segment, and in real and
//! V86 mode.
//!
//! In addition to the registers, the monitor keeps which values of a descriptor make a load of CS
//! (or SS) change nothing. Emitted code reads the gate, the frame and the descriptors as the
//! processor would, and compares. It exits before anything has changed if this is not the simple
//! case, or if flags must be loaded on which translation depends. An example: IRETD in flat 32-bit
//! code.
//!
//! ```text
//! ...                       ; look-up of the frame's 12 bytes
//! mov  r11d, [r9]           ; EIP, kept in the context
//! mov  r8d, [r9+4]          ; CS: is it the current selector?
//! mov  r11d, [r9+8]         ; EFLAGS: TF, IOPL, NT ... unchanged? IF, and an interrupt waits?
//! ...                       ; look-up of CS's descriptor: is it unchanged?
//! mov  rcx, rax             ; the flags are loaded through AH
//! ...                       ; the flags from R11: from here on the instruction is complete
//! mov  r11, [r15+work]      ; EIP
//! jmp  ...                  ; through the table of indirect branches
//! ```

use super::far::FAR_POINTER;
use super::{Flow, Translator};
use crate::abi::context_displacements as at;
use crate::abi::flags::InterruptFlag;
use crate::abi::flags::SYSTEM_FLAGS;
use crate::abi::host::Host;
use crate::abi::host::*;
use crate::abi::memos::level_change::LevelChangeKind;
use crate::abi::register_map::ACCUMULATOR;
use crate::abi::signal_completion::{Completion, CompletionKind};
use crate::abi::sites::SiteKind;
use crate::abi::state_map::{Restore, Source};
use crate::emit::assembler::{Mem, Width};
use crate::emit::look_up::OddSegment;
use crate::policy::fast_path::FastInstruction;
use crate::policy::mode::{ModeFlags, SegmentClass};
use crate::policy::virtual_interrupts::Transition;
use iced_x86::{Code, Instruction};
use std::mem::offset_of;
use tollgate_x86::flags::Flags;
use tollgate_x86::{Gpr, SegmentRegister, Watched};

/// The highest offset of real-mode code.
const HIGHEST_OFFSET: u64 = 0xffff;
/// The bits of a gate that must have certain values: it must be a present 32-bit interrupt or trap
/// gate.
const GATE_KIND: u64 = 0x9e << 40;
const GATE_SELECTOR: u64 = 0xffff << 16;
/// The required kind and type as PEXT gathers them, without the selector.
const GATE_FITS: i32 = 0x17 << 16;
/// The bit that is set in trap gates, which leave IF alone.
const GATE_IS_TRAP: u64 = 1 << 40;
const GATE_OFFSET: u64 = 0xffff << 48 | 0xffff;

impl Translator {
    /// Translates INT n.
    pub(super) fn software_interrupt(&mut self, instruction: &Instruction) -> Flow {
        let flags = self.emit.mode.flags;
        let is_virtual = flags.contains(ModeFlags::VIRTUAL_8086);
        if is_virtual
            && self.runs_sensitive()
            && !flags.intersects(ModeFlags::IO_PRIVILEGED | ModeFlags::VIRTUAL_INTERRUPTS)
        {
            return self.refuse();
        }
        let is_simple = self.runs_sensitive()
            && instruction.code() == Code::Int_imm8
            && !flags.contains(ModeFlags::RARE_FLAGS)
            && self.may_hold_frame(true);
        let result = if is_simple && self.is_flat_kernel() {
            self.flat_interrupt(instruction)
        } else if is_simple
            && is_virtual
            && flags.contains(ModeFlags::VIRTUAL_INTERRUPTS)
            && self.may_load_code_segment()
            && self.emit.next_rip <= HIGHEST_OFFSET
        {
            self.redirected_interrupt(instruction)
        } else if is_simple
            && !flags.contains(ModeFlags::PROTECTED)
            && self.may_load_code_segment()
            && self.emit.next_rip <= HIGHEST_OFFSET
        {
            self.real_interrupt(instruction)
        } else {
            Err(OddSegment)
        };
        match result {
            Ok(()) => Flow::End,
            Err(OddSegment) => self.interrupt_by_fast_path(instruction),
        }
    }

    /// Whether this is 32-bit code at CPL 0 in a code segment of 4 GiB, not in IA-32e mode.
    fn is_flat_kernel(&self) -> bool {
        let flat = ModeFlags::KERNEL | ModeFlags::CODE32 | ModeFlags::STACK32;
        self.emit.mode.flags.contains(flat)
            && !self.emit.mode.flags.contains(ModeFlags::LONG)
            && self.emit.mode.code_limit == u32::MAX
    }

    /// Whether a frame on the stack lies in one piece, or `Emitter::stack_frame` checks that.
    fn may_hold_frame(&self, write: bool) -> bool {
        self.emit.mode.segment(SegmentRegister::Ss, write) != SegmentClass::Odd
    }

    fn flat_interrupt(&mut self, instruction: &Instruction) -> Result<(), OddSegment> {
        let kind = self.emit.helper_kind(instruction);
        if self.position == 0 {
            self.demand_no_resume_flag(kind);
        }
        self.flags_image(InterruptFlag::Real);
        self.keep(R11, 0);
        self.read_gate(kind, i32::from(instruction.immediate8()));
        // The new IF: the current value if this is a trap gate, otherwise 0.
        self.emit.assembler.mov_imm64(R9, GATE_IS_TRAP);
        self.emit.assembler.pext(R8, R11, R9);
        self.emit.assembler.rorx(R8, R8, 64 - 9);
        self.emit
            .assembler
            .load(Width::Qword, R9, self.emit.field(at::INTERRUPT_FLAG));
        self.emit.assembler.pext(R8, R9, R8);
        self.emit.assembler.rorx(R8, R8, 64 - 9);
        self.keep(R8, 1);
        self.emit.assembler.mov_imm64(R9, GATE_OFFSET);
        self.emit.assembler.pext(R11, R11, R9);
        self.emit.make_room();
        self.emit.stack_operand(-12, 12, true)?;
        let target = Restore::NONE.with_eip(R11);
        self.store_frame(Width::Dword, InterruptFlag::Real, target);
        self.indirect_branch(R11, true);
        Ok(())
    }

    /// Delivers through the interrupt vector table, where IP and CS lie in the form that
    /// [`Translator::far_jump`] expects.
    fn real_interrupt(&mut self, instruction: &Instruction) -> Result<(), OddSegment> {
        let kind = self.emit.helper_kind(instruction);
        let offset = i32::from(instruction.immediate8()) * 4;
        self.flags_image(InterruptFlag::Real);
        self.keep(R11, 0);
        self.emit
            .assembler
            .store_imm(Width::Qword, self.emit.field(at::WORK[1]), 0);
        self.demand_table_entry(kind, offset, 4);
        self.emit.look_up(4, false);
        self.emit
            .assembler
            .load(Width::Dword, FAR_POINTER, Mem::base(R9, 0));
        self.emit.stack_frame(-6, 6, true)?;
        let target = Restore::NONE.with_segment(SegmentRegister::Cs, FAR_POINTER);
        self.store_frame(Width::Word, InterruptFlag::Real, target);
        self.far_jump();
        Ok(())
    }

    /// Stores a frame of values of `width` at R9: the next instruction's EIP, CS, and the flags
    /// that were kept. Then loads IF from its kept value, or clears VIF. From the first store on,
    /// the instruction is complete, and `target` says where its target is. Uses R8.
    pub(super) fn store_frame(&mut self, width: Width, flag: InterruptFlag, target: Restore) {
        let bytes = width.bytes() as i32;
        let frame = Mem::base(R9, 0);
        self.emit.make_room();
        self.keep(R9, 2);
        self.emit.esp = self.emit.esp.wrapping_sub(3 * bytes);
        self.emit
            .note_state_as(self.emit.rip, self.emit.esp, target);
        let start = self.emit.assembler.position() as u32;
        self.emit
            .assembler
            .store_imm(width, frame, self.emit.next_rip as i32);
        self.emit.assembler.lea64(R9, Mem::base(R9, bytes));
        let selector = self.emit.field(at::segment_selector(SegmentRegister::Cs));
        self.emit.assembler.load(Width::Word, R8, selector);
        self.emit.assembler.store(width, frame, R8);
        self.emit.assembler.lea64(R9, Mem::base(R9, bytes));
        self.fetch(R8, 0);
        self.emit.assembler.store(width, frame, R8);
        let place = match flag {
            InterruptFlag::Real => {
                self.fetch(R8, 1);
                at::INTERRUPT_FLAG
            }
            InterruptFlag::Virtual => {
                self.system_flags_but_virtual();
                at::SYSTEM_FLAGS
            }
        };
        self.emit
            .assembler
            .store(Width::Qword, self.emit.field(place), R8);
        self.emit.add_completion(Completion {
            start,
            end: self.emit.assembler.position() as u32,
            kind: CompletionKind::Frame {
                size: width.bytes() as u8,
                rip: self.emit.next_rip as u32,
                flag,
            },
        });
    }

    /// Computes the linear address of an entry of the table that IDTR names in R8, and emits an
    /// exit that is taken if the entry is not wholly inside the table.
    fn demand_table_entry(&mut self, kind: SiteKind, offset: i32, size: i32) {
        self.emit.make_room();
        self.emit
            .assembler
            .load(Width::Word, R8, self.emit.field(at::IDT_LIMIT));
        self.emit
            .assembler
            .lea64(R8, Mem::base(R8, -(offset + size - 1)));
        self.emit.assembler.rorx(R8, R8, 32);
        self.emit.assembler.mov32(R8, R8);
        self.emit.leave_unless_zero(kind, Mem::base(R8, 0));
        self.emit
            .assembler
            .load(Width::Qword, R8, self.emit.field(at::IDT_BASE));
        self.emit.assembler.lea32(R8, Mem::base(R8, offset));
    }

    /// Emits an exit that is taken if EFLAGS.RF is set, because RF would show in the frame. Only
    /// the first instruction of a block can find RF set.
    fn demand_no_resume_flag(&mut self, kind: SiteKind) {
        self.emit
            .assembler
            .load(Width::Dword, R8, self.emit.field(at::register::FLAGS));
        self.emit.assembler.mov_imm32(R9, Flags::RF.bits() as u32);
        self.emit.assembler.pext(R8, R8, R9);
        self.emit.leave_unless_zero(kind, Mem::base(R8, 0));
    }

    /// Loads the gate of a vector into R11, and emits an exit that is taken unless the gate leads
    /// into the current code segment.
    fn read_gate(&mut self, kind: SiteKind, vector: i32) {
        self.demand_table_entry(kind, vector * 8, 8);
        self.emit.look_up(8, false);
        self.emit
            .assembler
            .load(Width::Qword, R11, Mem::base(R9, 0));
        self.emit.make_room();
        self.emit.assembler.mov_imm64(R9, GATE_KIND | GATE_SELECTOR);
        self.emit.assembler.pext(R8, R11, R9);
        let selector = self.emit.field(at::segment_selector(SegmentRegister::Cs));
        self.emit.assembler.load(Width::Word, R9, selector);
        self.emit.assembler.not(R9);
        self.emit
            .leave_unless_zero(kind, Mem::indexed(R8, R9, 1, 1 - GATE_FITS));
        self.demand_descriptor(kind, at::CODE_DESCRIPTOR);
    }

    /// Emits an exit that is taken unless the descriptor of CS or SS is still the one that was
    /// loaded. The expected values are in the field at `field`. R11 survives.
    fn demand_descriptor(&mut self, kind: SiteKind, field: i32) {
        let part = |at: usize| self.emit.field(field + at as i32);
        let (place, mask) = (
            part(offset_of!(Watched, place)),
            part(offset_of!(Watched, mask)),
        );
        self.emit.assembler.load(Width::Qword, R8, place);
        self.emit.look_up(8, false);
        self.emit.assembler.load(Width::Qword, R8, Mem::base(R9, 0));
        self.emit.assembler.load(Width::Qword, R9, mask);
        self.emit.assembler.pext(R8, R8, R9);
        self.demand_equal(kind, field + offset_of!(Watched, value) as i32);
    }

    /// Emits an exit that is taken unless R8 is equal to a field. Also uses RCX; R9 and R11
    /// survive.
    fn demand_equal(&mut self, kind: SiteKind, field: i32) {
        self.emit.make_room();
        self.emit.assembler.not(R8);
        self.emit
            .assembler
            .load(Width::Qword, RCX, self.emit.field(field));
        self.emit.assembler.lea64(R8, Mem::indexed(R8, RCX, 1, 1));
        self.emit.leave_unless_zero(kind, Mem::base(R8, 0));
    }

    /// Emits an exit that is taken unless the selector in R8 is that of a segment register. Also
    /// uses RCX; R9 and R11 survive.
    fn demand_selector(&mut self, kind: SiteKind, register: SegmentRegister) {
        self.emit.make_room();
        self.emit.assembler.not(R8);
        let selector = self.emit.field(at::segment_selector(register));
        self.emit.assembler.load(Width::Word, RCX, selector);
        self.emit.assembler.lea64(R8, Mem::indexed(R8, RCX, 1, 1));
        self.emit.leave_unless_zero(kind, Mem::base(R8, 0));
    }

    /// Keeps a value until the instruction is complete, in one of the context's fields for this
    /// purpose.
    pub(super) fn keep(&mut self, value: Host, place: usize) {
        self.emit
            .assembler
            .store(Width::Qword, self.emit.field(at::WORK[place]), value);
    }

    fn fetch(&mut self, to: Host, place: usize) {
        self.emit
            .assembler
            .load(Width::Qword, to, self.emit.field(at::WORK[place]));
    }

    /// Translates IRET.
    pub(super) fn interrupt_return(&mut self, instruction: &Instruction) -> Flow {
        let flags = self.emit.mode.flags;
        let width = match instruction.code() {
            Code::Iretw => Width::Word,
            _ => Width::Dword,
        };
        let flag = self.interrupt_flag_of(width);
        if flag.is_none() && self.runs_sensitive() && !flags.contains(ModeFlags::NMI_BLOCKED) {
            return self.refuse();
        }
        let rare = ModeFlags::RARE_FLAGS | ModeFlags::NMI_BLOCKED;
        let is_simple =
            self.runs_sensitive() && !flags.intersects(rare) && self.may_hold_frame(false);
        let is_long_kernel = self.emit.is_64_bit() && flags.contains(ModeFlags::KERNEL);
        let returns = match instruction.code() {
            _ if !is_simple => Err(OddSegment),
            Code::Iretd if self.is_flat_kernel() => self.same_segment_return(instruction, false),
            Code::Iretq if is_long_kernel => self.same_segment_return(instruction, true),
            Code::Iretw if self.may_load_code_segment() => match flag {
                Some(flag) => self.real_return(instruction, flag),
                None => Err(OddSegment),
            },
            _ => Err(OddSegment),
        };
        match returns {
            Ok(()) => Flow::End,
            Err(OddSegment) => self.moves_on(instruction),
        }
    }

    /// Translates IRETD, or IRETQ, which also loads SS and RSP.
    fn same_segment_return(
        &mut self,
        instruction: &Instruction,
        long: bool,
    ) -> Result<(), OddSegment> {
        let (width, values) = if long {
            (Width::Qword, 5)
        } else {
            (Width::Dword, 3)
        };
        let kind = self.emit.helper_kind(instruction);
        let bytes = width.bytes() as i32;
        let frame = Mem::base(R9, 0);
        self.emit.stack_operand(0, (values * bytes) as u32, false)?;
        self.emit.make_room();
        self.emit.assembler.load(width, R11, frame);
        self.keep(R11, 0);
        self.emit.assembler.lea64(R9, Mem::base(R9, bytes));
        self.emit.assembler.load(Width::Word, R8, frame);
        let (esp, esp_at_start) = (self.emit.esp, self.emit.esp_at_start);
        let fast_path = self.return_fast_path(instruction);
        if long || fast_path {
            self.branch_unless_selector(SegmentRegister::Cs);
        } else {
            self.demand_selector(kind, SegmentRegister::Cs);
        }
        self.emit.assembler.lea64(R9, Mem::base(R9, bytes));
        self.emit.assembler.load(width, R11, frame);
        if long {
            self.emit.assembler.lea64(R9, Mem::base(R9, bytes));
            self.emit.assembler.load(width, R8, frame);
            self.keep(R8, 1);
            self.emit.assembler.lea64(R9, Mem::base(R9, bytes));
            self.emit.assembler.load(Width::Word, R8, frame);
            self.demand_selector(kind, SegmentRegister::Ss);
            self.demand_descriptor(kind, at::STACK_DESCRIPTOR);
        }
        self.demand_descriptor(kind, at::CODE_DESCRIPTOR);
        // Where instructions run one at a time, RF matters and the monitor loads it.
        let watched = self.emit.mode.is_watched();
        let resume_flag = if watched { Flags::RF } else { Flags::empty() };
        self.demand_system_flags(kind, SYSTEM_FLAGS | Flags::VM | resume_flag);
        self.demand_no_request(kind, InterruptFlag::Real);
        self.emit.make_room();
        if long {
            self.fetch(R9, 0);
            self.demand_canonical(R9);
        }
        self.begin_undivided();
        if !watched {
            self.load_resume_flag();
            let loaded = self.emit.field(at::RESUME_FLAG_LOADED);
            self.emit.assembler.store_imm(Width::Dword, loaded, 1);
        }
        self.emit.assembler.mov(RCX, ACCUMULATOR);
        let done = (self.emit.rip, self.emit.esp, Restore::UNDIVIDED);
        self.load_flags(Some(InterruptFlag::Real), done);
        self.emit.assembler.mov(ACCUMULATOR, RCX);
        if long {
            self.fetch(self.emit.map.stack(), 1);
            self.emit.esp = 0;
        } else {
            self.emit.esp = self.emit.esp.wrapping_add(values * bytes);
        }
        self.fetch(R11, 0);
        self.indirect_branch(R11, true);
        if long {
            self.emit.esp = esp;
            self.outer_return(kind);
        } else if fast_path {
            (self.emit.esp, self.emit.esp_at_start) = (esp, esp_at_start);
            self.return_by_fast_path(kind);
        }
        Ok(())
    }

    /// Whether a fast path executes an IRETD to another level. It does not if exits of sensitive
    /// instructions should take another form, or if each change of the interrupt flag should exit.
    fn return_fast_path(&self, instruction: &Instruction) -> bool {
        let virtual_interrupts = self.virtual_interrupts;
        virtual_interrupts.request
            && virtual_interrupts.transition == Transition::Call
            && self.fast_path(instruction) == Some(FastInstruction::Return)
    }

    /// Branches to [`Translator::outer_return`], or to the call of the fast path, unless R8 is the
    /// selector of a segment register. Also uses RCX; R9 and R11 survive.
    fn branch_unless_selector(&mut self, register: SegmentRegister) {
        self.emit.make_room();
        let selector = self.emit.field(at::segment_selector(register));
        let assembler = &mut self.emit.assembler;
        assembler.not(R8);
        assembler.load(Width::Word, RCX, selector);
        assembler.lea64(RCX, Mem::indexed(R8, RCX, 1, 1));
        let equal = self.emit.skip_if_zero();
        self.emit.far_branch = Some(self.emit.assembler.jmp());
        self.emit.land(equal);
    }

    /// Emits an IRETQ to level 3 for the case that the monitor has executed one before, and the
    /// frame's selectors and the descriptors are as they were then. RIP is kept in the context, and
    /// R9 points to CS in the frame. DS, ES, FS and GS must be null, so that the return does not
    /// change them.
    fn outer_return(&mut self, kind: SiteKind) {
        let change = LevelChangeKind::Iret;
        let (frame, next) = (Mem::base(R9, 0), Mem::base(R9, 8));
        self.emit.note_state(Restore::NONE);
        // An island that is inserted later must not be placed before this point.
        self.emit.make_room();
        let Some(branch) = self.emit.far_branch.take() else {
            return;
        };
        let here = self.emit.assembler.position();
        self.emit.assembler.patch_rel32(branch, here);
        self.emit.assembler.load(Width::Word, R8, frame);
        self.demand_equal(kind, at::OUTER_CODE_SELECTOR);
        self.demand_known(change, kind);
        self.emit.assembler.lea64(R9, next);
        self.emit.assembler.load(Width::Qword, R11, frame);
        self.emit.assembler.lea64(R9, next);
        self.emit.assembler.load(Width::Qword, R8, frame);
        self.keep(R8, 1);
        self.emit.assembler.lea64(R9, next);
        self.emit.assembler.load(Width::Word, R8, frame);
        self.demand_equal(kind, at::OUTER_STACK_SELECTOR);
        self.demand_descriptor(kind, at::OUTER_CODE_DESCRIPTOR);
        self.demand_descriptor(kind, at::OUTER_STACK_DESCRIPTOR);
        self.emit.make_room();
        self.emit.assembler.mov_imm32(R8, 0);
        for register in [
            SegmentRegister::Ds,
            SegmentRegister::Es,
            SegmentRegister::Fs,
            SegmentRegister::Gs,
        ] {
            let selector = self.emit.field(at::segment_selector(register));
            self.emit.assembler.load(Width::Word, R9, selector);
            self.emit.assembler.lea64(R8, Mem::indexed(R8, R9, 1, 0));
        }
        self.emit.leave_unless_zero(kind, Mem::base(R8, 0));
        // The monitor determined the target's mode for IOPL and AC being clear.
        let clear = SYSTEM_FLAGS | Flags::VM;
        self.emit.assembler.mov_imm32(R9, clear.bits() as u32);
        self.emit.assembler.pext(R8, R11, R9);
        self.emit.leave_unless_zero(kind, Mem::base(R8, 0));
        self.demand_no_request(kind, InterruptFlag::Real);
        self.emit.make_room();
        self.fetch(R9, 0);
        self.demand_canonical(R9);
        self.begin_undivided();
        self.fetch(self.emit.map.stack(), 1);
        self.clear_system_flags();
        self.load_resume_flag();
        self.emit.assembler.mov(RCX, ACCUMULATOR);
        let done = (self.emit.rip, 0, Restore::UNDIVIDED);
        self.load_flags(Some(InterruptFlag::Real), done);
        self.emit.assembler.mov(ACCUMULATOR, RCX);
        self.load_level(change);
        self.fetch(R8, 0);
        self.branch_to_level(change);
    }

    /// Loads RF and the flags that do not change from the image in R11, and notes the kept RIP as
    /// that of the instruction that RF applies to. Clobbers R8 and R9.
    fn load_resume_flag(&mut self) {
        let loaded = SYSTEM_FLAGS | Flags::RF;
        self.emit.assembler.mov_imm32(R9, loaded.bits() as u32);
        self.emit.assembler.pext(R8, R11, R9);
        self.emit.assembler.pdep(R8, R8, R9);
        let flags = self.emit.field(at::register::FLAGS);
        self.emit.assembler.store(Width::Qword, flags, R8);
        self.fetch(R8, 0);
        let returned = self.emit.field(at::RETURNED_RIP);
        self.emit.assembler.store(Width::Qword, returned, R8);
    }

    /// Emits a 16-bit IRET of real mode or V86 mode.
    fn real_return(
        &mut self,
        instruction: &Instruction,
        flag: InterruptFlag,
    ) -> Result<(), OddSegment> {
        let kind = self.emit.helper_kind(instruction);
        let frame = Mem::base(R9, 0);
        self.emit.stack_frame(0, 6, false)?;
        self.emit.assembler.load(Width::Dword, R11, frame);
        self.keep(R11, 0);
        self.emit.assembler.lea64(R9, Mem::base(R9, 4));
        self.emit.assembler.load(Width::Word, R11, frame);
        self.demand_loadable(kind, flag, false);
        self.demand_no_request(kind, flag);
        self.emit.make_room();
        self.emit.esp = self.emit.esp.wrapping_add(6);
        let target = Restore::NONE.with_segment(SegmentRegister::Cs, RCX);
        self.load_flags_and_target(flag, target);
        self.far_jump();
        Ok(())
    }

    /// Loads the flags from R11. The target that was kept moves through RCX to R11; `target` says
    /// where it is until then.
    fn load_flags_and_target(&mut self, flag: InterruptFlag, target: Restore) {
        let accumulator = self.emit.slot(Gpr::Rax as u8);
        self.fetch(RCX, 0);
        self.emit
            .assembler
            .store(Width::Qword, accumulator, ACCUMULATOR);
        let done = target.and(Gpr::Rax as u8, Source::Slot);
        self.load_flags(Some(flag), (self.emit.rip, self.emit.esp, done));
        self.emit
            .assembler
            .load(Width::Qword, ACCUMULATOR, accumulator);
        self.emit
            .note_state_as(self.emit.rip, self.emit.esp, target);
        self.emit.assembler.mov(R11, RCX);
    }
}
