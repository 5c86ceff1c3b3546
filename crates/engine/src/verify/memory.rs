//! The verifier's rules for operands in memory: the guest's, and those that the translator itself
//! reads and writes.

use super::registers::writes;
use super::values::{Kind, Number, State, Table, Value};
use super::{Rule, Walk};
use crate::abi::context_displacements::{self as at, Field, FieldUse};
use crate::abi::link_layout::{
    ENTRY_NEGATED_SLIDE, ENTRY_SLIDE, FAR_TABLE_OFFSET, LINKS_BIAS, choices,
};
use crate::abi::memos::level_change::{LevelChange, LevelChangeKind};
use crate::abi::sites::unpack_site;
use crate::policy::access::Access;
use crate::policy::mode::ModeFlags;
use iced_x86::{Code, Instruction, OpKind, Register};
use std::mem::offset_of;
use tollgate_tlb::View;
use tollgate_tlb::long_tlb::{
    DIRECT_TABLE_DISPLACEMENT, LONG_ROOT_DISPLACEMENT, LONG_WRITE_DISPLACEMENT, PARTS,
    part_of_linear,
};
use tollgate_tlb::shadow_windows::anchors::CHECK_DISPLACEMENT;
use tollgate_tlb::software_tlb::{
    NARROW_DELTA_OFFSET, SUPERVISOR_VIEW_OFFSET, WRITE_TABLE_OFFSET, limit_check_offset,
};
use tollgate_x86::Watched;

/// The least number of bytes from the pointer to a bounced operand to the buffer's end.
const BOUNCED_BYTES: u32 = 64;

/// How many bytes after a linear address its instruction may reach in a shadow window: far less
/// than the space between two windows.
pub(super) const DIRECT_BYTES: u32 = 4096;

/// The size in bytes of the largest operand for whose last byte a limit is checked.
const LIMIT_CHECK_BYTES: i64 = 4096;

const REFUSED: Rule = "memory operand is not a checked address, the context or a table";

/// An operand in memory.
struct Operand {
    index: Register,
    scale: u32,
    displacement: i64,
    size: u32,
    write: bool,
}

/// Whether an instruction only moves a value from memory to a register.
fn is_load(code: Code) -> bool {
    matches!(
        code,
        Code::Mov_r64_rm64
            | Code::Mov_r32_rm32
            | Code::Mov_r16_rm16
            | Code::Mov_r8_rm8
            | Code::Movzx_r32_rm16
            | Code::Movzx_r32_rm8
    )
}

fn is_store(code: Code) -> bool {
    matches!(
        code,
        Code::Mov_rm64_r64
            | Code::Mov_rm32_r32
            | Code::Mov_rm16_r16
            | Code::Mov_rm64_imm32
            | Code::Mov_rm32_imm32
            | Code::Mov_rm16_imm16
    )
}

