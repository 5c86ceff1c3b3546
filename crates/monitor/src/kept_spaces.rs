//! Which spaces are kept while they are not loaded, and under which numbers.

use tollgate_tlb::{SPACES, SpaceNumber};

/// A number's space.
#[derive(Clone, Copy)]
struct Kept {
    /// The process-context identifier, 0 to 4095; `None`: what the structures have under this
    /// number is void.
    identifier: Option<u16>,
    /// When it was last loaded.
    loaded_at: u64,
    /// It was loaded since what is kept under the number was purged.
    is_selected: bool,
}

/// The spaces of one vCPU, of which one is loaded.
pub struct KeptSpaces {
    spaces: [Kept; SPACES],
    /// The number and the identifier of the loaded one.
    loaded: (SpaceNumber, u16),
    loads: u64,
    /// Numbers that are given out.
    limit: usize,
}

impl Default for KeptSpaces {
    fn default() -> Self {
        let nothing = Kept {
            identifier: None,
            loaded_at: 0,
            is_selected: false,
        };
        let mut spaces = Self {
            spaces: [nothing; SPACES],
            loaded: (SpaceNumber::default(), 0),
            loads: 0,
            limit: SPACES,
        };
        spaces.start_with(0);
        spaces
    }
}

impl KeptSpaces {
    /// The identifier of the space that is loaded.
    pub fn loaded(&self) -> u16 {
        self.loaded.1
    }

    /// The identifier of what is kept under a number; `None`: that is void.
    pub fn identifier(&self, number: SpaceNumber) -> Option<u16> {
        self.spaces[number.index()].identifier
    }

    /// Whether the structures know the space with an identifier.
    pub fn is_kept(&self, identifier: u16) -> bool {
        self.find(identifier).is_some()
    }

    /// The space with an identifier is loaded, another one than before. Its number from now on,
    /// and whether what is kept under that number is its own. If that was another's, which is not
    /// known any more, `stolen` counts.
    pub fn load(&mut self, identifier: u16, stolen: &mut u64) -> (SpaceNumber, bool) {
        let kept = self.find(identifier);
        let number = kept.unwrap_or_else(|| self.oldest());
        *stolen += u64::from(kept.is_none() && self.spaces[number].identifier.is_some());
        self.loads += 1;
        self.spaces[number] = Kept {
            identifier: Some(identifier),
            loaded_at: self.loads,
            is_selected: true,
        };
        self.loaded = (SpaceNumber::new(number), identifier);
        (self.loaded.0, kept.is_some())
    }

    fn find(&self, identifier: u16) -> Option<usize> {
        let is_it = |space: &Kept| space.identifier == Some(identifier);
        self.spaces.iter().position(is_it)
    }

    /// A number whose space is void, or else the one not loaded for the longest time.
    fn oldest(&self) -> usize {
        let numbers = 0..self.limit;
        let age = |number: &usize| {
            let space = &self.spaces[*number];
            (space.identifier.is_some(), space.loaded_at)
        };
        let others = numbers.filter(|&number| number != self.loaded.0.index());
        others.min_by_key(age).unwrap_or_default()
    }

    /// So many spaces are kept at most from now on, the loaded one among them; at least one. What is
    /// kept of all that are not loaded is void.
    pub fn set_limit(&mut self, limit: usize) {
        self.forget_others();
        self.limit = limit.clamp(1, SPACES);
    }

    /// The numbers that are given out, but for the loaded one: each with whether it was loaded since
    /// it was [purged](Self::purged).
    pub fn others(&self) -> impl Iterator<Item = (SpaceNumber, bool)> {
        let loaded = self.loaded.0.index();
        let numbers = (0..self.limit).filter(move |&number| number != loaded);
        numbers.map(|number| (SpaceNumber::new(number), self.spaces[number].is_selected))
    }

    /// What is kept under a number was purged.
    pub fn purged(&mut self, number: SpaceNumber) {
        self.spaces[number.index()].is_selected = false;
    }

    /// What is kept of a space that is not loaded is void.
    pub fn forget(&mut self, identifier: u16) {
        if identifier != self.loaded.1
            && let Some(number) = self.find(identifier)
        {
            self.spaces[number].identifier = None;
        }
    }

    /// What is kept of all spaces that are not loaded is void.
    pub fn forget_others(&mut self) {
        for (number, space) in self.spaces.iter_mut().enumerate() {
            if number != self.loaded.0.index() {
                space.identifier = None;
            }
        }
    }

    /// The loaded space, of which nothing is known, has this identifier.
    pub fn start_with(&mut self, identifier: u16) {
        self.forget_others();
        self.loaded.1 = identifier;
        self.spaces[self.loaded.0.index()].identifier = Some(identifier);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_keeps_its_number_until_it_is_the_oldest_of_too_many() {
        let mut spaces = KeptSpaces::default();
        let numbers: Vec<SpaceNumber> = (1..SPACES as u16)
            .map(|identifier| {
                let (number, is_kept) = spaces.load(identifier, &mut 0);
                assert!(!is_kept);
                number
            })
            .collect();
        let first = numbers[0];
        assert_eq!(spaces.load(1, &mut 0), (first, true));
        assert_eq!(spaces.load(0, &mut 0), (SpaceNumber::default(), true));
        // The second one has not been loaded for the longest time.
        assert_eq!(spaces.load(100, &mut 0), (numbers[1], false));
        assert_eq!(spaces.load(1, &mut 0), (first, true));
        assert!(!spaces.load(2, &mut 0).1);
    }

    #[test]
    fn what_is_forgotten_of_a_space_leaves_its_number_to_the_next() {
        let mut spaces = KeptSpaces::default();
        spaces.load(5, &mut 0);
        spaces.load(6, &mut 0);
        spaces.forget(5);
        spaces.forget(6);
        assert_eq!(spaces.loaded(), 6);
        for free in 2..SPACES {
            spaces.load(100 + free as u16, &mut 0);
        }
        assert!(
            spaces.load(6, &mut 0).1,
            "the loaded space is not forgotten by name"
        );
        assert!(!spaces.load(5, &mut 0).1);
        spaces.forget_others();
        assert!(!spaces.load(6, &mut 0).1);
        assert!(spaces.load(5, &mut 0).1);
    }

    #[test]
    fn the_loaded_space_can_take_another_identifier_when_nothing_is_known() {
        let mut spaces = KeptSpaces::default();
        spaces.load(5, &mut 0);
        spaces.start_with(9);
        assert_eq!(spaces.loaded(), 9);
        assert!(!spaces.load(5, &mut 0).1);
        assert!(spaces.load(9, &mut 0).1);
    }
}
