//! Guest memory as the processor sees it: linear addresses, translated by paging, that lead to RAM
//! or devices.

use crate::memory::addresses::view_of;
use crate::memory::ram_copies;
use crate::memory::translations::Translations;
use tollgate_memory::{GuestMemory, PageUse};
use tollgate_tlb::{LookUpFor, Stores, View};
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::canonical::is_canonical;
use tollgate_x86::paging::{AccessKind, Keeping, PagingRegisters, Privilege, Translation};
use tollgate_x86::{CpuState, Exception, LinearAddress, PhysicalAddress};

/// Pages of a large page that are filled together. A power of two.
const FILLED_AT_ONCE: u64 = 8;

/// What a linear address leads to.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// RAM that loads may access directly. Stores may do so too if the access was a write.
    Ram(*mut u8),
    /// RAM that holds translated code, for a write: the store must use the memory gate.
    Code(PhysicalAddress),
    /// A device or no memory at all. This includes ROM, for a write.
    Device(PhysicalAddress),
}

/// Whether generated code may access memory itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inline {
    /// The software TLB has the entries that the access needs.
    Yes,
    /// Only if the monitor lets the store pass. The page of this address contains the whole store
    /// and holds translated code.
    Code(PhysicalAddress),
    /// The monitor must make the access out of line.
    No,
}

/// An access that generated code makes itself if the software TLB has its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InlineAccess {
    /// Size in bytes.
    pub size: u32,
    /// What generated code looks the address up for.
    pub wanted: LookUpFor,
    /// With whose rights the page tables are walked.
    pub privilege: Privilege,
}

impl InlineAccess {
    /// A load of eight bytes of a system table.
    pub(crate) const TABLE_LOAD: Self = Self {
        size: 8,
        wanted: LookUpFor::Load,
        privilege: Privilege::System,
    };

    /// The kind of access that the page tables must allow.
    fn kind(self) -> AccessKind {
        match self.wanted {
            LookUpFor::Load => AccessKind::Read,
            LookUpFor::Store | LookUpFor::TestedStore => AccessKind::Write,
        }
    }
}

/// Guest RAM with its gate, and the translations that lead to it.
pub struct GuestView {
    /// RAM and the map of translated code.
    pub memory: GuestMemory,
    /// The data derived from the page tables.
    pub translations: Translations,
    /// The result for the access that guest code is being left for, if it is known already.
    pub(crate) missed: Option<Result<Inline, Exception>>,
}

impl GuestView {
    /// Walks the guest's tables, and fills the software TLB if the address leads to RAM.
    ///
    /// # Errors
    /// The page fault.
    pub fn resolve(
        &mut self,
        state: &CpuState,
        linear: LinearAddress,
        kind: AccessKind,
        privilege: Privilege,
    ) -> Result<Target, Exception> {
        let view = view_of(privilege);
        let write = kind == AccessKind::Write;
        if kind != AccessKind::Fetch
            && !self.memory.has_map_changes()
            && let Some(host) = self.translations.look_up(state, view, write, linear)
        {
            return Ok(Target::Ram(host as *mut u8));
        }
        let translation = self.walk(state, linear, kind, privilege)?;
        let physical = translation.physical;
        let mut page_use = self.memory.ram().page_use(physical.page());
        if write && page_use == PageUse::Saved {
            self.memory.take_own(physical.page());
            self.follow_moved();
            page_use = PageUse::Ram;
        }
        let host_page = self.memory.ram().host_page(physical.page());
        let Some(host_page) = host_page.filter(|_| !write || page_use != PageUse::Rom) else {
            return Ok(Target::Device(physical));
        };
        let stores_reach_memory = match page_use {
            PageUse::Rom | PageUse::Device | PageUse::Saved => false,
            // The first store to display memory must reach the monitor.
            PageUse::Display { dirty } => dirty || write,
            PageUse::Ram => true,
        };
        if write {
            self.memory.mark_dirty(physical.page());
        }
        let holds_code = self.memory.code().page_has_code(physical.page());
        let watched = holds_code
            || (self.memory.code().is_watched(physical.page())
                && !(write && self.memory.code().may_unwatch(physical.page())));
        let stores = match (translation.writable_now && stores_reach_memory, watched) {
            (false, _) => Stores::Never,
            (true, true) => Stores::BesideCode,
            (true, false) => Stores::Always,
        };
        let target = (host_page as u64, stores);
        // A translation that must not be kept is accessed out of line each time.
        if translation.keeping != Keeping::Never {
            self.translations
                .fill(state, view, linear, &translation, target);
            if translation.page_size > PAGE_SIZE {
                self.fill_around(state, view, linear, &translation);
            }
            self.confirm(state);
        }
        if write && holds_code {
            return Ok(Target::Code(physical));
        }
        Ok(Target::Ram(
            host_page.wrapping_add(physical.page_offset() as usize),
        ))
    }

