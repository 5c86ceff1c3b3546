//! Guest memory operands: linear address, segment checks, and the inline look-up in the software
//! TLB.
//!
//! Which form of look-up is used for accesses is decided once for each block, by
//! [`LookUpForm::of`].

use super::effective_address::{Offset, address_bytes};
use super::emitter::Emitter;
use super::emitter::exit_code::RESUME_AFTER;
use super::emitter::look_up_form::LookUpForm;
use super::emitter::shared_look_up_range::Near;
use super::guest_operand_form::Reach;
use super::named_operands::{has_high_byte, uses_count_in_place};
use super::named_operands::{near_register, segment_of};
use crate::abi::context_displacements as at;
use crate::abi::host::*;
use crate::abi::sites::{SiteKind, WindowMiss};
use crate::abi::state_map::Restore;
use crate::emit::assembler::{Mem, Width};
use crate::policy::mode::{ModeFlags, SegmentClass};
use iced_x86::Instruction;
use tollgate_tlb::View;
use tollgate_tlb::long_tlb::{LONG_ROOT_DISPLACEMENT, LONG_WRITE_DISPLACEMENT};
use tollgate_tlb::software_tlb::{SUPERVISOR_VIEW_OFFSET, WRITE_TABLE_OFFSET, limit_check_offset};
use tollgate_x86::{Gpr, SegmentRegister};

/// Number of ESP.
const STACK: u8 = Gpr::Rsp as u8;

/// Error: emitted code cannot use the segment, so the instruction is executed out of line.
pub(crate) struct OddSegment;

impl Emitter {
    /// Lets the next instruction look up its operand (`always`) in code that reaches other operands
    /// directly, or ends that.
    pub(crate) fn look_up_always(&mut self, always: bool) {
        let direct = LookUpForm::direct(&self.mode);
        self.look_up = match (always, direct) {
            (false, direct) => direct,
            (true, LookUpForm::NarrowDirect | LookUpForm::SegmentDirect) => LookUpForm::Flat,
            (true, _) => LookUpForm::Long,
        };
    }

    /// Whether the current instruction reaches its operand without a look-up, so that the access
    /// itself may fault.
    pub(crate) fn may_fault(&self) -> bool {
        self.look_up.is_direct()
    }

    /// Whether the current instruction looks up its operand although the mode's accesses are
    /// direct.
    pub(crate) fn always_looks_up(&self) -> bool {
        self.mode.access.is_direct() && !self.look_up.is_direct()
    }

    /// Emits the checks that a segment needs for an access of `size` bytes at the offset in R8.
    fn check_segment(
        &mut self,
        segment: SegmentRegister,
        offset: Offset,
        size: u32,
        write: bool,
    ) -> Result<(), OddSegment> {
        let fits = match offset {
            Offset::Word => size == 1,
            Offset::Constant(at) => at.saturating_add(size - 1) <= 0xffff,
            Offset::Wide => false,
        };
        match self.mode.segment(segment, write) {
            SegmentClass::Flat | SegmentClass::Based => {}
            SegmentClass::Limited64K if fits => {}
            SegmentClass::Limited64K if !self.mode.flags.contains(ModeFlags::LONG) => {
                self.check_limit_of_64k(size);
            }
            SegmentClass::Limited | SegmentClass::Limited64K => self.check_limit(segment, size),
            SegmentClass::Odd => return Err(OddSegment),
        }
        Ok(())
    }

    /// Emits a load that faults unless R8 + size - 1 is at most FFFFh; the monitor then executes
    /// the instruction. Not for IA-32e mode. Uses RCX.
    fn check_limit_of_64k(&mut self, size: u32) {
        let view = match self.mode.flags.contains(ModeFlags::USER) {
            true => View::User,
            false => View::Supervisor,
        };
        let last = limit_check_offset(view) + size as i32 - 1;
        let place = Mem::indexed(self.map.tlb, R8, 1, last);
        self.make_room();
        self.assembler.load(Width::Byte, RCX, place);
    }

