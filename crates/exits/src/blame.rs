//! Blame: which guest instructions exits come from, and in which address spaces.
//!
//! The ledger's samples provide the data: it is exact where every exit is timed, and an estimate
//! where only some are.
//!
//! Origins are recorded twice, by instruction and by address space. The kernel's code lies at the
//! same addresses in all spaces, so each of its instructions is one origin, however many processes
//! there are. The table by space shows the costs of each process in the kernel.
//!
//! Both tables are bounded. When one is full, the less valuable half of its rows is discarded. The
//! value of a row is its cycles, halved for each time that rows were discarded since it last grew.
//! Discarded rows are still counted by kind of exit.

use crate::ExitKind;
use rustc_hash::FxHashMap;
use std::hash::Hash;

/// Maximum number of instructions that are recorded.
pub const MAX_PLACES: usize = 1 << 16;
/// Maximum number of pairs of address space and kind of exit that are recorded.
pub const MAX_SPACES: usize = 1 << 14;

/// The guest code that an exit came from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Place {
    /// Linear address of the guest instruction.
    pub linear: u64,
    /// CR3: the address space.
    pub space: u64,
    /// Whether the code is the kernel's, which all spaces share.
    pub is_kernel: bool,
}

impl Place {
    /// The place by which the table groups exits: without the space if all spaces share the
    /// instruction.
    fn of_origin(self) -> Self {
        match self.is_kernel {
            true => Self { space: 0, ..self },
            false => self,
        }
    }
}

/// The port or address at which an exit accessed a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DeviceAddress {
    /// A port number.
    Port(u16),
    /// A physical address.
    Memory(u64),
}

/// The exits from one origin: instruction, kind and device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blamed {
    /// The kind of exit.
    pub kind: ExitKind,
    /// Where the exits came from. The kernel's instructions have no space: 0.
    pub place: Place,
    /// The last device that the exit accessed, if any.
    pub device: Option<DeviceAddress>,
    /// Estimated number of exits.
    pub exits: u64,
    /// Estimated cycles of all these exits.
    pub cycles: u64,
}

/// The exits of one kind from one address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlamedSpace {
    /// The kind of exit.
    pub kind: ExitKind,
    /// The value of CR3.
    pub space: u64,
    /// Estimated number of exits.
    pub exits: u64,
    /// Estimated cycles of all these exits.
    pub cycles: u64,
}

/// The exits of one kind whose rows were discarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GivenUp {
    /// The kind of exit.
    pub kind: ExitKind,
    /// Estimated number of exits.
    pub exits: u64,
    /// Estimated cycles of all these exits.
    pub cycles: u64,
}

/// What distinguishes origins: the kind of exit, the place, and the device that was accessed.
pub type Origin = (ExitKind, Place, Option<DeviceAddress>);

/// A number of exits and their cycles.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Sum {
    exits: u64,
    cycles: u64,
}

impl Sum {
    fn add(&mut self, exits: u64, cycles: u64) {
        self.exits = self.exits.saturating_add(exits);
        self.cycles = self.cycles.saturating_add(cycles);
    }

    fn less(self, other: Self) -> Self {
        Self {
            exits: self.exits.saturating_sub(other.exits),
            cycles: self.cycles.saturating_sub(other.cycles),
        }
    }
}

/// The sum of one row, and what decides whether it is discarded.
#[derive(Clone, Copy, Debug)]
struct Row {
    sum: Sum,
    /// Identifies the row: one that was discarded and appears again has another number.
    number: u64,
    /// How often rows had been discarded when this one last grew.
    grown: u32,
}

/// Sums by key, with a limit on their number.
#[derive(Clone, Debug)]
struct Table<K> {
    rows: FxHashMap<K, Row>,
    limit: usize,
    /// The number of rows that have been made so far.
    numbers: u64,
    /// How often rows have been discarded.
    purges: u32,
}

