//! Homes: the choice of link addresses for relocatable code, by physical page.
//!
//! A library is mapped at another address in each process, but its code is the same. So each
//! physical page of relocatable code has a *home*: the number of a linear page at which it need not
//! be mapped anywhere. Code that is translated from the physical page names link addresses in this
//! home page. The *slide* is the distance from the link address to where the page is mapped.
//!
//! ```text
//! process 1:   libc at 7f10_0000_0000   slide 7f0f_e000_0000
//! process 2:   libc at 7f98_7654_0000   slide 7f98_5654_0000
//! home:             at      2000_0000
//! ```
//!
//! Two rules make slides useful:
//! - In one address space each home has one slide, so that the entries for its code in the tables
//!   of that space lead to the right place. If code of this home is active in the space, the home
//!   has the slide of that code. A physical page that is reached at a second linear address gets a
//!   second home, up to a limit. A choice holds for an *epoch* of the space (see
//!   [`LinkTables::epoch`](crate::blocks::links::LinkTables::epoch)), which changes of other spaces
//!   do not end.
//! - Neighbouring pages have the same slide, so that a direct branch from one page to another need
//!   not change the slide. A page that is reached for the first time gets a home that gives it the
//!   slide of the code that branches to it, or of the nearest known page.
//!
//! Homes are low, so that a link address fits into a 32-bit displacement.

use crate::blocks::links::Epoch;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;
use tollgate_tlb::SPACES;
use tollgate_x86::address::PAGE_SIZE;

/// Maximum number of homes of one physical page. If a page is reached at more addresses, its code
/// is not relocatable.
const MOST_HOMES: usize = 4;
/// Number of pages with homes from which on pages without code are forgotten.
const MOST_PAGES: usize = 1 << 16;
/// Number of linear pages on each side that are searched for a neighbour: 64 MiB.
const NEIGHBOURHOOD: u64 = 1 << 14;
/// The pages that can be homes: a link address must fit into 32 bits to serve as a displacement.
const HOMES: Range<u64> = 0x1_0000..0x7_0000;
/// First home for pages that have no neighbour to follow.
const FRESH: u64 = 0x2_0000;

/// The questions about existing code on which the choice of a home depends.
pub trait Code {
    /// Whether active blocks were made from a physical page.
    fn has_code(&self, physical_page: u64) -> bool;

    /// The slide at which the code of a physical page with this home is active in the loaded space.
    /// `None` if the code is not active there.
    fn delta_in_force(&self, physical_page: u64, home_page: u64) -> Option<u64>;
}

/// A home of a physical page, and its last use.
#[derive(Clone, Copy, Debug)]
struct Home {
    page: u64,
    /// The number of the epoch in which the home was last used. Numbers are unique over all spaces.
    epoch: u64,
    /// The slide that the home has in this epoch.
    delta: u64,
}

/// Number of recent answers that are remembered for each space.
const RECENT: usize = 64;
/// Number of linear pages with known slides from which on all of them are forgotten, for each
/// space.
const MOST_DELTAS: usize = 1 << 15;

/// A remembered answer of [`Homes::delta`].
#[derive(Clone, Copy, Debug)]
struct Recent {
    physical_page: u64,
    linear_page: u64,
    delta: u64,
}

/// The answers that were given for one space in its present epoch.
struct OfSpace {
    epoch: u64,
    /// Recent answers, indexed by the linear page modulo [`RECENT`].
    recent: [Recent; RECENT],
    /// The slide of each linear page.
    deltas: BTreeMap<u64, u64>,
}

impl OfSpace {
    fn new(epoch: u64) -> Self {
        let none = Recent {
            physical_page: u64::MAX,
            linear_page: u64::MAX,
            delta: 0,
        };
        Self {
            epoch,
            recent: [none; RECENT],
            deltas: BTreeMap::new(),
        }
    }

