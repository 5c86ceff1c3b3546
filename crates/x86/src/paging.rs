//! The page walker for 2-level, PAE and 4-level paging (SDM volume 3, chapter 4).
//!
//! A walk checks rights as the processor does, sets accessed and dirty bits, and returns the
//! translation or the fault. It accesses nothing but paging structures.

use crate::address::{LinearAddress, PhysicalAddress};
use crate::exception::{Exception, PageFaultCode};
use crate::flags::Flags;
use crate::registers::{Cr0, Cr4, Efer};
use crate::state::CpuState;

/// How the walker reads and updates paging structures. Addresses are naturally aligned; reads
/// outside memory return all ones.
pub trait PageTableMemory {
    /// Reads a 4-byte entry.
    fn read_u32(&mut self, address: PhysicalAddress) -> u32;
    /// Reads an 8-byte entry.
    fn read_u64(&mut self, address: PhysicalAddress) -> u64;
    /// Sets `bits` (accessed, dirty) in the low half of an entry.
    fn set_bits(&mut self, address: PhysicalAddress, bits: u32);
}

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessKind {
    /// A read of data.
    Read,
    /// A write of data, or the read of a read-modify-write.
    Write,
    /// An instruction fetch.
    Fetch,
}

/// The privilege of an access: paging distinguishes only supervisor accesses (CPL 0 to 2, and
/// implicit system accesses) from user accesses (CPL 3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Privilege {
    /// An access at CPL 0 to 2.
    Supervisor,
    /// An implicit access to a descriptor table or TSS, at any CPL. It has the supervisor's rights,
    /// but EFLAGS.AC does not permit it to access user pages under CR4.SMAP (SDM volume 3, 4.6.1).
    System,
    /// An access at CPL 3.
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
    /// Where the entry lies. For a PDPTE register of PAE paging: the address it was loaded from.
    pub address: PhysicalAddress,
    /// The entry's value, including the accessed and dirty bits that the walk set.
    pub entry: u64,
    /// The number of low bits of the linear address that this entry does not translate and lower
    /// entries do: 12 to 39.
    pub shift: u8,
}

/// The entries that a walk went through, starting at the root. Empty without paging.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WalkPath {
    steps: [PathStep; 4],
    length: u8,
    /// Whether an entry has 8 bytes instead of 4.
    is_wide: bool,
}

impl WalkPath {
    /// Makes a path of at most four entries, starting at the root. `is_wide`: each has 8 bytes.
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

    /// The entries of the path, starting at the root.
    #[inline]
    pub fn steps(&self) -> &[PathStep] {
        &self.steps[..usize::from(self.length)]
    }

    /// Whether an entry has 8 bytes instead of 4.
    #[inline]
    pub fn is_wide(&self) -> bool {
        self.is_wide
    }

    /// Whether a walk would go through the same entries now and find the same translation: every
    /// entry is unchanged, except that more of its accessed and dirty bits may be set.
    pub fn is_as_it_was<M: PageTableMemory + ?Sized>(&self, memory: &mut M) -> bool {
        self.steps().iter().all(|step| {
            let now = read_entry(memory, step.address, self.is_wide);
            now | NOTED_BITS == step.entry | NOTED_BITS && !now & step.entry & NOTED_BITS == 0
        })
    }
}

/// The bits that a walk sets. They can be added to an entry without invalidating what was derived
/// from it before.
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

/// How long a translation may be cached if the guest does not invalidate it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Keeping {
    /// For as long as the tables and the registers other than PKRU are unchanged.
    #[default]
    Always,
    /// For as long as PKRU is unchanged, too.
    WithKeys,
    /// It must not be cached: EFLAGS.AC decides about each access (CR4.SMAP).
    Never,
}

/// A successful translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translation {
    /// Physical address of the byte that was looked up.
    pub physical: PhysicalAddress,
    /// Bytes that the leaf entry maps: 4 KiB, 2 MiB, 4 MiB or 1 GiB.
    pub page_size: u64,
    /// Whether a write with the same privilege needs no further walk: it is allowed, and D is set.
    pub writable_now: bool,
    /// Whether user accesses are allowed.
    pub user: bool,
    /// Whether the leaf entry is global and CR4.PGE is set, or the access is a supervisor's without
    /// paging.
    pub global: bool,
    /// How long the translation may be cached.
    pub keeping: Keeping,
    /// The entries that the translation was derived from.
    pub path: WalkPath,
}

