//! Examination of a block's instructions before their translation: it plans which of their memory
//! accesses share a look-up ([`crate::emit::shared_look_up`]).
//!
//! The block's instructions are decoded here, once. Accesses through the same register form a group
//! as long as the register changes by constants only. The members of a group that are in range of
//! one shared look-up, beginning with the group's first access, are planned together. Only one
//! register can hold the result of a shared look-up. So a group that begins while the active shared
//! look-up has accesses left replaces it only if the new group has more accesses.
//!
//! Nothing here decides whether an access may use a shared look-up. A plan that does not come true
//! costs one look-up, and an access that was not planned makes a look-up of its own.

use crate::emit::emitter::shared_look_up_range::{Planned, WINDOW_BYTES};
use crate::emit::named_operands::{near_register, segment_of};
use crate::policy::allow_list::has_memory;
use crate::policy::memory_operand::MemoryUse;
use crate::policy::mode::{Mode, ModeFlags, SegmentClass};
use iced_x86::{ConditionCode, Decoder, FlowControl, Instruction, Mnemonic, OpKind, Register};
use tollgate_x86::Gpr;

/// A set of general registers, one bit each.
type Registers = u16;

/// Number of instructions between two checkpoints at which decoding or translating may stop for a
/// request. A checkpoint reads the time-stamp counter, which takes as long as several instructions.
pub(super) const BETWEEN_CHECKPOINTS: usize = 4;
/// Maximum length of an access in bytes.
const MAX_ACCESS: u32 = 64;
const STACK: u8 = Gpr::Rsp as u8;

fn bit(register: Register) -> Registers {
    match register.is_gpr() {
        true => 1 << (register.full_register().number() & 15),
        false => 0,
    }
}

/// The general registers that an instruction may change, not counting the stack pointer if the
/// instruction is PUSH, POP or another stack instruction. `None` if it may change any register.
pub(super) fn changed_registers(instruction: &Instruction) -> Option<Registers> {
    use Mnemonic::*;
    const ACCUMULATOR: Registers = 1 << Gpr::Rax as u16;
    const DATA: Registers = 1 << Gpr::Rdx as u16;
    let named = |index| match instruction.op_kind(index) {
        OpKind::Register => bit(instruction.op_register(index)),
        _ => 0,
    };
    Some(match instruction.mnemonic() {
        Cmp | Test | Push | Call | Ret | Jmp | Nop | Cld | Std | Clc | Stc | Cmc => 0,
        Mov | Movzx | Movsx | Movsxd | Lea | Add | Or | Adc | Sbb | And | Sub | Xor | Inc | Dec
        | Neg | Not | Shl | Sal | Shr | Sar | Rol | Ror | Shld | Shrd | Bsf | Bsr | Tzcnt
        | Lzcnt | Popcnt | Bswap | Pop => named(0),
        Imul if instruction.op_count() > 1 => named(0),
        Xchg | Xadd => named(0) | named(1),
        Imul | Mul | Div | Idiv => ACCUMULATOR | DATA,
        Cwd | Cdq | Cqo => DATA,
        Cbw | Cwde | Cdqe => ACCUMULATOR,
        Cmpxchg => named(0) | ACCUMULATOR,
        Loope | Loopne => return None,
        // This arm is for Jcc, SETcc and CMOVcc.
        _ if instruction.condition_code() != ConditionCode::None
            && (instruction.op_count() == 1 || instruction.op0_kind() == OpKind::Register) =>
        {
            named(0)
        }
        Pcmpestri | Pcmpestri64 | Pcmpistri | Vpcmpestri | Vpcmpestri64 | Vpcmpistri
        | Maskmovdqu | Vmaskmovdqu | Maskmovq => return None,
        // The remaining instructions change only vector registers or a memory operand.
        _ => {
            let is_vector = |index| {
                let register = instruction.op_register(index);
                instruction.op_kind(index) == OpKind::Register && register.is_vector_register()
            };
            match (instruction.op_count(), instruction.op0_kind()) {
                (1.., OpKind::Register) if is_vector(0) => 0,
                (2.., OpKind::Memory) if is_vector(1) => 0,
                _ => return None,
            }
        }
    })
}

