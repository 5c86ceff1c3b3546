//! Decides which address spaces are kept while they are not loaded, and under which numbers.
//!
//! A guest that assigns a few process-context identifiers in turn, as Linux does, returns to a
//! space with another identifier than before and asks for none of its translations to be kept.
//! Therefore a space that has lost its identifier to another space keeps its number. When the same
//! tables are loaded again, the entries under that number are
//! [compared](tollgate_tlb::TableEntries) with them.

use tollgate_tlb::{SPACES, SpaceNumber};
use tollgate_x86::{PhysicalAddress, Space, SpaceName};

/// The space that a number belongs to.
#[derive(Clone, Copy)]
struct Kept {
    /// The name of the space. `None` means that the entries under this number are void until they
    /// have been compared with the page tables.
    name: Option<SpaceName>,
    /// The root of the space's page tables when it was last loaded. `None` means that the root is
    /// not known, or that no entries are kept that could be compared with the tables.
    tables: Option<PhysicalAddress>,
    /// When the space was last loaded, as a count of loads.
    loaded_at: u64,
    /// Whether the space was loaded since the entries under its number were purged.
    is_selected: bool,
}

impl Kept {
    fn forget(&mut self) {
        (self.name, self.tables) = (None, None);
    }

    fn is_known(&self) -> bool {
        self.name.is_some() || self.tables.is_some()
    }
}

/// How many spaces are kept, the loaded one among them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Exactly this many.
    Fixed(usize),
    /// At least this many. The limit grows while the guest returns to spaces that were already
    /// forgotten.
    Grows(usize),
}

impl Limit {
    /// The lowest and the highest number of spaces that may be kept.
    #[cfg(test)]
    pub fn range(self) -> (usize, usize) {
        match self {
            Self::Fixed(count) => (count, count),
            Self::Grows(least) => (least, SPACES),
        }
    }
}

/// The weight of a missed space, in new spaces. A miss costs some milliseconds. Each additional
/// space that is kept slows the start of a new process by a few per cent, because the process gets
/// tables that are in no processor cache.
const MISS: usize = 16;

/// The spaces of one vCPU, of which one is loaded.
pub struct KeptSpaces {
    spaces: [Kept; SPACES],
    /// The number and the name of the loaded space.
    loaded: (SpaceNumber, SpaceName),
    loads: u64,
    /// How many numbers are in use.
    limit: Limit,
    /// A weighted count of misses: each [`MISS`] of them allow one more number.
    misses: usize,
}

impl Default for KeptSpaces {
    fn default() -> Self {
        let nothing = Kept {
            name: None,
            tables: None,
            loaded_at: 0,
            is_selected: false,
        };
        let mut spaces = Self {
            spaces: [nothing; SPACES],
            loaded: (SpaceNumber::default(), SpaceName::Identifier(0)),
            loads: 0,
            limit: Limit::Fixed(SPACES),
            misses: 0,
        };
        spaces.start_with(Space::identified(0));
        spaces
    }
}

/// A number whose space is not loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OtherSpace {
    pub number: SpaceNumber,
    /// Whether its space was loaded since the number was [purged](KeptSpaces::purged).
    pub is_selected: bool,
}

/// The result of looking a space up before it is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// The number of the space from now on.
    pub number: SpaceNumber,
    /// Whether the entries kept under that number belong to the space, if the guest lets them be
    /// kept.
    pub is_kept: bool,
    /// Whether, in addition, the root of the space's tables has not changed.
    pub has_same_tables: bool,
}

impl KeptSpaces {
    /// The name of the space that is loaded.
    pub fn loaded(&self) -> SpaceName {
        self.loaded.1
    }

    /// The number of the space that is loaded.
    pub fn loaded_number(&self) -> SpaceNumber {
        self.loaded.0
    }

    /// The name of the space whose entries are kept under a number. `None` means that they are
    /// void.
    pub fn name(&self, number: SpaceNumber) -> Option<SpaceName> {
        self.spaces[number.index()].name
    }

    /// The result that a load of this space would have, or `None` if the space is unknown. Without
    /// `keeps` the guest wants all entries of the space's identifier to be void.
    pub fn look_up(&self, space: Space, keeps: bool) -> Option<Loaded> {
        let number = self.place(space, keeps)?;
        Some(Loaded {
            number: SpaceNumber::new(number),
            is_kept: true,
            has_same_tables: self.has_tables(number, space),
        })
    }

    fn has_tables(&self, number: usize, space: Space) -> bool {
        space.tables.is_some() && self.spaces[number].tables == space.tables
    }

    /// The number under which the translations of a space are kept. If the guest wants them void
    /// (not `keeps`), they can be used only with the same tables, with which they can be compared.
    fn place(&self, space: Space, keeps: bool) -> Option<usize> {
        let named = self.find(space.name());
        if keeps || named.is_some_and(|number| self.has_tables(number, space)) {
            return named;
        }
        (0..SPACES).find(|&number| self.has_tables(number, space))
    }

