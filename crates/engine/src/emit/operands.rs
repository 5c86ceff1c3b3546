//! Register operands: how guest registers are read and written, and how the registers of a copied
//! instruction get to their places and back home.
//!
//! A register that must be elsewhere while its instruction runs (`placement` decides which, and
//! where) is brought there before the instruction and taken home after it. Until the instruction
//! has run, the state map says which homes hold something else. After it, the state map says that
//! the instruction is complete and which registers are still away, until they are home too. So
//! nothing is done twice and nothing is lost, wherever a signal arrives.

use super::emitter::Emitter;
use super::placement::{Operand, Placement};
use crate::abi::context_displacements as at;
use crate::abi::host::{Host, RSP};
use crate::abi::register_map::Home;
use crate::abi::state_map::{Restore, Source};
use crate::emit::assembler::{Mem, Width};
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// Number of the guest general register that `register` is or is a part of.
pub(crate) fn guest_number(register: Register) -> Option<u8> {
    register
        .is_gpr()
        .then(|| register.full_register().number() as u8)
}

pub(crate) fn is_high_byte(register: Register) -> bool {
    matches!(
        register,
        Register::AH | Register::BH | Register::CH | Register::DH
    )
}

/// The part of `host` that corresponds to the part `like` of its own register.
pub(crate) fn name_of(host: Host, like: Register) -> Register {
    let number = u32::from(host.0 & 15);
    match like.size() {
        1 if is_high_byte(like) => Register::AH + (number & 3),
        1 if number < 4 => Register::AL + number,
        1 => Register::SPL + (number - 4),
        2 => Register::AX + number,
        4 => Register::EAX + number,
        _ => Register::RAX + number,
    }
}

/// The kinds of an instruction's operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Named {
    /// The general registers of which an operand is a part or the whole, one bit each.
    pub(crate) registers: u16,
    /// One operand is AH, BH, CH or DH.
    pub(crate) high: bool,
    /// One operand is in memory.
    pub(crate) memory: bool,
}

impl Named {
    /// Examines all operands once.
    pub(crate) fn of(instruction: &Instruction) -> Self {
        let mut named = Self::default();
        for index in 0..instruction.op_count() {
            match instruction.op_kind(index) {
                OpKind::Register => {
                    let register = instruction.op_register(index);
                    if let Some(guest) = guest_number(register) {
                        named.registers |= 1 << (guest & 15);
                        named.high |= is_high_byte(register);
                    }
                }
                OpKind::Memory => named.memory = true,
                _ => {}
            }
        }
        named
    }

    /// Whether an operand is the stack pointer or a part of it.
    pub(crate) fn stack_pointer(&self) -> bool {
        self.registers >> RSP.0 & 1 != 0
    }
}

/// Whether an operand is AH, BH, CH or DH.
pub(crate) fn has_high_byte(instruction: &Instruction) -> bool {
    register_operands(instruction).any(|(_, register)| is_high_byte(register))
}

/// Whether a copied instruction needs ECX in the host's RCX: as the count of a shift, or because it
/// uses ECX without naming it.
pub(crate) fn uses_count_in_place(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    match instruction.mnemonic() {
        Rol | Ror | Rcl | Rcr | Shl | Sal | Shr | Sar => instruction.op1_kind() == OpKind::Register,
        Shld | Shrd => instruction.op2_kind() == OpKind::Register,
        Cmpxchg8b | Cmpxchg16b | Pcmpestri | Pcmpestri64 | Pcmpistri | Vpcmpestri
        | Vpcmpestri64 | Vpcmpistri => true,
        _ => false,
    }
}

/// The explicit register operands, each with its index.
pub(crate) fn register_operands(
    instruction: &Instruction,
) -> impl Iterator<Item = (u32, Register)> + '_ {
    (0..instruction.op_count())
        .filter(|&index| instruction.op_kind(index) == OpKind::Register)
        .map(|index| (index, instruction.op_register(index)))
}

