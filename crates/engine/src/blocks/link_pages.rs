//! Link pages: the choice of link addresses for relocatable code, by physical page.
//!
//! A library is mapped at another address in each process, but its code is the same. So each
//! physical page of relocatable code has a *link page*: the number of a linear page at which it need not
//! be mapped anywhere. Code that is translated from the physical page names link addresses in this
//! link page. The *slide* is the distance from the link address to where the page is mapped.
//!
//! ```text
//! process 1:   libc at 7f10_0000_0000   slide 7f0f_e000_0000
//! process 2:   libc at 7f98_7654_0000   slide 7f98_5654_0000
//! link page:             at      2000_0000
//! ```
//!
//! Two rules make slides useful:
//! - In one address space each link page has one slide, so that the entries for its code in the tables
//!   of that space lead to the right place. If code of this link page is active in the space, the link page
//!   has the slide of that code. A physical page that is reached at a second linear address gets a
//!   second link page, up to a limit. A choice holds for an *epoch* of the space (see
//!   [`LinkTables::epoch`](crate::blocks::links::LinkTables::epoch)), which changes of other spaces
//!   do not end.
//! - Neighbouring pages have the same slide, so that a direct branch from one page to another need
//!   not change the slide. A page that is reached for the first time gets a link page that gives it the
//!   slide of the code that branches to it, or of the nearest known page.
//!
//! A page has a few link pages at most. If code branches to it whose slide none of them has, the one
//! that was used the longest time ago is given up: a page's link pages follow the processes that run
//! now, and a branch is never without a link for long.
//!
//! Link pages are low, so that a link address fits into a 32-bit displacement.

use crate::blocks::links::Epoch;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;
use tollgate_tlb::SPACES;
use tollgate_x86::address::PAGE_SIZE;

/// Maximum number of link pages of one physical page. If a page is reached at more addresses, its code
/// is not relocatable.
const MOST_LINK_PAGES: usize = 4;
/// Number of pages with link pages from which on pages without code are forgotten.
const MOST_PAGES: usize = 1 << 16;
/// Number of linear pages on each side that are searched for a neighbour: 64 MiB.
const NEIGHBOURHOOD: u64 = 1 << 14;
/// The pages that can be link pages: a link address must fit into 32 bits to serve as a displacement.
const LINK_PAGES: Range<u64> = 0x1_0000..0x7_0000;
/// First link page for pages that have no neighbour to follow.
const FRESH: u64 = 0x2_0000;

/// No epoch has this number.
const NO_EPOCH: u64 = u64::MAX;

/// The questions about existing code on which the choice of a link page depends.
pub trait Code {
    /// Whether active blocks were made from a physical page.
    fn has_code(&self, physical_page: u64) -> bool;

    /// The slide at which the code of a physical page with this link page is active in the loaded space.
    /// `None` if the code is not active there.
    fn active_slide(&self, physical_page: u64, link_page: u64) -> Option<u64>;
}

/// A link page of a physical page, and its last use.
#[derive(Clone, Copy, Debug)]
struct LinkPage {
    page: u64,
    /// The number of the epoch in which the link page was last used. Numbers are unique over all spaces.
    epoch: u64,
    /// The slide that the link page has in this epoch.
    slide: u64,
}

/// Number of recent answers that are remembered for each space.
const RECENT: usize = 64;
/// Number of linear pages with known slides from which on all of them are forgotten, for each
/// space.
const MOST_SLIDES: usize = 1 << 15;

/// A remembered answer of [`Link pages::slide`].
#[derive(Clone, Copy, Debug)]
struct Recent {
    physical_page: u64,
    linear_page: u64,
    slide: u64,
}

/// The answers that were given for one space in its present epoch.
struct OfSpace {
    epoch: u64,
    /// Recent answers, indexed by the linear page modulo [`RECENT`].
    recent: [Recent; RECENT],
    /// The slide of each linear page.
    slides: BTreeMap<u64, u64>,
}

impl OfSpace {
    fn new(epoch: u64) -> Self {
        let none = Recent {
            physical_page: u64::MAX,
            linear_page: u64::MAX,
            slide: 0,
        };
        Self {
            epoch,
            recent: [none; RECENT],
            slides: BTreeMap::new(),
        }
    }

