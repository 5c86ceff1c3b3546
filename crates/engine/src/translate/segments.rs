//! MOV, PUSH and POP of segment registers, and LDS with its relatives.
//!
//! Reading a segment register needs no monitor in any mode. Loading one needs the monitor in
//! protected mode. In real and V86 mode a load sets a selector and a base (SDM volume 3, 21.1.1),
//! and the mode word does not change. Segments of 4 GiB are the exception: whether their base is
//! zero is part of the mode word, so the monitor loads them. An example, in real mode:
//!
//! ```text
//! mov   ds, ax
//! movzx r11d, ax
//! rorx  r8, r11, 60
//! mov   [r15+ds.base], r8
//! mov   [r15+ds.selector], r11w
//! ```
//!
//! The load counts as complete as soon as R11 holds the selector: the state map says that the
//! segment register must be loaded from R11, and where the other result of LDS is.
//!
//! MOV SS and POP SS hold interrupts off for one more instruction, which the state map and the
//! sites of that instruction say (see `flags`).

use super::{Flow, Translator};
use crate::abi::context_displacements as at;
use crate::abi::host::Host;
use crate::abi::host::*;
use crate::abi::register_map::Home;
use crate::abi::state_map::{Restore, Shadow, Source};
use crate::emit::assembler::{Mem, Width};
use crate::emit::look_up::OddSegment;
use crate::emit::named_operands::guest_number;
use crate::policy::mode::{ModeFlags, SegmentClass};
use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use tollgate_x86::SegmentRegister;

/// The host register of the selector that is loaded.
const SELECTOR: Host = R11;

/// Whether the instruction is a MOV from or to a segment register.
pub(super) fn is_segment_move(instruction: &Instruction) -> bool {
    instruction.op0_register().is_segment_register()
        || instruction.op1_register().is_segment_register()
}

fn segment_of(register: Register) -> SegmentRegister {
    SegmentRegister::ALL[(register as usize - Register::ES as usize) % 6]
}

impl Translator {
    /// Whether instructions on segment registers are executed here, where the monitor could execute
    /// them too.
    fn handles_segments(&self) -> bool {
        !(self.emit.mode.flags).intersects(ModeFlags::SINGLE | ModeFlags::BOUNCE)
    }

    /// Whether a load of this register changes only its selector and its base, and not the mode.
    fn may_load_segment(&self, register: SegmentRegister) -> bool {
        self.handles_segments()
            && self.emit.mode.has_real_mode_segments()
            && register != SegmentRegister::Cs
            && match self.emit.mode.segments[register as usize] {
                SegmentClass::Limited64K => true,
                // V86 mode loads the limit too.
                SegmentClass::Limited => !self.emit.mode.flags.contains(ModeFlags::VIRTUAL_8086),
                _ => false,
            }
            && (register != SegmentRegister::Ss
                || !self.emit.mode.flags.contains(ModeFlags::STACK32))
    }

    /// Whether the instruction is a MOV SS or POP SS that is executed here.
    pub(super) fn loads_stack_segment(&self, instruction: &Instruction) -> bool {
        matches!(instruction.mnemonic(), Mnemonic::Mov | Mnemonic::Pop)
            && instruction.op0_register() == Register::SS
            && self.may_load_segment(SegmentRegister::Ss)
    }

    /// Whether a load of this register is executed here. A load of SS also needs the next
    /// instruction in the same block, because it holds interrupts off.
    fn may_load_shadowing(&self, register: SegmentRegister) -> bool {
        self.may_load_segment(register) && (register != SegmentRegister::Ss || self.has_successor)
    }

    pub(super) fn move_segment(&mut self, instruction: &Instruction) -> Flow {
        let result = if instruction.op0_register().is_segment_register() {
            self.move_to_segment(instruction)
        } else {
            self.move_from_segment(instruction)
        };
        match result {
            Ok(()) => Flow::Next,
            Err(OddSegment) => self.helper(instruction),
        }
    }

    fn load_selector(&mut self, register: SegmentRegister, to: Host) {
        let place = self.emit.field(at::segment_selector(register));
        self.emit.assembler.load(Width::Word, to, place);
    }

