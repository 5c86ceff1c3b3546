//! What another thread may see of the processor and its memory: registers, bytes, mapped pages.
//!
//! The guest notices nothing: no bit of its page tables is set, and only RAM and ROM are read.

pub use crate::debugger::memory::Addresses;
use std::sync::Arc;
use tollgate_memory::GuestMemory;
pub use tollgate_x86::CpuState;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::state::Activity;

/// The maximum number of bytes that one inspection reads.
const MOST_BYTES: usize = 1 << 20;
/// The maximum number of pages that one inspection lists.
const MOST_PAGES: usize = 1 << 19;

/// What to see in addition to the registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Inspection {
    /// Bytes from an address.
    pub memory: Option<(Addresses, u64, usize)>,
    /// The pages that the guest has mapped.
    pub pages: bool,
}

/// A page that the guest has mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappedPage {
    /// The linear address.
    pub linear: u64,
    /// The physical address.
    pub physical: u64,
    /// The size in bytes.
    pub bytes: u64,
    /// The entry that maps it.
    pub entry: u64,
    /// Whether all levels permit writes.
    pub writable: bool,
    /// Whether all levels permit accesses of programs.
    pub user: bool,
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Inspected {
    /// The processor with its registers.
    pub cpu: Arc<CpuState>,
    /// Whether the processor waits for an interrupt.
    pub is_halted: bool,
    /// The bytes, as far as there is memory.
    pub bytes: Vec<u8>,
    /// The registers of the 8259 pair and of the local APIC, as text.
    pub interrupts: [String; 2],
    /// The mapped pages, in the order of their addresses. There may be more than are listed.
    pub pages: Arc<Vec<MappedPage>>,
}

impl Inspection {
    /// Looks at a processor and its memory. `interrupts` describes the interrupt controllers.
    pub(crate) fn carry_out(
        self,
        cpu: CpuState,
        memory: &mut GuestMemory,
        interrupts: [String; 2],
    ) -> Inspected {
        let mut bytes = Vec::new();
        if let Some((addresses, address, count)) = self.memory {
            bytes.resize(count.min(MOST_BYTES), 0);
            let read = addresses.read(&cpu, memory, address, &mut bytes);
            bytes.truncate(read);
        }
        let mut pages = Vec::new();
        if self.pages && cpu.is_paging() {
            list_pages(&cpu, memory, &mut pages);
        }
        Inspected {
            is_halted: cpu.activity == Activity::Halted,
            cpu: Arc::new(cpu),
            bytes,
            interrupts,
            pages: Arc::new(pages),
        }
    }
}

/// The bits of entries.
mod bit {
    pub const PRESENT: u64 = 1;
    pub const WRITABLE: u64 = 1 << 1;
    pub const USER: u64 = 1 << 2;
    pub const LARGE: u64 = 1 << 7;
    pub const NO_EXECUTE: u64 = 1 << 63;
}
/// The address in an entry of 64 bits.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const CR4_PSE: u64 = 1 << 4;
const CR4_PAE: u64 = 1 << 5;
const CR4_LA57: u64 = 1 << 12;

/// How page tables are walked.
struct Walk<'a> {
    memory: &'a GuestMemory,
    pages: &'a mut Vec<MappedPage>,
    /// Whether entries have 64 bits.
    is_wide: bool,
    /// The lowest level whose entries may map large pages, counted from 1, and the highest one.
    large: (u32, u32),
}

/// Lists all mapped pages.
fn list_pages(cpu: &CpuState, memory: &GuestMemory, pages: &mut Vec<MappedPage>) {
    let is_wide = cpu.cr4 & CR4_PAE != 0 || cpu.is_long_mode();
    let (levels, large) = match (cpu.is_long_mode(), is_wide) {
        (true, _) if cpu.cr4 & CR4_LA57 != 0 => (5, (2, 3)),
        (true, _) => (4, (2, 3)),
        (false, true) => (3, (2, 2)),
        (false, false) if cpu.cr4 & CR4_PSE != 0 => (2, (2, 2)),
        (false, false) => (2, (9, 9)),
    };
    let root = match (cpu.is_long_mode(), is_wide) {
        (true, _) => cpu.cr3 & ADDRESS,
        (false, true) => cpu.cr3 & 0xffff_ffe0,
        (false, false) => cpu.cr3 & 0xffff_f000,
    };
    let mut walk = Walk {
        memory,
        pages,
        is_wide,
        large,
    };
    walk.table(root, levels, 0, (true, true));
}