    /// The slide of the nearest linear page that has one, if that page is near enough.
    fn nearby(&self, linear_page: u64) -> Option<u64> {
        let below = self.slides.range(..=linear_page).next_back();
        let above = self.slides.range(linear_page..).next();
        let distance = |found: &(&u64, &u64)| found.0.abs_diff(linear_page);
        let nearest = below.into_iter().chain(above).min_by_key(distance)?;
        (distance(&nearest) <= NEIGHBOURHOOD).then_some(*nearest.1)
    }
}

/// A page that code is fetched from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FetchedPage {
    /// The number of the physical page.
    pub physical: u64,
    /// The number of the linear page.
    pub linear: u64,
}

/// The link pages of all pages with relocatable code.
#[derive(Default)]
pub struct LinkPages {
    spaces: [Option<Box<OfSpace>>; SPACES],
    /// The link pages of each physical page, the link page that was used last first.
    by_page: FxHashMap<u64, Vec<LinkPage>>,
    /// Number of pages with link pages at which pages without code are next forgotten.
    look_at: usize,
}

impl LinkPages {
    /// Chooses the slide at which code of a physical page runs at a linear page of the loaded
    /// space, from now on and for the rest of this epoch. `None` if all link pages that the page may
    /// have are already used with other slides in this epoch. If code with the slide `wanted`
    /// branches to the page, the same slide is preferred.
    pub fn slide(
        &mut self,
        epoch: Epoch,
        page: FetchedPage,
        wanted: Option<u64>,
        code: &impl Code,
    ) -> Option<u64> {
        let FetchedPage {
            physical: physical_page,
            linear: linear_page,
        } = page;
        let space = &mut self.spaces[epoch.space.index()];
        let space = space.get_or_insert_with(|| Box::new(OfSpace::new(epoch.number)));
        if space.epoch != epoch.number {
            **space = OfSpace::new(epoch.number);
        }
        let recent = space.recent[linear_page as usize % RECENT];
        let is_page = recent.physical_page == physical_page && recent.linear_page == linear_page;
        let is_wanted = wanted.is_none_or(|wanted| wanted == recent.slide);
        if is_page && is_wanted {
            return Some(recent.slide);
        }
        let nearby = space.nearby(linear_page);
        let slide = self.choose(epoch.number, page, wanted, nearby, code)?;
        let space = self.spaces[epoch.space.index()].as_mut()?;
        if space.slides.len() >= MOST_SLIDES {
            space.slides.clear();
        }
        space.slides.insert(linear_page, slide);
        space.recent[linear_page as usize % RECENT] = Recent {
            physical_page,
            linear_page,
            slide,
        };
        Some(slide)
    }

