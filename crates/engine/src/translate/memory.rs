//! Guest memory operands: linear address, segment checks, the inline TLB look-up.
//!
//! This is the one emitter for the checked view of 32-bit guests.

use super::{OddSegment, RESUME_AFTER, Translator};
use crate::assembler::host::*;
use crate::assembler::{Host, Mem, Width};
use crate::block::{Restore, SiteKind};
use crate::context::at;
use crate::mode::{ModeFlags, SegmentClass};
use iced_x86::{Instruction, Register};
use tollgate_shadow::software_tlb::WRITE_TABLE_OFFSET;
use tollgate_x86::SegmentRegister;

/// The host register that holds a guest general register (any width).
pub(super) fn host_of(register: Register) -> Host {
    let number = register.full_register().number() as u8;
    if number == 4 { R12 } else { Host(number) }
}

fn segment_of(register: Register) -> SegmentRegister {
    match register {
        Register::ES => SegmentRegister::Es,
        Register::CS => SegmentRegister::Cs,
        Register::SS => SegmentRegister::Ss,
        Register::FS => SegmentRegister::Fs,
        Register::GS => SegmentRegister::Gs,
        _ => SegmentRegister::Ds,
    }
}

impl Translator {
    /// Puts the effective address (offset in the segment) of the memory operand into
    /// R8, truncated to the address size.
    pub(super) fn effective_address(&mut self, instruction: &Instruction) {
        self.effective_address_to(instruction, R8);
    }

    /// As [`Translator::effective_address`], into any register. With 16-bit addresses
    /// the register must be R8.
    pub(super) fn effective_address_to(&mut self, instruction: &Instruction, to: Host) {
        let base = instruction.memory_base();
        let index = instruction.memory_index();
        let wide = match (base, index) {
            (Register::None, Register::None) => instruction.memory_displ_size() != 2,
            (Register::None, index) => index.size() == 4,
            (base, _) => base.size() == 4,
        };
        let displacement = instruction.memory_displacement32();
        let mut total = displacement;
        let mut operand = Mem {
            base: None,
            index: None,
            displacement: 0,
        };
        if base != Register::None {
            operand.base = Some(host_of(base));
            if host_of(base) == R12 {
                total = total.wrapping_add(self.esp as u32);
            }
        }
        if index != Register::None {
            operand.index = Some((host_of(index), instruction.memory_index_scale() as u8));
        }
        operand.displacement = total as i32;
        if operand.base.is_none() && operand.index.is_none() {
            self.assembler
                .mov_imm32(to, if wide { total } else { total & 0xffff });
            return;
        }
        self.assembler.lea32(to, operand);
        if !wide {
            self.assembler.movzx16(to, to);
        }
    }

    /// Turns the offset in R8 into a linear address for an access of `size` bytes,
    /// with the checks that the segment needs.
    fn apply_segment(
        &mut self,
        segment: SegmentRegister,
        size: u32,
        write: bool,
    ) -> Result<(), OddSegment> {
        match self.mode.segment(segment, write) {
            SegmentClass::Flat => {}
            SegmentClass::Based => self.add_base(segment),
            SegmentClass::Limited => {
                self.check_limit(segment, size);
                self.add_base(segment);
            }
            SegmentClass::Odd => return Err(OddSegment),
        }
        Ok(())
    }

    fn add_base(&mut self, segment: SegmentRegister) {
        self.assembler
            .load(Width::Qword, R9, Mem::base(R15, at::segment_base(segment)));
        self.assembler.lea32(R8, Mem::indexed(R8, R9, 1, 0));
    }

    /// Leaves for the slow path unless R8 + size - 1 is at most the limit.
    fn check_limit(&mut self, segment: SegmentRegister, size: u32) {
        self.make_room();
        // limit - offset - (size - 1) = limit + not(offset) + 2 - size, in 64 bits:
        // the upper half is zero exactly if it is not negative.
        self.assembler.mov(R9, R8);
        self.assembler.not(R9);
        self.assembler.load(
            Width::Dword,
            R10,
            Mem::base(R15, at::segment_limit(segment)),
        );
        self.assembler
            .lea64(R9, Mem::indexed(R9, R10, 1, 2 - size as i32));
        self.assembler.rorx(R9, R9, 32);
        self.assembler.mov(R10, RCX);
        self.mark(Restore::one(RCX.0, R10.0));
        self.assembler.mov32(RCX, R9);
        let fits = self.assembler.jrcxz();
        self.assembler.mov(RCX, R10);
        self.mark(Restore::NONE);
        let site = self.new_site(SiteKind::Slow, self.eip, self.esp_at_start, RESUME_AFTER);
        self.emit_exit(site);
        self.assembler.patch_rel8_here(fits);
        self.mark(Restore::one(RCX.0, R10.0));
        self.assembler.mov(RCX, R10);
        self.mark(Restore::NONE);
    }

    /// Turns the linear address in R8 into a host address in R9. Clobbers R10; R11
    /// and the flags survive.
    pub(super) fn look_up(&mut self, size: u32, write: bool) {
        self.make_room();
        let table = if write { WRITE_TABLE_OFFSET } else { 0 };
        self.assembler.shrx(R9, R8, R15);
        if size > 1 {
            self.assembler.lea64(R10, Mem::base(R8, size as i32 - 1));
            self.assembler.shrx(R10, R10, R15);
            self.assembler.lea64(R9, Mem::indexed(R9, R10, 1, 0));
        } else {
            self.assembler.lea64(R9, Mem::indexed(R9, R9, 1, 0));
        }
        self.assembler.mov(R10, RCX);
        self.mark(Restore::one(RCX.0, R10.0));
        self.assembler
            .load(Width::Qword, RCX, Mem::indexed(R14, R9, 8, table));
        self.miss_if_zero(SiteKind::Memory {
            size: size.min(255) as u8,
            write,
        });
        self.assembler.lea64(R9, Mem::indexed(RCX, R8, 1, 0));
        self.assembler.mov(RCX, R10);
        self.mark(Restore::NONE);
    }

    /// Offset in R8 to host address in R9 for a given segment.
    pub(super) fn access(
        &mut self,
        segment: SegmentRegister,
        size: u32,
        write: bool,
    ) -> Result<(), OddSegment> {
        self.apply_segment(segment, size, write)?;
        self.look_up(size, write);
        Ok(())
    }

    /// The host address of the instruction's memory operand, in R9.
    pub(super) fn memory_operand(
        &mut self,
        instruction: &Instruction,
        size: u32,
        write: bool,
    ) -> Result<(), OddSegment> {
        if self.mode.flags.contains(ModeFlags::BOUNCE) {
            self.assembler
                .load(Width::Qword, R9, Mem::base(R15, at::BOUNCE_POINTER));
            return Ok(());
        }
        let segment = segment_of(instruction.memory_segment());
        if self.mode.segment(segment, write) == SegmentClass::Odd {
            return Err(OddSegment);
        }
        self.effective_address(instruction);
        self.access(segment, size, write)
    }

    /// The host address `offset` bytes above the (folded) stack pointer, in R9.
    pub(super) fn stack_operand(
        &mut self,
        offset: i32,
        size: u32,
        write: bool,
    ) -> Result<(), OddSegment> {
        if self.mode.segment(SegmentRegister::Ss, write) == SegmentClass::Odd {
            return Err(OddSegment);
        }
        self.assembler
            .lea32(R8, Mem::base(R12, self.esp.wrapping_add(offset)));
        if !self.mode.flags.contains(ModeFlags::STACK32) {
            self.assembler.movzx16(R8, R8);
        }
        self.access(SegmentRegister::Ss, size, write)
    }
}
