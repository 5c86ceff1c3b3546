//! Guest memory operands: linear address, segment checks, the inline TLB look-up.
//!
//! Which look-up stands for an access is decided once for a block, by [`LookUpForm::of`].

use super::effective_address::{Offset, address_bytes};
use super::emitter::Emitter;
use super::exits::RESUME_AFTER;
use super::operands::{has_high_byte, uses_count_in_place};
use super::window::{Near, WINDOW_BYTES};
use crate::abi::at;
use crate::abi::host::*;
use crate::abi::marks::Restore;
use crate::abi::sites::{SiteKind, WindowMiss};
use crate::emit::assembler::{Mem, Width};
use crate::policy::access::{Access, AccessUnavailable};
use crate::policy::mode::{Mode, ModeFlags, SegmentClass};
use iced_x86::{Instruction, Register};
use tollgate_tlb::View;
use tollgate_tlb::long_tlb::{LONG_ROOT_DISPLACEMENT, LONG_WRITE_DISPLACEMENT};
use tollgate_tlb::software_tlb::{SUPERVISOR_VIEW_OFFSET, WRITE_TABLE_OFFSET, limit_check_offset};
use tollgate_x86::{Gpr, SegmentRegister};

pub(crate) fn segment_of(register: Register) -> SegmentRegister {
    match register {
        Register::ES => SegmentRegister::Es,
        Register::CS => SegmentRegister::Cs,
        Register::SS => SegmentRegister::Ss,
        Register::FS => SegmentRegister::Fs,
        Register::GS => SegmentRegister::Gs,
        _ => SegmentRegister::Ds,
    }
}

/// Look-ups of fewer bytes have their code for [`LookUpForm::Long`] kept.
pub(super) const KEPT_SIZES: usize = WINDOW_BYTES as usize + 1;

/// The number of ESP.
const STACK: u8 = Gpr::Rsp as u8;

/// The guest register that alone addresses the memory operand, and the displacement from it.
pub(crate) fn near_register(instruction: &Instruction, is_64_bit: bool) -> Option<(u8, i32)> {
    let base = instruction.memory_base();
    let (is_whole, displacement) = match is_64_bit {
        true => (base.is_gpr64(), instruction.memory_displacement64() as i32),
        false => (base.is_gpr32(), instruction.memory_displacement32() as i32),
    };
    let is_alone = is_whole && instruction.memory_index() == Register::None;
    is_alone.then(|| (base.number() as u8, displacement))
}

/// A segment that emitted code cannot use: the instruction goes out of line.
pub(crate) struct OddSegment;

/// How emitted code reaches the guest memory that a look-up has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// Its host address is in R9.
    Pointer,
    /// Its host address is in RCX, which no REX prefix is needed to name.
    LowPointer,
    /// It is the sum of RCX, host minus linear address, and R8, the linear address.
    Sum,
    /// It is so many bytes above R11: in the window.
    Window(u8),
    /// It is the sum of `delta`, host minus linear address, of the other register, and of the
    /// displacement: in the shadow window of what that register holds, or of the displacement.
    Near {
        /// RCX, or R11 in a window.
        delta: Host,
        base: Option<Host>,
        displacement: i32,
    },
    /// It is so far from what this register holds, by the anchor in GS.
    Anchored { base: Host, displacement: i32 },
    /// It is the sum of R9, the base of its segment, and R8, its offset, in the window in GS.
    InSegment,
}

impl Reach {
    /// The operand in memory.
    pub(crate) const fn mem(self) -> Mem {
        match self {
            Self::Pointer => Mem::base(R9, 0),
            Self::LowPointer => Mem::base(RCX, 0),
            Self::Sum => Mem::indexed(RCX, R8, 1, 0),
            Self::Window(place) => Mem::base(R11, place as i32),
            Self::Near {
                delta,
                base: Some(base),
                displacement,
            } => Mem::indexed(delta, base, 1, displacement),
            Self::Near {
                delta,
                base: None,
                displacement,
            } => Mem::base(delta, displacement),
            Self::Anchored { base, displacement } => Mem::base(base, displacement).by_gs(),
            Self::InSegment => Mem::indexed(R9, R8, 1, 0).by_gs(),
        }
    }

    /// Whether the operand's segment is GS.
    pub(crate) const fn is_by_gs(self) -> bool {
        matches!(self, Self::Anchored { .. } | Self::InSegment)
    }