/// The registers that control a walk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PagingRegisters {
    cr0: Cr0,
    cr4: Cr4,
    efer: Efer,
    cr3: u64,
    pdpte: [u64; 4],
    a20_mask: u64,
    has_huge_pages: bool,
    /// Whether the program is at CPL 0 to 2 with EFLAGS.AC set, so that CR4.SMAP does not restrict
    /// it.
    may_access_programs: bool,
    /// Rights by protection keys: the registers PKRU and IA32_PKRS.
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
/// Number of the lowest of the four bits of a page's protection key.
const KEY_SHIFT: u32 = 59;
/// Bits of PKRU for each key: data accesses are disabled, writes are disabled.
const ACCESS_DISABLED: u32 = 1;
const WRITE_DISABLED: u32 = 2;

/// The width in bits of the physical addresses that guests have (CPUID 8000_0008h).
pub const PHYSICAL_ADDRESS_BITS: u32 = 40;
const ADDRESS_MASK: u64 = ((1 << PHYSICAL_ADDRESS_BITS) - 1) & !0xfff;
/// Bits that must be zero in 8-byte entries above the physical address width.
const RESERVED_HIGH: u64 = ((1 << 52) - 1) & !((1 << PHYSICAL_ADDRESS_BITS) - 1);
/// The bits that PAE entries reserve: those of other entries, and bits 52 to 62.
const RESERVED_PAE: u64 = RESERVED_HIGH | (0x7ff << 52);

/// The rights that all entries on the way to a page grant together.
#[derive(Clone, Copy)]
struct PageRights {
    writable: bool,
    user: bool,
    executable: bool,
    /// The page's protection key, if it has one.
    key: Option<u8>,
}

/// One level of a walk: where the index lies, and whether an entry of this level may map a page.
struct Level {
    shift: u32,
    index_bits: u32,
    may_be_large: bool,
}

impl PagingRegisters {
    /// Copies the registers of a processor.
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

    /// Returns registers with which the supervisor may read every page.
    pub const fn for_debugger(self) -> Self {
        Self {
            may_access_programs: true,
            pkru: 0,
            pkrs: 0,
            ..self
        }
    }

    /// The registers that determine the result of a walk: with equal values, walks of the same
    /// tables find the same. EFLAGS.AC, PKRU and IA32_PKRS are left out, see [`Keeping`].
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

    /// Translates one address. The access must not cross a page boundary.
    ///
    /// # Errors
    ///
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
                // Without paging, no load of CR3 changes the translation. User translations are
                // still not global without paging, so that they are kept in the windows of their
                // address space.
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

    /// The bits that must be zero in this entry, which maps a page (`large`) or refers to a table
    /// at `shift`.
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

    /// Whether a page of a user (`user`) or of the supervisor has a protection key. Only pages in
    /// IA-32e mode have keys (SDM volume 3, 4.6.2).
    fn has_key(&self, user: bool) -> bool {
        let enabled = match user {
            true => Cr4::PKE,
            false => Cr4::PKS,
        };
        self.cr4.contains(enabled) && self.efer.contains(Efer::LMA)
    }

    /// Whether the page's rights allow an access (SDM volume 3, 4.6.1).
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

    /// How long a translation may be cached that allowed this access.
    fn keeping(&self, kind: AccessKind, privilege: Privilege, page: PageRights) -> Keeping {
        if kind == AccessKind::Fetch {
            return Keeping::Always;
        }
        if page.user && privilege != Privilege::User && self.cr4.contains(Cr4::SMAP) {
            return Keeping::Never;
        }
        match page.key {
            // Nearly all pages have key 0. Its rights change so rarely that all translations are
            // dropped then.
            None | Some(0) => Keeping::Always,
            Some(_) => Keeping::WithKeys,
        }
    }
}

/// Whether MOV CR3 or MOV CR0/CR4 refuses a PDPTE in PAE mode (SDM volume 3, 4.4.1): the entry is
/// present and has a reserved bit set.
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

    /// Page tables of four levels that map 4 KiB at `0xffff_8000_4020_3000` to 7000h.
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
        // Bits 52 to 62 are available to software.
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

    /// [`four_levels`] with these bits set in the entry of the page, which is a user page.
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
