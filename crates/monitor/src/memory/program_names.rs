//! Finds the names of the programs that run in address spaces, for statistics.
//!
//! Linux stores the path of a program that is executed at the very top of its first stack, where
//! nothing writes later (`fs/exec.c`; the auxiliary vector has the path's address as AT_EXECFN):
//!
//! ```text
//! ... environment  "/usr/bin/make" 0  0 0 0 0 0 0 0 0 | end of the stack's highest page
//!                   the path          a word of zeros: 8 bytes, of kernels of 32 bits 4
//! ```
//!
//! Finding it needs neither symbols nor knowledge of a kernel's structures: the page tables show
//! which pages programs may access, and the stack is one of the highest, with only the kernel's
//! vDSO above it. So when an exit comes from a program of a space, the highest pages of the space
//! are examined from time to time. A space that is later given to another program has several
//! names, the newest first. Guests that do not store a path there have no names. All of this only
//! reads guest memory, by physical address, and only RAM.

use std::collections::HashMap;
use tollgate_memory::GuestMemory;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::{CpuState, Cr0, Cr4, PhysicalAddress};

/// Maximum number of spaces that have names.
const MOST_SPACES: usize = 4096;
/// Maximum number of names of one space.
const MOST_NAMES: usize = 3;
/// Maximum length of a name, in characters.
const LONGEST_NAME: usize = 32;
/// Maximum number of pages that are examined. The vDSO and its data are above the stack.
const MOST_PAGES: usize = 24;
/// Maximum number of tables that are read to find these pages.
const MOST_TABLES: usize = 32;
/// Number of exits of programs before a space is examined again.
const PAUSE: u32 = 1024;

const PRESENT: u64 = 1;
const USER: u64 = 1 << 2;
const LARGE: u64 = 1 << 7;
const FRAME: u64 = ((1 << 40) - 1) & !0xfff;

/// The names of one space, and when to look for another.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The names, the newest first.
    names: Vec<String>,
    /// The count of program exits at which the space is examined again.
    due: u32,
}

/// The names of the programs in all address spaces.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgramNames {
    spaces: HashMap<u64, Known>,
    /// The number of exits of programs.
    exits: u32,
    /// The space of the last such exit.
    last: u64,
    /// [`Known::due`] of the space in `last`.
    due: u32,
}

impl ProgramNames {
    /// Counts an exit from a program in this space. Returns whether [`Self::look`] should examine
    /// the space.
    #[inline]
    pub(crate) fn is_due(&mut self, space: u64) -> bool {
        self.exits = self.exits.wrapping_add(1);
        if space != self.last {
            self.last = space;
            self.due = match self.spaces.get(&space) {
                Some(known) => known.due,
                None => self.exits,
            };
        }
        self.exits.wrapping_sub(self.due) as i32 >= 0
    }

    /// Examines `space`, which is loaded, and notes the name of its program.
    pub(crate) fn look(&mut self, space: u64, cpu: &CpuState, memory: &GuestMemory) {
        if self.spaces.len() >= MOST_SPACES && !self.spaces.contains_key(&space) {
            self.spaces.clear();
        }
        let known = self.spaces.entry(space).or_default();
        known.due = self.exits.wrapping_add(PAUSE);
        self.due = known.due;
        let Some(name) = name_in(cpu, memory) else {
            return;
        };
        known.names.retain(|other| *other != name);
        known.names.insert(0, name);
        known.names.truncate(MOST_NAMES + 1);
    }

    /// Each space that has names, with its names.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, String)> {
        let named = self.spaces.iter();
        named
            .filter(|(_, known)| !known.names.is_empty())
            .map(|(space, known)| {
                let mut text = known.names[..known.names.len().min(MOST_NAMES)].join(",");
                if known.names.len() > MOST_NAMES {
                    text.push_str(",...");
                }
                (*space, text)
            })
    }
}

/// The name of the program whose page tables are loaded.
fn name_in(cpu: &CpuState, memory: &GuestMemory) -> Option<String> {
    if !cpu.cr0().contains(Cr0::PG) {
        return None;
    }
    let is_wide = cpu.cr4().contains(Cr4::PAE);
    let mut search = Search {
        memory,
        is_wide,
        pages: 0,
        tables: 0,
    };
    match (cpu.is_long_mode(), is_wide) {
        // Only the lower half of the addresses is searched.
        (true, _) => search.table(cpu.cr3 & FRAME, (4, 256)),
        (false, true) => {
            let mut directories = cpu.pdpte.iter().rev();
            directories.find_map(|entry| {
                let is_there = entry & PRESENT != 0;
                is_there.then(|| search.table(entry & FRAME, (2, 512)))?
            })
        }
        (false, false) => search.table(cpu.cr3 & 0xffff_f000, (2, 1024)),
    }
}