    /// Fills the other pages of the aligned [`FILLED_AT_ONCE`] around a page that has just been
    /// filled from a large page, because the result of their walks is known. Only plain RAM without
    /// code is filled.
    fn fill_around(
        &mut self,
        state: &CpuState,
        view: View,
        linear: LinearAddress,
        translation: &Translation,
    ) {
        let here = linear.page_base().0;
        let first = here & !(FILLED_AT_ONCE * PAGE_SIZE - 1);
        for number in 0..FILLED_AT_ONCE {
            let place = first + number * PAGE_SIZE;
            let distance = place.wrapping_sub(here);
            let physical = PhysicalAddress(translation.physical.0.wrapping_add(distance));
            let page = physical.page();
            let other = LinearAddress(place);
            let page_use = self.memory.ram().page_use(page);
            let is_plain = place != here
                && !self.is_watched(other, 1)
                && matches!(page_use, PageUse::Ram | PageUse::Saved)
                && !self.memory.code().page_has_code(page)
                && !self.memory.code().is_watched(page)
                && (self.translations)
                    .look_up(state, view, false, other)
                    .is_none();
            if !is_plain {
                continue;
            }
            let Some(host_page) = self.memory.ram().host_page(page) else {
                continue;
            };
            let stores = match translation.writable_now && page_use == PageUse::Ram {
                true => Stores::Always,
                false => Stores::Never,
            };
            let translation = Translation {
                physical,
                ..*translation
            };
            let target = (host_page as u64, stores);
            self.translations
                .fill(state, view, other, &translation, target);
        }
    }

    /// Compares the entries that were just filled with a page walk, if such checks are enabled.
    #[inline]
    pub(crate) fn confirm(&mut self, state: &CpuState) {
        if let Some(check) = self.translations.check_mut() {
            check.confirm(state, &mut self.memory);
        }
    }

    /// Whether bytes are in a page that a debugger watches.
    #[inline]
    pub(crate) fn is_watched(&self, linear: LinearAddress, bytes: u64) -> bool {
        self.translations.watched_pages.are_at(linear, bytes)
    }

    /// Walks the guest's tables.
    ///
    /// # Errors
    /// The page fault.
    pub fn walk(
        &mut self,
        state: &CpuState,
        linear: LinearAddress,
        kind: AccessKind,
        privilege: Privilege,
    ) -> Result<Translation, Exception> {
        let registers = PagingRegisters::of(state);
        let translation = registers.walk(&mut self.memory, linear, kind, privilege);
        // The walk may have set bits in a table that was in a snapshot's file.
        self.follow_moved();
        let is_watched = self.is_watched(linear, 1) && kind != AccessKind::Fetch;
        translation.map(|found| Translation {
            keeping: match is_watched {
                true => Keeping::Never,
                false => found.keeping,
            },
            ..found
        })
    }

    /// Reads eight bytes of a system table inside a page, if the supervisor's view of the software
    /// TLB has the page.
    #[inline]
    pub(crate) fn read_table(&self, state: &CpuState, linear: LinearAddress) -> Option<u64> {
        let host = (self.translations).look_up(state, View::Supervisor, false, linear)?;
        let mut bytes = [0; 8];
        ram_copies::copy_from(host as *mut u8, &mut bytes);
        Some(u64::from_le_bytes(bytes))
    }

    /// Whether generated code may now make an access at `linear` inline. Fills the software TLB in
    /// the process.
    ///
    /// # Errors
    /// The page fault.
    pub fn make_inline(
        &mut self,
        state: &CpuState,
        linear: LinearAddress,
        access: InlineAccess,
    ) -> Result<Inline, Exception> {
        let (kind, privilege) = (access.kind(), access.privilege);
        let last = u64::from(access.size.max(1) - 1);
        match self.resolve(state, linear, kind, privilege)? {
            _ if self.is_watched(linear, last + 1) => return Ok(Inline::No),
            Target::Ram(_) => {}
            Target::Code(physical)
                if access.wanted == LookUpFor::TestedStore
                    && physical.page_offset() + last < PAGE_SIZE =>
            {
                return Ok(Inline::Code(physical));
            }
            Target::Code(_) | Target::Device(_) => return Ok(Inline::No),
        }
        if linear.page_offset() + last >= PAGE_SIZE {
            // The tables have no entry for an access that wraps around the end of the address
            // space.
            let fits = linear.0.checked_add(last).is_some_and(|end| {
                if state.is_long_mode() {
                    is_canonical(end)
                } else {
                    end <= u64::from(u32::MAX)
                }
            });
            if !fits {
                return Ok(Inline::No);
            }
            let next = LinearAddress(linear.page_base().0 + PAGE_SIZE);
            let Target::Ram(_) = self.resolve(state, next, kind, privilege)? else {
                return Ok(Inline::No);
            };
        }
        let view = view_of(privilege);
        let allowed = (self.translations).allows(state, view, access.wanted, linear, access.size);
        Ok(if allowed { Inline::Yes } else { Inline::No })
    }
}
