//! Guest registers of slots that stay in scratch registers for some instructions.
//!
//! A guest register that lives in a slot is brought to a scratch register for an instruction, and
//! taken back behind it ([`super::operands`]). Where the next instruction leaves that scratch
//! register alone, neither need be done between the two:
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
//! What is held is in the slot too, or has changed since. Marks then say that it is in the scratch
//! register ([`Emitter::mark_as`]), so that state is exact at each host instruction. Before an
//! instruction that may leave for the monitor by other ways than a signal, all is put back.

use super::direct::is_near;
use super::emitter::Emitter;
use super::look_up::segment_of;
use super::operands::guest_number;
use crate::abi::host::*;
use crate::abi::marks::{Restore, Source};
use crate::emit::assembler::Width;
use crate::policy::mode::SegmentClass;
use iced_x86::{Instruction, Mnemonic, Register};
use tollgate_x86::Gpr;

/// The number of the stack pointer.
const STACK: u8 = Gpr::Rsp as u8;

/// The scratch registers that hold guest registers, in the order in which they are taken. RCX is
/// not one: accesses by anchors and deltas need it.
const HOLDERS: [Host; 3] = [R11, R9, R8];

/// What the scratch registers hold.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Held {
    /// The guest register in each of [`HOLDERS`].
    guests: [Option<u8>; HOLDERS.len()],
    /// Those that differ from their slots, by place in [`HOLDERS`].
    changed: [bool; HOLDERS.len()],
    /// The host registers that the current instruction may have hold something, one bit each. None:
    /// it keeps nothing.
    allowed: u16,
    /// The guest registers that it uses, one bit each.
    used: u16,
    /// Those of them that address its operand in memory.
    address: u16,
    /// When each was used last, in uses.
    uses: [u32; HOLDERS.len()],
    /// Uses so far.
    clock: u32,
}

impl Held {
    /// The scratch register that holds a guest register.
    pub(crate) fn holder(&self, guest: u8) -> Option<Host> {
        let place = self.guests.iter().position(|held| *held == Some(guest));
        place.map(|place| HOLDERS[place])
    }

    /// The scratch registers that hold something, one bit each.
    pub(crate) fn holders(&self) -> u16 {
        let holders = HOLDERS.iter().zip(self.guests);
        holders.fold(0, |all, (host, guest)| {
            all | guest.map_or(0, |_| 1 << host.0)
        })
    }

    /// Whether the current instruction may have this scratch register hold something.
    pub(crate) fn may_hold(&self, host: Host) -> bool {
        self.allowed >> host.0 & 1 != 0
    }

    /// Whether a scratch register holds what addresses the current instruction's operand.
    fn holds_address(&self, host: Host) -> bool {
        let mut holders = HOLDERS.iter().zip(self.guests);
        holders.any(|(holder, guest)| {
            *holder == host && guest.is_some_and(|guest| self.address >> guest & 1 != 0)
        })
    }

    /// A scratch register out of those that are not `busy` for one more guest register. It holds
    /// nothing, or what is in its slot too, or if that is `dear` enough, something that must be put
    /// back; not what the instruction uses. Of several it is the one whose last use is the longest ago.
    pub(crate) fn free(&self, busy: u16, dear: bool) -> Option<Host> {
        let is_used = |guest: u8| self.used >> guest & 1 != 0;
        let places = (0..HOLDERS.len()).filter(|&place| {
            let host = HOLDERS[place];
            let is_free = self.may_hold(host) && busy >> host.0 & 1 == 0;
            is_free && self.guests[place].is_none_or(|guest| !is_used(guest))
        });
        let places = places.filter(|&place| dear || !self.changed[place]);
        let place = places.min_by_key(|&place| {
            let is_held = self.guests[place].is_some();
            (is_held, self.changed[place], self.uses[place])
        });
        place.map(|place| HOLDERS[place])
    }

    /// From here on a scratch register holds a guest register and nothing else does; `changed`: the
    /// slot holds another value.
    pub(crate) fn hold(&mut self, host: Host, guest: u8, changed: bool) {
        self.clock += 1;
        for (place, held) in self.guests.iter_mut().enumerate() {
            if HOLDERS[place] == host {
                *held = Some(guest);
                self.changed[place] = changed;
                self.uses[place] = self.clock;
            } else if *held == Some(guest) {
                *held = None;
                self.changed[place] = false;
            }
        }
    }

    /// What marks say besides.
    pub(crate) fn add_to(&self, restore: Restore) -> Restore {
        let mut all = restore;
        for (place, guest) in self.guests.iter().enumerate() {
            if let Some(guest) = guest
                && self.changed[place]
            {
                all = all.and(*guest, Source::Host(HOLDERS[place]));
            }
        }
        all
    }

    fn has_changed(&self) -> bool {
        self.changed.contains(&true)
    }
}

impl Emitter {
    /// The current instruction, which uses the guest registers `used` and besides `address` for its
    /// operand's address, leaves alone what is held in the scratch registers `allowed`, and may have
    /// more held there. Others are put back.
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