    /// Loads a space: a different one from before, or the same one with different tables. With
    /// `keeps` the guest lets the translations of the space be kept, otherwise they are void. If
    /// the number belonged to another space until now, that space is forgotten and `stolen` is
    /// increased.
    pub fn load(&mut self, space: Space, keeps: bool, stolen: &mut u64) -> Loaded {
        let name = space.name();
        let kept = self.place(space, keeps);
        if kept.is_none() {
            self.misses = match keeps {
                true => (self.misses + MISS).min(SPACES * MISS),
                false => self.misses.saturating_sub(1),
            };
        }
        let number = kept.unwrap_or_else(|| self.oldest());
        let has_same_tables = kept.is_some() && self.has_tables(number, space);
        *stolen += u64::from(kept.is_none() && self.spaces[number].is_known());
        for other in (0..SPACES).filter(|&other| other != number) {
            let other = &mut self.spaces[other];
            if other.name == Some(name) {
                other.name = None;
            }
            // Entries that were not compared while these tables were loaded are not compared later.
            if other.tables == space.tables {
                other.tables = None;
            }
        }
        self.loads += 1;
        self.spaces[number] = Kept {
            name: Some(name),
            tables: space.tables,
            loaded_at: self.loads,
            is_selected: true,
        };
        self.loaded = (SpaceNumber::new(number), name);
        Loaded {
            number: self.loaded.0,
            is_kept: kept.is_some(),
            has_same_tables,
        }
    }

    fn find(&self, name: SpaceName) -> Option<usize> {
        let is_it = |space: &Kept| space.name == Some(name);
        self.spaces.iter().position(is_it)
    }

    /// How many numbers are in use now.
    fn count(&self) -> usize {
        let count = match self.limit {
            Limit::Fixed(count) => count,
            Limit::Grows(least) => least + self.misses / MISS,
        };
        count.clamp(1, SPACES)
    }

    /// A number that has no space, or else the number of the space that has gone the longest
    /// without being loaded. If more spaces are known than the limit allows, the oldest are
    /// forgotten first.
    fn oldest(&mut self) -> usize {
        let loaded = self.loaded.0.index();
        let others = (0..SPACES).filter(|&number| number != loaded);
        let (mut known, free): (Vec<_>, Vec<_>) =
            others.partition(|&number| self.spaces[number].is_known());
        known.sort_unstable_by_key(|&number| self.spaces[number].loaded_at);
        let most = self.count() - 1;
        let excess = known.len().saturating_sub(most);
        for number in known.drain(..excess) {
            self.spaces[number].forget();
        }
        let candidates = if known.len() < most { free } else { known };
        candidates.first().copied().unwrap_or(loaded)
    }

    /// Sets how many spaces are kept from now on: at least one and at most [`SPACES`]. The entries
    /// of all spaces that are not loaded become void.
    pub fn set_limit(&mut self, limit: Limit) {
        self.forget_others();
        (self.limit, self.misses) = (limit, 0);
    }

    /// All numbers, except the loaded one, that are within the limit or still have a space.
    pub fn others(&self) -> impl Iterator<Item = OtherSpace> {
        let loaded = self.loaded.0.index();
        let is_given = |number: usize| number < self.count() || self.spaces[number].is_known();
        let numbers = (0..SPACES).filter(move |&number| number != loaded && is_given(number));
        numbers.map(|number| OtherSpace {
            number: SpaceNumber::new(number),
            is_selected: self.spaces[number].is_selected,
        })
    }

    /// Records that the entries under a number were purged.
    pub fn purged(&mut self, number: SpaceNumber) {
        self.spaces[number.index()].is_selected = false;
    }

    /// Makes the entries of a space void, if the space is not loaded.
    pub fn forget(&mut self, name: SpaceName) {
        if name != self.loaded.1
            && let Some(number) = self.find(name)
        {
            self.spaces[number].forget();
        }
    }

    /// Makes the entries of all spaces void that are not loaded.
    pub fn forget_others(&mut self) {
        for (number, space) in self.spaces.iter_mut().enumerate() {
            if number != self.loaded.0.index() {
                space.forget();
            }
        }
    }