impl<K: Copy + Eq + Hash> Table<K> {
    fn new(limit: usize) -> Self {
        Self {
            rows: FxHashMap::default(),
            limit,
            numbers: 0,
            purges: 0,
        }
    }

    fn add(&mut self, key: K, exits: u64, cycles: u64) {
        if let Some(row) = self.rows.get_mut(&key) {
            row.sum.add(exits, cycles);
            row.grown = self.purges;
            return;
        }
        if self.rows.len() >= self.limit {
            self.give_up_half();
        }
        self.numbers += 1;
        let row = Row {
            sum: Sum { exits, cycles },
            number: self.numbers,
            grown: self.purges,
        };
        self.rows.insert(key, row);
    }

    #[cold]
    fn give_up_half(&mut self) {
        let purges = self.purges;
        let worth = |row: &Row| {
            let age = purges.wrapping_sub(row.grown).min(63);
            (row.sum.cycles >> age, row.number)
        };
        let mut worths: Vec<(u64, u64)> = self.rows.values().map(worth).collect();
        let middle = worths.len() / 2;
        let (_, least, _) = worths.select_nth_unstable(middle);
        let least = *least;
        self.rows.retain(|_, row| worth(row) >= least);
        self.purges = purges.wrapping_add(1);
    }

    /// The difference to `before`, an earlier state of this table.
    fn since(&self, before: &Self) -> Self {
        let rest = self.rows.iter().filter_map(|(key, now)| {
            let earlier = before.rows.get(key).filter(|row| row.number == now.number);
            let sum = now.sum.less(earlier.map_or(Sum::default(), |row| row.sum));
            (sum.exits > 0).then_some((*key, Row { sum, ..*now }))
        });
        Self {
            rows: rest.collect(),
            ..*self
        }
    }
}

/// Exits and cycles by kind and place.
#[derive(Clone, Debug)]
pub struct Blame {
    places: Table<Origin>,
    spaces: Table<(ExitKind, u64)>,
    /// Everything that was added, including discarded rows.
    all: [Sum; ExitKind::ALL.len()],
}

impl Default for Blame {
    fn default() -> Self {
        Self {
            places: Table::new(MAX_PLACES),
            spaces: Table::new(MAX_SPACES),
            all: [Sum::default(); ExitKind::ALL.len()],
        }
    }
}

impl Blame {
    /// Adds `exits` exits from one origin, which took `cycles` in total.
    pub fn add(&mut self, origin: Origin, exits: u64, cycles: u64) {
        let (kind, place, device) = origin;
        self.all[kind as usize].add(exits, cycles);
        self.spaces.add((kind, place.space), exits, cycles);
        let origin = (kind, place.of_origin(), device);
        self.places.add(origin, exits, cycles);
    }

