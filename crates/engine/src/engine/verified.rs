//! What the engine passes to the verifier if verification is on: each block before it can run, and
//! later everything that is written into the block or leads to it.

use super::Engine;
use crate::abi::immediate::Immediate;
use crate::abi::sites::{BlockId, Site};
use crate::verify::{Subject, is_link_distance, verify_patched};

impl Engine {
    /// Verifies a block's code as it lies in the cache.
    ///
    /// # Panics
    /// Panics if the code does something that emitted code must not do.
    pub(super) fn verify_block(&self, id: BlockId) {
        let Some(block) = self.block(id).filter(|_| self.verify_code) else {
            return;
        };
        let mode_id = block.key().mode;
        let mode = self.mode(mode_id);
        let sites: Vec<Site> = block.sites().iter().collect();
        let immediates: Vec<Immediate> = block.immediates().collect();
        let code = self.cache.read(block.host..block.host + block.host_length);
        let subject = Subject {
            code: &code,
            sites: &sites,
            helpers: block.helpers(),
            immediates: &immediates,
            completions: block.completions(),
            mode,
            mode_id: self.modes.of_branches(mode_id).0,
            branch_table: self.modes.table(mode_id),
            family: self.modes.family(mode_id),
            block: id,
            map: self.blocks.map_of(block),
        };
        let is_block = |offset: i64| {
            let host = u32::try_from(i64::from(block.host) + offset);
            host.is_ok_and(|host| {
                let mut found = self.blocks.ids_within(host..host.saturating_add(1));
                found.any(|id| self.is_active(id))
            })
        };
        let findings = verify_patched(&subject, &is_block);
        assert!(
            findings.is_empty(),
            "emitted code failed verification: {findings:?}"
        );
    }

    /// Verifies that a direct branch whose distance lies at `place` in the cache may lead to a
    /// block.
    ///
    /// # Panics
    /// Panics if there is no direct branch, or the block is inactive.
    pub(super) fn verify_link(&self, place: u32, to: BlockId) {
        if self.verify_code {
            let before = self.cache.read(place.saturating_sub(2)..place);
            assert!(
                is_link_distance(&before),
                "the link is not in a direct branch: {before:x?}"
            );
        }
        self.verify_target(to);
    }

    /// Verifies that links may lead to a block.
    ///
    /// # Panics
    /// Panics if the block is inactive.
    pub(super) fn verify_target(&self, to: BlockId) {
        assert!(
            !self.verify_code || self.is_active(to),
            "a link leads to an inactive block"
        );
    }
}
