//! The page walker: one for 2-level, PAE and 4-level paging (SDM volume 3, chapter 4).
//!
//! The walk checks rights as the processor would, sets accessed and dirty bits,
//! and says what it found; it never touches anything but paging structures.

use crate::address::{LinearAddress, PhysicalAddress};
use crate::exception::{Exception, PageFaultCode};
use crate::flags::Flags;
use crate::registers::{Cr0, Cr4, Efer};
use crate::state::CpuState;

/// What the walker reads and updates paging structures through. Addresses are
/// naturally aligned; reads outside memory yield all ones.
pub trait PageTableMemory {
    /// Reads a 4-byte entry.
    fn read_u32(&mut self, address: PhysicalAddress) -> u32;
    /// Reads an 8-byte entry.
    fn read_u64(&mut self, address: PhysicalAddress) -> u64;
    /// Sets `bits` (accessed, dirty) in the low half of the entry.
    fn set_bits(&mut self, address: PhysicalAddress, bits: u32);
}

/// What an access wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessKind {
    /// Data read.
    Read,
    /// Data write, or the read of a read-modify-write.
    Write,
    /// Instruction fetch.
    Fetch,
}

/// Who accesses: paging knows only supervisor (CPL 0-2, and implicit system
/// accesses) and user (CPL 3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Privilege {
    /// CPL 0 to 2.
    Supervisor,
    /// An implicit access to a descriptor table or TSS, whatever the CPL is. It has the supervisor's rights, except that
    /// EFLAGS.AC lets it not access pages of programs under CR4.SMAP (SDM volume 3, 4.6.1).
    System,
    /// CPL 3.
    User,
}

impl Privilege {
    /// The privilege of data accesses at this CPL.
    pub const fn of_cpl(cpl: u8) -> Self {
        if cpl == 3 {
            Privilege::User
        } else {
            Privilege::Supervisor
        }
    }
}

/// An entry of a paging structure that a walk went through.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PathStep {
    /// Where the entry lies. For one of the PDPTE registers of PAE paging: where it was loaded
    /// from.
    pub address: PhysicalAddress,
    /// What it was, with the accessed and dirty bits that the walk has set.
    pub entry: u64,
    /// Bits of a linear address that it does not look at, and that lower entries do: 12 to 39.
    pub shift: u8,
}

/// The entries that a walk went through, from the root's on. Without paging there are none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WalkPath {
    steps: [PathStep; 4],
    length: u8,
    /// Entries have 8 bytes, not 4.
    is_wide: bool,
}

impl WalkPath {
    /// A path of at most four entries, from the root's on; `is_wide`: of 8 bytes each.
    pub fn new(steps: &[PathStep], is_wide: bool) -> Self {
        let mut path = Self {
            is_wide,
            ..Self::default()
        };
        for &step in steps {
            path.push(step);
        }
        path
    }

    fn push(&mut self, step: PathStep) {
        self.steps[usize::from(self.length)] = step;
        self.length += 1;
    }

    /// The entries, from the root's on.
    #[inline]
    pub fn steps(&self) -> &[PathStep] {
        &self.steps[..usize::from(self.length)]
    }

    /// Whether entries have 8 bytes, not 4.
    #[inline]
    pub fn is_wide(&self) -> bool {
        self.is_wide
    }

    /// Whether a walk would go through the same entries now and find the same: all are as they
    /// were, but that further ones of their accessed and dirty bits may be set.
    pub fn is_as_it_was<M: PageTableMemory + ?Sized>(&self, memory: &mut M) -> bool {
        self.steps().iter().all(|step| {
            let now = read_entry(memory, step.address, self.is_wide);
            now | NOTED_BITS == step.entry | NOTED_BITS && !now & step.entry & NOTED_BITS == 0
        })
    }
}

/// Bits that a walk sets, which can be added to an entry without making void what was derived from
/// it before.
pub const NOTED_BITS: u64 = ACCESSED | DIRTY;

/// Reads an entry of 8 bytes (`is_wide`) or 4.
#[inline]
pub fn read_entry<M: PageTableMemory + ?Sized>(
    memory: &mut M,
    address: PhysicalAddress,
    is_wide: bool,
) -> u64 {
    match is_wide {
        true => memory.read_u64(address),
        false => u64::from(memory.read_u32(address)),
    }
}

/// How long a translation may be kept of which the guest invalidates nothing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Keeping {
    /// As long as other registers and the tables are as they are.
    #[default]
    Always,
    /// As long as PKRU is, too.
    WithKeys,
    /// Not at all: EFLAGS.AC decides about each access (CR4.SMAP).
    Never,
}

