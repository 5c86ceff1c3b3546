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
    /// Cycles of all of them, estimated.
    pub cycles: u64,
}

/// What tells origins apart: the kind of exit, the place, and the device that was accessed.
pub type Origin = (ExitKind, Place, Option<DeviceAddress>);

/// What came from one origin.
#[derive(Clone, Copy, Default, Debug)]
struct Sum {
    exits: u64,
    cycles: u64,
}

/// Exits by kind and place.
#[derive(Clone, Default, Debug)]
pub struct Blame {
    places: HashMap<Origin, Sum>,
    elsewhere: u64,
}

impl Blame {
    /// Adds `exits` exits from one origin, which took `cycles` together.
    pub fn add(&mut self, origin: Origin, exits: u64, cycles: u64) {
        if let Some(sum) = self.places.get_mut(&origin) {
            sum.exits += exits;
            sum.cycles += cycles;
        } else if self.places.len() < MAX_PLACES {
            self.places.insert(origin, Sum { exits, cycles });
        } else {
            self.elsewhere += exits;
        }
    }

    /// What was added since this stood as `before`.
    pub fn since(&self, before: &Self) -> Self {
        let rest = self.places.iter().filter_map(|(origin, now)| {
            let earlier = before.places.get(origin).copied().unwrap_or_default();
            let exits = now.exits.saturating_sub(earlier.exits);
            let cycles = now.cycles.saturating_sub(earlier.cycles);
            (exits > 0).then_some((*origin, Sum { exits, cycles }))
        });
        Self {
            places: rest.collect(),
            elsewhere: self.elsewhere.saturating_sub(before.elsewhere),
        }
    }

    /// Every place, in no order.
    pub fn rows(&self) -> impl Iterator<Item = Blamed> {
        self.places
            .iter()
            .map(|(&(kind, place, device), sum)| Blamed {
                kind,
                place,
                device,
                exits: sum.exits,
                cycles: sum.cycles,
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
        let origin = |linear| (ExitKind::Cli, Place { linear, space: 0 }, None);
        blame.add(origin(0x10), 3, 30);
        blame.add(origin(0x20), 5, 50);
        blame.add(origin(0x10), 4, 44);
        let rows = blame.ranked();
        assert_eq!((rows[0].place.linear, rows[0].exits), (0x10, 7));
        assert_eq!((rows[0].cycles, rows[1].cycles), (74, 50));
        assert_eq!((rows[1].place.linear, rows[1].exits), (0x20, 5));
        let before = blame.clone();
        blame.add(origin(0x20), 2, 9);
        let since: Vec<Blamed> = blame.since(&before).rows().collect();
        assert_eq!(since.len(), 1);
        assert_eq!((since[0].exits, since[0].cycles), (2, 9));
    }

    #[test]
    fn the_number_of_places_is_bounded() {
        let mut blame = Blame::default();
        for linear in 0..MAX_PLACES as u64 + 10 {
            blame.add((ExitKind::Sti, Place { linear, space: 0 }, None), 1, 1);
        }
        assert_eq!(blame.elsewhere(), 10);
    }
}
