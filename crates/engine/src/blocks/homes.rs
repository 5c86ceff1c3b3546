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
//! - Within an *epoch* (see [`LinkTables::epoch`](crate::blocks::links::LinkTables::epoch))
//!   each home has one delta, so that links that were made in it lead where they should
//!   whenever the code is reached. It is that of the code in force, if there is any, which may be
//!   in force since an epoch before. A page that is reached at a second address gets a second
//!   home, as long as it has few.
//! - Neighbours have the same delta, so that a direct branch from one page to another leaves
//!   the delta as it is. A page that is met for the first time gets a home at the same distance
//!   as the code that branches there, or as what lies nearest.
//!
//! Homes are small, so that a home address is a 32-bit displacement.

use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;
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

    /// The delta with which the code of a physical page, with this home, is in force.
    fn delta_in_force(&self, physical_page: u64, home_page: u64) -> Option<u64>;

    /// Calls `note` with linear page and delta of code in force, some of it perhaps twice.
    fn neighbours(&self, note: &mut dyn FnMut(u64, u64));
}

/// A home of a page, and who uses it.
#[derive(Clone, Copy, Debug)]
struct Home {
    page: u64,
    /// In this epoch the page is used from this home,
    epoch: u64,
    /// with this delta.
    delta: u64,
}

/// Answers that are remembered.
const RECENT: usize = 64;

/// An answer of [`Homes::delta`].
#[derive(Clone, Copy, Debug)]
struct Recent {
    epoch: u64,
    physical_page: u64,
    linear_page: u64,
    delta: u64,
}

/// The homes of all pages with relocatable code.
pub struct Homes {
    /// Answers of late, by linear page. In their epoch they hold.
    recent: [Recent; RECENT],
    /// By physical page, the last used first.
    by_page: FxHashMap<u64, Vec<Home>>,
    /// Deltas by linear page in the epoch.
    deltas: BTreeMap<u64, u64>,
    epoch: u64,
    /// The epoch in which code in force was noted there.
    neighbours_in: u64,
    /// Pages at which those without code are looked for next.
    look_at: usize,
}

impl Default for Homes {
    fn default() -> Self {
        let none = Recent {
            epoch: u64::MAX,
            physical_page: 0,
            linear_page: 0,
            delta: 0,
        };
        Self {
            recent: [none; RECENT],
            by_page: FxHashMap::default(),
            deltas: BTreeMap::new(),
            epoch: 0,
            neighbours_in: 0,
            look_at: 0,
        }
    }
}

impl Homes {
    /// The delta with which code of a physical page runs at a linear page, from now on and for
    /// this epoch; `None`: all homes that the page may have are taken in this epoch. If code
    /// with the delta `wanted` branches there, the same is preferred.
    pub fn delta(
        &mut self,
        epoch: u64,
        (physical_page, linear_page): (u64, u64),
        wanted: Option<u64>,
        code: &impl Code,
    ) -> Option<u64> {
        let recent = self.recent[linear_page as usize % RECENT];
        let is_page = recent.physical_page == physical_page && recent.linear_page == linear_page;
        let is_wanted = wanted.is_none_or(|wanted| wanted == recent.delta);
        if recent.epoch == epoch && is_page && is_wanted {
            return Some(recent.delta);
        }
        let delta = self.choose(epoch, (physical_page, linear_page), wanted, code)?;
        self.recent[linear_page as usize % RECENT] = Recent {
            epoch,
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
        wanted: Option<u64>,
        code: &impl Code,
    ) -> Option<u64> {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.deltas.clear();
        }
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
        let preferred = wanted.or_else(|| self.nearby(linear_page, code));
        self.make_room(code);
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
        self.deltas.insert(linear_page, home.delta);
        Some(home.delta)
    }

    /// The delta that a home of a physical page had when it was last used.
    pub fn last_delta(&self, physical_page: u64, home_page: u64) -> Option<u64> {
        let homes = self.by_page.get(&physical_page)?;
        let home = homes.iter().find(|home| home.page == home_page)?;
        Some(home.delta)
    }

    /// The delta of the nearest linear page.
    fn nearby(&mut self, linear_page: u64, code: &impl Code) -> Option<u64> {
        if self.neighbours_in != self.epoch {
            self.neighbours_in = self.epoch;
            code.neighbours(&mut |page, delta| {
                self.deltas.entry(page).or_insert(delta);
            });
        }
        let below = self.deltas.range(..=linear_page).next_back();
        let above = self.deltas.range(linear_page..).next();
        let distance = |found: &(&u64, &u64)| found.0.abs_diff(linear_page);
        let nearest = below.into_iter().chain(above).min_by_key(distance)?;
        (distance(&nearest) <= NEIGHBOURHOOD).then_some(*nearest.1)
    }