/// A successful translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translation {
    /// Physical address of the byte asked for.
    pub physical: PhysicalAddress,
    /// Bytes mapped by the leaf entry: 4 KiB, 2 MiB, 4 MiB or 1 GiB.
    pub page_size: u64,
    /// A write by the same privilege would need no further walk: allowed, and D is set.
    pub writable_now: bool,
    /// User accesses are allowed.
    pub user: bool,
    /// The leaf entry is global and CR4.PGE is set, or it is the supervisor's without paging.
    pub global: bool,
    /// What else it depends on.
    pub keeping: Keeping,
    /// The entries that say so.
    pub path: WalkPath,
}

/// The registers that steer a walk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PagingRegisters {
    cr0: Cr0,
    cr4: Cr4,
    efer: Efer,
    cr3: u64,
    pdpte: [u64; 4],
    a20_mask: u64,
    has_huge_pages: bool,
    /// The program is at CPL 0 to 2 with EFLAGS.AC set, so that CR4.SMAP does not bind it.
    may_access_programs: bool,
    /// Rights by protection keys: PKRU, IA32_PKRS.
    pkru: u32,
    pkrs: u32,
}

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;
/// Number of the lowest bit of a page's protection key, of four bits.
const KEY_SHIFT: u32 = 59;
/// Bits of PKRU for each key: no data access, no write.
const ACCESS_DISABLED: u32 = 1;
const WRITE_DISABLED: u32 = 2;

/// Physical address bits offered to guests (CPUID 8000_0008h).
pub const PHYSICAL_ADDRESS_BITS: u32 = 40;
const ADDRESS_MASK: u64 = ((1 << PHYSICAL_ADDRESS_BITS) - 1) & !0xfff;
/// Bits that must be zero in 8-byte entries above the physical address width.
const RESERVED_HIGH: u64 = ((1 << 52) - 1) & !((1 << PHYSICAL_ADDRESS_BITS) - 1);
/// PAE entries additionally reserve bits 52 to 62.
const RESERVED_PAE: u64 = RESERVED_HIGH | (0x7ff << 52);

/// What the entries on the way to a page say of it together.
#[derive(Clone, Copy)]
struct PageRights {
    writable: bool,
    user: bool,
    executable: bool,
    /// Its protection key, if it has one.
    key: Option<u8>,
}

/// One level of a walk: where the index lies and whether a leaf may sit here.
struct Level {
    shift: u32,
    index_bits: u32,
    may_be_large: bool,
}

impl PagingRegisters {
    /// Takes the registers from a processor.
    pub fn of(state: &CpuState) -> Self {
        Self {
            cr0: state.cr0(),
            cr4: state.cr4(),
            efer: state.efer(),
            cr3: state.cr3,
            pdpte: state.pdpte,
            a20_mask: state.a20_mask,
            has_huge_pages: state.model.has_huge_pages(),
            may_access_programs: state.cpl() < 3 && state.flags().contains(Flags::AC),
            pkru: state.pkru,
            pkrs: state.pkrs,
        }
    }

    /// Of these registers only what a walk looks at: registers that are equal so find the same in
    /// the same tables. EFLAGS.AC, PKRU and IA32_PKRS are left out, see [`Keeping`].
    pub fn steering(&self) -> Self {
        let is_on = self.cr0.contains(Cr0::PG);
        let is_wide = self.uses_wide_entries();
        let is_long = self.efer.contains(Efer::LMA);
        let pdpte = match is_on && is_wide && !is_long {
            true => self.pdpte,
            false => [0; 4],
        };
        let cr3 = match (is_on, is_wide, is_long) {
            (false, ..) | (true, true, false) => 0,
            (true, true, true) => self.cr3 & ADDRESS_MASK,
            (true, false, _) => self.cr3 & 0xffff_f000,
        };
        Self {
            cr0: self.cr0 & (Cr0::PG | Cr0::WP),
            cr4: self.cr4
                & (Cr4::PSE | Cr4::PAE | Cr4::PGE | Cr4::SMEP | Cr4::SMAP | Cr4::PKE | Cr4::PKS),
            efer: self.efer & (Efer::LMA | Efer::NXE),
            cr3,
            pdpte,
            may_access_programs: false,
            pkru: 0,
            pkrs: 0,
            ..*self
        }
    }

