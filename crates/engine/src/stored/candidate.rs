//! The check of a block's record before the block can run: everything in it may be forged.

use super::records::{BlockRecord, PageRecord};
use crate::abi::link_layout::{BranchTable, FamilyId, MAX_SLOTS, ModeId, SlotsFor};
use crate::abi::register_map::RegisterMap;
use crate::abi::sites::{BlockId, MAX_SITES, Site, SiteKind};
use crate::blocks::packed_tables::PackedTables;
use crate::policy::allow_list::{Features, as_offered};
use crate::policy::instruction_kind::Helper;
use crate::policy::mode::{Mode, ModeFlags, Modes};
use crate::verify::{Subject, verify};
use iced_x86::Instruction;
use tollgate_x86::address::PAGE_SIZE;

/// The most bytes of host code of a block.
const MOST_CODE: usize = 1 << 18;

/// A mode, and what code of the mode names by number.
struct ModeFacts {
    mode: Mode,
    of_branches: u32,
    table: BranchTable,
    family: FamilyId,
}

/// What records are checked against: modes, features and register maps of the engine that is going
/// to run the blocks.
pub struct Facts {
    modes: Vec<ModeFacts>,
    features: Features,
    legacy_map: &'static RegisterMap,
    block_numbers: u32,
    next_slots: [u32; 2],
}

impl Facts {
    /// The facts of an engine that knows these modes, in the order of their numbers.
    pub fn new(
        modes: &Modes,
        features: &Features,
        legacy_map: &'static RegisterMap,
        block_numbers: u32,
        next_slots: [u32; 2],
    ) -> Self {
        let facts = |number: usize| {
            let id = ModeId(number as u32);
            ModeFacts {
                mode: *modes.get(id),
                of_branches: modes.of_branches(id).0,
                table: modes.table(id),
                family: modes.family(id),
            }
        };
        Self {
            modes: (0..modes.len()).map(facts).collect(),
            features: features.clone(),
            legacy_map,
            block_numbers,
            next_slots,
        }
    }

    /// Whether all blocks of a page may run.
    pub fn accept(&self, page: &PageRecord<'_>) -> bool {
        page.blocks.iter().all(|block| self.accepts(block))
    }

    fn accepts(&self, block: &BlockRecord<'_>) -> bool {
        let Some(facts) = self.modes.get(block.mode as usize) else {
            return false;
        };
        let Some(tables) = PackedTables::from_bytes(block.tables) else {
            return false;
        };
        let sites: Vec<Site> = (tables.sites(block.rip).iter())
            .take(MAX_SITES + 1)
            .collect();
        let immediates: Vec<_> = tables.immediates().collect();
        let end = u64::from(block.offset) + block.guest.len() as u64;
        let is_sound = block.number < self.block_numbers
            && !block.guest.is_empty()
            && end <= PAGE_SIZE
            && (1..=MOST_CODE).contains(&block.code.len())
            && sites.len() <= MAX_SITES
            && (sites.iter()).all(|site| self.has_slot_of_mode(site, &facts.mode))
            && (sites.iter()).all(|site| names_helper(site, block.helpers.len()))
            && (immediates.iter())
                .all(|it| usize::from(it.guest) + usize::from(it.size) <= block.guest.len())
            && !facts.mode.flags.contains(ModeFlags::SINGLE)
            && (!block.relocates || facts.mode.is_relocatable());
        let Some(helpers) = helpers_of(block, &facts.mode, &self.features) else {
            return false;
        };
        let map = match facts.mode.flags.contains(ModeFlags::CODE64) {
            true => &RegisterMap::LONG,
            false => self.legacy_map,
        };
        is_sound
            && verify(&Subject {
                code: block.code,
                sites: &sites,
                helpers: &helpers,
                immediates: &immediates,
                completions: &[],
                mode: &facts.mode,
                mode_id: facts.of_branches,
                branch_table: facts.table,
                family: facts.family,
                block: BlockId(block.number),
                map,
            })
            .is_empty()
    }

    /// Whether the slot of a site, if it has one, is one of those that are taken, and one for code
    /// of this mode.
    fn has_slot_of_mode(&self, site: &Site, mode: &Mode) -> bool {
        let Some((slot, _)) = site.slot_and_stub() else {
            return true;
        };
        let [kernels, programs] = self.next_slots;
        match mode.slots() {
            SlotsFor::Programs => slot < programs,
            SlotsFor::Kernels => (MAX_SLOTS as u32..kernels).contains(&slot),
        }
    }
}

/// Whether the instruction for the monitor that a site names, if it names one, is one of `count`.
fn names_helper(site: &Site, count: usize) -> bool {
    match site.kind {
        SiteKind::Helper(helper) | SiteKind::SystemRead { helper, .. } => {
            usize::from(helper) < count
        }
        _ => true,
    }
}

/// The instructions of a block that the monitor executes, decoded from the guest's code as the
/// translator decodes them. `None` if the record names places without code.
pub fn helpers_of(
    block: &BlockRecord<'_>,
    mode: &Mode,
    features: &Features,
) -> Option<Box<[Helper]>> {
    let decode = |&offset: &u16| {
        let bytes = block.guest.get(usize::from(offset)..)?;
        (!bytes.is_empty()).then(|| Helper::new(decode(block.rip, offset, bytes, mode, features)))
    };
    block.helpers.iter().map(decode).collect()
}

/// Decodes the instruction at an offset of a block's code, which begins at `rip`.
pub fn decode(
    rip: u64,
    offset: u16,
    bytes: &[u8],
    mode: &Mode,
    features: &Features,
) -> Instruction {
    let rip = mode.wrap(rip.wrapping_add(offset.into()));
    let decoding = features.decoding();
    let mut instruction = decoding.decode(mode.bitness(), bytes, rip);
    as_offered(&mut instruction, |feature| features.offers(feature));
    instruction
}
