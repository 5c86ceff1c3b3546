//! The choice of a host register for each register of a copied instruction.
//!
//! Most guest registers live in host registers, which the copied instruction names. Others must be
//! elsewhere while the instruction runs:
//! - The value of a register that lives in a slot is loaded into a scratch register.
//! - A register that the instruction uses without naming it must be in its namesake (ECX, which
//!   lives in R10, for shifts by CL; EBX too for CMPXCHG8B).
//! - AH, BH, CH and DH can be named only in RAX to RBX, and only if no other operand needs a REX
//!   prefix. So the memory operand is then addressed by RCX.
//!
//! [`Emitter::place`] decides. Operands take the map's scratch registers first, then host registers
//! in which no guest register lives, then the homes of guest registers that the instruction does
//! not use. Such homes are borrowed: their values are saved in the remaining scratch registers or
//! in the guest registers' own unused slots. No instruction names more than three general registers
//! or uses more than four, so there is always a place: even for `cmpxchg8b [mem]`, or for `xchg
//! [mem], bh` with all registers in slots that can be.

use super::emitter::Emitter;
use super::guest_operand_form::Reach;
use super::named_operands::{
    Named, guest_number, is_high_byte, name_of, register_operands, uses_count_in_place,
};
use super::operand_access::plain_accesses;
use crate::abi::host::Host;
use crate::abi::host::*;
use crate::abi::register_map::Home;
use crate::abi::state_map::{Restore, Source};
use iced_x86::{Instruction, Mnemonic, OpAccess, OpCodeOperandKind, Register};

/// A set of host registers, one bit each.
type Hosts = u16;

/// RAX to RBX, whose second bytes have names.
const WITH_HIGH_BYTES: Hosts = 0x000f;
/// RAX to RDI, which can be named without a REX prefix.
const WITHOUT_REX: Hosts = 0x00ff;

const fn bit(host: Host) -> Hosts {
    1 << (host.0 & 15)
}

/// A guest register that an instruction uses.
pub(crate) struct Operand {
    pub(crate) guest: u8,
    pub(crate) home: Home,
    /// Host registers that can stand for the guest register.
    allowed: Hosts,
    /// The old value of the register matters.
    pub(crate) read: bool,
    /// The instruction may change the register.
    written: bool,
    /// The host register that stands for the guest register while the instruction runs.
    pub(crate) place: Host,
}

impl Operand {
    fn is_at_home(&self) -> bool {
        self.home == Home::Host(self.place)
    }
}

/// A host register that serves as an operand's place although it is the home of another guest
/// register.
pub(crate) struct Borrowed {
    pub(crate) host: Host,
    pub(crate) guest: u8,
    pub(crate) saved: Source,
}

/// The places of an instruction's registers while it runs. It is empty if all are at home.
#[derive(Default)]
pub(crate) struct Placement {
    pub(crate) operands: Vec<Operand>,
    pub(crate) borrowed: Vec<Borrowed>,
}

impl Placement {
    /// Whether `host` is the place of an operand while the instruction runs.
    fn occupies(&self, host: Host) -> bool {
        self.operands.iter().any(|operand| operand.place == host)
    }

    /// Whether the home of this operand is the place of another operand while the instruction runs.
    pub(crate) fn displaces(&self, operand: &Operand) -> bool {
        match operand.home {
            Home::Host(home) => home != operand.place && self.occupies(home),
            Home::Slot => false,
        }
    }

    /// The guest registers whose homes are overwritten while the instruction runs.
    pub(crate) fn displaced(&self) -> Restore {
        let mut restore = Restore::NONE;
        for borrowed in &self.borrowed {
            restore = restore.and(borrowed.guest, borrowed.saved);
        }
        for operand in &self.operands {
            if self.displaces(operand) {
                restore = restore.and(operand.guest, Source::Host(operand.place));
            }
        }
        restore
    }

    /// Operands whose new value is away from home, in homes that nothing else occupies.
    pub(crate) fn changed(&self) -> impl Iterator<Item = &Operand> {
        self.operands
            .iter()
            .filter(|o| o.written && !o.is_at_home() && !self.displaces(o))
    }