    /// The base, the index and the displacement of the operand in memory.
    pub(crate) fn operand(self) -> (Register, Register, i32) {
        let name = |host: Host| Register::RAX + u32::from(host.0);
        match self {
            Self::Pointer => (Register::R9, Register::None, 0),
            Self::LowPointer => (Register::RCX, Register::None, 0),
            Self::Sum => (Register::RCX, Register::R8, 0),
            Self::Window(place) => (Register::R11, Register::None, place.into()),
            Self::Near {
                delta,
                base,
                displacement,
            } => (name(delta), base.map_or(Register::None, name), displacement),
            Self::Anchored { base, displacement } => (name(base), Register::None, displacement),
            Self::InSegment => (Register::R9, Register::R8, 0),
        }
    }
}

/// The sequence that turns a linear address into a host address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LookUpForm {
    /// In the flat software TLB.
    Flat,
    /// In the long software TLB.
    Long,
    /// None: to the shadow window of the address's part.
    Direct,
    /// None: to the one shadow window of a 32-bit guest's view.
    NarrowDirect,
    /// None: to that of real mode, which GS leads to.
    RealDirect,
}

impl LookUpForm {
    fn direct(mode: &Mode) -> Self {
        match mode.flags.contains(ModeFlags::LONG) {
            true => Self::Direct,
            false if mode.is_real() => Self::RealDirect,
            false => Self::NarrowDirect,
        }
    }

    const fn is_direct(self) -> bool {
        matches!(self, Self::Direct | Self::NarrowDirect | Self::RealDirect)
    }

    /// The sequence for code of a mode: the one place that decides it.
    pub(crate) fn of(mode: &Mode) -> Result<Self, AccessUnavailable> {
        match mode.access {
            Access::Checked if mode.flags.contains(ModeFlags::LONG) => Ok(Self::Long),
            Access::Checked => Ok(Self::Flat),
            access if *mode == mode.with_access(access) => Ok(Self::direct(mode)),
            access => Err(AccessUnavailable(access)),
        }
    }
}

impl Emitter {
    /// Has the next instruction look its operand up, or not, in code that reaches others directly.
    pub(crate) fn look_up_always(&mut self, always: bool) {
        let direct = LookUpForm::direct(&self.mode);
        self.look_up = match (always, direct) {
            (false, direct) => direct,
            (true, LookUpForm::NarrowDirect | LookUpForm::RealDirect) => LookUpForm::Flat,
            (true, _) => LookUpForm::Long,
        };
    }

    /// Whether the current instruction reaches its operand without a look-up, so that the access itself
    /// may fault.
    pub(crate) fn may_fault(&self) -> bool {
        self.look_up.is_direct()
    }

    /// Whether the current instruction looks its operand up and others reach theirs directly.
    pub(crate) fn always_looks_up(&self) -> bool {
        self.mode.access.is_direct() && !self.look_up.is_direct()
    }

    /// Makes the checks that a segment needs for an access of `size` bytes at the offset in R8.
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

    /// A load that faults, so that the monitor does the instruction, unless R8 + size - 1 is at most
    /// FFFFh; not in IA-32e mode. Uses RCX.
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

    /// Leaves for the slow path unless R8 + size - 1 is at most the limit.
    pub(crate) fn check_limit(&mut self, segment: SegmentRegister, size: u32) {
        self.make_room();
        // limit - offset - (size - 1) = limit + not(offset) + 2 - size, in 64 bits:
        // the upper half is zero exactly if it is not negative.
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
        self.mark(Restore::NONE);
    }

    /// Turns the linear address in R8 into a host address in R9. Clobbers RCX; R11
    /// and the flags survive.
    pub(crate) fn look_up(&mut self, size: u32, write: bool) {
        self.look_up_sum(size, write);
        self.point(Reach::Sum);
    }

    /// Brings the host address of what is reached to R9.
    pub(crate) fn point(&mut self, reach: Reach) {
        if reach != Reach::Pointer {
            let reach = self.with_address(reach);
            self.assembler.lea64(R9, reach.mem());
        }
    }

    /// Brings it to where the instruction can use it, which may need RCX for itself, or an
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

    /// Puts the host address minus the linear one, which is in R8, into RCX: [`Reach::Sum`].
    /// Clobbers R9; R11 and the flags survive.
    fn look_up_sum(&mut self, size: u32, write: bool) {
        self.make_room();
        match self.look_up {
            LookUpForm::Flat => {
                self.form_slot(size);
                self.probe(size, write);
            }
            LookUpForm::Long => self.long_look_up(size, write),
            LookUpForm::Direct => self.load_window_delta(RCX, R8),
            LookUpForm::NarrowDirect | LookUpForm::RealDirect => self.load_narrow_delta(),
        }
    }

