//! Links between blocks: they are made when a branch is first taken, and cut when their target
//! dies.

use super::{CodeAddress, Engine, spaces};
use crate::abi::far_pointer::FarPointer;
use crate::abi::link_layout::{ModeId, ModeTable};
use crate::abi::sites::{BlockId, LinkPlace, Site, SiteKind};
use crate::blocks::block::Block;
use crate::blocks::code_pages::{Expected, Found, IndirectTarget};
use crate::blocks::link_pages::FetchedPage;
use crate::blocks::link_target::Target;
use crate::blocks::links::{Dependence, LinkTables};

/// Whether a direct branch to `target` may leave the slide as it is. It may always do so if the
/// target is not relocatable. Code that is not relocatable has no slide, so its branches cannot
/// lead to relocatable code.
fn leads_to_link_address(source: &Block, site: usize, target: &Block) -> bool {
    match (source.relocates(), target.relocates()) {
        (_, false) => true,
        (false, true) => false,
        (true, true) => (source.site(site)).is_some_and(|site| site.rip == target.rip()),
    }
}

/// What a link depends on if it is part of a relocatable block: the slide holds in one space only,
/// so the link is not global.
fn of_epoch(block: &Block, mut dependence: Dependence) -> Dependence {
    dependence.global &= !block.relocates();
    dependence
}

impl Engine {
    /// Links a block's site to a target block in the same page, by patching the distance in place.
    pub fn link_direct(&mut self, from: BlockId, site_index: usize, to: BlockId) {
        let (Some(source), Some(target)) = (self.block(from), self.block(to)) else {
            return;
        };
        let Some(Site {
            kind: SiteKind::Link(LinkPlace::Direct { distance, .. }),
            ..
        }) = source.site(site_index)
        else {
            return;
        };
        let same_form = source.relocates() == target.relocates();
        if target.key().second_page != u64::MAX
            || !same_form
            || !leads_to_link_address(source, site_index, target)
            || self.blocks.links.is_made(from, site_index)
        {
            return;
        }
        let place = source.host + distance;
        let value = target.host.wrapping_sub(place + 4);
        self.verify_link(place, to);
        self.cache.write(place, &value.to_le_bytes());
        self.counts.links += 1;
        self.blocks.links.list(from, site_index as u16, to);
    }

    /// Fills the slot of a block's site with a target.
    pub fn link_slot(
        &mut self,
        from: BlockId,
        site_index: usize,
        to: BlockId,
        dependence: Dependence,
    ) {
        let (Some(source), Some(target)) = (self.block(from), self.block(to)) else {
            return;
        };
        let Some(Site {
            kind: SiteKind::Link(LinkPlace::Slot { slot, stub }),
            ..
        }) = source.site(site_index)
        else {
            return;
        };
        if !leads_to_link_address(source, site_index, target) {
            return;
        }
        let slots = |block: &Block| self.mode(block.key().mode).slots();
        let same_form = source.relocates() == target.relocates() && slots(source) == slots(target);
        let pages = source.code_page().zip(target.code_page());
        let dependence = of_epoch(source, dependence);
        let distance = target.host.wrapping_sub(source.host + stub) as i32;
        if self.links.slot(slot) == distance as u64 {
            // The link became active again with its page.
            return;
        }
        self.verify_target(to);
        match pages.filter(|_| same_form) {
            Some((from, to)) => self.links.link_pages(slot, distance, from, to),
            None => self.links.fill_slot(slot, distance as u64, dependence),
        }
        self.counts.links += 1;
        self.blocks.links.list(from, site_index as u16, to);
    }

    /// Notes that control has reached a block at `place`. The guest's page tables have just allowed
    /// fetches from all of the block's pages, as `dependence` says. Everything that is known to
    /// lead to the block's page is active from now on.
    ///
    /// To be called before the block is linked or run. Returns whether the page was inactive
    /// before.
    #[inline]
    pub fn meet(&mut self, id: BlockId, place: &CodeAddress, dependence: &Dependence) -> bool {
        let Some(block) = self.blocks.get(id) else {
            return false;
        };
        let Some(page) = block.code_page() else {
            return false;
        };
        let (relocates, link_address) = (block.relocates(), block.rip());
        let slide = if relocates {
            place.rip.wrapping_sub(link_address)
        } else {
            0
        };
        let found = Found {
            linear_page: dependence.page,
            last_page: dependence.last_page,
            slide,
            // In another space the block may have another slide.
            global: dependence.global && !relocates,
            is_kept: dependence.is_kept,
        };
        self.links.activate(page, found)
    }

    /// Pages near that of a block that was just reached whose code is known but inactive.
    pub fn expected_near(&self, id: BlockId) -> Vec<Expected> {
        let page = self.block(id).and_then(Block::code_page);
        page.map_or_else(Vec::new, |page| self.links.expected_near(page))
    }