    fn uses_wide_entries(&self) -> bool {
        self.cr4.contains(Cr4::PAE)
    }

    fn no_execute_enabled(&self) -> bool {
        self.uses_wide_entries() && self.efer.contains(Efer::NXE)
    }

    /// Translates one address. The access must not cross a page.
    ///
    /// # Errors
    /// The page fault that the processor would raise.
    pub fn walk<M: PageTableMemory + ?Sized>(
        &self,
        memory: &mut M,
        linear: LinearAddress,
        kind: AccessKind,
        privilege: Privilege,
    ) -> Result<Translation, Exception> {
        if !self.cr0.contains(Cr0::PG) {
            return Ok(Translation {
                physical: PhysicalAddress(linear.0 & self.a20_mask),
                page_size: 4096,
                writable_now: true,
                user: true,
                // No load of CR3 changes where it leads. Programs have no global pages
                // without paging, so that theirs are in the windows of their space.
                global: privilege != Privilege::User,
                keeping: Keeping::Always,
                path: WalkPath::default(),
            });
        }
        if !self.uses_wide_entries() {
            let levels = [
                Level {
                    shift: 22,
                    index_bits: 10,
                    may_be_large: self.cr4.contains(Cr4::PSE),
                },
                Level {
                    shift: 12,
                    index_bits: 10,
                    may_be_large: false,
                },
            ];
            return self.walk_levels(
                memory,
                linear,
                kind,
                privilege,
                (self.cr3 & 0xffff_f000, WalkPath::default()),
                &levels,
            );
        }
        if self.efer.contains(Efer::LMA) {
            let levels = [
                Level {
                    shift: 39,
                    index_bits: 9,
                    may_be_large: false,
                },
                Level {
                    shift: 30,
                    index_bits: 9,
                    may_be_large: self.has_huge_pages,
                },
                Level {
                    shift: 21,
                    index_bits: 9,
                    may_be_large: true,
                },
                Level {
                    shift: 12,
                    index_bits: 9,
                    may_be_large: false,
                },
            ];
            return self.walk_levels(
                memory,
                linear,
                kind,
                privilege,
                (self.cr3 & ADDRESS_MASK, WalkPath::new(&[], true)),
                &levels,
            );
        }
        let number = linear.0 >> 30 & 3;
        let pdpte = self.pdpte[number as usize];
        if pdpte & PRESENT == 0 {
            return Err(self.fault(linear, kind, privilege, PageFaultCode::empty()));
        }
        let register = PathStep {
            address: PhysicalAddress(((self.cr3 & 0xffff_ffe0) + number * 8) & self.a20_mask),
            entry: pdpte,
            shift: 30,
        };
        let levels = [
            Level {
                shift: 21,
                index_bits: 9,
                may_be_large: true,
            },
            Level {
                shift: 12,
                index_bits: 9,
                may_be_large: false,
            },
        ];
        self.walk_levels(
            memory,
            linear,
            kind,
            privilege,
            (pdpte & ADDRESS_MASK, WalkPath::new(&[register], true)),
            &levels,
        )
    }

    fn fault(
        &self,
        linear: LinearAddress,
        kind: AccessKind,
        privilege: Privilege,
        mut code: PageFaultCode,
    ) -> Exception {
        code.set(PageFaultCode::WRITE, kind == AccessKind::Write);
        code.set(PageFaultCode::USER, privilege == Privilege::User);
        let fetch_reported = self.no_execute_enabled() || self.cr4.contains(Cr4::SMEP);
        code.set(
            PageFaultCode::FETCH,
            kind == AccessKind::Fetch && fetch_reported,
        );
        Exception::page_fault(linear, code)
    }

    fn read_entry<M: PageTableMemory + ?Sized>(
        &self,
        memory: &mut M,
        table: u64,
        index: u64,
    ) -> (PhysicalAddress, u64) {
        let is_wide = self.uses_wide_entries();
        let bytes = if is_wide { 8 } else { 4 };
        let address = PhysicalAddress((table + index * bytes) & self.a20_mask);
        (address, read_entry(memory, address, is_wide))
    }

    /// Bits that must be zero in this entry, which maps or references at `shift`.
    fn reserved_bits(&self, shift: u32, large: bool) -> u64 {
        if !self.uses_wide_entries() {
            // PSE-36 is not offered: bits 13 to 21 of a 4 MiB entry are reserved.
            return if large { 0x003f_e000 } else { 0 };
        }
        let mut reserved = if self.efer.contains(Efer::LMA) {
            RESERVED_HIGH
        } else {
            RESERVED_PAE
        };
        if !self.efer.contains(Efer::NXE) {
            reserved |= NO_EXECUTE;
        }
        if large {
            reserved |= ((1 << shift) - 1) & !0x1fff;
        }
        reserved
    }