    fn move_from_segment(&mut self, instruction: &Instruction) -> Result<(), OddSegment> {
        if !self.handles_segments() {
            return Err(OddSegment);
        }
        let from = segment_of(instruction.op1_register());
        if instruction.op0_kind() == OpKind::Memory {
            self.emit.memory_operand(instruction, 2, true)?;
            self.load_selector(from, R11);
            self.emit
                .assembler
                .store(Width::Word, Mem::base(R9, 0), R11);
            return Ok(());
        }
        let register = instruction.op0_register();
        if register.full_register() == Register::RSP {
            self.emit.flush_esp_first();
        }
        let place = self.emit.field(at::segment_selector(from));
        let guest = guest_number(register).unwrap_or(0);
        match (self.emit.map.home(guest), register.size()) {
            (Home::Host(home), 2) => self.emit.assembler.load16_keep(home, place),
            (Home::Host(home), _) => self.emit.assembler.load(Width::Word, home, place),
            (Home::Slot, size) => {
                self.emit.assembler.load(Width::Word, R11, place);
                let width = if size == 2 { Width::Word } else { Width::Qword };
                self.emit.assembler.store(width, self.emit.slot(guest), R11);
            }
        }
        Ok(())
    }

    fn move_to_segment(&mut self, instruction: &Instruction) -> Result<(), OddSegment> {
        let to = segment_of(instruction.op0_register());
        let fast_path = self.fast_path(instruction);
        if fast_path.is_none() && !self.may_load_shadowing(to) {
            return Err(OddSegment);
        }
        if instruction.op1_kind() == OpKind::Memory {
            if fast_path.is_some() {
                self.emit.flush_esp_first();
            }
            self.emit.memory_operand(instruction, 2, false)?;
            self.emit
                .assembler
                .load(Width::Word, SELECTOR, Mem::base(R9, 0));
        } else {
            let register = instruction.op1_register();
            if fast_path.is_some() || register.full_register() == Register::RSP {
                self.emit.flush_esp_first();
            }
            let value = self.emit.value(register, SELECTOR);
            self.emit.assembler.movzx16(SELECTOR, value);
        }
        if let Some(fast_path) = fast_path {
            self.emit.assembler.movzx16(R8, SELECTOR);
            self.call_fast_path(instruction, fast_path);
            return Ok(());
        }
        self.cast_stack_shadow(to);
        self.load_segment(to, SELECTOR, Restore::NONE);
        Ok(())
    }

    /// Puts the next instruction into the interrupt shadow of MOV SS or POP SS, if `loaded` is SS.
    /// An instruction that is itself in such a shadow casts none.
    fn cast_stack_shadow(&mut self, loaded: SegmentRegister) {
        if loaded == SegmentRegister::Ss && self.emit.shadowed != Shadow::All {
            self.emit.casts_shadow = Shadow::All;
        }
    }

    pub(super) fn push_segment(&mut self, instruction: &Instruction, width: Width) -> Flow {
        if !self.handles_segments() {
            return self.helper(instruction);
        }
        let register = segment_of(instruction.op0_register());
        let bytes = width.bytes() as i32;
        let narrow = width == Width::Dword && self.features.has_narrow_selectors();
        let stored = if narrow { Width::Word } else { width };
        if self
            .emit
            .stack_operand(-bytes, stored.bytes(), true)
            .is_err()
        {
            return self.helper(instruction);
        }
        self.load_selector(register, R11);
        self.emit.assembler.store(stored, Mem::base(R9, 0), R11);
        self.emit.esp = self.emit.esp.wrapping_sub(bytes);
        Flow::Next
    }

    pub(super) fn pop_segment(&mut self, instruction: &Instruction, width: Width) -> Flow {
        let register = segment_of(instruction.op0_register());
        let bytes = width.bytes();
        let read = if self.features.has_narrow_selectors() {
            2
        } else {
            bytes
        };
        let fast_path = self.fast_path(instruction);
        if fast_path.is_none() && !self.may_load_shadowing(register) {
            return self.helper(instruction);
        }
        if fast_path.is_some() {
            self.emit.flush_esp_first();
        }
        if self.emit.stack_operand(0, read, false).is_err() {
            return self.helper(instruction);
        }
        if let Some(fast_path) = fast_path {
            self.emit.assembler.load(Width::Word, R8, Mem::base(R9, 0));
            return self.call_fast_path(instruction, fast_path);
        }
        self.emit
            .assembler
            .load(Width::Word, SELECTOR, Mem::base(R9, 0));
        self.emit.esp = self.emit.esp.wrapping_add(bytes as i32);
        self.cast_stack_shadow(register);
        self.load_segment(register, SELECTOR, Restore::NONE);
        Flow::Next
    }