    pub(crate) fn add_base(&mut self, segment: SegmentRegister) {
        self.assembler
            .load(Width::Qword, R9, self.field(at::segment_base(segment)));
        let sum = Mem::indexed(R8, R9, 1, 0);
        if self.is_64_bit() {
            self.assembler.lea64(R8, sum);
        } else {
            self.assembler.lea32(R8, sum);
        }
    }

    /// Emits an exit to the slow path that is taken unless R8 + size - 1 is at most the limit.
    pub(crate) fn check_limit(&mut self, segment: SegmentRegister, size: u32) {
        self.make_room();
        // In 64 bits, limit - offset - (size - 1) = limit + not(offset) + 2 - size. The upper half
        // of the result is zero exactly if the result is not negative.
        self.assembler.mov(R9, R8);
        self.assembler.not(R9);
        self.assembler
            .load(Width::Dword, RCX, self.field(at::segment_limit(segment)));
        self.assembler
            .lea64(R9, Mem::indexed(R9, RCX, 1, 2 - size as i32));
        self.assembler.rorx(R9, R9, 32);
        self.assembler.mov32(RCX, R9);
        let fits = self.skip_if_zero();
        let site = self.new_site(SiteKind::Slow, self.rip, self.esp_at_start, RESUME_AFTER);
        self.emit_exit(site);
        self.land(fits);
        self.note_state(Restore::NONE);
    }

    /// Turns the linear address in R8 into a host address in R9. Clobbers RCX; preserves R11 and
    /// the flags.
    pub(crate) fn look_up(&mut self, size: u32, write: bool) {
        self.look_up_sum(size, write);
        self.point(Reach::Sum);
    }

    /// Computes the host address of the operand in R9.
    pub(crate) fn point(&mut self, reach: Reach) {
        if reach != Reach::Pointer {
            let reach = self.with_address(reach);
            self.assembler.lea64(R9, reach.mem());
        }
    }

    /// Makes the operand reachable for the instruction, which may need RCX for itself or an
    /// encoding without a REX prefix.
    pub(crate) fn reach_for(&mut self, instruction: &Instruction, reach: Reach) -> Reach {
        if has_high_byte(instruction) {
            let reach = self.with_address(reach);
            self.assembler.lea64(RCX, reach.mem());
            Reach::LowPointer
        } else if uses_count_in_place(instruction) {
            self.point(reach);
            Reach::Pointer
        } else {
            reach
        }
    }

    /// Loads *host minus linear address* for the linear address in R8 into RCX, for [`Reach::Sum`].
    /// Clobbers R9; preserves R11 and the flags.
    fn look_up_sum(&mut self, size: u32, write: bool) {
        self.make_room();
        match self.look_up {
            LookUpForm::Flat => {
                self.form_slot(size);
                self.probe(size, write);
            }
            LookUpForm::Long => self.long_look_up(size, write),
            LookUpForm::Direct => self.load_window_delta(RCX, R8),
            LookUpForm::NarrowDirect | LookUpForm::SegmentDirect => self.load_narrow_delta(),
        }
    }

    /// Does what [`Emitter::look_up`] does for a load with the rights of the supervisor, in code at
    /// CPL 3 outside IA-32e mode. `helper` is the instruction's number among the helpers.
    pub(crate) fn look_up_system(&mut self, size: u8, helper: u16) {
        self.make_room();
        self.form_slot(u32::from(size));
        self.probe_table(
            SUPERVISOR_VIEW_OFFSET,
            SiteKind::SystemRead { size, helper },
        );
        self.point(Reach::Sum);
    }

    /// Computes the slot's number for an access at R8 in R9. Clobbers RCX.
    pub(crate) fn form_slot(&mut self, size: u32) {
        let context = self.map.context;
        self.assembler.shrx(R9, R8, context);
        if size > 1 {
            self.assembler.lea64(RCX, Mem::base(R8, size as i32 - 1));
            self.assembler.shrx(RCX, RCX, context);
            self.assembler.lea64(R9, Mem::indexed(R9, RCX, 1, 0));
        } else {
            self.assembler.lea64(R9, Mem::indexed(R9, R9, 1, 0));
        }
    }