    fn walk_levels<M: PageTableMemory + ?Sized>(
        &self,
        memory: &mut M,
        linear: LinearAddress,
        kind: AccessKind,
        privilege: Privilege,
        (root, mut path): (u64, WalkPath),
        levels: &[Level],
    ) -> Result<Translation, Exception> {
        let mut table = root;
        let (mut writable, mut user, mut executable) = (true, true, true);
        let registers = path.steps().len();
        for level in levels {
            let index = (linear.0 >> level.shift) & ((1 << level.index_bits) - 1);
            let (address, entry) = self.read_entry(memory, table, index);
            path.push(PathStep {
                address,
                entry,
                shift: level.shift as u8,
            });
            if entry & PRESENT == 0 {
                return Err(self.fault(linear, kind, privilege, PageFaultCode::empty()));
            }
            let leaf = level.shift == 12 || (level.may_be_large && entry & LARGE != 0);
            let large = leaf && level.shift != 12;
            let mut reserved = self.reserved_bits(level.shift, large);
            if self.efer.contains(Efer::LMA) && level.shift != 12 && !level.may_be_large {
                reserved |= LARGE;
            }
            if entry & reserved != 0 {
                return Err(self.fault(
                    linear,
                    kind,
                    privilege,
                    PageFaultCode::PRESENT | PageFaultCode::RESERVED,
                ));
            }
            writable &= entry & WRITABLE != 0;
            user &= entry & USER != 0;
            executable &= !(self.no_execute_enabled() && entry & NO_EXECUTE != 0);
            if !leaf {
                table = if self.uses_wide_entries() {
                    entry & ADDRESS_MASK
                } else {
                    entry & 0xffff_f000
                };
                continue;
            }
            let page = PageRights {
                writable,
                user,
                executable,
                key: self
                    .has_key(user)
                    .then_some((entry >> KEY_SHIFT & 15) as u8),
            };
            if !self.allows(kind, privilege, page) {
                let mut code = PageFaultCode::PRESENT;
                let by_key = !self.key_allows(kind, privilege, page);
                code.set(PageFaultCode::PROTECTION_KEY, by_key);
                return Err(self.fault(linear, kind, privilege, code));
            }
            let length = usize::from(path.length);
            let (upper, lowest) =
                path.steps[registers..length].split_at_mut(length - registers - 1);
            for step in upper {
                if step.entry & ACCESSED == 0 {
                    memory.set_bits(step.address, ACCESSED as u32);
                    step.entry |= ACCESSED;
                }
            }
            let wanted = if kind == AccessKind::Write {
                ACCESSED | DIRTY
            } else {
                ACCESSED
            };
            if entry & wanted != wanted {
                memory.set_bits(address, wanted as u32);
                lowest[0].entry |= wanted;
            }
            let dirty = (entry | wanted) & DIRTY != 0;
            let page_size = 1u64 << level.shift;
            let frame_mask = if self.uses_wide_entries() {
                ADDRESS_MASK
            } else {
                0xffff_f000
            };
            let physical = (entry & frame_mask & !(page_size - 1)) | (linear.0 & (page_size - 1));
            return Ok(Translation {
                physical: PhysicalAddress(physical & self.a20_mask),
                page_size,
                writable_now: dirty && self.allows(AccessKind::Write, privilege, page),
                user,
                global: entry & GLOBAL != 0 && self.cr4.contains(Cr4::PGE),
                keeping: self.keeping(kind, privilege, page),
                path,
            });
        }
        unreachable!("the last level is always a leaf")
    }

    /// Whether a page, of programs (`user`) or of the supervisor, has a protection key: in IA-32e mode
    /// (SDM volume 3, 4.6.2).
    fn has_key(&self, user: bool) -> bool {
        let enabled = match user {
            true => Cr4::PKE,
            false => Cr4::PKS,
        };
        self.cr4.contains(enabled) && self.efer.contains(Efer::LMA)
    }