    /// Translates LDS, LES, LFS, LGS and LSS.
    pub(super) fn load_far_pointer(&mut self, instruction: &Instruction) -> Flow {
        match self.load_far_pointer_here(instruction) {
            Ok(()) => Flow::Next,
            Err(OddSegment) => self.helper(instruction),
        }
    }

    fn load_far_pointer_here(&mut self, instruction: &Instruction) -> Result<(), OddSegment> {
        let (segment, width) = match instruction.code() {
            Code::Les_r16_m1616 => (SegmentRegister::Es, Width::Word),
            Code::Lds_r16_m1616 => (SegmentRegister::Ds, Width::Word),
            Code::Lfs_r16_m1616 => (SegmentRegister::Fs, Width::Word),
            Code::Lgs_r16_m1616 => (SegmentRegister::Gs, Width::Word),
            Code::Lss_r16_m1616 => (SegmentRegister::Ss, Width::Word),
            Code::Les_r32_m1632 => (SegmentRegister::Es, Width::Dword),
            Code::Lds_r32_m1632 => (SegmentRegister::Ds, Width::Dword),
            Code::Lfs_r32_m1632 => (SegmentRegister::Fs, Width::Dword),
            Code::Lgs_r32_m1632 => (SegmentRegister::Gs, Width::Dword),
            Code::Lss_r32_m1632 => (SegmentRegister::Ss, Width::Dword),
            _ => return Err(OddSegment),
        };
        if !self.may_load_segment(segment) || instruction.op1_kind() != OpKind::Memory {
            return Err(OddSegment);
        }
        let register = instruction.op0_register();
        if register.full_register32() == Register::ESP {
            self.emit.flush_esp_first();
        }
        self.emit
            .far_pointer_operand(instruction, width.bytes() + 2)?;
        let guest = guest_number(register).unwrap_or(0);
        // RCX gets the whole new value of the register.
        self.emit
            .assembler
            .load(Width::Dword, SELECTOR, Mem::base(R9, 0));
        if width == Width::Word {
            let old = self.emit.value(register, RCX);
            if old != RCX {
                self.emit.assembler.mov(RCX, old);
            }
            self.emit.assembler.mov16(RCX, SELECTOR);
            self.emit.assembler.rorx(SELECTOR, SELECTOR, 16);
            self.emit.assembler.movzx16(SELECTOR, SELECTOR);
        } else {
            self.emit.assembler.mov32(RCX, SELECTOR);
            self.emit.assembler.lea64(R9, Mem::base(R9, 4));
            self.emit
                .assembler
                .load(Width::Word, SELECTOR, Mem::base(R9, 0));
        }
        let changed = Restore::NONE.and(guest, Source::Host(RCX));
        self.load_segment(segment, SELECTOR, changed);
        self.mark_done(changed);
        match self.emit.map.home(guest) {
            Home::Host(home) => self.emit.assembler.mov(home, RCX),
            Home::Slot => self
                .emit
                .assembler
                .store(Width::Qword, self.emit.slot(guest), RCX),
        }
        Ok(())
    }

    /// Makes a state-map entry for the current position that names the next instruction, from which
    /// the current instruction may hold interrupts off.
    fn mark_done(&mut self, restore: Restore) {
        self.emit.push_state(
            self.emit.next_rip,
            self.emit.esp,
            restore,
            self.emit.casts_shadow,
        );
    }

    /// Loads a segment register with the selector in a host register, whose other bits are zero.
    /// From then on the instruction is complete, except for `changed`. Uses R8.
    fn load_segment(&mut self, register: SegmentRegister, selector: Host, changed: Restore) {
        self.emit.make_room();
        self.mark_done(changed.with_segment(register, selector));
        self.store_segment_base(register, selector);
        let place = self.emit.field(at::segment_selector(register));
        self.emit.assembler.store(Width::Word, place, selector);
    }

    /// Stores the base that belongs to a selector in real and V86 mode. Uses R8.
    pub(super) fn store_segment_base(&mut self, register: SegmentRegister, selector: Host) {
        self.emit.assembler.rorx(R8, selector, 60);
        let base = self.emit.field(at::segment_base(register));
        self.emit.assembler.store(Width::Qword, base, R8);
    }
}
