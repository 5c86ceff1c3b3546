//! Guest registers of slots that stay in scratch registers over several instructions.
//!
//! A guest register that lives in a slot is loaded into a scratch register for an instruction and
//! stored back after it ([`super::operands`]). If the next instruction leaves the scratch register
//! alone, the store and the next load can be omitted:
//!
//! ```text
//! xor r9d,r8d         mov r11,[slot.r9]      xor r9d,r8d         mov r11,[slot.r9]
//!                     xor r11d,[slot.r8]                         xor r11d,[slot.r8]
//!                     mov [slot.r9],r11
//! ror r9d,6           mov r11,[slot.r9]      ror r9d,6           ror r11d,6
//!                     ror r11d,6
//!                     mov [slot.r9],r11                          mov [slot.r9],r11
//! ```
//!
//! A value that a scratch register holds is equal to its slot, or it has changed since it was
//! loaded. In the second case the state map says that the value is in the scratch register
//! ([`Emitter::note_state_as`]), so the guest's state is exact at each host instruction. All changed
//! values are stored before an instruction that may reach the monitor in another way than by a
//! signal.

use super::emitter::Emitter;
use super::emitter::held::{HOLDERS, Held};
use super::guest_operand_form::is_near;
use super::named_operands::guest_number;
use super::named_operands::segment_of;
use crate::abi::host::*;
use crate::abi::state_map::Restore;
use crate::emit::assembler::Width;
use crate::policy::mode::SegmentClass;
use iced_x86::{Instruction, Mnemonic, Register};
use tollgate_x86::Gpr;

/// Number of the stack pointer.
const STACK: u8 = Gpr::Rsp as u8;

impl Emitter {
    /// Prepares for the current instruction, which uses the guest registers `used`, and `address`
    /// for the address of its operand. It leaves the scratch registers `allowed` alone, which may
    /// hold more guest registers; values in other scratch registers are stored to their slots.
    pub(crate) fn keep_held(&mut self, allowed: u16, used: u16, address: u16) {
        let used = used | address;
        for host in HOLDERS {
            if allowed >> host.0 & 1 == 0 {
                self.put_back(host);
            }
        }
        (self.held.allowed, self.held.used, self.held.address) = (allowed, used, address);
        self.held.clock += 1;
        for (place, guest) in self.held.guests.iter().enumerate() {
            if guest.is_some_and(|guest| used >> guest & 1 != 0) {
                self.held.uses[place] = self.held.clock;
            }
        }
    }

    /// Stores all changed values to their slots before the current instruction. If anything is
    /// stored, the instruction's code starts after the stores.
    pub(crate) fn put_held_back(&mut self) {
        if self.held.has_changed() {
            HOLDERS.into_iter().for_each(|host| self.put_back(host));
            self.start = self.assembler.position();
        }
        self.held = Held::default();
    }

    /// Stores all changed values to their slots, but keeps them in the scratch registers too. This
    /// is done before a conditional branch, whose code leaves scratch registers alone if it is not
    /// taken.
    pub(crate) fn share_held(&mut self) {
        for place in 0..HOLDERS.len() {
            if self.store_changed(place) {
                self.start = self.assembler.position();
                self.note_state(Restore::NONE);
            }
        }
        (self.held.allowed, self.held.used, self.held.address) = (0, 0, 0);
    }

    /// Stores all changed values to their slots after the last instruction, which is complete.
    pub(crate) fn put_held_back_at_end(&mut self) {
        if self.held.has_changed() {
            self.note_state_as(self.next_rip, self.esp, Restore::NONE);
            for host in HOLDERS {
                self.store_held(host);
            }
            self.held = Held::default();
            self.note_state_as(self.next_rip, self.esp, Restore::NONE);
        }
        self.held = Held::default();
    }

    /// Stores the changed value of a scratch register to its slot, before the current instruction,
    /// and empties the scratch register.
    pub(crate) fn put_back(&mut self, host: Host) {
        if self.store_held(host) {
            self.note_state(Restore::NONE);
        }
    }

    /// Empties a scratch register, after storing its value to its slot if the slot has another
    /// value. Returns whether the value was stored.
    fn store_held(&mut self, host: Host) -> bool {
        let Some(place) = HOLDERS.iter().position(|holder| *holder == host) else {
            return false;
        };
        let changed = self.store_changed(place);
        self.held.guests[place] = None;
        changed
    }

    /// Stores the value of the holder at this index to its slot if the slot has another value.
    /// Returns whether the value was stored.
    fn store_changed(&mut self, place: usize) -> bool {
        let changed = std::mem::take(&mut self.held.changed[place]);
        if let Some(guest) = self.held.guests[place].filter(|_| changed) {
            let slot = self.slot(guest);
            self.make_room();
            self.assembler.store(Width::Qword, slot, HOLDERS[place]);
        }
        changed
    }

    /// The register from which the value of a guest register that lives in a slot can be read: the
    /// scratch register that holds it, or `scratch`, into which it is loaded and which then holds
    /// nothing.
    pub(super) fn slot_value(&mut self, guest: u8, scratch: Host) -> Host {
        if let Some(holder) = self.held.holder(guest) {
            return holder;
        }
        let slot = self.slot(guest);
        match self.held.free(0, false) {
            Some(holder) => {
                self.assembler.load(Width::Qword, holder, slot);
                self.held.hold(holder, guest, false);
                holder
            }
            None => {
                // `scratch` may hold the other register of the address; then R8 is free.
                let scratch = match self.held.holds_address(scratch) {
                    true => R8,
                    false => scratch,
                };
                self.put_back(scratch);
                self.assembler.load(Width::Qword, scratch, slot);
                scratch
            }
        }
    }

    /// Whether 64-bit code reaches the instruction's operand, or computes the result of LEA,
    /// without forming an address in R8.
    pub(crate) fn has_address_at_hand(&self, instruction: &Instruction) -> bool {
        let displacement = instruction.memory_displacement64() as i64;
        let of_stack = i64::from(self.esp) + displacement;
        let is_lea = instruction.mnemonic() == Mnemonic::Lea;
        let is_at_hand = |register: Register| match guest_number(register) {
            None => register == Register::None,
            Some(STACK) if is_lea => i32::try_from(of_stack).is_ok(),
            Some(STACK) => is_near(of_stack),
            Some(guest) => self.slot_mask >> guest & 1 == 0 || self.held.holder(guest).is_some(),
        };
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let segment = segment_of(instruction.memory_segment());
        let is_near_register = base.is_gpr64()
            && index == Register::None
            && is_near(displacement)
            && self.mode.segment(segment, true) == SegmentClass::Flat;
        is_at_hand(base) && is_at_hand(index) && (is_lea || is_near_register)
    }

    /// Emits a LEA of a doubleword or a quadword whose result stays in a scratch register, if the
    /// guest register lives in a slot and a scratch register may hold it. Returns whether it did
    /// so.
    pub(crate) fn lea_to_holder(
        &mut self,
        instruction: &Instruction,
        guest: u8,
        width: Width,
    ) -> bool {
        if self.slot_mask >> guest & 1 == 0 || !HOLDERS.iter().any(|&it| self.held.may_hold(it)) {
            return false;
        }
        // R8 is free, because the address is formed there.
        let free = || self.held.free(0, true);
        let to = self.held.holder(guest).or_else(free).unwrap_or(R8);
        if self.held.holder(guest).is_none() {
            self.put_back(to);
        }
        self.long_effective_address(instruction, to, width);
        self.held.hold(to, guest, true);
        self.note_state_as(self.next_rip, self.esp, Restore::NONE);
        true
    }
}