    /// Access rights (SDM volume 3, 4.6.1).
    fn allows(&self, kind: AccessKind, privilege: Privilege, page: PageRights) -> bool {
        let prevents = self.cr4.contains(Cr4::SMAP)
            && page.user
            && !(privilege == Privilege::Supervisor && self.may_access_programs);
        let by_tables = match (privilege, kind) {
            (Privilege::User, AccessKind::Read) => page.user,
            (Privilege::User, AccessKind::Write) => page.user && page.writable,
            (Privilege::User, AccessKind::Fetch) => page.user && page.executable,
            (_, AccessKind::Read) => !prevents,
            (_, AccessKind::Write) => !prevents && (page.writable || !self.cr0.contains(Cr0::WP)),
            (_, AccessKind::Fetch) => {
                page.executable && !(page.user && self.cr4.contains(Cr4::SMEP))
            }
        };
        by_tables && self.key_allows(kind, privilege, page)
    }

    /// Whether the page's protection key allows an access (SDM volume 3, 4.6.2).
    fn key_allows(&self, kind: AccessKind, privilege: Privilege, page: PageRights) -> bool {
        let Some(key) = page.key else {
            return true;
        };
        let rights = match page.user {
            true => self.pkru,
            false => self.pkrs,
        };
        let disabled = rights >> (2 * key);
        let minds_writes = privilege == Privilege::User || self.cr0.contains(Cr0::WP);
        match kind {
            AccessKind::Fetch => true,
            AccessKind::Read => disabled & ACCESS_DISABLED == 0,
            AccessKind::Write => {
                disabled & ACCESS_DISABLED == 0 && !(minds_writes && disabled & WRITE_DISABLED != 0)
            }
        }
    }

    /// How long what was found may be kept.
    fn keeping(&self, kind: AccessKind, privilege: Privilege, page: PageRights) -> Keeping {
        if kind == AccessKind::Fetch {
            return Keeping::Always;
        }
        if page.user && privilege != Privilege::User && self.cr4.contains(Cr4::SMAP) {
            return Keeping::Never;
        }
        match page.key {
            // Rights of key 0, which nearly all pages have, change so rarely that all is forgotten then.
            None | Some(0) => Keeping::Always,
            Some(_) => Keeping::WithKeys,
        }
    }
}

