//! Blame: which guest instructions exits come from, and in which address space.
//!
//! Fed by the ledger's samples: exact where every exit is timed, an estimate where
//! only some are. Bounded: beyond [`MAX_PLACES`] places the rest is one sum.

use crate::ExitKind;
use std::collections::HashMap;

/// Places remembered at most.
pub const MAX_PLACES: usize = 1 << 16;

/// Where an exit came from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Place {
    /// Linear address of the guest instruction.
    pub linear: u64,
    /// CR3: the address space.
    pub space: u64,
}

/// Where an exit accessed a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DeviceAddress {
    /// A port.
    Port(u16),
    /// A physical address.
    Memory(u64),
}

/// One line of blame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blamed {
    /// The kind of exit.
    pub kind: ExitKind,
    /// Where it came from.
    pub place: Place,
    /// The device access in it that was the last, if there was one.
    pub device: Option<DeviceAddress>,
    /// How many, estimated.
    pub exits: u64,
}

/// Exits by kind and place.
#[derive(Clone, Default, Debug)]
pub struct Blame {
    places: HashMap<(ExitKind, Place, Option<DeviceAddress>), u64>,
    elsewhere: u64,
}

impl Blame {
    /// Adds `exits` exits of one kind at one place that accessed `device`.
    pub fn add(&mut self, kind: ExitKind, place: Place, device: Option<DeviceAddress>, exits: u64) {
        let key = (kind, place, device);
        if let Some(count) = self.places.get_mut(&key) {
            *count += exits;
        } else if self.places.len() < MAX_PLACES {
            self.places.insert(key, exits);
        } else {
            self.elsewhere += exits;
        }
    }

    /// Every place, in no order.
    pub fn rows(&self) -> impl Iterator<Item = Blamed> {
        self.places
            .iter()
            .map(|(&(kind, place, device), &exits)| Blamed {
                kind,
                place,
                device,
                exits,
            })
    }

    /// Every place, most exits first; equal ones in the order of kind and address.
    pub fn ranked(&self) -> Vec<Blamed> {
        let mut rows: Vec<Blamed> = self.rows().collect();
        rows.sort_by_key(|row| {
            (
                std::cmp::Reverse(row.exits),
                row.kind as u8,
                row.place,
                row.device,
            )
        });
        rows
    }

    /// Exits at places that were too many to remember.
    pub fn elsewhere(&self) -> u64 {
        self.elsewhere
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_ranked_by_their_exits() {
        let mut blame = Blame::default();
        let place = |linear| Place { linear, space: 0 };
        blame.add(ExitKind::Cli, place(0x10), None, 3);
        blame.add(ExitKind::Cli, place(0x20), None, 5);
        blame.add(ExitKind::Cli, place(0x10), None, 4);
        let rows = blame.ranked();
        assert_eq!((rows[0].place.linear, rows[0].exits), (0x10, 7));
        assert_eq!((rows[1].place.linear, rows[1].exits), (0x20, 5));
    }

    #[test]
    fn the_number_of_places_is_bounded() {
        let mut blame = Blame::default();
        for linear in 0..MAX_PLACES as u64 + 10 {
            blame.add(ExitKind::Sti, Place { linear, space: 0 }, None, 1);
        }
        assert_eq!(blame.elsewhere(), 10);
    }
}