    /// Activates what is known to lead to a page that was expected at this place. The guest's page
    /// tables have just been found to allow fetches from the page, and it is not global.
    pub fn foresee(&mut self, expected: &Expected) {
        if expected.relocates {
            let epoch = self.links.epoch();
            let code = spaces::Code {
                pages: &self.pages,
                links: &self.links,
            };
            let page = FetchedPage {
                physical: expected.physical_page,
                linear: expected.linear_page,
            };
            let wanted = Some(expected.slide);
            // In this epoch the code may have another slide.
            if self.link_pages.slide(epoch, page, wanted, &code) != wanted {
                return;
            }
        }
        self.links.activate_expected(expected);
    }

    /// Where an indirect branch to `rip` in code of a mode leads; `None` if the branch would leave.
    #[inline]
    pub fn branch_target(&self, rip: u64, mode: ModeId) -> Option<Target> {
        self.links.indirect(rip, self.mode_table(mode))
    }

    /// Lets indirect branches to `rip` find a block.
    pub fn link_indirect(&mut self, to: BlockId, rip: u64, dependence: Dependence) {
        let code_slide = self.code_slide(to, rip);
        let Some(block) = self.blocks.get_mut(to) else {
            return;
        };
        let mode = block.key().mode;
        let mode = ModeTable {
            mode,
            table: self.modes.table(mode),
        };
        let target = Target {
            address: self.cache.address(block.host) as u64,
            slide: code_slide.unwrap_or(0),
        };
        if self.links.is_first_choice(rip, mode, target) {
            // The link became active again with its page.
            return;
        }
        let (code_page, key_rip) = (block.code_page(), block.rip());
        if code_page.is_none() {
            block.set_listed_at(rip);
        }
        let dependence = of_epoch(block, dependence);
        self.verify_target(to);
        match code_page {
            Some(page) => {
                let target = IndirectTarget {
                    rip: key_rip,
                    mode,
                    address: target.address,
                };
                self.links.add_target(page, target);
            }
            None => (self.links).fill_hash(rip, mode, target, dependence),
        }
        self.counts.links += 1;
    }

    /// Lets far transfers of real and V86 mode find a block.
    pub fn link_far(&mut self, to: BlockId, dependence: Dependence) {
        let Some(target) = self.block(to) else { return };
        let (rip, mode) = (target.rip(), target.key().mode);
        let Some(pointer) = FarPointer::of(self.mode(mode).code_base, rip) else {
            return;
        };
        let address = self.cache.address(target.host) as u64;
        let family = self.modes.family(mode);
        self.verify_target(to);
        self.links.fill_far(pointer, family, address, dependence);
        self.counts.links += 1;
    }

    /// The link tables of cross-page and indirect branches, which depend on what linear addresses
    /// mean.
    pub fn links_mut(&mut self) -> &mut LinkTables {
        &mut self.links
    }

    /// Cuts everything that leads to a block.
    pub(super) fn make_unreachable(&mut self, id: BlockId) {
        let Some(block) = self.blocks.get_mut(id) else {
            return;
        };
        self.generation += 1;
        if block.is_retired() {
            return;
        }
        let key = block.key();
        self.blocks.forget_key(&key);
        self.cut_off(id);
    }

    /// Cuts everything that leads to a block except its key.
    pub(super) fn cut_off(&mut self, id: BlockId) {
        let Some(block) = self.blocks.get(id) else {
            return;
        };
        let (key, host, listed_at) = (block.key(), block.host, block.listed_at());
        let code_page = block.code_page();
        for (from, site) in self.blocks.links.take_incoming(id) {
            self.lead_to_stub(from, site);
        }
        let table = self.modes.table(key.mode);
        let target = self.cache.address(host) as u64;
        match code_page {
            Some(page) => self.links.remove_target(page, target),
            None => self.links.forget_hash(listed_at, table, target),
        }
        let mode = self.modes.get(key.mode);
        if mode.has_real_mode_segments()
            && let Some(pointer) = FarPointer::of(mode.code_base, key.rip)
        {
            self.links.forget_far(pointer, target);
        }
    }

    /// Makes the link at a site lead to its stub again.
    pub(super) fn lead_to_stub(&mut self, id: BlockId, site: u16) {
        let Some(source) = self.blocks.get(id) else {
            return;
        };
        let Some(site) = source.site(usize::from(site)) else {
            return;
        };
        match site.kind {
            SiteKind::Link(LinkPlace::Direct { distance, stub, .. }) => {
                let place = source.host + distance;
                let value = (source.host + stub).wrapping_sub(place + 4);
                self.cache.write(place, &value.to_le_bytes());
            }
            SiteKind::Link(LinkPlace::Slot { slot, .. }) => self.links.forget_slot(slot),
            _ => {}
        }
    }
}