    /// Forgets pages without code once there are many.
    fn make_room(&mut self, code: &impl Code) {
        if self.by_page.len() < self.look_at.max(MOST_PAGES) {
            return;
        }
        let epoch = self.epoch;
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

        fn neighbours(&self, note: &mut dyn FnMut(u64, u64)) {
            for &(_, home, linear) in &self.in_force {
                note(linear, delta(home, linear));
            }
        }
    }

    const WITH_CODE: &Plain = &Plain {
        is_empty: false,
        in_force: Vec::new(),
    };

    #[test]
    fn code_that_stays_in_force_keeps_its_delta_in_the_next_epoch() {
        let mut homes = Homes::default();
        let first = homes.delta(1, (5, LIBRARY), None, WITH_CODE).unwrap();
        let home = LIBRARY - first / PAGE_SIZE;
        let code = Plain {
            in_force: vec![(5, home, LIBRARY)],
            ..Plain::default()
        };
        let other = homes.delta(2, (5, LIBRARY + 77), Some(first + 77 * PAGE_SIZE), &code);
        assert_ne!(other, Some(delta(home, LIBRARY + 77)), "the home is taken");
        assert!(other.is_some());
        assert_eq!(homes.delta(2, (5, LIBRARY), None, &code), Some(first));
        // What is first met beside it has the same delta.
        assert_eq!(homes.delta(3, (9, LIBRARY + 1), None, &code), Some(first));
    }

    #[test]
    fn a_page_keeps_its_home_wherever_it_is_mapped() {
        let mut homes = Homes::default();
        let first = homes.delta(1, (5, LIBRARY), None, WITH_CODE).unwrap();
        let home = LIBRARY * PAGE_SIZE - first;
        assert!(HOMES.contains(&(home / PAGE_SIZE)));
        for epoch in 2..10 {
            let linear = LIBRARY + epoch * 0x1_2345;
            let delta = homes.delta(epoch, (5, linear), None, WITH_CODE);
            assert_eq!(linear * PAGE_SIZE - delta.unwrap(), home);
            assert_eq!(homes.delta(epoch, (5, linear), None, WITH_CODE), delta);
        }
    }

    #[test]
    fn in_one_epoch_no_home_has_two_deltas() {
        let mut homes = Homes::default();
        let mut known: Vec<(u64, u64, u64)> = Vec::new();
        for index in 0..MOST_HOMES as u64 {
            let linear = LIBRARY + index * 0x10_0001;
            let delta = homes.delta(1, (5, linear), None, WITH_CODE).unwrap();
            let home = linear * PAGE_SIZE - delta;
            assert!(known.iter().all(|&(other, ..)| other != home));
            known.push((home, linear, delta));
        }
        assert_eq!(homes.delta(1, (5, LIBRARY + 77), None, WITH_CODE), None);
        for (_, linear, delta) in known {
            assert_eq!(homes.delta(1, (5, linear), None, WITH_CODE), Some(delta));
        }
        assert!(homes.delta(2, (5, LIBRARY + 77), None, WITH_CODE).is_some());
    }

    #[test]
    fn neighbours_and_what_branches_there_have_the_same_delta() {
        let mut homes = Homes::default();
        let delta = homes.delta(1, (5, LIBRARY), None, WITH_CODE);
        assert_eq!(homes.delta(1, (9, LIBRARY + 100), None, WITH_CODE), delta);
        let far = LIBRARY - FRESH / 2;
        let other = homes.delta(1, (10, far), None, WITH_CODE);
        assert_ne!(other, delta);
        // A branch from there to the library: the page gets a second home.
        assert_eq!(homes.delta(1, (9, LIBRARY + 100), other, WITH_CODE), other);
        // Whoever comes by another way finds one of them.
        let found = homes.delta(1, (9, LIBRARY + 100), None, WITH_CODE);
        assert!([delta, other].contains(&found));
        assert_eq!(homes.delta(1, (9, LIBRARY + 100), delta, WITH_CODE), delta);
    }

    #[test]
    fn a_page_without_code_may_be_at_home_elsewhere() {
        let empty = Plain {
            is_empty: true,
            ..Plain::default()
        };
        let mut homes = Homes::default();
        for epoch in 1..100 {
            let linear = LIBRARY + epoch * 0x777;
            let wanted = Some((LIBRARY - HOMES.start) * PAGE_SIZE);
            let delta = homes.delta(epoch, (5, linear), wanted, &empty);
            assert_eq!(delta, wanted);
        }
        assert_eq!(homes.by_page[&5].len(), 1);
    }
}