/// A search through page tables, from the highest address down.
struct Search<'a> {
    memory: &'a GuestMemory,
    is_wide: bool,
    pages: usize,
    tables: usize,
}

impl Search<'_> {
    /// Searches the pages that the first `entries` of a table of this level lead to, from the
    /// highest one down. Entries of level 1 lead to pages.
    fn table(&mut self, address: u64, (level, entries): (u32, usize)) -> Option<String> {
        self.tables += 1;
        let mut bytes = [0; PAGE_SIZE as usize];
        if self.tables > MOST_TABLES || !self.memory.read(PhysicalAddress(address), &mut bytes) {
            return None;
        }
        let (size, below) = match self.is_wide {
            true => (8, 512),
            false => (4, 1024),
        };
        for entry in bytes.chunks_exact(size).take(entries).rev() {
            let mut value = [0; 8];
            value[..size].copy_from_slice(entry);
            let entry = u64::from_le_bytes(value);
            if entry & PRESENT == 0 || entry & USER == 0 {
                continue;
            }
            let is_large = level > 1 && entry & LARGE != 0;
            let name = match level {
                1 => self.page(entry & FRAME),
                _ if is_large => None,
                _ => self.table(entry & FRAME, (level - 1, below)),
            };
            if name.is_some() || self.pages >= MOST_PAGES || self.tables >= MOST_TABLES {
                return name;
            }
        }
        None
    }

    fn page(&mut self, address: u64) -> Option<String> {
        self.pages += 1;
        let mut bytes = [0; PAGE_SIZE as usize];
        let is_read = self.memory.read(PhysicalAddress(address), &mut bytes);
        is_read.then(|| name_at_end(&bytes))?
    }
}