/// The register of `size` bytes that an instruction changes, and the number that it adds to the
/// register, if that number is a constant.
pub(super) fn constant_change(instruction: &Instruction, size: usize) -> Option<(u8, i32)> {
    use Mnemonic::*;
    let register = instruction.op0_register();
    if !register.is_gpr() || register.size() != size || instruction.op0_kind() != OpKind::Register {
        return None;
    }
    let constant = || match instruction.op1_kind() {
        OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32
        | OpKind::Immediate32to64 => i32::try_from(instruction.immediate(1) as i64)
            .ok()
            .or_else(|| (size == 4).then_some(instruction.immediate32() as i32)),
        _ => None,
    };
    let change = match instruction.mnemonic() {
        Add => constant()?,
        Sub => constant()?.checked_neg()?,
        Inc => 1,
        Dec => -1,
        Lea => {
            let (base, displacement) = near_register(instruction, size == 8)?;
            (base == register.number() as u8).then_some(displacement)?
        }
        _ => return None,
    };
    Some((register.number() as u8, change))
}

/// A memory access whose address is one register plus a constant.
#[derive(Clone, Copy, Debug)]
struct Access {
    /// Number of the instruction in the block.
    instruction: usize,
    base: u8,
    /// Number of times that the register has changed to an unknown value.
    version: u8,
    /// Distance of the access from the register's value when it last changed to an unknown value.
    distance: i32,
    size: u32,
    write: bool,
}

/// A range of bytes from the lowest one to the one after the highest, as distances from a register.
#[derive(Clone, Copy)]
struct Extent {
    low: i32,
    end: i32,
}

impl Access {
    fn extent(&self) -> Extent {
        Extent {
            low: self.distance,
            end: self.distance.saturating_add(self.size as i32),
        }
    }

    fn shares_base(&self, other: &Access) -> bool {
        (self.base, self.version) == (other.base, other.version)
    }
}

impl Extent {
    /// The smallest range that contains this range and `other`, if a shared look-up can cover it.
    fn with(self, other: Extent) -> Option<Extent> {
        let both = Extent {
            low: self.low.min(other.low),
            end: self.end.max(other.end),
        };
        let size = i64::from(both.end) - i64::from(both.low);
        (size <= i64::from(WINDOW_BYTES)).then_some(both)
    }

    fn holds(self, other: Extent) -> bool {
        self.low <= other.low && other.end <= self.end
    }
}

/// The decoded instructions of a block and the shared look-ups that they should make.
#[derive(Default)]
pub(super) struct Ahead {
    instructions: Vec<Instruction>,
    accesses: Vec<Access>,
    /// The planned shared look-ups, each with the number of the instruction that makes it, in
    /// ascending order.
    windows: Vec<(usize, Planned)>,
    /// Number of planned shared look-ups that were handed out.
    made: usize,
    versions: [u8; 16],
    distances: [i32; 16],
}

impl Ahead {
    /// Forgets everything about the previous block.
    pub(super) fn clear(&mut self) {
        self.instructions.clear();
        self.accesses.clear();
        self.windows.clear();
        self.made = 0;
        self.versions = [0; 16];
        self.distances = [0; 16];
    }