impl Walk<'_> {
    /// Whether an operand in memory is the guest's, or a slot of a guest register. Copied
    /// instructions have such operands.
    pub(super) fn reaches_guest_memory_or_slot(&self, instruction: &Instruction) -> bool {
        let displacement = instruction.memory_displacement64() as i64;
        instruction.memory_base() != self.context() || slot_offset(displacement).is_some()
    }

    /// Checks an instruction with an operand in memory. Returns what the instruction loads, if that
    /// matters.
    pub(super) fn access(
        &mut self,
        instruction: &Instruction,
        state: &mut State,
    ) -> Result<Option<Value>, Rule> {
        let mut write = false;
        for index in 0..instruction.op_count() {
            match instruction.op_kind(index) {
                OpKind::Memory => {
                    write = writes(self.info.info(instruction).op_access(index));
                }
                OpKind::Register if self.is_reserved(instruction.op_register(index)) => {
                    let moves_view = self.moves_view(instruction);
                    if !moves_view {
                        return Err("names a reserved register");
                    }
                }
                _ => {}
            }
        }
        let operand = Operand {
            index: instruction.memory_index(),
            scale: instruction.memory_index_scale(),
            displacement: instruction.memory_displacement64() as i64,
            size: instruction.memory_size().size().max(1) as u32,
            write,
        };
        let base = instruction.memory_base();
        if instruction.segment_prefix() == Register::GS {
            return self.anchored_access(instruction, state, &operand);
        }
        if base == self.context() {
            return self.context_access(instruction, state, &operand);
        }
        if base == self.tlb() {
            return self.tlb_access(instruction, state, &operand).map(Some);
        }
        if base == self.links() {
            return self.links_access(instruction, state, &operand).map(Some);
        }
        if let Some(common) = self.checked_part(instruction, state) {
            state.common.push(common);
            return Ok(Some(self.numbers.new_value(Kind::Word)));
        }
        self.checked_access(instruction, state, &operand)
    }

    /// The address that lies in a common part if this load does not fault.
    fn checked_part(&self, instruction: &Instruction, state: &State) -> Option<(Number, i64)> {
        let is_check = instruction.code() == Code::Movzx_r32_rm8
            && instruction.op0_register() == Register::ECX
            && instruction.memory_base() == Register::RCX
            && instruction.memory_index() == Register::None
            && instruction.memory_displacement64() == CHECK_DISPLACEMENT as u64;
        match state.registers[1].kind {
            Kind::Page {
                near, signed: true, ..
            } if is_check && self.has_anchor() => Some(near),
            _ => None,
        }
    }

    /// Checks an access by the loaded space's anchor, which must be near an address that was
    /// checked.
    fn anchored_access(
        &mut self,
        instruction: &Instruction,
        state: &State,
        operand: &Operand,
    ) -> Result<Option<Value>, Rule> {
        let base = instruction.memory_base();
        if self.subject.mode.reaches_by_gs() {
            return self.access_in_segment(instruction, state, operand);
        }
        let number = super::registers::number(base).filter(|_| base.is_gpr64());
        let is_free = !self.is_reserved(base) && operand.index == Register::None;
        let is_near = number.is_some_and(|number| {
            state.is_near_common(&state.registers[number], operand.displacement)
        });
        match is_free && is_near && self.has_anchor() && operand.size <= DIRECT_BYTES {
            true => Ok(self.loaded(instruction)),
            false => Err(REFUSED),
        }
    }

    /// Checks an access of 16-bit code to the shadow window that GS leads to. The address must be
    /// the sum of two values below 4 GiB, which is far less than the window has room for.
    fn access_in_segment(
        &mut self,
        instruction: &Instruction,
        state: &State,
        operand: &Operand,
    ) -> Result<Option<Value>, Rule> {
        let is_narrow = |register: Register| {
            let number = super::registers::number(register).filter(|_| register.is_gpr64());
            number.is_some_and(|number| state.registers[number].is_narrow())
                && !self.is_reserved(register)
        };
        let is_sum = is_narrow(instruction.memory_base()) && is_narrow(operand.index);
        let is_plain = operand.scale == 1 && operand.displacement == 0;
        match is_sum && is_plain && self.is_direct() && operand.size <= DIRECT_BYTES {
            true => Ok(self.loaded(instruction)),
            false => Err(REFUSED),
        }
    }

    /// Whether code of this mode may reach memory by the loaded space's anchor.
    fn has_anchor(&self) -> bool {
        self.is_direct() && self.subject.mode.access == Access::Anchored
    }

    /// Whether code of this mode may reach memory through shadow windows.
    fn is_direct(&self) -> bool {
        let mode = self.subject.mode;
        mode.access.is_direct() && *mode == mode.with_access(mode.access)
    }

    /// Checks an access to guest memory through the result of a look-up, or to a table of the long
    /// software TLB.
    fn checked_access(
        &mut self,
        instruction: &Instruction,
        state: &State,
        operand: &Operand,
    ) -> Result<Option<Value>, Rule> {
        let of = |register: Register| {
            let number = super::registers::number(register)?;
            register.is_gpr64().then(|| state.registers[number])
        };
        let base = instruction.memory_base();
        let is_pointer = matches!(base, Register::R9 | Register::RCX | Register::R11);
        let mut place = operand.displacement;
        let (size, write) = match (of(base).map(|it| it.kind), of(operand.index)) {
            (Some(Kind::Checked { size, write }), None)
                if is_pointer && operand.index == Register::None =>
            {
                // Accesses through a shared look-up lie anywhere in its bytes.
                if base == Register::R11 {
                    let window = state.registers[11].number;
                    self.last_uses.insert(window, instruction.ip());
                }
                let inside = base == Register::R11 && (0..i64::from(size)).contains(&place);
                let before = if inside { place as u32 } else { 0 };
                place -= i64::from(before);
                (size - before, write)
            }
            (
                Some(Kind::Delta {
                    of,
                    size,
                    write,
                    hit: true,
                }),
                Some(linear),
            ) if of == linear.number && operand.scale == 1 => (size, write),
            // Nothing is ever mapped next to a shadow window.
            (Some(Kind::WindowDelta { of }), Some(linear))
                if operand.scale == 1 && linear.distance_beside(of, place).is_some() =>
            {
                if base == Register::R11 {
                    let window = state.registers[11].number;
                    self.last_uses.insert(window, instruction.ip());
                }
                place = 0;
                (DIRECT_BYTES, true)
            }
            // No narrow value leads beyond 4 GiB, and a shadow window has far more room.
            (Some(Kind::NarrowDelta), Some(linear)) if operand.scale == 1 && linear.is_narrow() => {
                (DIRECT_BYTES, true)
            }
            (Some(Kind::WindowDeltaOfPart(part)), None)
                if operand.index == Register::None && part_of_linear(place) == part =>
            {
                place = 0;
                (DIRECT_BYTES, true)
            }
            (Some(Kind::Root { of }), Some(slot)) if operand.scale == 8 => {
                return self.long_slot_access(instruction, state, operand, of, slot.kind);
            }
            _ => return Err(REFUSED),
        };
        let fits = place == 0 && operand.size <= size;
        if !fits || operand.write && !write {
            return Err("access goes beyond what was looked up");
        }
        Ok(self.loaded(instruction))
    }

    /// Checks an access to a slot of the long software TLB, in the table that was found for the
    /// address `of`.
    fn long_slot_access(
        &mut self,
        instruction: &Instruction,
        state: &State,
        operand: &Operand,
        of: u32,
        slot: Kind,
    ) -> Result<Option<Value>, Rule> {
        let write = match operand.displacement {
            0 => false,
            at if at == i64::from(LONG_WRITE_DISPLACEMENT) => true,
            _ => return Err(REFUSED),
        };
        match slot {
            Kind::Slot {
                of: linear,
                size,
                signed: true,
            } if linear == of => self
                .load_delta(instruction, state, of, size, write)
                .map(Some),
            _ => Err(REFUSED),
        }
    }

    /// What a load leaves in its register.
    fn loaded(&mut self, instruction: &Instruction) -> Option<Value> {
        let kind = match instruction.code() {
            Code::Mov_r32_rm32 => Kind::Narrow,
            Code::Movzx_r32_rm16 | Code::Movzx_r32_rm8 => Kind::Word,
            _ => return None,
        };
        Some(self.numbers.new_value(kind))
    }

    fn load_delta(
        &mut self,
        instruction: &Instruction,
        state: &State,
        of: u32,
        size: u32,
        write: bool,
    ) -> Result<Value, Rule> {
        let loads =
            instruction.code() == Code::Mov_r64_rm64 && instruction.op0_register() == Register::RCX;
        if !loads || state.level.is_some() {
            return Err(REFUSED);
        }
        Ok(self.numbers.new_value(Kind::Delta {
            of,
            size,
            write,
            hit: false,
        }))
    }

    /// Checks an access to a slot of the flat software TLB, or to a pointer in the root of the long
    /// one.
    fn tlb_access(
        &mut self,
        instruction: &Instruction,
        state: &State,
        operand: &Operand,
    ) -> Result<Value, Rule> {
        let is_direct_load =
            instruction.code() == Code::Mov_r64_rm64 && state.level.is_none() && self.is_direct();
        if operand.index == Register::None && !self.is_long() {
            let is_delta = operand.displacement == i64::from(NARROW_DELTA_OFFSET);
            return match is_delta && is_direct_load {
                true => Ok(self.numbers.new_value(Kind::NarrowDelta)),
                false => Err(REFUSED),
            };
        }
        if operand.index == Register::None {
            let part = operand.displacement - i64::from(DIRECT_TABLE_DISPLACEMENT);
            let is_entry = part % 8 == 0 && (-4 * PARTS..4 * PARTS).contains(&part);
            return match is_entry && is_direct_load {
                true => Ok(self.numbers.new_value(Kind::WindowDeltaOfPart(part / 8))),
                false => Err(REFUSED),
            };
        }
        let Some(index) = super::registers::number(operand.index) else {
            return Err(REFUSED);
        };
        if operand.scale == 1 {
            return self.limit_check(instruction, state, operand, &state.registers[index]);
        }
        if operand.scale != 8 || !operand.index.is_gpr64() {
            return Err(REFUSED);
        }
        match state.registers[index].kind {
            Kind::Slot {
                of,
                size,
                signed: false,
            } if !self.is_long() => {
                let is_user_only = self.subject.mode.flags.contains(ModeFlags::VIRTUAL_8086);
                let write = match i32::try_from(operand.displacement) {
                    Ok(0) => false,
                    Ok(WRITE_TABLE_OFFSET) => true,
                    Ok(SUPERVISOR_VIEW_OFFSET) if is_user_only => false,
                    _ => return Err(REFUSED),
                };
                self.load_delta(instruction, state, of, size, write)
            }
            Kind::Part { of, .. }
                if operand.displacement == i64::from(LONG_ROOT_DISPLACEMENT)
                    && instruction.code() == Code::Mov_r64_rm64
                    && state.level.is_none() =>
            {
                Ok(self.numbers.new_value(Kind::Root { of }))
            }
            Kind::Part { near: of, .. }
                if operand.displacement == i64::from(DIRECT_TABLE_DISPLACEMENT)
                    && is_direct_load =>
            {
                Ok(self.numbers.new_value(Kind::WindowDelta { of }))
            }
            _ => Err(REFUSED),
        }
    }

    /// Checks the load that checks an operand's last byte against the limit of a segment of 64 KiB.
    /// It loads a byte after the tables, where there are as many bytes as an offset of 32 bits and
    /// an operand's size can reach.
    fn limit_check(
        &mut self,
        instruction: &Instruction,
        state: &State,
        operand: &Operand,
        offset: &Value,
    ) -> Result<Value, Rule> {
        let view = match self.subject.mode.flags.contains(ModeFlags::USER) {
            true => View::User,
            false => View::Supervisor,
        };
        let last = operand.displacement - i64::from(limit_check_offset(view));
        let is_check = instruction.code() == Code::Movzx_r32_rm8
            && instruction.op0_register() == Register::ECX
            && operand.index.is_gpr64()
            && (0..LIMIT_CHECK_BYTES).contains(&last);
        match is_check && offset.is_narrow() && !self.is_long() && state.level.is_none() {
            true => Ok(self.numbers.new_value(Kind::Word)),
            false => Err(REFUSED),
        }
    }

    /// Checks a load from an entry for indirect branches: its tag or its slide.
    fn links_access(
        &mut self,
        instruction: &Instruction,
        state: &State,
        operand: &Operand,
    ) -> Result<Value, Rule> {
        if instruction.code() != Code::Mov_r64_rm64 {
            return Err(REFUSED);
        }
        if operand.index != Register::R9 || operand.scale != 8 {
            return Err(REFUSED);
        }
        let entry = state.registers[9];
        let offset = operand.displacement + i64::from(LINKS_BIAS);
        let [own, second] = choices(self.subject.branch_table);
        let own = match offset >= i64::from(second) {
            true => second,
            false => own,
        };
        let far = i64::from(FAR_TABLE_OFFSET);
        let (table, first) = match entry.kind {
            Kind::FarIndex => (Table::At(FAR_TABLE_OFFSET), far),
            Kind::Index => (Table::At(own), i64::from(own)),
            Kind::LevelIndex(kind) => (Table::Level(kind), 0),
            _ => return Err(REFUSED),
        };
        let has_delta = entry.kind != Kind::FarIndex;
        let part = offset - first;
        if part == i64::from(ENTRY_SLIDE) && has_delta {
            let index = entry.number;
            return Ok(self.numbers.new_value(Kind::CodeSlide { index, table }));
        }
        if part == i64::from(ENTRY_NEGATED_SLIDE) && has_delta {
            let index = entry.number;
            return Ok(self
                .numbers
                .new_value(Kind::NegatedCodeSlide { index, table }));
        }
        if part != 0 {
            return Err(REFUSED);
        }
        Ok(self.numbers.new_value(Kind::Tag {
            index: entry.number,
            table,
            constant: 0,
            targets: 0,
        }))
    }

    /// Whether the instruction is `mov r14,[change.tlb]`, or the store of R14 in the context's
    /// field for the software TLB.
    fn moves_view(&self, instruction: &Instruction) -> bool {
        if instruction.memory_base() != self.context() {
            return false;
        }
        let displacement = instruction.memory_displacement64() as i64;
        match instruction.code() {
            Code::Mov_r64_rm64 => {
                let tlb = offset_of!(LevelChange, tlb);
                instruction.op0_register() == self.tlb()
                    && level_change_part(displacement).is_some_and(|(_, part)| part == tlb)
            }
            Code::Mov_rm64_r64 => {
                instruction.op1_register() == self.tlb() && displacement == i64::from(at::TLB)
            }
            _ => false,
        }
    }

    /// Checks an access to a field of the context.
    fn context_access(
        &mut self,
        instruction: &Instruction,
        state: &mut State,
        operand: &Operand,
    ) -> Result<Option<Value>, Rule> {
        const UNLISTED: Rule = "field of the context must not be used in this way";
        let place = operand.displacement;
        let size = i64::from(operand.size);
        let holds = |field: &Field| {
            let first = i64::from(field.start);
            place >= first && place + size <= first + i64::from(field.size)
        };
        let is_listed = at::fields().filter(holds).any(|field| match field.access {
            FieldUse::Read => !operand.write,
            FieldUse::Write => true,
            FieldUse::Jump => false,
        });
        if !is_listed || operand.index != Register::None {
            return Err(UNLISTED);
        }
        if let Some(offset) = slot_offset(place) {
            return match offset + size <= 8 {
                true => Ok(self.slot_access(instruction, state, operand)),
                false => Err(UNLISTED),
            };
        }
        let code = instruction.code();
        match operand.write {
            true if !is_store(code) => return Err(UNLISTED),
            false if !is_load(code) => return Err(UNLISTED),
            _ => {}
        }
        if operand.write {
            return self.store_field(instruction, state, place).map(|()| None);
        }
        self.load_field(instruction, state, place)
    }

    /// Performs an access to the slot of a guest register. Returns what the access loads.
    fn slot_access(
        &mut self,
        instruction: &Instruction,
        state: &mut State,
        operand: &Operand,
    ) -> Option<Value> {
        let place = operand.displacement;
        let holds = |guest: &u8| (0..8).contains(&(place - i64::from(at::slot(*guest))));
        let slot = &mut state.slots[usize::from((0..16).find(holds)?)];
        if !operand.write {
            let value = *slot;
            return match instruction.code() == Code::Mov_r64_rm64 {
                true => Some(value),
                false => self.loaded(instruction),
            };
        }
        let stored = match instruction.code() {
            Code::Mov_rm64_r64 => super::registers::number(instruction.op1_register()),
            _ => None,
        };
        *slot = match stored {
            Some(number) => Value {
                kind: Kind::Any,
                ..state.registers[number]
            },
            None => self.numbers.new_value(Kind::Any),
        };
        self.loaded(instruction)
    }

    fn store_field(
        &mut self,
        instruction: &Instruction,
        state: &mut State,
        place: i64,
    ) -> Result<(), Rule> {
        const REFUSED: Rule = "field of the context must not hold this value";
        if place == i64::from(at::EXIT_SITE) {
            let (block, site) = unpack_site(instruction.immediate32());
            let names_site = instruction.code() == Code::Mov_rm32_imm32
                && block == self.subject.block
                && site < self.subject.sites.len()
                && self.named.insert(site);
            state.named = names_site.then_some(site);
            return names_site
                .then_some(())
                .ok_or("does not name an exit of its own block");
        }
        if place == i64::from(at::TLB) {
            let is_view = self.moves_view(instruction) && state.level.is_some();
            return is_view.then_some(()).ok_or(REFUSED);
        }
        if place == i64::from(at::CODE_SLIDE) {
            let number = super::registers::number(instruction.op1_register());
            let value = number.map(|number| state.registers[number].kind);
            return match value {
                Some(Kind::CodeSlide { index, table })
                    if instruction.code() == Code::Mov_rm64_r64
                        && state.matched == Some((index, table)) =>
                {
                    state.moved = state.matched;
                    state.code_slide = self.numbers.new_value(Kind::Any);
                    Ok(())
                }
                _ => Err(REFUSED),
            };
        }
        if let Some((work, offset)) = work_place(place) {
            let value = match instruction.code() {
                Code::Mov_rm64_r64 => {
                    let number = super::registers::number(instruction.op1_register());
                    state.registers[number.ok_or(REFUSED)?]
                }
                Code::Mov_rm64_imm32 => self.numbers.new_value(Kind::Any),
                _ => return Err(REFUSED),
            };
            let frame = self.largest_frame();
            // A signal handler may store a frame at this address.
            let holds_frame =
                matches!(value.kind, Kind::Checked { size, write: true } if size >= frame);
            if offset != 0 || work == 2 && (frame == 0 || !holds_frame) {
                return Err(REFUSED);
            }
            state.work[work] = value;
        }
        Ok(())
    }

    fn load_field(
        &mut self,
        instruction: &Instruction,
        state: &mut State,
        place: i64,
    ) -> Result<Option<Value>, Rule> {
        const REFUSED: Rule = "field of the context must not be read";
        let is_quad = instruction.code() == Code::Mov_r64_rm64;
        if [at::EXIT_SITE, at::TLB].map(i64::from).contains(&place) {
            return Err(REFUSED);
        }
        if place == i64::from(at::CODE_SLIDE) && is_quad {
            return Ok(Some(state.code_slide));
        }
        if let Some((work, offset)) = work_place(place) {
            return match offset == 0 && is_quad {
                true => Ok(Some(state.work[work])),
                false => Err(REFUSED),
            };
        }
        if place == i64::from(at::BOUNCE_POINTER) {
            let bounces = self.subject.mode.flags.contains(ModeFlags::BOUNCE);
            return match bounces && is_quad {
                true => Ok(Some(self.numbers.new_value(Kind::Checked {
                    size: BOUNCED_BYTES,
                    write: true,
                }))),
                false => Err(REFUSED),
            };
        }
        if let Some((kind, part)) = level_change_part(place) {
            if !is_quad {
                return Err(REFUSED);
            }
            let value = if part == offset_of!(LevelChange, tlb) {
                if !self.moves_view(instruction) || state.level.is_some() {
                    return Err(REFUSED);
                }
                state.level = Some(kind);
                Kind::Any
            } else if part == offset_of!(LevelChange, then.table) {
                Kind::LevelTable(kind)
            } else if part == offset_of!(LevelChange, then.tag) {
                Kind::LevelTag(kind)
            } else {
                Kind::Any
            };
            return Ok(Some(self.numbers.new_value(value)));
        }
        if place == i64::from(at::VECTORS_OFF) {
            return Ok(Some(self.numbers.new_value(Kind::VectorsOff)));
        }
        // Outside IA-32e mode the monitor stores linear addresses of 32 bits.
        let descriptors = [at::CODE_DESCRIPTOR, at::STACK_DESCRIPTOR]
            .map(|field| i64::from(field) + offset_of!(Watched, place) as i64);
        if descriptors.contains(&place) && is_quad && !self.is_long() {
            return Ok(Some(self.numbers.new_value(Kind::Narrow)));
        }
        Ok(self.loaded(instruction))
    }
}

/// The offset in a guest register's slot, if a slot is at this displacement.
fn slot_offset(displacement: i64) -> Option<i64> {
    [at::SPILLED_SLOTS, at::CPU_SLOTS]
        .into_iter()
        .map(|first| displacement - i64::from(first))
        .find(|offset| (0..i64::from(at::SLOTS_SIZE)).contains(offset))
        .map(|offset| offset % 8)
}

/// The number of the field in [`at::WORK`] at this displacement, and the offset in it.
fn work_place(displacement: i64) -> Option<(usize, usize)> {
    let offset = usize::try_from(displacement - i64::from(at::WORK[0])).ok()?;
    (offset < 8 * at::WORK.len()).then_some((offset / 8, offset % 8))
}

/// The change of the privilege level whose memo is at this displacement, and the offset in the
/// memo.
fn level_change_part(displacement: i64) -> Option<(LevelChangeKind, usize)> {
    LevelChangeKind::ALL.into_iter().find_map(|kind| {
        let part = usize::try_from(displacement - i64::from(at::level_change(kind))).ok()?;
        (part < size_of::<LevelChange>()).then_some((kind, part))
    })
}