impl Emitter {
    /// The slot of a guest register.
    pub(crate) fn slot(&self, guest: u8) -> Mem {
        self.field(at::slot(guest))
    }

    /// The register from which a guest register's value can be read: its home, a scratch register
    /// that holds it, or `scratch`, into which the value is then loaded.
    pub(crate) fn value(&mut self, register: Register, scratch: Host) -> Host {
        let guest = guest_number(register).unwrap_or(0);
        match self.map.home(guest) {
            Home::Host(host) => host,
            Home::Slot => self.slot_value(guest, scratch),
        }
    }

    /// The register from which the value of a guest register can be read for an address, as with
    /// [`Emitter::value`]. If the code is not 64-bit code, only 32 bits are loaded from a slot.
    pub(crate) fn address_value(&mut self, register: Register, scratch: Host) -> Host {
        let guest = guest_number(register).unwrap_or(0);
        match self.map.home(guest) {
            Home::Slot if !self.is_64_bit() => {
                self.assembler.load(Width::Dword, scratch, self.slot(guest));
                scratch
            }
            _ => self.value(register, scratch),
        }
    }

    /// Emits `register := from`, of a word, a doubleword or a quadword, in one host instruction.
    /// Doublewords in 64-bit code are not supported here.
    pub(crate) fn set_register(&mut self, register: Register, from: Host, width: Width) {
        let guest = guest_number(register).unwrap_or(0);
        match self.map.home(guest) {
            Home::Host(host) if width == Width::Word => self.assembler.mov16(host, from),
            Home::Host(host) if width == Width::Qword => self.assembler.mov(host, from),
            Home::Host(host) => self.assembler.mov32(host, from),
            Home::Slot => self.assembler.store(width, self.slot(guest), from),
        }
    }

    /// Names the places of the register operands in the copy of an instruction.
    pub(crate) fn rename_operands(&self, placement: &Placement, copy: &mut Instruction) {
        for index in 0..copy.op_count() {
            if copy.op_kind(index) != OpKind::Register {
                continue;
            }
            let register = copy.op_register(index);
            let Some(guest) = guest_number(register) else {
                continue;
            };
            let operand = placement.operands.iter().find(|o| o.guest == guest);
            let host = match (operand, self.map.home(guest)) {
                (Some(operand), _) => operand.place,
                (None, Home::Host(home)) => home,
                (None, Home::Slot) => continue,
            };
            copy.set_op_register(index, name_of(host, register));
        }
    }

    /// Brings the registers to their places before the instruction.
    pub(crate) fn bring_operands(&mut self, placement: &Placement) {
        if self.slot_mask != 0 {
            self.make_room();
        }
        let mut saved = Restore::NONE;
        for borrowed in &placement.borrowed {
            match borrowed.saved {
                Source::Host(scratch) => self.assembler.mov(scratch, borrowed.host),
                Source::Slot => {
                    let slot = self.slot(borrowed.guest);
                    self.assembler.store(Width::Qword, slot, borrowed.host);
                }
            }
            saved = saved.and(borrowed.guest, borrowed.saved);
        }
        if saved != Restore::NONE {
            self.note_state(saved);
        }
        for operand in &placement.operands {
            if let Home::Host(home) = operand.home
                && home != operand.place
                && (operand.read || placement.displaces(operand))
            {
                self.assembler.mov(operand.place, home);
            }
        }
        let displaced = placement.displaced();
        if displaced != saved {
            self.note_state(displaced);
        }
        for operand in &placement.operands {
            let is_held = self.held.holder(operand.guest) == Some(operand.place);
            if operand.home == Home::Slot && operand.read && !is_held {
                let slot = self.slot(operand.guest);
                self.assembler.load(Width::Qword, operand.place, slot);
                if self.held.may_hold(operand.place) {
                    self.held.hold(operand.place, operand.guest, false);
                }
            }
        }
    }

