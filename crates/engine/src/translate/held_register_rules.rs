//! The rules for which instructions leave the scratch registers alone that hold guest registers
//! (see [`crate::emit::held_registers`]).

use super::Translator;
use crate::abi::host::*;
use crate::emit::named_operands::segment_of;
use crate::emit::named_operands::{Named, guest_number, uses_count_in_place};
use crate::policy::mode::{ModeFlags, SegmentClass};
use iced_x86::{Instruction, Mnemonic, Register};

const fn bit(host: Host) -> u16 {
    1 << host.0
}

impl Translator {
    /// Keeps guest registers in scratch registers as far as the instruction leaves these alone.
    /// With `plans_window` the instruction may make a shared look-up.
    pub(super) fn keep_held(&mut self, instruction: &Instruction, plans_window: bool) {
        match self.what_keeps(instruction) {
            Some((mut allowed, used, address)) => {
                if plans_window || self.emit.window.is_some() {
                    // The result of the shared look-up is in R11, and its address is formed in R8.
                    allowed &= bit(R9);
                }
                self.emit.keep_held(allowed, used, address);
            }
            None if instruction.is_jcc_short_or_near() => self.emit.share_held(),
            None => self.emit.put_held_back(),
        }
    }

    /// The scratch registers that an instruction leaves alone, the guest registers that are its
    /// operands, and the guest registers that address its memory operand. `None` if the instruction
    /// may reach the monitor in another way than by a signal, or uses the scratch registers for
    /// something else.
    fn what_keeps(&self, instruction: &Instruction) -> Option<(u16, u16, u16)> {
        let flags = self.emit.mode.flags;
        let is_direct = self.emit.mode.access.is_direct() && self.emit.is_64_bit();
        if !is_direct || flags.intersects(ModeFlags::BOUNCE | ModeFlags::SINGLE) {
            return None;
        }
        let is_lea = instruction.mnemonic() == Mnemonic::Lea;
        if !is_lea && !self.known.is_copied(instruction) {
            return None;
        }
        let named = Named::of(instruction);
        if named.high || named.stack_pointer() || uses_count_in_place(instruction) {
            return None;
        }
        if !named.memory {
            // A LEA without a memory operand is undefined.
            return (!is_lea).then_some((bit(R11) | bit(R9) | bit(R8), named.registers, 0));
        }
        let segment = segment_of(instruction.memory_segment());
        let class = self.emit.mode.segment(segment, true);
        let is_reached = !self.emit.always_looks_up() && class != SegmentClass::Odd;
        if !is_lea && !is_reached || is_lea && instruction.op0_register().size() == 2 {
            return None;
        }
        let number = |register: Register| guest_number(register).map_or(0, |guest| 1 << guest);
        let of_address = number(instruction.memory_base()) | number(instruction.memory_index());
        let allowed = match class {
            _ if self.emit.has_address_at_hand(instruction) => bit(R11) | bit(R9) | bit(R8),
            SegmentClass::Flat => bit(R11) | bit(R9),
            _ if is_lea => bit(R11) | bit(R9),
            // The segment's base is added in R9.
            _ => bit(R11),
        };
        Some((allowed, named.registers, of_address))
    }
}
