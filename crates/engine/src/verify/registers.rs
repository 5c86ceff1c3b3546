//! The verifier's rules for instructions after which control continues at the next one: which are
//! allowed, and what their results are.

use super::memory::DIRECT_BYTES;
use super::values::{Kind, State, Table, Value};
use super::{Rule, Walk};
use crate::abi::link_layout::{ENTRY_BYTES, choices};
use crate::policy::allow_list::{Copying, copying};
use iced_x86::{Code, Instruction, Mnemonic, OpAccess, OpKind, Register};
use tollgate_tlb::long_tlb::part_of_linear;

/// Whether an access writes.
pub(super) fn writes(access: OpAccess) -> bool {
    !matches!(
        access,
        OpAccess::Read | OpAccess::CondRead | OpAccess::None | OpAccess::NoMemAccess
    )
}

/// The number of the general register of which `register` is a part.
pub(super) fn number(register: Register) -> Option<usize> {
    register.is_gpr().then(|| register.full_register().number())
}

impl Walk<'_> {
    pub(super) fn context(&self) -> Register {
        register_of(self.subject.map.context.0)
    }

    pub(super) fn links(&self) -> Register {
        register_of(self.subject.map.links.0)
    }

    pub(super) fn tlb(&self) -> Register {
        register_of(self.subject.map.tlb.0)
    }

    /// Whether a register is one of the translator's own, or the host's stack pointer.
    pub(super) fn is_reserved(&self, register: Register) -> bool {
        number(register).is_some_and(|number| self.subject.map.reserved() & 1 << number != 0)
    }

    /// Checks an instruction that is not a branch and changes the state as the instruction does.
    pub(super) fn operation(
        &mut self,
        instruction: &Instruction,
        state: &mut State,
    ) -> Result<(), Rule> {
        let has_memory =
            (0..instruction.op_count()).any(|index| instruction.op_kind(index) == OpKind::Memory);
        let is_rdtsc = instruction.code() == Code::Rdtsc;
        let is_lea = matches!(
            instruction.code(),
            Code::Lea_r16_m | Code::Lea_r32_m | Code::Lea_r64_m
        );
        let copied = copying(instruction);
        if copied == Copying::Never && !is_rdtsc && !is_lea {
            return Err("must not run on the host");
        }
        if copied == Copying::Vector && !state.vectors {
            return Err("uses vector registers that may not be loaded");
        }
        let result = if is_lea {
            Some(self.sum(instruction, state)?)
        } else if has_memory {
            self.access(instruction, state)?
        } else {
            self.check_operands(instruction)?;
            self.result(instruction, state)
        };
        self.change_registers(instruction, state, result)
    }

    /// Checks that no explicit register operand is the translator's, except the counts of shifts.
    fn check_operands(&self, instruction: &Instruction) -> Result<(), Rule> {
        let counts = match instruction.code() {
            Code::VEX_Shrx_r64_rm64_r64 => [self.context(), self.links()],
            Code::VEX_Sarx_r64_rm64_r64 => [self.context(), self.tlb()],
            _ => [Register::None; 2],
        };
        for index in 0..instruction.op_count() {
            let is_count = index == 2 && counts.contains(&instruction.op2_register());
            if instruction.op_kind(index) == OpKind::Register
                && self.is_reserved(instruction.op_register(index))
                && !is_count
            {
                return Err("names a reserved register");
            }
        }
        Ok(())
    }

    /// What an instruction without an operand in memory leaves in its first operand, if it is one
    /// of those whose results matter.
    fn result(&mut self, instruction: &Instruction, state: &State) -> Option<Value> {
        let source = |index| {
            let register = instruction.op_register(index);
            number(register).map(|number| state.registers[number])
        };
        let end = instruction.next_ip();
        let is_replaced = self
            .subject
            .immediates
            .iter()
            .any(|it| u64::from(it.host) + u64::from(it.size) == end);
        if let Some(added) = constant_added(instruction)
            && !is_replaced
        {
            let number = number(instruction.op0_register())?;
            let base = state.registers[number];
            return Some(self.numbers.new_value(Kind::Any).is_sum_of(&base, added));
        }
        let kind = match instruction.code() {
            Code::Mov_rm64_r64 | Code::Mov_r64_rm64 => return source(1),
            Code::Mov_rm32_r32 | Code::Mov_r32_rm32 => source(1)?.narrowed(),
            Code::Movzx_r32_rm16 | Code::Movzx_r32_rm8 => Kind::Word,
            Code::Mov_r32_imm32 => Kind::Constant(instruction.immediate32().into()),
            Code::Mov_r64_imm64 => Kind::Constant(instruction.immediate64()),
            Code::Mov_rm64_imm32 => Kind::Constant(instruction.immediate32to64() as u64),
            Code::VEX_Shrx_r64_rm64_r64 | Code::VEX_Sarx_r64_rm64_r64 => {
                let signed = instruction.code() == Code::VEX_Sarx_r64_rm64_r64;
                let shifted = source(1)?;
                let count = instruction.op2_register();
                if count == self.context() {
                    self.page(&shifted, signed)
                } else if count == self.links() && !signed {
                    Kind::IndexBits
                } else if count == self.tlb() && self.is_long() {
                    Kind::Part {
                        of: shifted.number,
                        near: shifted.near,
                    }
                } else {
                    Kind::Any
                }
            }
            Code::VEX_Rorx_r64_rm64_imm8 if instruction.immediate8() == 48 => {
                match source(1)?.is_word() {
                    true => Kind::HighWord,
                    false => Kind::Any,
                }
            }
            _ => return None,
        };
        // An immediate operand that can be replaced is not a constant.
        let kind = match kind {
            Kind::Constant(_) if is_replaced => Kind::Any,
            kind => kind,
        };
        Some(self.numbers.new_value(kind))
    }

    /// The number of the page of an address: the address shifted right by 12.
    fn page(&self, address: &Value, signed: bool) -> Kind {
        let (end, end_is_narrow) = match address.kind {
            Kind::Sum { of, added, narrow } => (Some((of, added)), narrow),
            _ => (None, false),
        };
        if signed != self.is_long() || !signed && !address.is_narrow() && !end_is_narrow {
            return Kind::Any;
        }
        Kind::Page {
            of: address.number,
            end,
            signed,
            near: address.near,
        }
    }

    /// Checks a LEA and returns its result.
    fn sum(&mut self, instruction: &Instruction, state: &mut State) -> Result<Value, Rule> {
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let is_wide = instruction.code() == Code::Lea_r64_m;
        if self.is_reserved(instruction.op0_register()) {
            return Err("changes a reserved register");
        }
        if base == Register::RIP {
            let target = instruction.memory_displacement64();
            if !is_wide || target >= self.subject.code.len() as u64 {
                return Err("address is not in the block");
            }
            return Ok(self.numbers.new_value(Kind::Address(target)));
        }
        for register in [base, index] {
            let is_free = register.is_gpr64() && !self.is_reserved(register);
            if register != Register::None && !is_free {
                return Err("names a reserved register");
            }
        }
        let of = |register| number(register).map(|number| state.registers[number]);
        if base == Register::R11 {
            let window = state.registers[11].number;
            self.last_uses.insert(window, instruction.ip());
        }
        let added = instruction.memory_displacement64() as i64;
        let scale = instruction.memory_index_scale();
        let kind = match (of(base), of(index)) {
            _ if instruction.code() == Code::Lea_r32_m => Kind::Narrow,
            _ if !is_wide => Kind::Any,
            (Some(base), None) if self.is_second_choice(instruction, &base, state) => {
                let next = self.numbers.new_value(Kind::Index);
                let [first, _] = choices(self.subject.branch_table);
                state.matched = Some((next.number, Table::At(first)));
                return Ok(next);
            }
            (Some(base), None) => {
                let sum = self.numbers.new_value(sum_with_constant(&base, added));
                return Ok(sum.is_sum_of(&base, added));
            }
            (None, Some(index)) if scale == 4 && added == 0 && index.kind == Kind::IndexBits => {
                Kind::Index
            }
            (Some(base), Some(index)) => self.sum_of_two(&base, &index, scale, added),
            _ => Kind::Any,
        };
        Ok(self.numbers.new_value(kind))
    }

    /// Whether the instruction leads from the index of the first choice to that of the second,
    /// whose tag matches the target: the second choice is the next entry.
    fn is_second_choice(&self, instruction: &Instruction, index: &Value, state: &State) -> bool {
        let [_, second] = choices(self.subject.branch_table);
        let to_next = instruction.memory_displacement64() == ENTRY_BYTES as u64 / 8;
        to_next
            && instruction.op0_register() == Register::R9
            && instruction.memory_base() == Register::R9
            && state.matched == Some((index.number, Table::At(second)))
    }

    fn sum_of_two(&self, base: &Value, index: &Value, scale: u32, added: i64) -> Kind {
        match (base.kind, index.kind, scale, added) {
            (Kind::Page { of, signed, .. }, Kind::Page { of: last, end, .. }, 1, 0) => {
                let size = match end {
                    _ if of == last => Some(1),
                    Some((start, size)) if start == of => u32::try_from(size + 1).ok(),
                    _ => None,
                };
                match size {
                    Some(size @ 1..=256) => Kind::Slot { of, size, signed },
                    _ => Kind::Any,
                }
            }
            (
                Kind::Delta {
                    of,
                    size,
                    write,
                    hit: true,
                },
                _,
                1,
                0,
            ) if index.number == of => Kind::Checked { size, write },
            (Kind::WindowDelta { of }, _, 1, _) if index.distance_beside(of, added).is_some() => {
                DIRECT
            }
            (Kind::NarrowDelta, _, 1, 0) if index.is_narrow() => DIRECT,
            (Kind::WindowDeltaOfPart(part), Kind::Constant(linear), 1, 0)
                if part_of_linear(linear as i64) == part =>
            {
                DIRECT
            }
            (Kind::Word, _, 1, 0) if base.number == index.number => Kind::FarIndex,
            (Kind::LevelTable(kind), Kind::IndexBits, 4, 0) => Kind::LevelIndex(kind),
            (Kind::LevelTag(kind), _, 1, 0) if self.may_be_target(Table::Level(kind), index) => {
                Kind::LevelSum(kind)
            }
            (
                Kind::Tag {
                    index: entry,
                    table,
                    constant,
                    targets,
                },
                added_kind,
                1,
                _,
            ) => {
                let constant = constant.wrapping_add(added as u64);
                let (constant, targets) = match (added_kind, table) {
                    (Kind::LevelSum(sum), Table::Level(kind)) if sum == kind => {
                        (constant, targets.saturating_add(1))
                    }
                    // The table that belongs to one mode has no constant in a register.
                    (Kind::Constant(more), Table::At(place)) if !self.is_own_table(place) => {
                        (constant.wrapping_add(more), targets)
                    }
                    (_, Table::At(_)) if self.may_be_target(table, index) => {
                        (constant, targets.saturating_add(1))
                    }
                    _ => return Kind::Any,
                };
                Kind::Tag {
                    index: entry,
                    table,
                    constant,
                    targets,
                }
            }
            (
                Kind::NegatedCodeSlide {
                    index: entry,
                    table,
                },
                _,
                1,
                0,
            ) => Kind::CodeSlideSum {
                index: entry,
                table,
                active: index.number,
            },
            (_, Kind::HighWord, 1, 0) if base.is_narrow() => Kind::FarPointer,
            _ => Kind::Any,
        }
    }

    /// Notes what an instruction changes; `result` is what is known of its first operand.
    pub(super) fn change_registers(
        &mut self,
        instruction: &Instruction,
        state: &mut State,
        result: Option<Value>,
    ) -> Result<(), Rule> {
        let info = self.info.info(instruction);
        for used in info.used_registers() {
            let register = used.register();
            if register.is_segment_register() && writes(used.access()) {
                return Err("changes a segment register");
            }
            if register.full_register() == Register::RSP {
                return Err("touches the host's stack pointer");
            }
            let Some(changed) = number(register) else {
                continue;
            };
            if !writes(used.access()) {
                continue;
            }
            let is_result = instruction.op0_kind() == OpKind::Register
                && number(instruction.op0_register()) == Some(changed);
            match result {
                Some(value) if is_result => state.registers[changed] = value,
                _ if self.subject.map.reserved() & 1 << changed != 0 => {
                    return Err("changes a reserved register");
                }
                _ => state.registers[changed] = self.numbers.new_value(Kind::Any),
            }
        }
        Ok(())
    }
}