    /// Emits an exit to the monitor that is taken if `size` bytes, two or more, at the 16-bit
    /// offset in R8 extend over the end of 64 KiB. Clobbers RCX.
    fn leave_if_it_wraps(&mut self, size: u32) {
        self.make_room();
        self.assembler.lea64(RCX, Mem::base(R8, size as i32 - 1));
        if size == 2 {
            // Zero only if the offset is FFFFh.
            self.assembler.movzx16(RCX, RCX);
        } else {
            // RCX becomes bit 16 of the last byte's offset, minus one.
            self.assembler.rorx(RCX, RCX, 16);
            self.assembler.mov32(RCX, RCX);
            self.assembler.lea64(RCX, Mem::base(RCX, -1));
        }
        self.miss_if_zero(SiteKind::Slow);
    }

    /// Emits a shared look-up for `size` bytes at R8.
    pub(super) fn look_up_window(&mut self, size: u32, write: bool, miss: WindowMiss) {
        self.make_room();
        let table = match self.look_up {
            LookUpForm::Flat => {
                self.form_slot(size);
                let table = if write { WRITE_TABLE_OFFSET } else { 0 };
                Mem::indexed(self.map.tlb, R9, 8, table)
            }
            LookUpForm::Long => {
                self.form_long_slot(size);
                let table = if write { LONG_WRITE_DISPLACEMENT } else { 0 };
                Mem::indexed(RCX, R9, 8, table)
            }
            LookUpForm::Direct => return self.load_window_delta(RCX, R8),
            LookUpForm::NarrowDirect | LookUpForm::SegmentDirect => {
                return self.load_narrow_delta();
            }
        };
        self.make_room();
        self.assembler.load(Width::Qword, RCX, table);
        self.leave_windows_if_zero(miss);
    }

    /// The second half of a look-up: R9 has the slot's number, and RCX is free.
    pub(crate) fn probe(&mut self, size: u32, write: bool) {
        let table = if write { WRITE_TABLE_OFFSET } else { 0 };
        let size = size.min(255) as u8;
        self.probe_table(table, SiteKind::Memory { size, write });
    }

    pub(crate) fn probe_table(&mut self, table: i32, miss: SiteKind) {
        self.assembler
            .load(Width::Qword, RCX, Mem::indexed(self.map.tlb, R9, 8, table));
        self.miss_if_zero(miss);
    }

    /// Loads *host minus linear address* through the long software TLB. If the address is not
    /// canonical, the load of the pointer faults and the monitor executes the instruction.
    pub(crate) fn long_look_up(&mut self, size: u32, write: bool) {
        let displacement = if write { LONG_WRITE_DISPLACEMENT } else { 0 };
        self.form_long_slot(size);
        self.make_room();
        self.assembler
            .load(Width::Qword, RCX, Mem::indexed(RCX, R9, 8, displacement));
        self.miss_if_zero(SiteKind::Memory {
            size: size.min(255) as u8,
            write,
        });
    }

    /// Computes the slot's number for an access at R8 in R9, and loads the address of the slot's
    /// table into RCX.
    ///
    /// Nothing in this code depends on the block, so the code is assembled once for each size and
    /// copied from then on: most instructions of most programs access memory.
    fn form_long_slot(&mut self, size: u32) {
        let (context, tlb) = (self.map.context, self.map.tlb);
        let assembler = &mut self.assembler;
        let begin = assembler.position();
        let known = self.long_slots.get(size as usize);
        if let Some(code) = known.filter(|code| !code.is_empty()) {
            assembler.raw(code);
            return;
        }
        assembler.sarx(R9, R8, context);
        if size > 1 {
            assembler.lea64(RCX, Mem::base(R8, size as i32 - 1));
            assembler.sarx(RCX, RCX, context);
            assembler.lea64(R9, Mem::indexed(R9, RCX, 1, 0));
        } else {
            assembler.lea64(R9, Mem::indexed(R9, R9, 1, 0));
        }
        assembler.sarx(RCX, R8, tlb);
        let root = Mem::indexed(tlb, RCX, 8, LONG_ROOT_DISPLACEMENT);
        assembler.load(Width::Qword, RCX, root);
        if let Some(code) = self.long_slots.get_mut(size as usize) {
            code.extend_from_slice(&assembler.code()[begin..]);
        }
    }