    /// Number of moves that bring all registers back, at most.
    fn moves(&self) -> usize {
        self.displaced().moves().count() + self.changed().count()
    }
}

impl Emitter {
    /// Finds a place for each register that the instruction uses. `reach` is the way to its memory
    /// operand. `None` would mean that no place exists, which cannot happen (see above).
    pub(crate) fn place(
        &mut self,
        instruction: &Instruction,
        named: &Named,
        reach: Option<Reach>,
    ) -> Option<Placement> {
        let high = named.high;
        if !high && self.is_in_host_registers(instruction, named) {
            return Some(Placement::default());
        }
        let mut operands = self.used_registers(instruction, reach.is_some(), high);
        let mut taken = self.map.reserved();
        taken |= match reach {
            Some(Reach::Pointer) => bit(R9),
            Some(Reach::LowPointer) => bit(RCX),
            Some(Reach::Sum) => bit(RCX) | bit(R8),
            Some(Reach::Near { delta, .. }) => bit(delta),
            Some(Reach::InSegment) => bit(R8) | bit(R9),
            Some(Reach::Window(_) | Reach::Anchored { .. }) | None => 0,
        };
        taken |= self.window.map_or(0, |_| bit(R11));
        if let Some(
            Reach::Near {
                base: Some(base), ..
            }
            | Reach::Anchored { base, .. },
        ) = reach
            && self.map.resident(base).is_none()
        {
            taken |= bit(base);
        }
        // Operands with the least choice come first, then operands that may stay at home.
        operands.sort_by_key(|operand| operand.allowed.count_ones());
        let mut placed = 0u16;
        for (index, operand) in operands.iter_mut().enumerate() {
            if let Some(holder) = self.held.holder(operand.guest)
                && operand.allowed & bit(holder) != 0
            {
                operand.place = holder;
                taken |= bit(holder);
                placed |= 1 << index;
                continue;
            }
            let only = operand.allowed.count_ones() == 1;
            let place = match operand.home {
                _ if only => Host(operand.allowed.trailing_zeros() as u8),
                Home::Host(home) => home,
                Home::Slot => continue,
            };
            if operand.allowed & bit(place) & !taken != 0 {
                operand.place = place;
                taken |= bit(place);
                placed |= 1 << index;
            } else if only {
                return None;
            }
        }
        if let Some(
            Reach::Near {
                base: Some(base), ..
            }
            | Reach::Anchored { base, .. },
        ) = reach
        {
            taken |= bit(base);
        }
        for index in 0..operands.len() {
            if placed & 1 << index == 0 {
                let operand = &operands[index];
                let holder = match operand.home {
                    Home::Slot => self.held.free(taken | !operand.allowed, operand.written),
                    Home::Host(_) => None,
                };
                let place = match holder {
                    Some(holder) => holder,
                    None => {
                        let allowed = operands[index].allowed & !taken & !self.held.holders();
                        self.choose(allowed, &operands)?
                    }
                };
                operands[index].place = place;
                taken |= bit(place);
                // The scratch register may hold a changed value of another guest register.
                self.put_back(place);
            }
        }
        taken |= self.held.holders();
        let mut placement = Placement {
            operands,
            borrowed: Vec::new(),
        };
        self.save_residents(&mut placement, taken);
        (placement.moves() <= Restore::MAX_MOVES).then_some(placement)
    }

    /// Whether all registers that an instruction names live in host registers, and all that it uses
    /// without naming them live in their namesakes.
    fn is_in_host_registers(&self, instruction: &Instruction, named: &Named) -> bool {
        self.slot_mask & (0xff | named.registers) == 0 && !uses_count_in_place(instruction)
    }

    /// Whether all registers that an instruction uses live in host registers, and none of its
    /// operands is a high byte or the stack pointer.
    pub(crate) fn is_at_home(&self, instruction: &Instruction, named: &Named) -> bool {
        !named.high && !named.stack_pointer() && self.is_in_host_registers(instruction, named)
    }