    /// As [`Emitter::look_up`], for a load with the rights of the supervisor by code at
    /// CPL 3, not in IA-32e mode. `helper` is the instruction's number among the helpers.
    pub(crate) fn look_up_system(&mut self, size: u8, helper: u16) {
        self.make_room();
        self.form_slot(u32::from(size));
        self.probe_table(
            SUPERVISOR_VIEW_OFFSET,
            SiteKind::SystemRead { size, helper },
        );
        self.point(Reach::Sum);
    }

    /// The number of the slot for an access at R8, in R9. Clobbers RCX.
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

    /// Leaves for the monitor if `size` bytes, two or more, at an offset of 16 bits in R8 run over the
    /// end of 64 KiB. Clobbers RCX.
    fn leave_if_it_wraps(&mut self, size: u32) {
        self.make_room();
        self.assembler.lea64(RCX, Mem::base(R8, size as i32 - 1));
        if size == 2 {
            // Zero only behind FFFFh.
            self.assembler.movzx16(RCX, RCX);
        } else {
            // The last byte's bit 16, minus one.
            self.assembler.rorx(RCX, RCX, 16);
            self.assembler.mov32(RCX, RCX);
            self.assembler.lea64(RCX, Mem::base(RCX, -1));
        }
        self.miss_if_zero(SiteKind::Slow);
    }

    /// Looks so many bytes at R8 up, for a window.
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
            LookUpForm::NarrowDirect | LookUpForm::RealDirect => return self.load_narrow_delta(),
        };
        self.make_room();
        self.assembler.load(Width::Qword, RCX, table);
        self.leave_windows_if_zero(miss);
    }

    /// The second half of a look-up: the slot's number is in R9, and RCX is free.
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

    /// The same through the long software TLB. An address that is not canonical makes the
    /// load of the pointer fault, so that the monitor does the instruction.
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

    /// The number of the slot for an access at R8, in R9, and the table that it is in, in RCX.
    ///
    /// Nothing in this code depends on the block, so it is assembled once for each size and
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

    /// Offset in R8 to host address in R9 for a given segment.
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

    /// The same to [`Reach::Sum`].
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

    /// The host address of the instruction's memory operand, in R9.
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

    /// Finds the instruction's memory operand.
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

    /// Finds what lies at the offset in R8.
    fn reach_offset(
        &mut self,
        segment: SegmentRegister,
        offset: Offset,
        size: u32,
        write: bool,
    ) -> Result<Reach, OddSegment> {
        if self.look_up != LookUpForm::RealDirect {
            self.access_sum(segment, offset, size, write)?;
            return Ok(Reach::Sum);
        }
        self.check_segment(segment, offset, size, write)?;
        self.make_room();
        let base = self.field(at::segment_base(segment));
        self.assembler.load(Width::Dword, R9, base);
        Ok(Reach::InSegment)
    }

    /// As [`Emitter::memory_operand`], for a load of a far pointer, `size` bytes in all. Offset and
    /// selector are two operands: the selector's address wraps as addresses of this size do, and one
    /// that does so is the monitor's.
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
            // The limit of 64 KiB stops them.
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

    /// The guest register whose home the memory operand is near, and how far from it, if nothing
    /// else addresses it.
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

    /// The host address `offset` bytes above the (folded) stack pointer, in R9.
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

    /// Finds what is `offset` bytes above the (folded) stack pointer.
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

    /// The offset in SS of what is so far above the (folded) stack pointer, in R8.
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

    /// As [`Emitter::stack_operand`], for several values side by side. Each wraps by itself on a
    /// stack of 16 bits; a frame that does so is the monitor's.
    pub(crate) fn stack_frame(
        &mut self,
        offset: i32,
        size: u32,
        write: bool,
    ) -> Result<(), OddSegment> {
        let class = self.mode.segment(SegmentRegister::Ss, write);
        let is_wide = self.mode.flags.contains(ModeFlags::STACK32);
        // The limit of 64 KiB stops them.
        if is_wide || matches!(class, SegmentClass::Limited64K | SegmentClass::Odd) {
            return self.stack_operand(offset, size, write);
        }
        let offset = self.form_stack_offset(offset);
        self.leave_if_it_wraps(size);
        self.access(SegmentRegister::Ss, offset, size, write)
    }
}