/// Whether a PDPTE would be refused by MOV CR3 or MOV CR0/CR4 in PAE mode
/// (SDM volume 3, 4.4.1): a present entry with a reserved bit set.
pub const fn pdpte_is_invalid(entry: u64) -> bool {
    entry & PRESENT != 0 && entry & (RESERVED_PAE | NO_EXECUTE | 0x1e6) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[derive(Default)]
    struct Tables(HashMap<u64, u64>);

    impl PageTableMemory for Tables {
        fn read_u32(&mut self, address: PhysicalAddress) -> u32 {
            self.0.get(&address.0).copied().unwrap_or(0) as u32
        }
        fn read_u64(&mut self, address: PhysicalAddress) -> u64 {
            self.0.get(&address.0).copied().unwrap_or(0)
        }
        fn set_bits(&mut self, address: PhysicalAddress, bits: u32) {
            *self.0.get_mut(&address.0).unwrap() |= u64::from(bits);
        }
    }

    fn registers(cr0: Cr0, cr4: Cr4, efer: Efer) -> PagingRegisters {
        let mut state = CpuState::at_reset();
        state.cr0 = (cr0 | Cr0::PE | Cr0::PG).bits();
        state.cr4 = cr4.bits();
        state.efer = efer.bits();
        state.cr3 = 0x1000;
        state.pdpte[0] = 0x2001;
        PagingRegisters::of(&state)
    }

    #[test]
    fn a_read_sets_accessed_and_a_write_sets_dirty() {
        let mut tables = Tables::default();
        tables.0.insert(0x1000, 0x2003);
        tables.0.insert(0x2014, 0x7003);
        let walk = registers(Cr0::empty(), Cr4::empty(), Efer::empty());
        let read = walk
            .walk(
                &mut tables,
                LinearAddress(0x5123),
                AccessKind::Read,
                Privilege::Supervisor,
            )
            .unwrap();
        assert_eq!(read.physical, PhysicalAddress(0x7123));
        assert!(!read.writable_now);
        assert_eq!(tables.0[&0x1000], 0x2023);
        assert_eq!(tables.0[&0x2014], 0x7023);
        let write = walk
            .walk(
                &mut tables,
                LinearAddress(0x5123),
                AccessKind::Write,
                Privilege::Supervisor,
            )
            .unwrap();
        assert!(write.writable_now);
        assert_eq!(tables.0[&0x2014], 0x7063);
    }

    #[test]
    fn user_access_to_a_supervisor_page_is_a_protection_fault_and_sets_nothing() {
        let mut tables = Tables::default();
        tables.0.insert(0x1000, 0x2007);
        tables.0.insert(0x2014, 0x7003);
        let walk = registers(Cr0::WP, Cr4::empty(), Efer::empty());
        let fault = walk
            .walk(
                &mut tables,
                LinearAddress(0x5123),
                AccessKind::Write,
                Privilege::User,
            )
            .unwrap_err();
        assert_eq!(fault.error_code, 7);
        assert_eq!(fault.address, Some(LinearAddress(0x5123)));
        assert_eq!(tables.0[&0x1000], 0x2007);
    }

    #[test]
    fn write_protection_binds_the_supervisor_only_with_wp() {
        let mut tables = Tables::default();
        tables.0.insert(0x1000, 0x2003);
        tables.0.insert(0x2014, 0x7001);
        let free = registers(Cr0::empty(), Cr4::empty(), Efer::empty());
        assert!(
            free.walk(
                &mut tables,
                LinearAddress(0x5000),
                AccessKind::Write,
                Privilege::Supervisor
            )
            .is_ok()
        );
        let bound = registers(Cr0::WP, Cr4::empty(), Efer::empty());
        let fault = bound
            .walk(
                &mut tables,
                LinearAddress(0x5000),
                AccessKind::Write,
                Privilege::Supervisor,
            )
            .unwrap_err();
        assert_eq!(fault.error_code, 3);
    }

    #[test]
    fn four_mebibyte_pages_need_pse_and_reserve_bits_13_to_21() {
        let mut tables = Tables::default();
        tables.0.insert(0x1004, 0x0080_0083);
        let walk = registers(Cr0::empty(), Cr4::PSE, Efer::empty());
        let found = walk
            .walk(
                &mut tables,
                LinearAddress(0x0041_2345),
                AccessKind::Read,
                Privilege::Supervisor,
            )
            .unwrap();
        assert_eq!(found.physical, PhysicalAddress(0x0081_2345));
        assert_eq!(found.page_size, 4 << 20);
        tables.0.insert(0x1004, 0x0080_2083);
        let fault = walk
            .walk(
                &mut tables,
                LinearAddress(0x0041_2345),
                AccessKind::Read,
                Privilege::Supervisor,
            )
            .unwrap_err();
        assert_eq!(fault.error_code, 9);
    }

    #[test]
    fn no_execute_faults_a_fetch_with_the_fetch_bit() {
        let mut tables = Tables::default();
        tables.0.insert(0x2000, 0x3003);
        tables.0.insert(0x3028, 0x7003 | NO_EXECUTE);
        let walk = registers(Cr0::empty(), Cr4::PAE, Efer::NXE);
        let fault = walk
            .walk(
                &mut tables,
                LinearAddress(0x5000),
                AccessKind::Fetch,
                Privilege::Supervisor,
            )
            .unwrap_err();
        assert_eq!(fault.error_code, 0x11);
        let without = registers(Cr0::empty(), Cr4::PAE, Efer::empty());
        let reserved = without
            .walk(
                &mut tables,
                LinearAddress(0x5000),
                AccessKind::Read,
                Privilege::Supervisor,
            )
            .unwrap_err();
        assert_eq!(reserved.error_code, 9);
    }

    /// Four levels that map 4 KiB at `0xffff_8000_4020_3000` to 7000h.
    fn four_levels() -> (PagingRegisters, Tables) {
        let mut tables = Tables::default();
        tables.0.insert(0x1000 + 256 * 8, 0x2003);
        tables.0.insert(0x2000 + 8, 0x3003);
        tables.0.insert(0x3000 + 8, 0x4003);
        tables.0.insert(0x4000 + 3 * 8, 0x7003);
        let long = Efer::LME | Efer::LMA | Efer::NXE;
        (registers(Cr0::WP, Cr4::PAE, long), tables)
    }

    const IN_FOUR_LEVELS: LinearAddress = LinearAddress(0xffff_8000_4020_3123);

    fn read(walk: &PagingRegisters, tables: &mut Tables) -> Result<Translation, Exception> {
        walk.walk(
            tables,
            IN_FOUR_LEVELS,
            AccessKind::Read,
            Privilege::Supervisor,
        )
    }

    #[test]
    fn four_levels_translate_48_bits() {
        let (walk, mut tables) = four_levels();
        let found = read(&walk, &mut tables).unwrap();
        assert_eq!(found.physical, PhysicalAddress(0x7123));
        assert_eq!(found.page_size, 4096);
        for entry in [0x1000 + 256 * 8, 0x2008, 0x3008, 0x4018] {
            assert_eq!(tables.0[&entry] & ACCESSED, ACCESSED);
        }
    }

    #[test]
    fn large_pages_of_2_mib_and_1_gib_reserve_their_low_frame_bits() {
        let (walk, mut tables) = four_levels();
        tables.0.insert(0x3008, 0xff_ffe0_0083);
        let found = read(&walk, &mut tables).unwrap();
        assert_eq!(found.physical, PhysicalAddress(0xff_ffe0_3123));
        assert_eq!(found.page_size, 2 << 20);
        tables.0.insert(0x3008, 0x0020_2083);
        assert_eq!(read(&walk, &mut tables).unwrap_err().error_code, 9);
        tables.0.insert(0x2008, 0x40_4000_1083);
        let found = read(&walk, &mut tables).unwrap();
        assert_eq!(found.physical, PhysicalAddress(0x40_4020_3123));
        assert_eq!(found.page_size, 1 << 30);
        tables.0.insert(0x2008, 0x4020_0083);
        assert_eq!(read(&walk, &mut tables).unwrap_err().error_code, 9);
    }

    #[test]
    fn a_processor_without_1_gib_pages_reserves_their_bit() {
        let (mut walk, mut tables) = four_levels();
        tables.0.insert(0x2008, 0x40_4000_0083);
        assert_eq!(read(&walk, &mut tables).unwrap().page_size, 1 << 30);
        walk.has_huge_pages = false;
        assert_eq!(read(&walk, &mut tables).unwrap_err().error_code, 9);
        tables.0.insert(0x2008, 0x3003);
        tables.0.insert(0x3008, 0x83);
        assert_eq!(read(&walk, &mut tables).unwrap().page_size, 2 << 20);
    }

    #[test]
    fn a_pml4_entry_is_never_a_page_and_frames_end_at_the_physical_width() {
        for (entry, place) in [
            (0x2083, 0x1000 + 256 * 8),
            (1 << 40 | 0x2003, 0x1000 + 256 * 8),
            (1 << 51 | 0x3003, 0x2008),
            (1 << 40 | 0x7003, 0x4018),
        ] {
            let (walk, mut tables) = four_levels();
            tables.0.insert(place, entry);
            let fault = read(&walk, &mut tables).unwrap_err();
            assert_eq!(fault.error_code, 9, "{entry:#x}");
            assert_eq!(fault.address, Some(IN_FOUR_LEVELS));
        }
        // Bits 52 to 62 are software's.
        let (walk, mut tables) = four_levels();
        tables.0.insert(0x4018, 0x7ff << 52 | 0x7003);
        assert!(read(&walk, &mut tables).is_ok());
    }

    #[test]
    fn rights_of_all_four_levels_count() {
        for place in [0x1000 + 256 * 8, 0x2008, 0x3008, 0x4018] {
            let (walk, mut tables) = four_levels();
            for entry in tables.0.values_mut() {
                *entry |= USER;
            }
            *tables.0.get_mut(&place).unwrap() ^= USER | WRITABLE | NO_EXECUTE;
            for (kind, privilege, code) in [
                (AccessKind::Read, Privilege::User, 5),
                (AccessKind::Write, Privilege::Supervisor, 3),
                (AccessKind::Fetch, Privilege::Supervisor, 0x11),
            ] {
                let fault = walk
                    .walk(&mut tables, IN_FOUR_LEVELS, kind, privilege)
                    .unwrap_err();
                assert_eq!(fault.error_code, code, "{place:#x}");
            }
        }
    }

    const SMAP: Cr4 = Cr4::PAE.union(Cr4::SMAP);
    const ALL_KINDS: [AccessKind; 3] = [AccessKind::Read, AccessKind::Write, AccessKind::Fetch];

    /// [`four_levels`] with these bits in the page's entry, which is the user's.
    fn of_user(cr4: Cr4, bits: u64) -> (PagingRegisters, Tables) {
        let (walk, mut tables) = four_levels();
        for entry in [0x1000 + 256 * 8, 0x2008, 0x3008, 0x4018] {
            *tables.0.get_mut(&entry).unwrap() |= USER;
        }
        *tables.0.get_mut(&0x4018).unwrap() |= bits;
        (PagingRegisters { cr4, ..walk }, tables)
    }

    /// The error code of each kind of access, if it faults.
    fn errors(
        walk: &PagingRegisters,
        tables: &mut Tables,
        privilege: Privilege,
    ) -> [Option<u32>; 3] {
        ALL_KINDS.map(|kind| {
            let found = walk.walk(tables, IN_FOUR_LEVELS, kind, privilege);
            found.err().map(|fault| fault.error_code)
        })
    }

    #[test]
    fn smap_keeps_the_supervisor_from_data_of_the_user_unless_ac_is_set() {
        let (mut walk, mut tables) = of_user(SMAP, 0);
        let prevented = [Some(1), Some(3), None];
        assert_eq!(errors(&walk, &mut tables, Privilege::User), [None; 3]);
        assert_eq!(errors(&walk, &mut tables, Privilege::Supervisor), prevented);
        walk.may_access_programs = true;
        assert_eq!(errors(&walk, &mut tables, Privilege::Supervisor), [None; 3]);
        assert_eq!(errors(&walk, &mut tables, Privilege::System), prevented);
        let found = read(&walk, &mut tables).unwrap();
        assert_eq!(found.keeping, Keeping::Never);
        let (walk, mut tables) = four_levels();
        let walk = PagingRegisters { cr4: SMAP, ..walk };
        assert_eq!(errors(&walk, &mut tables, Privilege::System), [None; 3]);
        let found = read(&walk, &mut tables).unwrap();
        assert_eq!(found.keeping, Keeping::Always);
    }

    #[test]
    fn a_protection_key_forbids_data_accesses_or_writes() {
        let keys = Cr4::PAE | Cr4::PKE;
        let (mut walk, mut tables) = of_user(keys, 7 << KEY_SHIFT);
        assert_eq!(errors(&walk, &mut tables, Privilege::User), [None; 3]);
        walk.pkru = ACCESS_DISABLED << 14;
        let user = [Some(0x25), Some(0x27), None];
        assert_eq!(errors(&walk, &mut tables, Privilege::User), user);
        let supervisor = [Some(0x21), Some(0x23), None];
        assert_eq!(
            errors(&walk, &mut tables, Privilege::Supervisor),
            supervisor
        );
        walk.pkru = WRITE_DISABLED << 14;
        let user = [None, Some(0x27), None];
        assert_eq!(errors(&walk, &mut tables, Privilege::User), user);
        walk.cr0.remove(Cr0::WP);
        assert_eq!(errors(&walk, &mut tables, Privilege::Supervisor), [None; 3]);
        assert_eq!(read(&walk, &mut tables).unwrap().keeping, Keeping::WithKeys);
        walk.cr4.remove(Cr4::PKE);
        assert_eq!(errors(&walk, &mut tables, Privilege::User), [None; 3]);
        let (mut walk, mut tables) = four_levels();
        walk.cr4 = keys;
        walk.pkru = u32::MAX;
        let supervisor = errors(&walk, &mut tables, Privilege::Supervisor);
        assert_eq!(supervisor, [None; 3], "pages of the supervisor have no key");
    }

    #[test]
    fn keys_of_the_supervisor_s_pages_obey_its_own_rights() {
        let (mut walk, mut tables) = four_levels();
        walk.cr4 = Cr4::PAE | Cr4::PKS;
        (walk.pkru, walk.pkrs) = (u32::MAX, 0);
        let supervisor = Privilege::Supervisor;
        assert_eq!(errors(&walk, &mut tables, supervisor), [None; 3]);
        walk.pkrs = ACCESS_DISABLED;
        let prevented = [Some(0x21), Some(0x23), None];
        for privilege in [supervisor, Privilege::System] {
            assert_eq!(errors(&walk, &mut tables, privilege), prevented);
        }
        walk.pkrs = WRITE_DISABLED;
        walk.cr0.insert(Cr0::WP);
        let writes = [None, Some(0x23), None];
        assert_eq!(errors(&walk, &mut tables, supervisor), writes);
        walk.cr0.remove(Cr0::WP);
        assert_eq!(errors(&walk, &mut tables, supervisor), [None; 3]);
        walk.cr4.remove(Cr4::PKS);
        walk.pkrs = u32::MAX;
        assert_eq!(errors(&walk, &mut tables, supervisor), [None; 3]);
        let (mut walk, mut tables) = of_user(Cr4::PAE | Cr4::PKS, 7 << KEY_SHIFT);
        walk.pkrs = u32::MAX;
        assert_eq!(errors(&walk, &mut tables, supervisor), [None; 3]);
    }
}