    /// Decodes up to `most` instructions, or fewer if `stops` returns true. `memory_use` says how
    /// an instruction uses its memory operand.
    pub(super) fn look(
        &mut self,
        mut decoder: Decoder<'_>,
        (mode, most): (&Mode, usize),
        mut memory_use: impl FnMut(&Instruction) -> Option<MemoryUse>,
        stops: impl Fn() -> bool,
    ) {
        let is_64_bit = mode.flags.contains(ModeFlags::CODE64);
        let mut instruction = Instruction::default();
        while self.instructions.len() < most && decoder.can_decode() {
            let number = self.instructions.len();
            if number != 0 && number.is_multiple_of(BETWEEN_CHECKPOINTS) && stops() {
                break;
            }
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                break;
            }
            self.add(&instruction, mode, is_64_bit, &mut memory_use);
            self.instructions.push(instruction);
            let is_passed = continues_after(&instruction);
            if instruction.flow_control() != FlowControl::Next && !is_passed {
                break;
            }
        }
        if self.accesses.len() > 1 {
            self.plan();
        }
    }

    /// The instruction with this number, if it was decoded.
    pub(super) fn instruction(&self, number: usize) -> Option<&Instruction> {
        self.instructions.get(number)
    }

    /// The shared look-up that the instruction with this number should make. The numbers of
    /// successive calls must ascend.
    pub(super) fn window(&mut self, number: usize) -> Option<Planned> {
        while let Some(&(first, planned)) = self.windows.get(self.made) {
            if first > number {
                return None;
            }
            self.made += 1;
            if first == number {
                return Some(planned);
            }
        }
        None
    }

    fn add(
        &mut self,
        instruction: &Instruction,
        mode: &Mode,
        is_64_bit: bool,
        memory_use: &mut impl FnMut(&Instruction) -> Option<MemoryUse>,
    ) {
        // Most instructions leave the stack alone, which is faster to detect.
        let pushed = match instruction.is_stack_instruction() {
            true => instruction.stack_pointer_increment(),
            false => 0,
        };
        let has_memory = has_memory(instruction);
        let is_call = instruction.mnemonic() == Mnemonic::Call;
        let is_simple = pushed == 0 || !has_memory || is_call;
        let changed = changed_registers(instruction).filter(|_| is_simple);
        let Some(changed) = changed else {
            // The monitor may execute the instruction, or its code uses R11.
            for version in &mut self.versions {
                *version = version.wrapping_add(1);
            }
            self.distances = [0; 16];
            return;
        };
        if has_memory
            && instruction.mnemonic() != Mnemonic::Lea
            && let Some((base, displacement)) = near_register(instruction, is_64_bit)
            // A call uses a shared look-up for its target only if its push uses one.
            && (!is_call || base == STACK)
            && let Some(memory) = memory_use(instruction)
        {
            let segment = segment_of(instruction.memory_segment());
            if mode.segment(segment, memory.write) == SegmentClass::Flat {
                self.add_access(base, displacement, memory.size, memory.write);
            }
        }
        if pushed != 0 {
            self.add_stack_access(instruction, pushed);
        }
        if changed == 0 {
            return;
        }
        let change = constant_change(instruction, if is_64_bit { 8 } else { 4 });
        if let Some((base, change)) = change
            && let Some(distance) = self.distances[usize::from(base)].checked_add(change)
        {
            self.distances[usize::from(base)] = distance;
            return;
        }
        for base in (0..16).filter(|base| changed & 1 << base != 0) {
            self.versions[base] = self.versions[base].wrapping_add(1);
            self.distances[base] = 0;
        }
    }

    /// Adds the stack access of a PUSH, POP, CALL or RET.
    fn add_stack_access(&mut self, instruction: &Instruction, pushed: i32) {
        let is_push = pushed < 0;
        let size = match instruction.mnemonic() {
            // RET may release more bytes than it reads.
            Mnemonic::Ret if instruction.op_count() > 0 => {
                pushed.abs_diff(instruction.immediate16().into())
            }
            _ => pushed.unsigned_abs(),
        };
        let place = if is_push { pushed } else { 0 };
        self.add_access(STACK, place, size, is_push);
        let distance = &mut self.distances[usize::from(STACK)];
        *distance = distance.wrapping_add(pushed);
    }

    fn add_access(&mut self, base: u8, displacement: i32, size: u32, write: bool) {
        let number = usize::from(base & 15);
        let Some(distance) = self.distances[number].checked_add(displacement) else {
            return;
        };
        if size > MAX_ACCESS {
            return;
        }
        self.accesses.push(Access {
            instruction: self.instructions.len(),
            base,
            version: self.versions[number],
            distance,
            size,
            write,
        });
    }

    /// Plans the shared look-ups.
    fn plan(&mut self) {
        // The active shared look-up: its first access, its range, and the number of accesses left.
        let mut active: Option<(Access, Extent)> = None;
        let mut left = 0;
        for (index, first) in self.accesses.iter().enumerate() {
            if let Some((other, extent)) = &active
                && other.shares_base(first)
                && extent.holds(first.extent())
                && left > 0
            {
                left -= 1;
                continue;
            }
            let mut extent = first.extent();
            let mut write = first.write;
            let mut others = 0;
            for other in &self.accesses[index + 1..] {
                if other.shares_base(first)
                    && let Some(both) = extent.with(other.extent())
                {
                    extent = both;
                    write |= other.write;
                    others += 1;
                }
            }
            if others == 0 || others <= left {
                continue;
            }
            let planned = Planned {
                low: extent.low - first.distance,
                size: (extent.end - extent.low) as u32,
                write,
            };
            self.windows.push((first.instruction, planned));
            active = Some((*first, extent));
            left = others;
        }
    }
}