/// The last component of the path at the end of a stack's highest page.
fn name_at_end(page: &[u8]) -> Option<String> {
    let zeros = page.iter().rev().take_while(|byte| **byte == 0).count();
    // The word of zeros, and the zero that ends the path.
    if zeros != 8 + 1 && zeros != 4 + 1 {
        return None;
    }
    let text = &page[..page.len() - zeros];
    let start = text.iter().rposition(|byte| *byte == 0)? + 1;
    let path = std::str::from_utf8(&text[start..]).ok()?;
    if path.chars().any(char::is_control) {
        return None;
    }
    let name = path.rsplit('/').next()?;
    (!name.is_empty()).then(|| name.chars().take(LONGEST_NAME).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_x86::Efer;

    fn stack_page(path: &str, word: usize) -> Vec<u8> {
        let mut page = vec![0; PAGE_SIZE as usize];
        let end = page.len() - word - 1;
        let environment = b"HOME=/root\0";
        let start = end - path.len();
        page[start..end].copy_from_slice(path.as_bytes());
        page[start - environment.len()..start].copy_from_slice(environment);
        page
    }

    #[test]
    fn the_path_at_the_end_of_a_stack_gives_the_name() {
        for word in [4, 8] {
            let page = stack_page("/usr/bin/make", word);
            assert_eq!(name_at_end(&page).as_deref(), Some("make"));
        }
        assert_eq!(name_at_end(&stack_page("./a b", 8)).as_deref(), Some("a b"));
        for path in ["/usr/bin/", "a\x07b"] {
            assert_eq!(name_at_end(&stack_page(path, 8)), None, "{path:?}");
        }
        assert_eq!(name_at_end(&stack_page("/bin/sh", 6)), None);
        assert_eq!(name_at_end(&vec![0; 4096]), None);
        assert_eq!(name_at_end(&vec![b'x'; 4096]), None);
        let long = "y".repeat(200);
        assert_eq!(
            name_at_end(&stack_page(&long, 8)).unwrap().len(),
            LONGEST_NAME
        );
    }

    /// Guest memory with a page of the stack at 8000h and, above it, one page with other contents.
    fn guest(entry_bytes: usize, tables: &[(u64, usize, u64)], path: &str) -> GuestMemory {
        let mut memory = GuestMemory::new(1 << 20).unwrap();
        for &(table, index, value) in tables {
            let address = PhysicalAddress(table + (index * entry_bytes) as u64);
            assert!(memory.write(address, &value.to_le_bytes()[..entry_bytes]));
        }
        let word = if entry_bytes == 8 { 8 } else { 4 };
        assert!(memory.write(PhysicalAddress(0x8000), &stack_page(path, word)));
        assert!(memory.write(PhysicalAddress(0x9000), &[0x90; 4096]));
        memory
    }

    fn paged(cr3: u64) -> CpuState {
        let mut cpu = CpuState::at_reset();
        cpu.cr0 |= (Cr0::PG | Cr0::PE).bits();
        cpu.cr3 = cr3;
        cpu
    }

    #[test]
    fn the_stack_is_found_below_the_vdso_in_each_form_of_page_tables() {
        let four_levels = [
            // The kernel's half is not searched.
            (0x1000, 300, 0x1007),
            (0x1000, 255, 0x2007),
            (0x2000, 511, 0x3007),
            (0x3000, 17, 0x4007),
            (0x4000, 500, 0x9007),
            // This page belongs to the supervisor only.
            (0x4000, 400, 0x9003),
            (0x4000, 311, 0x8007),
        ];
        let memory = guest(8, &four_levels, "/sbin/init");
        let mut cpu = paged(0x1018);
        cpu.cr4 |= Cr4::PAE.bits();
        cpu.efer |= (Efer::LMA | Efer::LME).bits();
        assert_eq!(name_in(&cpu, &memory).as_deref(), Some("init"));

        let two_levels = [
            (0x1000, 1000, 0x2003),
            (0x1000, 767, 0x4007),
            (0x4000, 1023, 0x9007),
            (0x4000, 1000, 0x8007),
        ];
        let memory = guest(4, &two_levels, "/bin/dash");
        assert_eq!(name_in(&paged(0x1000), &memory).as_deref(), Some("dash"));

        let three_levels = [(0x3000, 511, 0x4007), (0x4000, 510, 0x8007)];
        let memory = guest(8, &three_levels, "/bin/cat");
        let mut cpu = paged(0x1000);
        cpu.cr4 |= Cr4::PAE.bits();
        cpu.pdpte = [0, 0, 0x3001, 0];
        assert_eq!(name_in(&cpu, &memory).as_deref(), Some("cat"));
        cpu.cr0 &= !Cr0::PG.bits();
        assert_eq!(name_in(&cpu, &memory), None);
    }

    #[test]
    fn tables_that_lead_to_themselves_or_nowhere_end() {
        let loops: Vec<_> = (0..512).map(|index| (0x1000, index, 0x1007)).collect();
        let mut cpu = paged(0x1000);
        cpu.cr4 |= Cr4::PAE.bits();
        cpu.efer |= (Efer::LMA | Efer::LME).bits();
        assert_eq!(name_in(&cpu, &guest(8, &loops, "/bin/sh")), None);
        cpu.cr3 = 0xff_ffff_f000;
        assert_eq!(name_in(&cpu, &guest(8, &[], "/bin/sh")), None);
    }

    #[test]
    fn a_space_is_looked_at_first_at_once_and_later_now_and_then() {
        let two_levels = [(0x1000, 767, 0x4007), (0x4000, 1000, 0x8007)];
        let mut memory = guest(4, &two_levels, "/bin/sh");
        let cpu = paged(0x1000);
        let mut names = ProgramNames::default();
        assert!(names.is_due(0x1000));
        names.look(0x1000, &cpu, &memory);
        assert!(!names.is_due(0x1000) && names.is_due(0x2000));
        names.look(0x2000, &cpu, &memory);
        assert!(!names.is_due(0x2000) && !names.is_due(0x1000));
        assert!((0..PAUSE + 9).any(|_| names.is_due(0x1000)));
        for path in ["/bin/ls", "/bin/cat", "/bin/sh", "/bin/cp"] {
            assert!(memory.write(PhysicalAddress(0x8000), &stack_page(path, 4)));
            names.look(0x1000, &cpu, &memory);
        }
        let mut all: Vec<_> = names.all().collect();
        all.sort();
        let expected = [(0x1000, "cp,sh,cat,...".into()), (0x2000, "sh".into())];
        assert_eq!(all, expected);
    }
}