impl Walk<'_> {
    fn entry(&self, table: u64, index: u64) -> u64 {
        let mut bytes = [0; 8];
        let width = if self.is_wide { 8 } else { 4 };
        let address = PhysicalAddress(table + index * width);
        // What is no memory maps nothing.
        self.memory.read(address, &mut bytes[..width as usize]);
        u64::from_le_bytes(bytes)
    }

    /// Lists what a table of a level maps, from the linear address `base`.
    fn table(&mut self, table: u64, level: u32, base: u64, (writable, user): (bool, bool)) {
        let index_bits = if self.is_wide { 9 } else { 10 };
        let shift = 12 + index_bits * (level - 1);
        // The top table of three levels has four entries, which have no such rights.
        let is_short = self.is_wide && level == 3 && self.large == (2, 2);
        let count = if is_short { 4 } else { 1 << index_bits };
        for index in 0..count {
            let entry = self.entry(table, index);
            if entry & bit::PRESENT == 0 || self.pages.len() == MOST_PAGES {
                continue;
            }
            let linear = base | index << shift;
            let rights = match is_short {
                true => (writable, user),
                false => (
                    writable && entry & bit::WRITABLE != 0,
                    user && entry & bit::USER != 0,
                ),
            };
            let address = match self.is_wide {
                true => entry & ADDRESS,
                false => entry & 0xffff_f000,
            };
            let (lowest, highest) = self.large;
            let is_large = (lowest..=highest).contains(&level) && entry & bit::LARGE != 0;
            if level > 1 && !is_large {
                self.table(address, level - 1, linear, rights);
                continue;
            }
            let bytes = 1u64 << shift;
            self.pages.push(MappedPage {
                linear: canonical(linear, self.large == (2, 3)),
                physical: address & !(bytes - 1),
                bytes,
                entry,
                writable: rights.0,
                user: rights.1,
            });
        }
    }
}

/// Extends the sign of an address of long mode.
fn canonical(linear: u64, is_long: bool) -> u64 {
    // With four levels bit 47 is the sign, with five bit 56; no address has both unless it is negative.
    match is_long && linear >> 47 == 1 {
        true => linear | !0 << 47,
        false if is_long && linear >> 56 & 1 != 0 => linear | !0 << 56,
        false => linear,
    }
}

impl MappedPage {
    /// Whether programs in it are refused.
    pub const fn no_execute(&self) -> bool {
        self.entry & bit::NO_EXECUTE != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_all_sizes_are_listed_with_the_rights_of_all_levels() {
        let mut memory = GuestMemory::new(8 << 20).unwrap();
        let mut put = |address: u64, entry: u64| {
            memory.write(PhysicalAddress(address), &entry.to_le_bytes());
        };
        put(0x1000, 0x2007); // 4: the first entry
        put(0x1ff8, 0x2003); // and the last one, for the supervisor
        put(0x2000, 0x3007); // 3
        put(0x2ff8, 0x4000_0083); // 1 GiB
        put(0x3000, 0x4005); // 2: read-only
        put(0x3008, 0x20_0087); // 2 MiB
        put(0x4010, 0x5067); // 1: dirty
        let mut cpu = CpuState::at_reset();
        (cpu.cr3, cpu.cr4, cpu.efer) = (0x1000, CR4_PAE, 1 << 10);
        cpu.cr0 |= 1 << 31;
        let mut pages = Vec::new();
        list_pages(&cpu, &memory, &mut pages);
        let seen: Vec<_> = pages
            .iter()
            .map(|it| (it.linear, it.physical, it.bytes, it.writable, it.user))
            .collect();
        let (kibi, mebi, gibi) = (4096, 2 << 20, 1 << 30);
        let expected = [
            (0x2000, 0x5000, kibi, false, true),
            (0x20_0000, 0x20_0000, mebi, true, true),
            (0x7f_c000_0000, 0x4000_0000, gibi, true, false),
            (0xffff_ff80_0000_2000, 0x5000, kibi, false, false),
            (0xffff_ff80_0020_0000, 0x20_0000, mebi, true, false),
            (0xffff_ffff_c000_0000, 0x4000_0000, gibi, true, false),
        ];
        assert_eq!(seen, expected);
    }
}