    /// The difference to `before`, an earlier state of this value.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            places: self.places.since(&before.places),
            spaces: self.spaces.since(&before.spaces),
            all: std::array::from_fn(|kind| self.all[kind].less(before.all[kind])),
        }
    }

    /// All rows by place, unsorted.
    pub fn rows(&self) -> impl Iterator<Item = Blamed> {
        (self.places.rows.iter()).map(|(&(kind, place, device), row)| Blamed {
            kind,
            place,
            device,
            exits: row.sum.exits,
            cycles: row.sum.cycles,
        })
    }

    /// All rows by space, unsorted.
    pub fn spaces(&self) -> impl Iterator<Item = BlamedSpace> {
        (self.spaces.rows.iter()).map(|(&(kind, space), row)| BlamedSpace {
            kind,
            space,
            exits: row.sum.exits,
            cycles: row.sum.cycles,
        })
    }

    /// All rows by place, those with the most exits first; equal ones by kind and address.
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

    /// The exits from discarded rows: everything that was added, minus the present rows.
    pub fn given_up(&self) -> Vec<GivenUp> {
        let mut rest = self.all;
        for row in self.rows() {
            let rest = &mut rest[row.kind as usize];
            *rest = rest.less(Sum {
                exits: row.exits,
                cycles: row.cycles,
            });
        }
        let kinds = ExitKind::ALL.iter().zip(rest);
        kinds
            .filter(|(_, rest)| rest.exits > 0)
            .map(|(&kind, rest)| GivenUp {
                kind,
                exits: rest.exits,
                cycles: rest.cycles,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(linear: u64) -> Origin {
        let place = Place {
            linear,
            ..Place::default()
        };
        (ExitKind::Cli, place, None)
    }

    #[test]
    fn places_are_ranked_by_their_exits() {
        let mut blame = Blame::default();
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
    fn the_kernel_s_instructions_are_one_origin_each_and_count_for_every_space() {
        let mut blame = Blame::default();
        for space in 1..=300 {
            let place = |linear, is_kernel| Place {
                linear,
                space: space << 12,
                is_kernel,
            };
            blame.add((ExitKind::Cli, place(0xc100_0000, true), None), 2, 20);
            blame.add((ExitKind::Cli, place(0x804_8000, false), None), 1, 5);
        }
        let rows = blame.ranked();
        assert_eq!(rows.len(), 301);
        let first = rows[0];
        assert_eq!((first.place.space, first.place.is_kernel), (0, true));
        assert_eq!((first.exits, first.cycles), (600, 6_000));
        assert_eq!(blame.spaces().count(), 300);
        assert!(blame.spaces().all(|row| (row.exits, row.cycles) == (3, 25)));
        assert!(blame.given_up().is_empty());
    }

    #[test]
    fn what_is_new_and_what_is_dear_stay_when_there_are_too_many_places() {
        let mut blame = Blame::default();
        blame.add(origin(1), 1, 1_000_000);
        let mut all = (1, 1_000_000);
        for linear in 2..5 * MAX_PLACES as u64 {
            blame.add(origin(linear), 1, 7);
            all = (all.0 + 1, all.1 + 7);
            assert!(blame.places.rows.len() <= MAX_PLACES);
        }
        let newest = 5 * MAX_PLACES as u64 - 1;
        for linear in [1, newest, newest - 1_000] {
            assert!(
                blame.rows().any(|row| row.place.linear == linear),
                "{linear}"
            );
        }
        let [given_up] = blame.given_up()[..] else {
            panic!("one kind was given up: {:?}", blame.given_up());
        };
        let kept = blame.rows().fold((0, 0), |(exits, cycles), row| {
            (exits + row.exits, cycles + row.cycles)
        });
        assert_eq!((kept.0 + given_up.exits, kept.1 + given_up.cycles), all);
    }

    #[test]
    fn places_that_do_not_grow_any_more_make_room_in_the_end() {
        let mut blame = Blame::default();
        blame.add(origin(1), 1, 1_000);
        for linear in 2..12 * MAX_PLACES as u64 {
            blame.add(origin(linear), 1, 7);
        }
        assert!(blame.rows().all(|row| row.place.linear != 1));
    }

    #[test]
    fn a_place_that_was_given_up_and_comes_again_counts_whole_since_then() {
        let mut blame = Blame::default();
        blame.add(origin(1), 5, 50);
        let before = blame.clone();
        for linear in 2..2 * MAX_PLACES as u64 {
            blame.add(origin(linear), 1, 100);
        }
        assert!(blame.rows().all(|row| row.place.linear != 1));
        blame.add(origin(1), 3, 30);
        let since = blame.since(&before);
        let again = since.rows().find(|row| row.place.linear == 1).unwrap();
        assert_eq!((again.exits, again.cycles), (3, 30));
        let kept: u64 = since.rows().map(|row| row.exits).sum();
        let given_up: u64 = since.given_up().iter().map(|row| row.exits).sum();
        assert_eq!(kept + given_up, 2 * MAX_PLACES as u64 - 2 + 3);
    }
}