    /// Takes the registers home after the instruction, which is complete. Values that scratch
    /// registers may hold stay there.
    pub(crate) fn take_operands_home(&mut self, placement: &Placement) {
        let displaced = placement.displaced();
        let mut restore = displaced;
        let mut stays = 0_u16;
        for operand in placement.changed() {
            if operand.home == Home::Slot && self.held.may_hold(operand.place) {
                self.held.hold(operand.place, operand.guest, true);
                stays |= 1 << operand.guest;
            } else {
                restore = restore.and(operand.guest, Source::Host(operand.place));
            }
        }
        if restore == Restore::NONE && stays == 0 {
            return;
        }
        self.note_state_as(self.next_rip, self.esp, restore);
        if restore == Restore::NONE {
            return;
        }
        if self.slot_mask != 0 {
            self.make_room();
        }
        let goes_home = |operand: &&Operand| stays >> operand.guest & 1 == 0;
        for operand in placement.changed().filter(goes_home) {
            match operand.home {
                Home::Host(home) => self.assembler.mov(home, operand.place),
                Home::Slot => {
                    let slot = self.slot(operand.guest);
                    self.assembler.store(Width::Qword, slot, operand.place);
                }
            }
        }
        self.note_state_as(self.next_rip, self.esp, displaced);
        self.end_displacement(placement);
        self.note_state_as(self.next_rip, self.esp, Restore::NONE);
    }

    /// Reverses [`Emitter::bring_operands`], because the instruction is not run after all.
    pub(crate) fn abandon_operands(&mut self, placement: &Placement) {
        self.note_state(placement.displaced());
        self.end_displacement(placement);
        self.note_state(Restore::NONE);
    }

    /// Moves the values of guest registers back into those of their homes that were used as places.
    pub(crate) fn end_displacement(&mut self, placement: &Placement) {
        for operand in &placement.operands {
            if let Home::Host(home) = operand.home
                && placement.displaces(operand)
            {
                self.assembler.mov(home, operand.place);
            }
        }
        for borrowed in &placement.borrowed {
            match borrowed.saved {
                Source::Host(scratch) => self.assembler.mov(borrowed.host, scratch),
                Source::Slot => {
                    let slot = self.slot(borrowed.guest);
                    self.assembler.load(Width::Qword, borrowed.host, slot);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::host::R9;
    use crate::policy::allow_list::{Copying, copying};
    use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpCodeOperandKind};
    use tollgate_test_support::Random;

    /// Whether an instruction uses ECX in another role than as an operand that can be any register
    /// or as part of its memory operand's address, according to iced-x86's tables.
    fn wants_count(instruction: &Instruction, info: &mut InstructionInfoFactory) -> bool {
        let mut unnamed = *instruction;
        for (index, register) in register_operands(instruction) {
            let kind = instruction.op_code().op_kind(index);
            if guest_number(register).is_some() && kind != OpCodeOperandKind::cl {
                let other = if is_high_byte(register) {
                    Register::R9L
                } else {
                    name_of(R9, register)
                };
                unnamed.set_op_register(index, other);
            }
        }
        if instruction.memory_base().is_gpr() || instruction.memory_index().is_gpr() {
            unnamed.set_memory_base(Register::R9);
            unnamed.set_memory_index(Register::None);
        }
        let used = info.info(&unnamed).used_registers();
        used.iter()
            .any(|it| it.register().full_register() == Register::RCX)
    }

    #[test]
    fn instructions_that_use_ecx_in_place_are_known() {
        let mut random = Random::new(7);
        let mut info = InstructionInfoFactory::new();
        let mut found = std::collections::BTreeSet::new();
        for _ in 0..1_000_000 {
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
            let instruction = Decoder::new(bits, &bytes, DecoderOptions::NONE).decode();
            if copying(&instruction) == Copying::Never {
                continue;
            }
            let wants = wants_count(&instruction, &mut info);
            assert_eq!(uses_count_in_place(&instruction), wants, "{instruction}");
            if wants {
                found.insert(instruction.mnemonic());
            }
        }
        // All instructions that the function names must be found, except those that are rare in
        // random bytes.
        assert!(found.len() >= 10, "{found:?}");
    }
}