    /// The slide of the nearest linear page that has one, if that page is near enough.
    fn nearby(&self, linear_page: u64) -> Option<u64> {
        let below = self.deltas.range(..=linear_page).next_back();
        let above = self.deltas.range(linear_page..).next();
        let distance = |found: &(&u64, &u64)| found.0.abs_diff(linear_page);
        let nearest = below.into_iter().chain(above).min_by_key(distance)?;
        (distance(&nearest) <= NEIGHBOURHOOD).then_some(*nearest.1)
    }
}

/// The homes of all pages with relocatable code.
#[derive(Default)]
pub struct Homes {
    spaces: [Option<Box<OfSpace>>; SPACES],
    /// The homes of each physical page, the home that was used last first.
    by_page: FxHashMap<u64, Vec<Home>>,
    /// Number of pages with homes at which pages without code are next forgotten.
    look_at: usize,
}

impl Homes {
    /// Chooses the slide at which code of a physical page runs at a linear page of the loaded
    /// space, from now on and for the rest of this epoch. `None` if all homes that the page may
    /// have are already used with other slides in this epoch. If code with the slide `wanted`
    /// branches to the page, the same slide is preferred.
    pub fn delta(
        &mut self,
        epoch: Epoch,
        (physical_page, linear_page): (u64, u64),
        wanted: Option<u64>,
        code: &impl Code,
    ) -> Option<u64> {
        let space = &mut self.spaces[epoch.space.index()];
        let space = space.get_or_insert_with(|| Box::new(OfSpace::new(epoch.number)));
        if space.epoch != epoch.number {
            **space = OfSpace::new(epoch.number);
        }
        let recent = space.recent[linear_page as usize % RECENT];
        let is_page = recent.physical_page == physical_page && recent.linear_page == linear_page;
        let is_wanted = wanted.is_none_or(|wanted| wanted == recent.delta);
        if is_page && is_wanted {
            return Some(recent.delta);
        }
        let nearby = space.nearby(linear_page);
        let pages = (physical_page, linear_page);
        let delta = self.choose(epoch.number, pages, (wanted, nearby), code)?;
        let space = self.spaces[epoch.space.index()].as_mut()?;
        if space.deltas.len() >= MOST_DELTAS {
            space.deltas.clear();
        }
        space.deltas.insert(linear_page, delta);
        space.recent[linear_page as usize % RECENT] = Recent {
            physical_page,
            linear_page,
            delta,
        };
        Some(delta)
    }

    fn choose(
        &mut self,
        epoch: u64,
        (physical_page, linear_page): (u64, u64),
        (wanted, nearby): (Option<u64>, Option<u64>),
        code: &impl Code,
    ) -> Option<u64> {
        let delta_of = |home: &Home| delta(home.page, linear_page);
        let homes = self.by_page.get_mut(&physical_page);
        let homes = homes.map(Vec::as_mut_slice).unwrap_or_default();
        for home in &mut *homes {
            if let Some(delta) = code.delta_in_force(physical_page, home.page) {
                (home.epoch, home.delta) = (epoch, delta);
            }
        }
        let current = homes.iter().find(|home| {
            let here = home.epoch == epoch && home.delta == delta_of(home);
            here && wanted.is_none_or(|wanted| wanted == home.delta)
        });
        if let Some(current) = current {
            return Some(current.delta);
        }
        let preferred = wanted.or(nearby);
        self.make_room(epoch, code);
        let homes = self.by_page.entry(physical_page).or_default();
        if !homes.is_empty() && !code.has_code(physical_page) {
            // The memory was reused for other code, so homes of earlier epochs have no value.
            homes.retain(|home| home.epoch == epoch);
        }
        let usable = |home: &Home| home.epoch != epoch || home.delta == delta_of(home);
        let fitting = |home: &Home| usable(home) && Some(delta_of(home)) == preferred;
        let preferred_home = preferred
            .map(|delta| linear_page.wrapping_sub(delta / PAGE_SIZE) & PAGES)
            .filter(|page| HOMES.contains(page));
        let may_add = homes.len() < MOST_HOMES;
        let is_new = |page: u64| homes.iter().all(|home| home.page != page);
        let added = match preferred_home.filter(|&page| is_new(page)) {
            Some(page) if may_add && (wanted.is_some() || homes.is_empty()) => Some(page),
            _ => None,
        };
        let fresh = FRESH | linear_page & (FRESH - 1);
        // If the fresh home is already listed but not usable, it has another slide in this epoch.
        let fresh = may_add.then_some(fresh).filter(|&page| is_new(page));
        let in_use = |home: &Home| usable(home) && home.epoch == epoch;
        let index = homes.iter().position(fitting);
        let index = match (index, added) {
            (None, Some(_)) => None,
            (found, _) => found
                .or_else(|| homes.iter().position(in_use))
                .or_else(|| homes.iter().position(usable)),
        };
        let mut home = match index {
            Some(index) => homes.remove(index),
            None => Home {
                page: added.or(fresh)?,
                epoch,
                delta: 0,
            },
        };
        home.epoch = epoch;
        home.delta = delta_of(&home);
        homes.insert(0, home);
        Some(home.delta)
    }

