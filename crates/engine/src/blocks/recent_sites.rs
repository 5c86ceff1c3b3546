//! A small cache of unpacked sites: those at which guest code was left recently.
//!
//! A block keeps its sites in packed form, and unpacking one takes a large part of the time of the
//! functions of the monitor that fast paths call. Code that exits often does so at few sites.

use crate::abi::sites::{BlockId, Site, unpack_site};
use std::cell::Cell;

/// Number of sites that are remembered.
const COUNT: usize = 16;

/// Remembered sites as their blocks have them, each with its packed number. When a block is
/// removed, its sites must be [forgotten](RecentSites::forget).
pub struct RecentSites([Cell<Option<(u32, Site)>>; COUNT]);

impl Default for RecentSites {
    fn default() -> Self {
        Self([const { Cell::new(None) }; COUNT])
    }
}

impl RecentSites {
    /// The site with this packed number. If the cache does not have the site, `unpack` finds it.
    #[inline]
    pub fn get(&self, packed: u32, unpack: impl FnOnce() -> Option<Site>) -> Option<Site> {
        // The low bits are the number of the site in its block; most exits use the first few sites.
        let place = &self.0[(packed ^ packed >> 8) as usize % COUNT];
        if let Some((known, site)) = place.get()
            && known == packed
        {
            return Some(site);
        }
        let site = unpack()?;
        place.set(Some((packed, site)));
        Some(site)
    }

    /// Forgets the sites of a block that was removed, since another block may get its number.
    pub fn forget(&mut self, block: BlockId) {
        for place in &mut self.0 {
            place
                .get_mut()
                .take_if(|(packed, _)| unpack_site(*packed).0 == block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::sites::{NO_AFTER, SiteKind, pack_site};
    use crate::abi::state_map::Shadow;

    fn site(rip: u64) -> Site {
        Site {
            kind: SiteKind::Slow,
            rip,
            esp: 0,
            retry: 0,
            after: NO_AFTER,
            after_esp: 0,
            shadowed: Shadow::None,
        }
    }

    #[test]
    fn a_site_is_known_until_its_block_is_forgotten() {
        let mut recent = RecentSites::default();
        let (one, other) = (pack_site(BlockId(70), 3), pack_site(BlockId(71), 3));
        let known = |recent: &RecentSites, packed| recent.get(packed, || None);
        assert_eq!(known(&recent, one), None);
        assert_eq!(recent.get(one, || Some(site(1))), Some(site(1)));
        assert_eq!(recent.get(one, || Some(site(2))), Some(site(1)));
        recent.get(other, || Some(site(3)));
        recent.forget(BlockId(70));
        assert_eq!(known(&recent, one), None);
        assert_eq!(known(&recent, other), Some(site(3)));
    }

    #[test]
    fn sites_that_share_a_place_are_told_apart() {
        let recent = RecentSites::default();
        let packed = |number: usize| pack_site(BlockId(number as u32 / 9), number % 9);
        for number in 0..200 {
            let found = recent.get(packed(number), || Some(site(number as u64)));
            assert_eq!(found, Some(site(number as u64)));
        }
    }
}
