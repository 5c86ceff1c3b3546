//! How a block is made: its guest code is read, translated, verified, placed in the cache and
//! listed.

use super::{CodeAddress, Engine, LookUp};
use crate::abi::link_layout::ModeId;
use crate::abi::sites::{BlockId, Site};
use crate::blocks::block::{Block, BlockKey, NewBlock};
use crate::blocks::code_cache::Allocation;
use crate::blocks::code_pages::CodePageKey;
use crate::blocks::packed_tables::{PackedTables, Unpacked};
use crate::policy::mode::ModeFlags;
use crate::translate::{Request, TranslateError, Translator};
use tollgate_memory::GuestMemory;
use tollgate_x86::PhysicalAddress;

impl Engine {
    /// Translates the block for a place and mode.
    ///
    /// The lines of the code are marked in `memory` here. The caller must ensure that stores to the
    /// code's pages are tested before guest code runs again.
    pub fn translate(
        &mut self,
        place: &CodeAddress,
        mode: ModeId,
        memory: &mut GuestMemory,
    ) -> LookUp {
        let mut bytes = [0xff_u8; Translator::MOST_BYTES + 16];
        let in_page = (4096 - place.physical % 4096).min(Translator::MOST_BYTES as u64) as usize;
        // Where there is no memory the bus reads as FFh.
        let mut known = in_page.min(Translator::MANY_BYTES);
        memory.read(PhysicalAddress(place.physical), &mut bytes[..known]);
        let mode_word = *self.modes.get(mode);
        let branch_table = self.modes.table(mode);
        let family = self.modes.family(mode);
        let id = self.take_id(memory);
        let kind = mode_word.slots();
        let slots = &mut self.slots[kind as usize];
        while slots.len() < Translator::SLOTS_PER_BLOCK {
            let Some(slot) = self.links.take_slot(kind) else {
                break;
            };
            slots.push(slot);
        }
        if mode_word.flags.contains(ModeFlags::SINGLE) {
            self.translator.begin(None);
        } else {
            self.translator.begin(Some((place.physical, mode)));
        }
        let mut place = *place;
        let mut second_page = u64::MAX;
        let guest_length = loop {
            let straddles = second_page != u64::MAX;
            let request = Request {
                bytes: &bytes[..known + if straddles { 16 } else { 0 }],
                is_cut: known < in_page,
                straddles,
                rip: place.link_address.unwrap_or(place.rip),
                // Relocatable code is flat.
                linear: place.link_address.unwrap_or(place.linear),
                physical: place.physical,
                relocates: place.link_address.is_some(),
                mode: &mode_word,
                mode_id: self.modes.of_branches(mode).0,
                branch_table,
                family,
                block: id,
            };
            match self
                .translator
                .translate_in_place(&request, &self.slots[kind as usize])
            {
                Ok(guest_length) => break guest_length,
                Err(TranslateError::Access(unavailable)) => {
                    self.blocks.return_id(id);
                    return LookUp::Unavailable(unavailable);
                }
                Err(TranslateError::GivenUp) => return self.stopped(id),
                Err(TranslateError::NeedsAddress) => place.link_address = None,
                Err(TranslateError::NeedsMoreBytes) => {
                    known = in_page;
                    memory.read(PhysicalAddress(place.physical), &mut bytes[..known]);
                }
                Err(TranslateError::NeedsNextPage) => {
                    assert!(!straddles, "no instruction has more than fifteen bytes");
                    let Some(next) = place.next_page else {
                        self.blocks.return_id(id);
                        return LookUp::NeedsNextPage;
                    };
                    second_page = next;
                    memory.read(
                        PhysicalAddress(next << 12),
                        &mut bytes[in_page..in_page + 16],
                    );
                }
            }
        };
        let key = place.key(second_page, mode);
        let guest = &bytes[..guest_length as usize];
        match !self.translator.gives_up_whole() && self.install(id, key, guest, memory) {
            true => LookUp::Block(id),
            false => self.stopped(id),
        }
    }

    /// Gives a block's number back because the translation has stopped.
    fn stopped(&mut self, id: BlockId) -> LookUp {
        self.blocks.return_id(id);
        LookUp::Stopped
    }

    fn take_id(&mut self, memory: &mut GuestMemory) -> BlockId {
        self.blocks.take_id().unwrap_or_else(|| {
            self.flush(memory);
            let id = self.blocks.take_id();
            id.expect("after a flush all block numbers are free")
        })
    }

    /// Places the translated block in the cache and lists it. Returns false if a request came
    /// before there was room.
    fn install(
        &mut self,
        id: BlockId,
        key: BlockKey,
        guest: &[u8],
        memory: &mut GuestMemory,
    ) -> bool {
        let length = self.translator.code().len();
        let guest_length = guest.len() as u16;
        let code_page = self.code_page(&key);
        let Some(host) = self.allocate(length, memory) else {
            return false;
        };
        self.cache.write(host, self.translator.code());
        // Slots that the translation did not use stay for the next one.
        let kind = self.modes.get(key.mode).slots();
        let tables = self.translator.tables();
        for (used, stub) in tables.sites.iter().filter_map(Site::slot_and_stub) {
            self.slots[kind as usize].retain(|&slot| slot != used);
            let stub = self.cache.address(host + stub) as u64;
            self.links.set_stub(used, stub);
        }
        let unpacked = Unpacked {
            sites: tables.sites,
            state_map: tables.state_map,
            immediates: tables.immediates,
        };
        let mut packed = PackedTables::new(&unpacked, key.rip, &mut self.packed);
        // Where code is written often, the same code may come back.
        if memory.code().is_hot(key.physical >> 12) {
            packed.keep_code(guest);
        }
        let new = NewBlock {
            key,
            code_page: code_page.map(|page| self.links.add_block(page)),
            host,
            host_length: length as u32,
            guest_length,
            helpers: tables.helpers.into(),
            x87_notes: tables.x87_notes.into(),
            completions: tables.completions.into(),
        };
        self.list(id, &key, u32::from(guest_length), memory);
        self.counts.translations += 1;
        self.counts.guest_bytes += u64::from(guest_length);
        self.counts.host_bytes += length as u64;
        let block = Block::new(new, self.mode(key.mode), packed);
        self.blocks.insert(id, block);
        self.verify_block(id);
        true
    }

    /// The code page of a block, if it has one.
    pub(super) fn code_page(&self, key: &BlockKey) -> Option<CodePageKey> {
        let mode = self.mode(key.mode);
        let is_single = mode.flags.contains(ModeFlags::SINGLE);
        if is_single || mode.linear(key.rip) != key.rip {
            return None;
        }
        Some(CodePageKey {
            physical_page: key.physical >> 12,
            second_page: (key.second_page != u64::MAX).then_some(key.second_page),
            page: key.rip >> 12,
            relocates: key.relocates,
            user: mode.flags.contains(ModeFlags::USER),
        })
    }

    /// StateMap the bytes that a block was made from as code.
    pub(super) fn list(
        &mut self,
        id: BlockId,
        key: &BlockKey,
        length: u32,
        memory: &mut GuestMemory,
    ) {
        let second_page = (key.second_page != u64::MAX).then_some(key.second_page);
        self.pages
            .list(id, key.physical, second_page, length, memory);
    }

    pub(super) fn allocate(&mut self, bytes: usize, memory: &mut GuestMemory) -> Option<u32> {
        while self.go_on_with_eviction(memory) {
            match self.cache.allocate(bytes) {
                Allocation::At(offset) => return Some(offset),
                Allocation::Evict { start, end } => self.begin_eviction(start..end, bytes),
            }
        }
        None
    }
}