    /// Turns the offset in R8 in a given segment into a host address in R9.
    pub(crate) fn access(
        &mut self,
        segment: SegmentRegister,
        offset: Offset,
        size: u32,
        write: bool,
    ) -> Result<(), OddSegment> {
        self.access_sum(segment, offset, size, write)?;
        self.point(Reach::Sum);
        Ok(())
    }

    /// Turns the offset in R8 in a given segment into the sum that [`Reach::Sum`] names.
    pub(crate) fn access_sum(
        &mut self,
        segment: SegmentRegister,
        offset: Offset,
        size: u32,
        write: bool,
    ) -> Result<(), OddSegment> {
        self.check_segment(segment, offset, size, write)?;
        if self.mode.segment(segment, write) != SegmentClass::Flat {
            self.add_base(segment);
        }
        self.look_up_sum(size, write);
        Ok(())
    }

    /// Computes the host address of the instruction's memory operand in R9.
    pub(crate) fn memory_operand(
        &mut self,
        instruction: &Instruction,
        size: u32,
        write: bool,
    ) -> Result<(), OddSegment> {
        let reach = self.reach_memory_operand(instruction, size, write)?;
        self.point(reach);
        Ok(())
    }

    /// Finds a way to reach the instruction's memory operand.
    pub(crate) fn reach_memory_operand(
        &mut self,
        instruction: &Instruction,
        size: u32,
        write: bool,
    ) -> Result<Reach, OddSegment> {
        if self.mode.flags.contains(ModeFlags::BOUNCE) {
            self.assembler
                .load(Width::Qword, R9, self.field(at::BOUNCE_POINTER));
            return Ok(Reach::Pointer);
        }
        let segment = segment_of(instruction.memory_segment());
        if !self.is_anchored
            && let Some((base, distance)) = self.near_register(instruction)
            && self.mode.segment(segment, write) == SegmentClass::Flat
            && let Some(reach) = self.reach_window(&Near {
                base,
                distance,
                size,
                write,
            })
        {
            return Ok(reach);
        }
        if self.mode.segment(segment, write) == SegmentClass::Odd {
            return Err(OddSegment);
        }
        if let Some(reach) = self.reach_operand_directly(instruction, write) {
            return Ok(reach);
        }
        let offset = self.effective_address(instruction);
        self.reach_offset(segment, offset, size, write)
    }

    /// Finds a way to reach the operand at the offset in R8.
    fn reach_offset(
        &mut self,
        segment: SegmentRegister,
        offset: Offset,
        size: u32,
        write: bool,
    ) -> Result<Reach, OddSegment> {
        if self.look_up != LookUpForm::SegmentDirect {
            self.access_sum(segment, offset, size, write)?;
            return Ok(Reach::Sum);
        }
        self.check_segment(segment, offset, size, write)?;
        self.make_room();
        let base = self.field(at::segment_base(segment));
        self.assembler.load(Width::Dword, R9, base);
        Ok(Reach::InSegment)
    }

