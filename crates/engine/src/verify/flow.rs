//! The verifier's rules for control flow: branches in the block, and the ways out of it.

use super::values::{Kind, State, Table, Value};
use super::{Next, Rule, StoreLookUp, Walk};
use crate::abi::context::STORE_SIZES;
use crate::abi::context_displacements as at;
use crate::abi::fast_paths::FastPath;
use crate::abi::link_layout::{
    ENTRY_TARGET, FAR_TABLE_OFFSET, MAX_SLOTS, ModeId, choices, far_tag_base, from_links,
    indirect_tag, slot_offset,
};
use crate::abi::sites::{LinkPlace, Site, SiteKind};
use crate::policy::fast_path::FastInstruction;
use crate::policy::mode::ModeFlags;
use crate::policy::string_routine::string_routine;
use crate::policy::virtual_interrupts::{TASK_SWITCH, TRAP};
use iced_x86::{Code, ConstantOffsets, FlowControl, Instruction, Mnemonic, OpKind, Register};
use tollgate_x86::Vector;

const _: () = assert!(TRAP[0] == 0xfa && TASK_SWITCH[0] == 0x0f && TASK_SWITCH[1] == 0x0b);

impl Walk<'_> {
    /// Checks an instruction that controls where execution continues; `None` if the instruction
    /// does not.
    pub(super) fn flow(
        &mut self,
        instruction: &Instruction,
        state: &mut State,
        named: Option<usize>,
    ) -> Result<Option<Next>, Rule> {
        match instruction.code() {
            Code::Jmp_rel8_64 | Code::Jmp_rel32_64 => {
                self.branch(instruction, state)?;
                Ok(Some(Next::Stops))
            }
            Code::Jrcxz_rel8_64 => {
                self.branch_if_zero(instruction, state)?;
                Ok(Some(Next::Falls))
            }
            _ if instruction.is_jcc_near() => {
                self.branch(instruction, state)?;
                Ok(Some(Next::Falls))
            }
            Code::Jmp_rm64 => {
                self.jump(instruction, state, named)?;
                Ok(Some(Next::Stops))
            }
            // A transition to the monitor.
            Code::Cli | Code::Ud2 => match named {
                Some(site) => {
                    self.leave(site, state);
                    Ok(Some(Next::Stops))
                }
                None => Err("makes a transition without naming an exit"),
            },
            _ if instruction.flow_control() != FlowControl::Next => Err("must not run on the host"),
            _ => Ok(None),
        }
    }

    /// Checks a direct branch: forward in the block or, at a link, to the start of a block.
    fn branch(&mut self, instruction: &Instruction, state: &State) -> Result<(), Rule> {
        let target = instruction.near_branch64();
        let is_forward = target > instruction.ip();
        if is_forward && target < self.subject.code.len() as u64 {
            self.lead_to(target, state.clone());
            return Ok(());
        }
        let is_near = instruction.len() > 2;
        let distance = instruction.next_ip().wrapping_sub(4);
        let is_link = self.subject.sites.iter().find(|site| {
            matches!(site.kind, SiteKind::Link(LinkPlace::Direct { distance: at, .. })
                if u64::from(at) == distance)
        });
        match is_link.map(|site| site.kind) {
            Some(SiteKind::Link(LinkPlace::Direct { stub, .. }))
                if is_near && (self.is_block)(target as i64) =>
            {
                // The branch leads to its stub again when that block is gone.
                self.lead_to(u64::from(stub), state.clone());
                Ok(())
            }
            _ => Err("branch leaves the block"),
        }
    }

    fn lead_to(&mut self, target: u64, state: State) {
        match self.waiting.get_mut(&target) {
            Some(known) => known.merge(&state, &mut self.numbers),
            None => {
                self.waiting.insert(target, state);
            }
        }
    }

    /// Checks a JRCXZ: what is known of RCX determines what else is known on both ways.
    fn branch_if_zero(&mut self, instruction: &Instruction, state: &mut State) -> Result<(), Rule> {
        const RCX: usize = 1;
        let tested = state.registers[RCX];
        let mut zero = state.clone();
        match tested.kind {
            Kind::Tag {
                index,
                table,
                constant,
                targets: 1,
            } if self.is_whole_tag(table, constant) => zero.matched = Some((index, table)),
            Kind::CodeSlideSum {
                index,
                table,
                active,
            } if active == state.code_slide.number && state.matched == Some((index, table)) => {
                zero.moved = state.matched;
            }
            Kind::VectorsOff => zero.vectors = true,
            _ => {}
        }
        self.branch(instruction, &zero)?;
        let Kind::Delta {
            of, size, write, ..
        } = tested.kind
        else {
            return Ok(());
        };
        state.registers[RCX].kind = Kind::Delta {
            of,
            size,
            write,
            hit: true,
        };
        if write {
            let [slot, linear] = [9, 8].map(|r: usize| state.registers[r].number);
            let look_up = StoreLookUp {
                linear,
                slot,
                of,
                size,
            };
            self.store_look_ups.insert(instruction.next_ip(), look_up);
            // The test of a store returns here, and has changed R9.
            state.registers[9] = self.numbers.new_value(Kind::Any);
        }
        Ok(())
    }

    /// Whether the constant that was added to a tag is everything that the tag is compared with,
    /// except the target.
    fn is_whole_tag(&self, table: Table, constant: u64) -> bool {
        let own = self.subject.branch_table;
        match table {
            Table::Level(_) => true,
            Table::At(FAR_TABLE_OFFSET) => constant == far_tag_base(self.subject.family),
            Table::At(place) => {
                let tag = indirect_tag(own, ModeId(self.subject.mode_id));
                choices(own).contains(&place) && constant == tag
            }
        }
    }

    /// Whether a value can be the target that an entry's tag is compared with.
    pub(super) fn may_be_target(&self, table: Table, value: &Value) -> bool {
        match table {
            Table::At(FAR_TABLE_OFFSET) => value.is_narrow() || value.kind == Kind::FarPointer,
            Table::At(_) => !self.subject.branch_table.is_shared() || value.is_narrow(),
            Table::Level(_) => {
                self.subject.mode.flags.contains(ModeFlags::CODE64) || value.is_narrow()
            }
        }
    }

    /// Whether this is the table of indirect branches that no other mode uses.
    pub(super) fn is_own_table(&self, place: i32) -> bool {
        let own = self.subject.branch_table;
        !own.is_shared() && choices(own).contains(&place)
    }

    /// Checks an indirect jump.
    fn jump(
        &mut self,
        instruction: &Instruction,
        state: &State,
        named: Option<usize>,
    ) -> Result<(), Rule> {
        const REFUSED: Rule = "jump to an unknown place";
        if instruction.op0_kind() == OpKind::Register {
            return Err(REFUSED);
        }
        let displacement = instruction.memory_displacement64() as i64;
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        if base == self.links() && index == Register::None {
            let stub = self.stub_of_slot_at(displacement);
            let stub = stub.filter(|&stub| stub > instruction.ip() && state.level.is_none());
            self.lead_to(stub.ok_or(REFUSED)?, state.clone());
            return Ok(());
        }
        if base == self.context() && index == Register::None {
            let Some(site) = named.and_then(|named| self.subject.sites.get(named)) else {
                return Err("leaves without naming an exit");
            };
            self.leave(named.unwrap_or_default(), state);
            let may_be_filled = matches!(
                site.kind,
                SiteKind::Memory { .. } | SiteKind::SystemRead { .. }
            );
            if displacement == i64::from(at::EXIT_ENTRY)
                || displacement == i64::from(at::MISS_ENTRY) && may_be_filled
            {
                return Ok(());
            }
            if self.is_vector_load(displacement, site, state, instruction.next_ip()) {
                let mut loaded = state.clone();
                loaded.vectors = true;
                self.lead_to(instruction.next_ip(), loaded);
                return Ok(());
            }
            if self.is_string_routine(displacement, site, state)
                || self.is_fast_path(displacement, site, state)
            {
                return Ok(());
            }
            return self.store_test(displacement, state);
        }
        let entry = state.registers[9];
        let is_entry = base == self.links()
            && index == Register::R9
            && instruction.memory_index_scale() == 8
            && match state.matched {
                Some((number, Table::At(table))) => {
                    number == entry.number
                        && displacement == i64::from(from_links(table + ENTRY_TARGET))
                        && state.level.is_none()
                }
                Some((number, Table::Level(kind))) => {
                    number == entry.number
                        && displacement == i64::from(from_links(ENTRY_TARGET))
                        && state.level == Some(kind)
                }
                None => false,
            };
        match is_entry && self.has_delta(state) {
            true => Ok(()),
            false => Err(REFUSED),
        }
    }

    /// The stub of the site whose slot lies at this displacement in the tables.
    fn stub_of_slot_at(&self, displacement: i64) -> Option<u64> {
        self.subject.sites.iter().find_map(|site| match site.kind {
            SiteKind::Link(LinkPlace::Slot { slot, stub })
                if (slot as usize) < 2 * MAX_SLOTS
                    && i64::from(from_links(slot_offset(slot))) == displacement =>
            {
                Some(u64::from(stub))
            }
            _ => None,
        })
    }

    /// Whether `code_slide` holds the slide of the target whose entry has been found, if the target
    /// may be relocatable.
    fn has_delta(&self, state: &State) -> bool {
        let is_needed = match state.matched {
            Some((_, Table::Level(kind))) => kind.leads_to_program(),
            _ => self.subject.mode.is_relocatable(),
        };
        !is_needed || state.moved == state.matched
    }

    /// Whether a jump leads to the routine that executes the string instruction of the exit that
    /// was named, and R11 is the address at which to continue after the instruction.
    fn is_string_routine(&self, displacement: i64, site: &Site, state: &State) -> bool {
        const R11: usize = 11;
        let SiteKind::Helper(helper) = site.kind else {
            return false;
        };
        let (mode, map) = (self.subject.mode, self.subject.map);
        let helper = self.subject.helpers.get(usize::from(helper));
        let routine = helper.and_then(|it| string_routine(&it.instruction, mode, map));
        routine.is_some_and(|it| i64::from(at::string_routine(it)) == displacement)
            && state.registers[R11].kind == Kind::Address(site.after.into())
            && state.level.is_none()
    }

    /// Whether a jump leads to the fast path that loads the vector registers, and R8 is the address
    /// `behind` the jump, where the fast path continues.
    fn is_vector_load(&self, displacement: i64, site: &Site, state: &State, behind: u64) -> bool {
        const R8: usize = 8;
        site.kind == SiteKind::VectorLoad
            && displacement == i64::from(at::fast_path_routine(FastPath::Vectors))
            && state.registers[R8].kind == Kind::Address(behind)
            && state.level.is_none()
    }

    /// Whether a jump leads to the fast path of the exit that was named, with the registers that
    /// the instruction and the mode require, and R11 is the address at which to continue after the
    /// instruction.
    fn is_fast_path(&self, displacement: i64, site: &Site, state: &State) -> bool {
        let SiteKind::Helper(helper) = site.kind else {
            return self.is_refusal(displacement, site, state);
        };
        let Some(helper) = self.subject.helpers.get(usize::from(helper)) else {
            return false;
        };
        let instruction = &helper.instruction;
        let Some(fast_path) = FastInstruction::of(instruction, self.subject.mode, self.subject.map)
        else {
            return false;
        };
        let [rcx, value, key, behind] = [1, 8, 9, 11].map(|r: usize| state.registers[r]);
        let has_value = match fast_path {
            FastInstruction::Cpuid | FastInstruction::Port { port: Some(_), .. } => true,
            FastInstruction::Port { port: None, .. } => value.is_word(),
            FastInstruction::LoadSegment { .. } => {
                let next = instruction.next_ip() & 0xffff_ffff;
                value.is_word() && rcx.kind == Kind::Constant(next)
            }
            // RCX is not used; R8 is the place of the frame.
            FastInstruction::Return => value.is_narrow(),
            // The return address is passed to the guest unchanged.
            FastInstruction::Interrupt { .. } | FastInstruction::TaskInterrupt { .. } => true,
            FastInstruction::Refusal => false,
            // The target's offset, and what is added to the stack pointer, are passed unchanged
            // too.
            FastInstruction::Far(_) => rcx.is_word(),
            // R8 is data for the monitor's function.
            FastInstruction::Call(..) => true,
        };
        let told = fast_path.key(self.subject.mode_id, self.subject.family);
        let goes_on = !fast_path.comes_back() || behind.kind == Kind::Address(site.after.into());
        i64::from(at::fast_path_routine(fast_path.routine())) == displacement
            && told.is_none_or(|told| key.kind == Kind::Constant(told))
            && has_value
            && goes_on
            && state.level.is_none()
    }

    /// Whether a jump leads to the fast path of an instruction that faults.
    fn is_refusal(&self, displacement: i64, site: &Site, state: &State) -> bool {
        const KEY: usize = 9;
        let Some(fast_path) = FastInstruction::of_refused(self.subject.mode, self.subject.map)
        else {
            return false;
        };
        let told = fast_path.key(self.subject.mode_id, self.subject.family);
        site.kind == SiteKind::Fault(Vector::GeneralProtection)
            && i64::from(at::fast_path_routine(fast_path.routine())) == displacement
            && told.is_some_and(|told| state.registers[KEY].kind == Kind::Constant(told))
            && state.level.is_none()
    }

    /// Checks the jump to the test of a store for code; the look-up continues at the address in
    /// RCX.
    fn store_test(&self, displacement: i64, state: &State) -> Result<(), Rule> {
        const REFUSED: Rule = "is not the test of the look-up's store";
        let place = |size| match self.is_long() {
            true => at::long_code_store(size),
            false => at::code_store(size),
        };
        let size = STORE_SIZES
            .into_iter()
            .find(|&size| place(size).map(i64::from) == Some(displacement))
            .ok_or(REFUSED)?;
        let [rcx, linear, slot] = [1, 8, 9].map(|r: usize| state.registers[r]);
        let Kind::Address(back) = rcx.kind else {
            return Err(REFUSED);
        };
        let here = StoreLookUp {
            linear: linear.number,
            slot: slot.number,
            of: linear.number,
            size: u32::from(size),
        };
        match self.store_look_ups.get(&back) {
            Some(look_up) if *look_up == here => Ok(()),
            _ => Err(REFUSED),
        }
    }

    /// Notes where an instruction has a distance or an immediate operand.
    pub(super) fn note_constants(
        &mut self,
        offset: u64,
        instruction: &Instruction,
        constants: &ConstantOffsets,
    ) {
        let is_branch = instruction.is_jmp_near() || instruction.is_jcc_near();
        let place = |at: usize| (offset + at as u64) as u32;
        if is_branch && constants.immediate_size() == 4 {
            let target = instruction.near_branch64() as i64;
            let at = place(constants.immediate_offset());
            self.distances.insert(at, target);
        }
        let has_memory =
            (0..instruction.op_count()).any(|index| instruction.op_kind(index) == OpKind::Memory);
        let is_own = has_memory && !self.reaches_guest_memory_or_slot(instruction);
        // No rule depends on the immediate operand of a listed instruction, except RORX.
        let is_free = !is_branch && !is_own && instruction.mnemonic() != Mnemonic::Rorx;
        let has_one = constants.has_immediate() && !constants.has_immediate2();
        if is_free && has_one {
            let at = place(constants.immediate_offset());
            self.immediates.insert(at, constants.immediate_size() as u8);
        }
    }
}