    /// Chooses a slide for [`LinkPages::slide`]: `wanted` if possible, or else `nearby`, the slide of
    /// the code at the nearest linear page.
    fn choose(
        &mut self,
        epoch: u64,
        page: FetchedPage,
        wanted: Option<u64>,
        nearby: Option<u64>,
        code: &impl Code,
    ) -> Option<u64> {
        let FetchedPage {
            physical: physical_page,
            linear: linear_page,
        } = page;
        let slide_of = |link_page: &LinkPage| slide(link_page.page, linear_page);
        let link_pages = self.by_page.get_mut(&physical_page);
        let link_pages = link_pages.map(Vec::as_mut_slice).unwrap_or_default();
        for link_page in &mut *link_pages {
            if let Some(slide) = code.active_slide(physical_page, link_page.page) {
                (link_page.epoch, link_page.slide) = (epoch, slide);
            }
        }
        let current = link_pages.iter().find(|link_page| {
            let here = link_page.epoch == epoch && link_page.slide == slide_of(link_page);
            here && wanted.is_none_or(|wanted| wanted == link_page.slide)
        });
        if let Some(current) = current {
            return Some(current.slide);
        }
        let preferred = wanted.or(nearby);
        self.make_room(epoch, code);
        let link_pages = self.by_page.entry(physical_page).or_default();
        if !link_pages.is_empty() && !code.has_code(physical_page) {
            // The memory was reused for other code, so link pages of earlier epochs have no value.
            link_pages.retain(|link_page| link_page.epoch == epoch);
        }
        let usable = |link_page: &LinkPage| {
            link_page.epoch != epoch || link_page.slide == slide_of(link_page)
        };
        let fitting =
            |link_page: &LinkPage| usable(link_page) && Some(slide_of(link_page)) == preferred;
        let preferred_home = preferred
            .map(|slide| linear_page.wrapping_sub(slide / PAGE_SIZE) & PAGES)
            .filter(|page| LINK_PAGES.contains(page));
        let is_wanted = wanted.is_some() && preferred_home.is_some();
        if is_wanted && link_pages.len() >= MOST_LINK_PAGES && !link_pages.iter().any(fitting) {
            // Without a link page of the wanted slide the branch could not be linked, and each of
            // its executions would exit. So the link page that was used the longest time ago goes.
            let is_idle = |link_page: &LinkPage| {
                link_page.epoch != epoch
                    && code.active_slide(physical_page, link_page.page).is_none()
            };
            if let Some(oldest) = link_pages.iter().rposition(is_idle) {
                link_pages.remove(oldest);
            }
        }
        let may_add = link_pages.len() < MOST_LINK_PAGES;
        let is_new = |page: u64| link_pages.iter().all(|link_page| link_page.page != page);
        let added = match preferred_home.filter(|&page| is_new(page)) {
            Some(page) if may_add && (wanted.is_some() || link_pages.is_empty()) => Some(page),
            _ => None,
        };
        let fresh = FRESH | linear_page & (FRESH - 1);
        // If the fresh link page is already listed but not usable, it has another slide in this epoch.
        let fresh = may_add.then_some(fresh).filter(|&page| is_new(page));
        let in_use = |link_page: &LinkPage| usable(link_page) && link_page.epoch == epoch;
        let index = link_pages.iter().position(fitting);
        let index = match (index, added) {
            (None, Some(_)) => None,
            (found, _) => found
                .or_else(|| link_pages.iter().position(in_use))
                .or_else(|| link_pages.iter().position(usable)),
        };
        let mut link_page = match index {
            Some(index) => link_pages.remove(index),
            None => LinkPage {
                page: added.or(fresh)?,
                epoch,
                slide: 0,
            },
        };
        link_page.epoch = epoch;
        link_page.slide = slide_of(&link_page);
        link_pages.insert(0, link_page);
        Some(link_page.slide)
    }

    /// The link pages of a physical page, the one that was used last first.
    pub fn of(&self, physical_page: u64) -> impl Iterator<Item = u64> {
        let link_pages = self.by_page.get(&physical_page).into_iter().flatten();
        link_pages.map(|link_page| link_page.page)
    }

    /// Lets a physical page, whose code was taken from elsewhere, have these link pages, if it has
    /// none yet.
    pub fn adopt(&mut self, physical_page: u64, link_pages: &[u64]) {
        let usable = link_pages.iter().filter(|page| LINK_PAGES.contains(page));
        let adopted = usable.take(MOST_LINK_PAGES).map(|&page| LinkPage {
            page,
            epoch: NO_EPOCH,
            slide: 0,
        });
        let adopted: Vec<LinkPage> = adopted.collect();
        if !adopted.is_empty() {
            let known = self.by_page.entry(physical_page).or_default();
            if known.is_empty() {
                *known = adopted;
            }
        }
    }

    /// The slide that a link page of a physical page had when it was last used.
    pub fn last_slide(&self, physical_page: u64, link_page: u64) -> Option<u64> {
        let link_pages = self.by_page.get(&physical_page)?;
        let link_page = link_pages.iter().find(|chosen| chosen.page == link_page)?;
        Some(link_page.slide)
    }

