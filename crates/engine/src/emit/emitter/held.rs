//! The guest registers that scratch registers hold between instructions.

use crate::abi::host::*;
use crate::abi::state_map::{Restore, Source};

/// The scratch registers that can hold guest registers, in the order in which they are taken. RCX
/// is not one of them, because accesses through shadow windows need it.
pub(in crate::emit) const HOLDERS: [Host; 3] = [R11, R9, R8];

/// The guest registers that scratch registers hold.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Held {
    /// The guest register that each of [`HOLDERS`] holds.
    pub(in crate::emit) guests: [Option<u8>; HOLDERS.len()],
    /// For each of [`HOLDERS`]: whether its value differs from the slot.
    pub(in crate::emit) changed: [bool; HOLDERS.len()],
    /// The scratch registers that may hold guest registers during the current instruction, one bit
    /// each. If no bit is set, the instruction keeps nothing.
    pub(in crate::emit) allowed: u16,
    /// The guest registers that the current instruction uses, one bit each.
    pub(in crate::emit) used: u16,
    /// The guest registers that are part of the address of the current instruction's memory
    /// operand.
    pub(in crate::emit) address: u16,
    /// For each of [`HOLDERS`]: the value of `clock` when it was last used.
    pub(in crate::emit) uses: [u32; HOLDERS.len()],
    /// Number of uses so far.
    pub(in crate::emit) clock: u32,
}

impl Held {
    /// The scratch register that holds a guest register.
    pub(crate) fn holder(&self, guest: u8) -> Option<Host> {
        let place = self.guests.iter().position(|held| *held == Some(guest));
        place.map(|place| HOLDERS[place])
    }

    /// The scratch registers that hold a guest register, one bit each.
    pub(crate) fn holders(&self) -> u16 {
        let holders = HOLDERS.iter().zip(self.guests);
        holders.fold(0, |all, (host, guest)| {
            all | guest.map_or(0, |_| 1 << host.0)
        })
    }

    /// Whether this scratch register may hold a guest register during the current instruction.
    pub(crate) fn may_hold(&self, host: Host) -> bool {
        self.allowed >> host.0 & 1 != 0
    }

    /// Whether a scratch register holds a part of the address of the current instruction's operand.
    pub(in crate::emit) fn holds_address(&self, host: Host) -> bool {
        let mut holders = HOLDERS.iter().zip(self.guests);
        holders.any(|(holder, guest)| {
            *holder == host && guest.is_some_and(|guest| self.address >> guest & 1 != 0)
        })
    }

    /// Chooses a scratch register for one more guest register, not one of `busy` and not one whose
    /// guest register the instruction uses. It is empty, or its value is also in its slot, or, if
    /// the new register is important enough (`dear`), its value must be stored first. Among equal
    /// choices the one whose last use is longest ago is taken.
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

    /// Notes that a scratch register holds a guest register, which no other scratch register holds
    /// from now on. `changed` says that the slot has another value.
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

    /// Adds to `restore` the changed values that scratch registers hold.
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

    pub(in crate::emit) fn has_changed(&self) -> bool {
        self.changed.contains(&true)
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
        assert_eq!(
            held.free(0, true),
            Some(R11),
            "the value of r8 is also in its slot"
        );
        held.used = 1 << 8;
        assert_eq!(held.free(0, false), None, "the instruction uses r8");
        assert_eq!(held.free(0, true), Some(R9), "r9 must be stored first");
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
