//! Register maps: where the guest's general registers live while guest code runs.
//!
//! The host has as many general registers as a 64-bit guest, and needs some itself: its stack
//! pointer, the context, the software TLB, the link tables and a few scratch registers for address
//! computations. So not every guest register can live in a host register. A [`RegisterMap`] says
//! for each where its [`Home`] is: a host register, or a slot in [`crate::Context`]. The translator
//! learns it from the map alone.
//!
//! An example: `add ebx, [esi+4]`. With [`RegisterMap::LEGACY`], EBX and ESI live in RBX and RSI:
//!
//! ```text
//! lea r8d, [rsi+4]        ; ... look-up: host address is the sum of r8 and rcx
//! add ebx, [rcx+r8]
//! ```
//!
//! With [`RegisterMap::SPILLED`] both live in slots. Each instruction first loads the values into
//! scratch registers, and afterwards stores what it changed:
//!
//! ```text
//! mov r8d, [r15+slot(esi)]
//! lea r8d, [r8+4]         ; ... look-up
//! mov r11, [r15+slot(ebx)]
//! add r11d, [rcx+r8]      ; the guest's own instruction
//! mov [r15+slot(ebx)], r11
//! ```
//!
//! The last store is a second step: the addition is complete (the flags show that) and EBX is still
//! in R11. An entry of the state map between the two says exactly that ("at the next instruction,
//! EBX is in R11"), so that a signal finds exact state at every host instruction.
//!
//! 64-bit code always has [`RegisterMap::LONG`], which keeps the eight registers that such code
//! uses most in host registers (`tollgate-register-use` counts the uses). The slots of R8 to R15
//! are those of the processor's state ([`crate::Context::cpu`]), so exits need not copy them, and
//! other code, which does not name these registers, leaves them unchanged.
//!
//! What all maps have in common, because the processor or [`crate::gate::entry`] demands it:
//! - EAX and EDX, which instructions use without naming them, live in RAX and RDX ([`ACCUMULATOR`],
//!   [`DATA`]).
//! - ECX lives in R10 ([`COUNT`]). Look-ups need RCX, since JRCXZ is the only branch that neither
//!   tests nor changes flags, and most instructions look memory up. Few instructions use ECX
//!   without naming it; for those the value is copied to RCX.
//! - ESP lives in a host register: blocks fold its changes into displacements.
//! - A guest register that lives in a host register lives where [`RegisterMap::LEGACY`] has it,
//!   since the way into guest code loads it there.
//! - The context is in R15, whose low six bits are 12 (see [`crate::abi::context`]); the software
//!   TLB is in R14 and the link tables are in R13.

use crate::abi::host::Host;
use crate::abi::host::*;
use tollgate_x86::Gpr;

/// Where EAX lives in every map.
pub const ACCUMULATOR: Host = RAX;
/// Where ECX lives in every map: not in the host's RCX, which JRCXZ tests.
pub const COUNT: Host = Host(10);
/// Where EDX lives in every map.
pub const DATA: Host = RDX;
/// The host register that points to the context in every map: signal handlers rely on it.
pub const CONTEXT: Host = R15;

/// Where a guest register lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// The register lives in this host register.
    Host(Host),
    /// The register lives in the slot of the context that has its number.
    Slot,
}

/// Where each guest register lives, and what the other host registers are used for.
#[derive(PartialEq, Eq, Debug)]
pub struct RegisterMap {
    /// The name of the map in developers' options.
    pub name: &'static str,
    /// How many of `homes` are used: the number of general registers that the guests have.
    pub guest_registers: u8,
    /// The home of each guest register, by number.
    pub homes: [Home; 16],
    /// The host register that points to the context.
    pub context: Host,
    /// The host register that points to the software TLB.
    pub tlb: Host,
    /// The host register that points to the link tables.
    pub links: Host,
    /// Host registers that any instruction may use, in the order in which its operands take them.
    /// Address computations use them in fixed roles; operands use the registers that come after
    /// those.
    pub scratch: [Host; 4],
}

const fn bit(host: Host) -> u16 {
    1 << host.0
}

impl RegisterMap {
    /// The map in which all registers of 32-bit guests live in host registers: ESP in R12, ECX in
    /// R10, the others in the host registers of the same name.
    pub const LEGACY: RegisterMap = RegisterMap {
        name: "legacy",
        guest_registers: 8,
        homes: [
            Home::Host(RAX),
            Home::Host(COUNT),
            Home::Host(RDX),
            Home::Host(RBX),
            Home::Host(R12),
            Home::Host(RBP),
            Home::Host(RSI),
            Home::Host(RDI),
            Home::Slot,
            Home::Slot,
            Home::Slot,
            Home::Slot,
            Home::Slot,
            Home::Slot,
            Home::Slot,
            Home::Slot,
        ],
        context: CONTEXT,
        tlb: R14,
        links: R13,
        scratch: [R11, RCX, R8, R9],
    };