    /// Forgets pages without code if many pages have link pages.
    fn make_room(&mut self, epoch: u64, code: &impl Code) {
        if self.by_page.len() < self.look_at.max(MOST_PAGES) {
            return;
        }
        self.by_page.retain(|&page, link_pages| {
            code.has_code(page) || {
                link_pages.retain(|link_page| link_page.epoch == epoch);
                !link_pages.is_empty()
            }
        });
        self.look_at = self.by_page.len() * 2;
    }
}

/// Mask for numbers of linear pages.
const PAGES: u64 = u64::MAX / PAGE_SIZE;

/// The slide from a link page to a linear page, in bytes.
fn slide(link_page: u64, linear_page: u64) -> u64 {
    linear_page.wrapping_sub(link_page).wrapping_mul(PAGE_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_tlb::SpaceNumber;

    const LIBRARY: u64 = 0x7_f100_0000;

    fn page(physical: u64, linear: u64) -> FetchedPage {
        FetchedPage { physical, linear }
    }

    /// Test data: whether no page has code, and the active code as physical page, link page and linear
    /// page.
    #[derive(Default)]
    struct Plain {
        is_empty: bool,
        active: Vec<(u64, u64, u64)>,
    }

    impl Code for Plain {
        fn has_code(&self, _: u64) -> bool {
            !self.is_empty
        }

        fn active_slide(&self, physical_page: u64, link_page: u64) -> Option<u64> {
            let mut active = self.active.iter();
            let is_it = |it: &&(u64, u64, u64)| (it.0, it.1) == (physical_page, link_page);
            active
                .find(is_it)
                .map(|&(_, link_page, linear)| slide(link_page, linear))
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
        active: Vec::new(),
    };

    #[test]
    fn active_code_keeps_its_slide_whatever_other_spaces_do_with_its_link_page() {
        let mut link_pages = LinkPages::default();
        let first = link_pages
            .slide(epoch(1), page(5, LIBRARY), None, WITH_CODE)
            .unwrap();
        let link_page = LIBRARY - first / PAGE_SIZE;
        let other_space = Epoch {
            space: SpaceNumber::new(3),
            number: 2,
        };
        let elsewhere = link_pages.slide(other_space, page(5, LIBRARY + 99), None, WITH_CODE);
        assert_eq!(
            elsewhere,
            Some(slide(link_page, LIBRARY + 99)),
            "both spaces use the same link_page"
        );
        let code = Plain {
            active: vec![(5, link_page, LIBRARY)],
            ..Plain::default()
        };
        let wanted = Some(first + 77 * PAGE_SIZE);
        let other = link_pages.slide(epoch(1), page(5, LIBRARY + 77), wanted, &code);
        assert_ne!(
            other,
            Some(slide(link_page, LIBRARY + 77)),
            "the link_page already has another slide"
        );
        assert!(other.is_some());
        assert_eq!(
            link_pages.slide(epoch(1), page(5, LIBRARY), None, &code),
            Some(first)
        );
        // A neighbour that is first reached now gets the same slide.
        assert_eq!(
            link_pages.slide(epoch(1), page(9, LIBRARY + 1), None, &code),
            Some(first)
        );
        // The other space still knows its neighbours.
        let near = link_pages.slide(other_space, page(10, LIBRARY + 100), None, WITH_CODE);
        assert_eq!(near, elsewhere);
    }

    #[test]
    fn a_page_keeps_its_link_page_wherever_it_is_mapped() {
        let mut link_pages = LinkPages::default();
        let first = link_pages
            .slide(epoch(1), page(5, LIBRARY), None, WITH_CODE)
            .unwrap();
        let link_page = LIBRARY * PAGE_SIZE - first;
        assert!(LINK_PAGES.contains(&(link_page / PAGE_SIZE)));
        for number in 2..10 {
            let linear = LIBRARY + number * 0x1_2345;
            let slide = link_pages.slide(epoch(number), page(5, linear), None, WITH_CODE);
            assert_eq!(linear * PAGE_SIZE - slide.unwrap(), link_page);
            assert_eq!(
                link_pages.slide(epoch(number), page(5, linear), None, WITH_CODE),
                slide
            );
        }
    }

    #[test]
    fn in_one_epoch_no_link_page_has_two_slides() {
        let mut link_pages = LinkPages::default();
        let mut known: Vec<(u64, u64, u64)> = Vec::new();
        for index in 0..MOST_LINK_PAGES as u64 {
            let linear = LIBRARY + index * 0x10_0001;
            let slide = link_pages
                .slide(epoch(1), page(5, linear), None, WITH_CODE)
                .unwrap();
            let link_page = linear * PAGE_SIZE - slide;
            assert!(known.iter().all(|&(other, ..)| other != link_page));
            known.push((link_page, linear, slide));
        }
        assert_eq!(
            link_pages.slide(epoch(1), page(5, LIBRARY + 77), None, WITH_CODE),
            None
        );
        for (_, linear, slide) in known {
            assert_eq!(
                link_pages.slide(epoch(1), page(5, linear), None, WITH_CODE),
                Some(slide)
            );
        }
        assert!(
            link_pages
                .slide(epoch(2), page(5, LIBRARY + 77), None, WITH_CODE)
                .is_some()
        );
    }

    #[test]
    fn neighbours_and_what_branches_there_have_the_same_slide() {
        let mut link_pages = LinkPages::default();
        let slide = link_pages.slide(epoch(1), page(5, LIBRARY), None, WITH_CODE);
        assert_eq!(
            link_pages.slide(epoch(1), page(9, LIBRARY + 100), None, WITH_CODE),
            slide
        );
        let far = LIBRARY - FRESH / 2;
        let other = link_pages.slide(epoch(1), page(10, far), None, WITH_CODE);
        assert_ne!(other, slide);
        // A branch leads from there to the library, so the library's page gets a second link page.
        assert_eq!(
            link_pages.slide(epoch(1), page(9, LIBRARY + 100), other, WITH_CODE),
            other
        );
        // A question without a wanted slide finds one of the two link pages.
        let found = link_pages.slide(epoch(1), page(9, LIBRARY + 100), None, WITH_CODE);
        assert!([slide, other].contains(&found));
        assert_eq!(
            link_pages.slide(epoch(1), page(9, LIBRARY + 100), slide, WITH_CODE),
            slide
        );
    }

    /// Processes whose libraries lie at other distances from each other leave a page with link pages
    /// of which none has the slide of the code that branches there.
    #[test]
    fn a_branch_finds_its_slide_however_many_others_the_page_had() {
        let mut link_pages = LinkPages::default();
        let slide_of = |number: u64| (LIBRARY - LINK_PAGES.start - number) * PAGE_SIZE;
        for number in 0..20 {
            let wanted = Some(slide_of(number));
            let slide = link_pages.slide(epoch(number), page(5, LIBRARY), wanted, WITH_CODE);
            assert_eq!(slide, wanted);
        }
        assert_eq!(link_pages.by_page[&5].len(), MOST_LINK_PAGES);
        // The last ones are still known, and a link page that is active stays.
        let is_known = |link_pages: &LinkPages, number| {
            let page = LINK_PAGES.start + number;
            link_pages.of(5).any(|known| known == page)
        };
        assert!(is_known(&link_pages, 19) && is_known(&link_pages, 16));
        assert!(!is_known(&link_pages, 15));
        let code = Plain {
            active: vec![(5, LINK_PAGES.start + 16, LIBRARY)],
            ..Plain::default()
        };
        let wanted = Some(slide_of(30));
        let slide = link_pages.slide(epoch(30), page(5, LIBRARY), wanted, &code);
        assert_eq!(slide, wanted);
        assert!(is_known(&link_pages, 16) && !is_known(&link_pages, 17));
    }

    #[test]
    fn a_page_without_code_may_have_another_link_page() {
        let empty = Plain {
            is_empty: true,
            ..Plain::default()
        };
        let mut link_pages = LinkPages::default();
        for number in 1..100 {
            let linear = LIBRARY + number * 0x777;
            let wanted = Some((LIBRARY - LINK_PAGES.start) * PAGE_SIZE);
            let slide = link_pages.slide(epoch(number), page(5, linear), wanted, &empty);
            assert_eq!(slide, wanted);
        }
        assert_eq!(link_pages.by_page[&5].len(), 1);
    }
}