    /// All is put back before the current instruction, which begins anew from here on if it does.
    pub(crate) fn put_held_back(&mut self) {
        if self.held.has_changed() {
            HOLDERS.into_iter().for_each(|host| self.put_back(host));
            self.start = self.assembler.position();
        }
        self.held = Held::default();
    }

    /// What has changed goes to its slot, and stays besides: before a conditional branch, whose code leaves
    /// scratch registers alone where it is not taken.
    pub(crate) fn share_held(&mut self) {
        for place in 0..HOLDERS.len() {
            if self.store_changed(place) {
                self.start = self.assembler.position();
                self.mark(Restore::NONE);
            }
        }
        (self.held.allowed, self.held.used, self.held.address) = (0, 0, 0);
    }

    /// The same as [`Emitter::put_held_back`] behind the last instruction, which is done.
    pub(crate) fn put_held_back_at_end(&mut self) {
        if self.held.has_changed() {
            self.mark_as(self.next_rip, self.esp, Restore::NONE);
            for host in HOLDERS {
                self.store_held(host);
            }
            self.held = Held::default();
            self.mark_as(self.next_rip, self.esp, Restore::NONE);
        }
        self.held = Held::default();
    }

    /// What a scratch register holds goes to its slot, before the current instruction.
    pub(crate) fn put_back(&mut self, host: Host) {
        if self.store_held(host) {
            self.mark(Restore::NONE);
        }
    }

    /// The same, if its slot has another value: whether that was so.
    fn store_held(&mut self, host: Host) -> bool {
        let Some(place) = HOLDERS.iter().position(|holder| *holder == host) else {
            return false;
        };
        let changed = self.store_changed(place);
        self.held.guests[place] = None;
        changed
    }

    /// Has a slot have the value that is held in this place, and says whether it had another.
    fn store_changed(&mut self, place: usize) -> bool {
        let changed = std::mem::take(&mut self.held.changed[place]);
        if let Some(guest) = self.held.guests[place].filter(|_| changed) {
            let slot = self.slot(guest);
            self.make_room();
            self.assembler.store(Width::Qword, slot, HOLDERS[place]);
        }
        changed
    }

    /// The value of a guest register that lives in a slot: where it is held, or in `scratch`, which
    /// holds nothing then.
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
                // The other register of the address may be there: then R8 is free.
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

    /// Whether an instruction of 64-bit code reaches its operand, or LEA finds its result, without
    /// forming an address in R8.
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

    /// A LEA of a doubleword or a quadword to a guest register that lives in a slot, if a scratch
    /// register may hold it.
    pub(crate) fn lea_to_holder(
        &mut self,
        instruction: &Instruction,
        guest: u8,
        width: Width,
    ) -> bool {
        if self.slot_mask >> guest & 1 == 0 || !HOLDERS.iter().any(|&it| self.held.may_hold(it)) {
            return false;
        }
        // R8 is free: the address is formed there.
        let free = || self.held.free(0, true);
        let to = self.held.holder(guest).or_else(free).unwrap_or(R8);
        if self.held.holder(guest).is_none() {
            self.put_back(to);
        }
        self.long_effective_address(instruction, to, width);
        self.held.hold(to, guest, true);
        self.mark_as(self.next_rip, self.esp, Restore::NONE);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(allowed: &[Host], used: u16) -> Held {
        Held {
            allowed: allowed.iter().fold(0, |all, host| all | 1 << host.0),
            used,
            ..Held::default()
        }
    }

    #[test]
    fn scratch_registers_are_taken_in_turn_and_again_where_nothing_is_lost() {
        let mut held = holding(&[R11, R9], 0);
        assert_eq!(held.free(0, false), Some(R11));
        assert_eq!(held.free(1 << R11.0, false), Some(R9));
        held.hold(R11, 8, false);
        held.hold(R9, 9, true);
        assert_eq!((held.holder(8), held.holder(9)), (Some(R11), Some(R9)));
        assert_eq!(held.free(0, true), Some(R11), "r8 is in its slot too");
        held.used = 1 << 8;
        assert_eq!(held.free(0, false), None, "but it is used");
        assert_eq!(held.free(0, true), Some(R9), "r9 must be put back");
        assert_eq!(holding(&[], 0).free(0, true), None);
    }

    #[test]
    fn what_was_used_last_stays() {
        let mut held = holding(&[R11, R9], 0);
        held.hold(R9, 9, false);
        held.hold(R11, 8, false);
        assert_eq!(held.free(0, false), Some(R9));
        held.hold(R9, 10, false);
        assert_eq!(held.free(0, false), Some(R11));
    }

    #[test]
    fn a_guest_register_is_held_once() {
        let mut held = holding(&[R11, R9], 0);
        held.hold(R11, 8, true);
        held.hold(R9, 8, true);
        assert_eq!(held.holder(8), Some(R9));
        assert_eq!(held.holders(), 1 << R9.0);
        let moves: Vec<_> = held.add_to(Restore::NONE).moves().collect();
        assert_eq!(moves, [(8, Source::Host(R9))]);
    }
}