    /// The map for 64-bit guests: the registers that 32-bit guests have too live where
    /// [`RegisterMap::LEGACY`] has them, R8 to R15 live in slots.
    pub const LONG: RegisterMap = RegisterMap {
        name: "long",
        guest_registers: 16,
        ..Self::LEGACY
    };

    /// The map for tests of slots: as many registers of 32-bit guests as possible live in slots.
    /// These are EBX, EBP, ESI and EDI; EAX, ECX, EDX and ESP must be in host registers in every
    /// map.
    pub const SPILLED: RegisterMap = RegisterMap {
        name: "spilled",
        homes: [
            Home::Host(RAX),
            Home::Host(COUNT),
            Home::Host(RDX),
            Home::Slot,
            Home::Host(R12),
            Home::Slot,
            Home::Slot,
            Home::Slot,
            Home::Slot,
            Home::Slot,
            Home::Slot,
            Home::Slot,
            Home::Slot,
            Home::Slot,
            Home::Slot,
            Home::Slot,
        ],
        ..Self::LEGACY
    };

    /// Where a guest register lives.
    pub const fn home(&self, guest: u8) -> Home {
        self.homes[guest as usize & 15]
    }

    /// Where ESP lives.
    pub const fn stack(&self) -> Host {
        match self.homes[Gpr::Rsp as usize] {
            Home::Host(host) => host,
            // No map has ESP in a slot: see `check`.
            Home::Slot => R12,
        }
    }

    /// The guest register that lives in a host register.
    pub fn resident(&self, host: Host) -> Option<u8> {
        (0..self.guest_registers).find(|&guest| self.home(guest) == Home::Host(host))
    }

    /// The guest registers that live in slots, one bit each.
    pub const fn slot_mask(&self) -> u16 {
        let mut mask = 0;
        let mut guest = 0;
        while guest < self.guest_registers {
            if matches!(self.home(guest), Home::Slot) {
                mask |= 1 << guest;
            }
            guest += 1;
        }
        mask
    }

    /// Whether RAX to RDI, except RCX and RSP, live in the host registers of the same name.
    /// Instructions may use these registers without naming them.
    pub const fn has_namesakes_at_home(&self) -> bool {
        self.slot_mask() & 0xff == 0
    }

    /// The host registers that emitted code must not change, one bit each.
    pub const fn reserved(&self) -> u16 {
        bit(RSP) | bit(self.context) | bit(self.tlb) | bit(self.links)
    }

    /// Asserts what all maps have in common, as this file's introduction lists it; for constants.
    ///
    /// # Panics
    /// Panics if the translator cannot work with the map.
    pub const fn check(&self) {
        assert!(matches!(self.homes[Gpr::Rax as usize], Home::Host(RAX)));
        assert!(matches!(self.homes[Gpr::Rcx as usize], Home::Host(COUNT)));
        assert!(matches!(self.homes[Gpr::Rdx as usize], Home::Host(RDX)));
        assert!(matches!(self.homes[Gpr::Rsp as usize], Home::Host(R12)));
        assert!(self.context.0 == CONTEXT.0 && self.tlb.0 == R14.0 && self.links.0 == R13.0);
        assert!(self.guest_registers <= 16);
        let mut used = self.reserved();
        let mut guest = 0;
        while guest < self.guest_registers as usize {
            if let Home::Host(host) = self.homes[guest] {
                assert!(used & bit(host) == 0);
                used |= bit(host);
                if let Home::Host(legacy) = Self::LEGACY.homes[guest] {
                    assert!(host.0 == legacy.0);
                }
            }
            guest += 1;
        }
        let mut scratch = 0;
        while scratch < self.scratch.len() {
            assert!(used & bit(self.scratch[scratch]) == 0);
            used |= bit(self.scratch[scratch]);
            scratch += 1;
        }
    }
}

const _: () = RegisterMap::LEGACY.check();
const _: () = RegisterMap::SPILLED.check();
const _: () = RegisterMap::LONG.check();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_legacy_map_has_no_slots() {
        assert_eq!(RegisterMap::LEGACY.slot_mask(), 0);
        assert_eq!(RegisterMap::LEGACY.resident(R12), Some(Gpr::Rsp as u8));
        assert_eq!(RegisterMap::LEGACY.resident(R11), None);
    }

    #[test]
    fn the_long_map_has_slots_for_the_registers_that_came_with_64_bits() {
        assert_eq!(RegisterMap::LONG.slot_mask(), 0xff00);
        assert_eq!(RegisterMap::LONG.resident(RDI), Some(Gpr::Rdi as u8));
        assert_eq!(RegisterMap::LONG.resident(R8), None);
    }

    #[test]
    fn the_spilled_map_has_every_slot_that_can_be() {
        assert_eq!(RegisterMap::SPILLED.slot_mask(), 0b1110_1000);
        assert_eq!(RegisterMap::SPILLED.resident(RSI), None);
    }
}