    /// Sets the identity of the loaded space, for which nothing has been derived yet.
    pub fn start_with(&mut self, space: Space) {
        self.forget_others();
        self.loaded.1 = space.name();
        let loaded = &mut self.spaces[self.loaded.0.index()];
        (loaded.name, loaded.tables) = (Some(space.name()), space.tables);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identified(identifier: u16) -> Space {
        Space::identified(identifier)
    }

    fn load(spaces: &mut KeptSpaces, identifier: u16) -> (SpaceNumber, bool) {
        let loaded = spaces.load(identified(identifier), true, &mut 0);
        (loaded.number, loaded.is_kept)
    }

    #[test]
    fn a_space_keeps_its_number_until_it_is_the_oldest_of_too_many() {
        let mut spaces = KeptSpaces::default();
        let numbers: Vec<SpaceNumber> = (1..SPACES as u16)
            .map(|identifier| {
                let (number, is_kept) = load(&mut spaces, identifier);
                assert!(!is_kept);
                number
            })
            .collect();
        let first = numbers[0];
        assert_eq!(load(&mut spaces, 1), (first, true));
        assert_eq!(load(&mut spaces, 0), (SpaceNumber::default(), true));
        // The second one has gone the longest without being loaded.
        assert_eq!(load(&mut spaces, 100), (numbers[1], false));
        assert_eq!(load(&mut spaces, 1), (first, true));
        assert!(!load(&mut spaces, 2).1);
    }

    #[test]
    fn what_is_forgotten_of_a_space_leaves_its_number_to_the_next() {
        let mut spaces = KeptSpaces::default();
        load(&mut spaces, 5);
        load(&mut spaces, 6);
        spaces.forget(identified(5).name());
        spaces.forget(identified(6).name());
        assert_eq!(spaces.loaded(), SpaceName::Identifier(6));
        for free in 2..SPACES {
            load(&mut spaces, 100 + free as u16);
        }
        assert!(
            load(&mut spaces, 6).1,
            "the loaded space is not forgotten by name"
        );
        assert!(!load(&mut spaces, 5).1);
        spaces.forget_others();
        assert!(!load(&mut spaces, 6).1);
        assert!(load(&mut spaces, 5).1);
    }

    #[test]
    fn the_loaded_space_can_take_another_identifier_when_nothing_is_known() {
        let mut spaces = KeptSpaces::default();
        load(&mut spaces, 5);
        spaces.start_with(identified(9));
        assert_eq!(spaces.loaded(), SpaceName::Identifier(9));
        assert!(!load(&mut spaces, 5).1);
        assert!(load(&mut spaces, 9).1);
    }

    #[test]
    fn tables_tell_spaces_apart_without_identifiers_and_are_noted_with_them() {
        let mut spaces = KeptSpaces::default();
        let space = |tables, identifier, has_identifier| Space {
            tables: Some(PhysicalAddress(tables)),
            identifier,
            has_identifier,
        };
        let mut load = |space| {
            let known = spaces.look_up(space, true);
            let loaded = spaces.load(space, true, &mut 0);
            assert!(known.is_none_or(|known| known == loaded));
            (loaded.is_kept, loaded.has_same_tables)
        };
        let (first, second) = (space(0x1000, 0, false), space(0x2000, 0, false));
        assert_eq!([load(first), load(second)], [(false, false); 2]);
        assert_eq!([load(first), load(second)], [(true, true); 2]);
        let same_identifier = [0x1000, 0x2000, 0x2000].map(|tables| load(space(tables, 7, true)));
        let expected = [(false, false), (true, false), (true, true)];
        assert_eq!(same_identifier, expected);
    }

    #[test]
    fn a_space_that_comes_back_with_another_identifier_is_found_by_its_tables() {
        let mut spaces = KeptSpaces::default();
        let space = |tables, identifier| Space {
            tables: Some(PhysicalAddress(tables)),
            identifier,
            has_identifier: true,
        };
        let first = spaces.load(space(0x1000, 1), false, &mut 0);
        assert!(!first.is_kept);
        let second = spaces.load(space(0x2000, 2), false, &mut 0);
        // The identifier of the first space goes to a new space.
        let third = spaces.load(space(0x3000, 1), false, &mut 0);
        assert!(!third.is_kept && third.number != first.number);
        assert_eq!(
            spaces.name(first.number),
            None,
            "its entries must be compared"
        );
        // The first space gets the identifier of the second one.
        let again = space(0x1000, 2);
        let named = spaces.look_up(again, true).map(|it| it.number);
        assert_eq!(named, Some(second.number));
        let known = spaces.look_up(again, false);
        assert_eq!(known, Some(spaces.load(again, false, &mut 0)));
        let expected = Loaded {
            has_same_tables: true,
            is_kept: true,
            ..first
        };
        assert_eq!(known, Some(expected));
        assert_eq!(spaces.name(second.number), None);
        spaces.forget_others();
        let known = spaces.look_up(space(0x2000, 3), false);
        assert!(known.is_none(), "the entries of all other spaces are void");
    }

    #[test]
    fn more_spaces_are_kept_while_some_are_missed_and_fewer_again_later() {
        let mut spaces = KeptSpaces::default();
        spaces.set_limit(Limit::Grows(4));
        let missed = |spaces: &mut KeptSpaces| {
            let loads = (0..9).map(|identifier| load(spaces, identifier).1);
            loads.filter(|is_kept| !is_kept).count()
        };
        assert!(missed(&mut spaces) > 0);
        missed(&mut spaces);
        assert_eq!((missed(&mut spaces), spaces.count() > 8), (0, true));
        for new in 0..(SPACES * MISS) as u16 {
            assert!(!spaces.load(identified(20 + new), false, &mut 0).is_kept);
        }
        assert_eq!(spaces.count(), 4);
    }
}