/// The constant that an instruction adds to its first operand, if that is a whole register and the
/// addend is a constant.
fn constant_added(instruction: &Instruction) -> Option<i64> {
    let immediate = || match instruction.op1_kind() {
        OpKind::Immediate8to64 | OpKind::Immediate32to64 => Some(instruction.immediate(1) as i64),
        _ => None,
    };
    if instruction.op0_kind() != OpKind::Register || !instruction.op0_register().is_gpr64() {
        return None;
    }
    match instruction.mnemonic() {
        Mnemonic::Inc => Some(1),
        Mnemonic::Dec => Some(-1),
        Mnemonic::Add => immediate(),
        Mnemonic::Sub => immediate()?.checked_neg(),
        _ => None,
    }
}

/// Memory that is reached through a shadow window.
const DIRECT: Kind = Kind::Checked {
    size: DIRECT_BYTES,
    write: true,
};

/// What is known of a value plus a number.
fn sum_with_constant(base: &Value, added: i64) -> Kind {
    match base.kind {
        Kind::Checked { size, write } if (0..i64::from(size)).contains(&added) => Kind::Checked {
            size: size - added as u32,
            write,
        },
        Kind::WindowDeltaOfPart(part) if part_of_linear(added) == part => DIRECT,
        _ => Kind::Sum {
            of: base.number,
            added,
            narrow: base.is_narrow(),
        },
    }
}

fn register_of(host: u8) -> Register {
    Register::RAX + u32::from(host & 15)
}