    /// Does what [`Emitter::memory_operand`] does for a load of a far pointer of `size` bytes in
    /// all. Offset and selector are two operands: the selector's address wraps with the address
    /// size, and if it wraps, the monitor executes the instruction.
    pub(crate) fn far_pointer_operand(
        &mut self,
        instruction: &Instruction,
        size: u32,
    ) -> Result<(), OddSegment> {
        let segment = segment_of(instruction.memory_segment());
        let class = self.mode.segment(segment, false);
        match address_bytes(instruction) {
            4 if self.is_64_bit() => Err(OddSegment),
            2 if class == SegmentClass::Odd => Err(OddSegment),
            // A limit of 64 KiB already stops such operands.
            2 if class != SegmentClass::Limited64K => {
                let offset = self.effective_address(instruction);
                match offset {
                    Offset::Constant(at) if at + (size - 1) > 0xffff => return Err(OddSegment),
                    Offset::Constant(_) => {}
                    _ => self.leave_if_it_wraps(size),
                }
                self.access(segment, offset, size, false)
            }
            _ => self.memory_operand(instruction, size, false),
        }
    }

    /// The guest register that alone addresses the memory operand, and the operand's distance from
    /// the value in that register's home.
    fn near_register(&self, instruction: &Instruction) -> Option<(u8, i32)> {
        if !self.uses_windows {
            return None;
        }
        let (base, displacement) = near_register(instruction, self.is_64_bit())?;
        let distance = match base {
            STACK => displacement.checked_add(self.esp)?,
            _ => displacement,
        };
        Some((base, distance))
    }

    /// Computes the host address `offset` bytes above the (folded) stack pointer in R9.
    pub(crate) fn stack_operand(
        &mut self,
        offset: i32,
        size: u32,
        write: bool,
    ) -> Result<(), OddSegment> {
        let reach = self.reach_stack_operand(offset, size, write)?;
        self.point(reach);
        Ok(())
    }

    /// Finds a way to reach the operand `offset` bytes above the (folded) stack pointer.
    pub(crate) fn reach_stack_operand(
        &mut self,
        offset: i32,
        size: u32,
        write: bool,
    ) -> Result<Reach, OddSegment> {
        if !self.is_anchored
            && let Some(distance) = self.esp.checked_add(offset)
            && let Some(reach) = self.reach_stack_window(distance, size, write)
        {
            return Ok(reach);
        }
        if self.mode.segment(SegmentRegister::Ss, write) == SegmentClass::Odd {
            return Err(OddSegment);
        }
        if let Some(reach) = self.reach_stack_directly(offset) {
            return Ok(reach);
        }
        let offset = self.form_stack_offset(offset);
        self.reach_offset(SegmentRegister::Ss, offset, size, write)
    }

    /// Computes the offset in SS of the place `offset` bytes above the (folded) stack pointer in
    /// R8.
    fn form_stack_offset(&mut self, offset: i32) -> Offset {
        let place = Mem::base(self.map.stack(), self.esp.wrapping_add(offset));
        if self.mode.flags.contains(ModeFlags::STACK32) {
            self.lea_stack(R8, place);
            return Offset::Wide;
        }
        if place.displacement() == 0 {
            self.assembler.movzx16(R8, self.map.stack());
        } else {
            self.assembler.lea32(R8, place);
            self.assembler.movzx16(R8, R8);
        }
        Offset::Word
    }

    /// Does what [`Emitter::stack_operand`] does for several adjacent values. On a stack of 16 bits
    /// each value wraps by itself; if the frame wraps, the monitor executes the instruction.
    pub(crate) fn stack_frame(
        &mut self,
        offset: i32,
        size: u32,
        write: bool,
    ) -> Result<(), OddSegment> {
        let class = self.mode.segment(SegmentRegister::Ss, write);
        let is_wide = self.mode.flags.contains(ModeFlags::STACK32);
        // A limit of 64 KiB already stops frames that wrap.
        if is_wide || matches!(class, SegmentClass::Limited64K | SegmentClass::Odd) {
            return self.stack_operand(offset, size, write);
        }
        let offset = self.form_stack_offset(offset);
        self.leave_if_it_wraps(size);
        self.access(SegmentRegister::Ss, offset, size, write)
    }
}