    /// The slide that a home of a physical page had when it was last used.
    pub fn last_delta(&self, physical_page: u64, home_page: u64) -> Option<u64> {
        let homes = self.by_page.get(&physical_page)?;
        let home = homes.iter().find(|home| home.page == home_page)?;
        Some(home.delta)
    }

    /// Forgets pages without code if many pages have homes.
    fn make_room(&mut self, epoch: u64, code: &impl Code) {
        if self.by_page.len() < self.look_at.max(MOST_PAGES) {
            return;
        }
        self.by_page.retain(|&page, homes| {
            code.has_code(page) || {
                homes.retain(|home| home.epoch == epoch);
                !homes.is_empty()
            }
        });
        self.look_at = self.by_page.len() * 2;
    }
}

/// Mask for numbers of linear pages.
const PAGES: u64 = u64::MAX / PAGE_SIZE;

/// The slide from a home to a linear page, in bytes.
fn delta(home_page: u64, linear_page: u64) -> u64 {
    linear_page.wrapping_sub(home_page).wrapping_mul(PAGE_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_tlb::SpaceNumber;

    const LIBRARY: u64 = 0x7_f100_0000;

    /// Test data: whether no page has code, and the active code as physical page, home and linear
    /// page.
    #[derive(Default)]
    struct Plain {
        is_empty: bool,
        in_force: Vec<(u64, u64, u64)>,
    }

    impl Code for Plain {
        fn has_code(&self, _: u64) -> bool {
            !self.is_empty
        }

        fn delta_in_force(&self, physical_page: u64, home_page: u64) -> Option<u64> {
            let mut in_force = self.in_force.iter();
            let is_it = |it: &&(u64, u64, u64)| (it.0, it.1) == (physical_page, home_page);
            in_force
                .find(is_it)
                .map(|&(_, home, linear)| delta(home, linear))
        }
    }

    /// An epoch of the first space.
    fn epoch(number: u64) -> Epoch {
        Epoch {
            space: SpaceNumber::default(),
            number,
        }
    }

    const WITH_CODE: &Plain = &Plain {
        is_empty: false,
        in_force: Vec::new(),
    };

    #[test]
    fn code_in_force_keeps_its_delta_whatever_other_spaces_do_with_its_home() {
        let mut homes = Homes::default();
        let first = homes
            .delta(epoch(1), (5, LIBRARY), None, WITH_CODE)
            .unwrap();
        let home = LIBRARY - first / PAGE_SIZE;
        let other_space = Epoch {
            space: SpaceNumber::new(3),
            number: 2,
        };
        let elsewhere = homes.delta(other_space, (5, LIBRARY + 99), None, WITH_CODE);
        assert_eq!(
            elsewhere,
            Some(delta(home, LIBRARY + 99)),
            "both spaces use the same home"
        );
        let code = Plain {
            in_force: vec![(5, home, LIBRARY)],
            ..Plain::default()
        };
        let wanted = Some(first + 77 * PAGE_SIZE);
        let other = homes.delta(epoch(1), (5, LIBRARY + 77), wanted, &code);
        assert_ne!(
            other,
            Some(delta(home, LIBRARY + 77)),
            "the home already has another slide"
        );
        assert!(other.is_some());
        assert_eq!(
            homes.delta(epoch(1), (5, LIBRARY), None, &code),
            Some(first)
        );
        // A neighbour that is first reached now gets the same slide.
        assert_eq!(
            homes.delta(epoch(1), (9, LIBRARY + 1), None, &code),
            Some(first)
        );
        // The other space still knows its neighbours.
        let near = homes.delta(other_space, (10, LIBRARY + 100), None, WITH_CODE);
        assert_eq!(near, elsewhere);
    }

    #[test]
    fn a_page_keeps_its_home_wherever_it_is_mapped() {
        let mut homes = Homes::default();
        let first = homes
            .delta(epoch(1), (5, LIBRARY), None, WITH_CODE)
            .unwrap();
        let home = LIBRARY * PAGE_SIZE - first;
        assert!(HOMES.contains(&(home / PAGE_SIZE)));
        for number in 2..10 {
            let linear = LIBRARY + number * 0x1_2345;
            let delta = homes.delta(epoch(number), (5, linear), None, WITH_CODE);
            assert_eq!(linear * PAGE_SIZE - delta.unwrap(), home);
            assert_eq!(
                homes.delta(epoch(number), (5, linear), None, WITH_CODE),
                delta
            );
        }
    }

    #[test]
    fn in_one_epoch_no_home_has_two_deltas() {
        let mut homes = Homes::default();
        let mut known: Vec<(u64, u64, u64)> = Vec::new();
        for index in 0..MOST_HOMES as u64 {
            let linear = LIBRARY + index * 0x10_0001;
            let delta = homes.delta(epoch(1), (5, linear), None, WITH_CODE).unwrap();
            let home = linear * PAGE_SIZE - delta;
            assert!(known.iter().all(|&(other, ..)| other != home));
            known.push((home, linear, delta));
        }
        assert_eq!(
            homes.delta(epoch(1), (5, LIBRARY + 77), None, WITH_CODE),
            None
        );
        for (_, linear, delta) in known {
            assert_eq!(
                homes.delta(epoch(1), (5, linear), None, WITH_CODE),
                Some(delta)
            );
        }
        assert!(
            homes
                .delta(epoch(2), (5, LIBRARY + 77), None, WITH_CODE)
                .is_some()
        );
    }

    #[test]
    fn neighbours_and_what_branches_there_have_the_same_delta() {
        let mut homes = Homes::default();
        let delta = homes.delta(epoch(1), (5, LIBRARY), None, WITH_CODE);
        assert_eq!(
            homes.delta(epoch(1), (9, LIBRARY + 100), None, WITH_CODE),
            delta
        );
        let far = LIBRARY - FRESH / 2;
        let other = homes.delta(epoch(1), (10, far), None, WITH_CODE);
        assert_ne!(other, delta);
        // A branch leads from there to the library, so the library's page gets a second home.
        assert_eq!(
            homes.delta(epoch(1), (9, LIBRARY + 100), other, WITH_CODE),
            other
        );
        // A question without a wanted slide finds one of the two homes.
        let found = homes.delta(epoch(1), (9, LIBRARY + 100), None, WITH_CODE);
        assert!([delta, other].contains(&found));
        assert_eq!(
            homes.delta(epoch(1), (9, LIBRARY + 100), delta, WITH_CODE),
            delta
        );
    }

    #[test]
    fn a_page_without_code_may_be_at_home_elsewhere() {
        let empty = Plain {
            is_empty: true,
            ..Plain::default()
        };
        let mut homes = Homes::default();
        for number in 1..100 {
            let linear = LIBRARY + number * 0x777;
            let wanted = Some((LIBRARY - HOMES.start) * PAGE_SIZE);
            let delta = homes.delta(epoch(number), (5, linear), wanted, &empty);
            assert_eq!(delta, wanted);
        }
        assert_eq!(homes.by_page[&5].len(), 1);
    }
}
