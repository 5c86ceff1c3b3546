//! Homes: the addresses that the tables of relocatable blocks name.
//!
//! A library is mapped elsewhere in each process, but its code is the same. So a physical page
//! of such code has a *home*, a linear page that need not be anybody's, and what is translated
//! from it names home addresses. The *delta* leads from there to where the page is mapped.
//!
//! ```text
//! process 1:   libc at 7f10_0000_0000   delta 7f0f_e000_0000
//! process 2:   libc at 7f98_7654_0000   delta 7f98_5654_0000
//! home:             at      2000_0000
//! ```
//!
//! Two rules make deltas useful:
//! - In one address space each home has one delta, so that what leads to its code in the tables of
//!   that space leads where it should. It is that of the code in force there, if there is any. A page
//!   that is reached at a second address gets a second home, as long as it has few. What is chosen
//!   holds for an *epoch* of the space (see
//!   [`LinkTables::epoch`](crate::blocks::links::LinkTables::epoch)), which other spaces do not end.
//! - Neighbours have the same delta, so that a direct branch from one page to another leaves
//!   the delta as it is. A page that is met for the first time gets a home at the same distance
//!   as the code that branches there, or as what lies nearest.
//!
//! Homes are small, so that a home address is a 32-bit displacement.

use crate::blocks::links::Epoch;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;
use tollgate_tlb::SPACES;
use tollgate_x86::address::PAGE_SIZE;

/// Homes of one page at most; reached at more addresses, its code is not relocatable.
const MOST_HOMES: usize = 4;
/// Pages with homes before those without code are forgotten.
const MOST_PAGES: usize = 1 << 16;
/// Linear pages on both sides in which a neighbour is looked for: 64 MiB.
const NEIGHBOURHOOD: u64 = 1 << 14;
/// Where homes may lie: a distance of 32 bits leads to none that has more than 32 bits.
const HOMES: Range<u64> = 0x1_0000..0x7_0000;
/// Where homes lie that are not chosen after others.
const FRESH: u64 = 0x2_0000;

/// What homes have to know of the code that was made from pages.
pub trait Code {
    /// Whether blocks were made from a physical page.
    fn has_code(&self, physical_page: u64) -> bool;

    /// The delta with which the code of a physical page, with this home, is in force in the loaded
    /// space.
    fn delta_in_force(&self, physical_page: u64, home_page: u64) -> Option<u64>;
}

/// A home of a page, and who used it last.
#[derive(Clone, Copy, Debug)]
struct Home {
    page: u64,
    /// In the epoch of this number, of whatever space, the page is used from this home,
    epoch: u64,
    /// with this delta.
    delta: u64,
}

/// Answers that are remembered of each space.
const RECENT: usize = 64;
/// Linear pages whose deltas are known in a space before they are forgotten.
const MOST_DELTAS: usize = 1 << 15;

/// An answer of [`Homes::delta`].
#[derive(Clone, Copy, Debug)]
struct Recent {
    physical_page: u64,
    linear_page: u64,
    delta: u64,
}

/// What was answered for one space in its epoch.
struct OfSpace {
    epoch: u64,
    /// Answers of late, by linear page.
    recent: [Recent; RECENT],
    /// Deltas by linear page.
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

    /// The delta of the nearest linear page.
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
    /// By physical page, the last used first.
    by_page: FxHashMap<u64, Vec<Home>>,
    /// Pages at which those without code are looked for next.
    look_at: usize,
}

impl Homes {
    /// The delta with which code of a physical page runs at a linear page of the loaded space, from
    /// now on and for this epoch; `None`: all homes that the page may have are taken in this epoch. If
    /// code with the delta `wanted` branches there, the same is preferred.
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
            // The page is another's now.
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
        // One that is there but not usable has another delta in this epoch.
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

    /// The delta that a home of a physical page had when it was last used.
    pub fn last_delta(&self, physical_page: u64, home_page: u64) -> Option<u64> {
        let homes = self.by_page.get(&physical_page)?;
        let home = homes.iter().find(|home| home.page == home_page)?;
        Some(home.delta)
    }

    /// Forgets pages without code once there are many.
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

/// Numbers of linear pages have so many bits.
const PAGES: u64 = u64::MAX / PAGE_SIZE;

/// The distance from a home to a linear page, in bytes.
fn delta(home_page: u64, linear_page: u64) -> u64 {
    linear_page.wrapping_sub(home_page).wrapping_mul(PAGE_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_tlb::SpaceNumber;

    const LIBRARY: u64 = 0x7_f100_0000;

    /// Whether all pages have code, and what is in force: physical page, home, linear page.
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
            "it is the same home"
        );
        let code = Plain {
            in_force: vec![(5, home, LIBRARY)],
            ..Plain::default()
        };
        let wanted = Some(first + 77 * PAGE_SIZE);
        let other = homes.delta(epoch(1), (5, LIBRARY + 77), wanted, &code);
        assert_ne!(other, Some(delta(home, LIBRARY + 77)), "the home is taken");
        assert!(other.is_some());
        assert_eq!(
            homes.delta(epoch(1), (5, LIBRARY), None, &code),
            Some(first)
        );
        // What is first met beside it has the same delta.
        assert_eq!(
            homes.delta(epoch(1), (9, LIBRARY + 1), None, &code),
            Some(first)
        );
        // The other space has not lost its neighbours in the meantime.
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
        // A branch from there to the library: the page gets a second home.
        assert_eq!(
            homes.delta(epoch(1), (9, LIBRARY + 100), other, WITH_CODE),
            other
        );
        // Whoever comes by another way finds one of them.
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