    /// The guest registers that an instruction uses, whether it names them or not, except those
    /// that only address its memory operand.
    pub(crate) fn used_registers(
        &mut self,
        instruction: &Instruction,
        memory: bool,
        high: bool,
    ) -> Vec<Operand> {
        let mut operands: Vec<Operand> = Vec::new();
        let reserved = self.map.reserved();
        let map = self.map;
        let mut add = |guest: u8, allowed: Hosts, read: bool, written: bool| {
            let known = operands.iter_mut().find(|operand| operand.guest == guest);
            match known {
                Some(operand) => {
                    operand.allowed &= allowed;
                    operand.read |= read;
                    operand.written |= written;
                }
                None => operands.push(Operand {
                    guest,
                    home: map.home(guest),
                    allowed,
                    read,
                    written,
                    place: RAX,
                }),
            }
        };
        let plain = plain_accesses(instruction);
        let accesses = plain.unwrap_or_else(|| {
            let info = self.info.info(instruction);
            [0, 1, 2].map(|index| info.op_access(index))
        });
        // A copy of the instruction that names only registers which no instruction uses implicitly.
        let mut unnamed = *instruction;
        for (index, register) in register_operands(instruction) {
            let Some(guest) = guest_number(register) else {
                continue;
            };
            let is_count = register == Register::CL
                && instruction.op_code().op_kind(index) == OpCodeOperandKind::cl;
            if !is_count {
                let other = match is_high_byte(register) {
                    true => Register::R9L,
                    false => name_of(R9, register),
                };
                unnamed.set_op_register(index, other);
            }
            let allowed = match (high, register.size()) {
                _ if is_count => bit(RCX),
                (true, 1) => WITH_HIGH_BYTES,
                (true, _) => WITHOUT_REX,
                (false, _) => Hosts::MAX,
            };
            let access = match accesses.get(index as usize) {
                Some(access) => *access,
                None => self.info.info(instruction).op_access(index),
            };
            // BSF and BSR leave their destination unchanged if no bit is set.
            let replaces = access == OpAccess::Write
                && register.size() >= 4
                && !matches!(instruction.mnemonic(), Mnemonic::Bsf | Mnemonic::Bsr);
            let written = !matches!(access, OpAccess::Read | OpAccess::CondRead);
            add(guest, allowed & !reserved, !replaces, written);
        }
        if plain.is_some() {
            return operands;
        }
        if memory {
            unnamed.set_memory_base(Register::R9);
            unnamed.set_memory_index(Register::None);
        }
        for used in self.info.info(&unnamed).used_registers() {
            let Some(guest) = guest_number(used.register()) else {
                continue;
            };
            if guest < 8 && guest != RSP.0 {
                let written = !matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
                add(guest, bit(Host(guest)), true, written);
            }
        }
        operands
    }

    /// Chooses a host register out of `allowed` for an operand.
    pub(crate) fn choose(&self, allowed: Hosts, operands: &[Operand]) -> Option<Host> {
        let scratch = self.map.scratch;
        let any = (0..16).map(Host);
        // Host registers that are no guest register's home are preferred.
        let idle = any.clone().filter(|&h| self.map.resident(h).is_none());
        let lent = any.filter(|&host| {
            let resident = self.map.resident(host);
            resident.is_some_and(|guest| operands.iter().all(|o| o.guest != guest))
        });
        scratch
            .into_iter()
            .chain(idle)
            .chain(lent)
            .find(|&host| allowed & bit(host) != 0)
    }

    /// Finds a place for the values of the guest registers whose homes are places of operands.
    pub(crate) fn save_residents(&self, placement: &mut Placement, mut taken: Hosts) {
        for host in (0..16).map(Host) {
            if !placement.occupies(host) {
                continue;
            }
            let Some(guest) = self.map.resident(host) else {
                continue;
            };
            if placement.operands.iter().any(|o| o.guest == guest) {
                continue;
            }
            let free = self.map.scratch.into_iter().find(|&s| taken & bit(s) == 0);
            taken |= free.map_or(0, bit);
            placement.borrowed.push(Borrowed {
                host,
                guest,
                saved: free.map_or(Source::Slot, Source::Host),
            });
        }
    }
}