/// Whether a block continues after an instruction that may lead elsewhere, namely after a
/// conditional branch, in case it is not taken.
fn continues_after(instruction: &Instruction) -> bool {
    instruction.is_jcc_short_or_near()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::allow_list::{Copying, copying};
    use iced_x86::{DecoderOptions, InstructionInfoFactory, OpAccess};
    use tollgate_test_support::Random;

    /// Random instructions of all code sizes.
    fn instructions() -> impl Iterator<Item = Instruction> {
        let mut random = Random::new(13);
        (0..600_000).map(move |_| {
            let mut bytes = [0_u8; 16];
            bytes.fill_with(|| random.below(256) as u8);
            match random.below(4) {
                0 => bytes[0] = 0x0f,
                1 => bytes[..3].copy_from_slice(&[0x66, 0x0f, 0x3a]),
                2 => {
                    bytes[0] = 0xc4;
                    bytes[1] = 0xe0 | random.below(4) as u8;
                }
                _ => {}
            }
            let bits = [16, 32, 64][random.below(3)];
            Decoder::new(bits, &bytes, DecoderOptions::NONE).decode()
        })
    }

    #[test]
    fn no_register_changes_that_is_not_said_to() {
        let mut info = InstructionInfoFactory::new();
        let (mut known, mut copied) = (0, 0);
        for instruction in instructions().filter(|it| !it.is_invalid()) {
            let is_copied = copying(&instruction) != Copying::Never;
            copied += u32::from(is_copied);
            let Some(said) = changed_registers(&instruction) else {
                continue;
            };
            known += u32::from(is_copied);
            let mut changed = 0;
            for used in info.info(&instruction).used_registers() {
                let is_read = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
                let is_none = matches!(used.access(), OpAccess::None | OpAccess::NoMemAccess);
                if !is_read && !is_none {
                    changed |= bit(used.register());
                }
            }
            if instruction.stack_pointer_increment() != 0 {
                assert!(instruction.is_stack_instruction(), "{instruction}");
                changed &= !(1 << STACK);
            }
            assert_eq!(changed & !said, 0, "{instruction}");
        }
        assert!(known * 10 > copied * 7, "{known} of {copied}");
    }

    /// The shared look-ups of 64-bit code: number of the instruction, lowest byte, length in bytes,
    /// and whether one of the accesses is a store.
    fn windows(code: &[u8]) -> Vec<(usize, i32, u32, bool)> {
        let mut state = tollgate_x86::CpuState::at_reset();
        state.cr0 |= 1;
        let mut mode = Mode::of(&state);
        mode.flags |= ModeFlags::CODE64 | ModeFlags::STACK32 | ModeFlags::LONG;
        mode.segments = [SegmentClass::Flat; 6];
        let decoder = Decoder::new(64, code, DecoderOptions::NONE);
        let mut info = InstructionInfoFactory::new();
        let mut ahead = Ahead::default();
        let memory_use = |instruction: &Instruction| {
            let decoding = crate::decode::intel_amd_differences::Decoding::Intel;
            crate::policy::memory_operand::memory_use(&mut info, instruction, decoding)
        };
        ahead.look(decoder, (&mode, 64), memory_use, || false);
        let planned = ahead.windows.iter();
        planned
            .map(|(first, it)| (*first, it.low, it.size, it.write))
            .collect()
    }

    #[test]
    fn accesses_through_one_register_share_a_window() {
        // mov eax,[rbx]; mov ecx,[rbx+8]; mov edx,[rbx-4]
        let code = [0x8b, 0x03, 0x8b, 0x4b, 8, 0x8b, 0x53, 0xfc];
        assert_eq!(windows(&code), [(0, -4, 16, false)]);
        // The last access is a store.
        let code = [0x8b, 0x03, 0x8b, 0x4b, 8, 0x89, 0x53, 0xfc];
        assert_eq!(windows(&code), [(0, -4, 16, true)]);
        // One access alone makes no shared look-up, nor do two accesses that are too far apart.
        assert_eq!(windows(&[0x8b, 0x03, 0x8b, 0x4a, 8]), []);
        let code = [0x8b, 0x03, 0x8b, 0x8b, 0x7d, 0, 0, 0];
        assert_eq!(windows(&code), []);
        let code = [0x8b, 0x03, 0x8b, 0x8b, 0x7c, 0, 0, 0];
        assert_eq!(windows(&code), [(0, 0, 128, false)]);
    }

    #[test]
    fn a_register_that_changes_by_a_constant_is_followed() {
        // mov eax,[rbx]; add rbx,16; mov ecx,[rbx-8]
        let code = [0x8b, 0x03, 0x48, 0x83, 0xc3, 16, 0x8b, 0x4b, 0xf8];
        assert_eq!(windows(&code), [(0, 0, 12, false)]);
        // add ebx,16
        let code = [0x8b, 0x03, 0x83, 0xc3, 16, 0x90, 0x8b, 0x4b, 0xf8];
        assert_eq!(windows(&code), []);
        // push rbx; call [rax+8]; push rbx; call rax; push rbx; call [rsp+16]
        assert_eq!(windows(&[0x53, 0xff, 0x50, 8]), [(0, -8, 16, true)]);
        assert_eq!(windows(&[0x53, 0xff, 0xd0]), [(0, -8, 16, true)]);
        assert_eq!(windows(&[0x53, 0xff, 0x54, 0x24, 16]), [(0, -8, 32, true)]);
        // push rbx; push rbp; mov rax,[rsp+16]; ret
        let code = [0x53, 0x55, 0x48, 0x8b, 0x44, 0x24, 16, 0xc3];
        assert_eq!(windows(&code), [(0, -8, 24, true)]);
    }

    #[test]
    fn a_window_gives_way_to_one_with_more_accesses() {
        // mov eax,[rbx]; mov ecx,[rdx]; mov eax,[rbx+4]; mov ecx,[rdx+4]
        let code = [0x8b, 0x03, 0x8b, 0x0a, 0x8b, 0x43, 4, 0x8b, 0x4a, 4];
        assert_eq!(windows(&code), [(0, 0, 8, false)]);
        // The code has the same accesses, followed by mov ecx,[rdx+8].
        let code = [
            0x8b, 0x03, 0x8b, 0x0a, 0x8b, 0x43, 4, 0x8b, 0x4a, 4, 0x8b, 0x4a, 8,
        ];
        assert_eq!(windows(&code), [(0, 0, 8, false), (1, 0, 12, false)]);
    }
}
