//! The processor's state when a guest is entered in protected or in long mode.

use super::BootError;
use super::image::write;
use super::layout::{DESCRIPTOR_TABLE, PAGE_TABLES};
use tollgate_memory::GuestMemory;
use tollgate_x86::state::TableRegister;
use tollgate_x86::{CpuState, Cr0, Cr4, Descriptor, Efer, SegmentRegister, Selector};

/// The selector of the flat code segment (__BOOT_CS in Linux's terms).
const CODE_SELECTOR: Selector = Selector(0x10);
/// The selector of the flat data segment (__BOOT_DS).
const DATA_SELECTOR: Selector = Selector(0x18);
/// A 4 GiB segment: execute and read, accessed, 32-bit.
const CODE_32: Descriptor = Descriptor(0x00cf_9b00_0000_ffff);
/// A 4 GiB segment: execute and read, accessed, 64-bit (L set, D clear).
const CODE_64: Descriptor = Descriptor(0x00af_9b00_0000_ffff);
/// A 4 GiB segment: read and write, accessed.
const DATA: Descriptor = Descriptor(0x00cf_9300_0000_ffff);

/// The size of the descriptor table in bytes: four descriptors.
pub const DESCRIPTOR_TABLE_BYTES: u64 = 32;

/// A page-table entry that is present, writable, accessed and dirty (SDM volume 3, 4.5).
const TABLE: u64 = 0x23;
const PAGE: u64 = 0x63 | LARGE_PAGE;
/// The flag of a page-directory entry that maps a 2 MiB page.
const LARGE_PAGE: u64 = 1 << 7;
/// The number of page directories, each of which maps 1 GiB.
const DIRECTORIES: u64 = 4;

/// Flat 32-bit protected mode without paging, interrupts disabled, entered at `entry`. Writes the
/// descriptor table that the segment registers were loaded from.
pub fn protected_mode(memory: &mut GuestMemory, entry: u32) -> Result<CpuState, BootError> {
    flat(memory, entry, CODE_32, DESCRIPTOR_TABLE)
}

/// Like [`protected_mode`], with the descriptor table at another physical address.
pub fn protected_mode_with_table_at(
    table: u64,
    memory: &mut GuestMemory,
    entry: u32,
) -> Result<CpuState, BootError> {
    flat(memory, entry, CODE_32, table)
}

/// 64-bit mode, interrupts disabled, entered at `entry`, with the first 4 GiB identity-mapped by 2
/// MiB pages. Writes the descriptor table and the page tables.
pub fn long_mode(memory: &mut GuestMemory, entry: u32) -> Result<CpuState, BootError> {
    write(memory, PAGE_TABLES, &identity_tables())?;
    let mut state = flat(memory, entry, CODE_64, DESCRIPTOR_TABLE)?;
    state.cr0 |= Cr0::PG.bits();
    state.cr3 = PAGE_TABLES;
    state.cr4 = Cr4::PAE.bits();
    state.efer = (Efer::LME | Efer::LMA).bits();
    Ok(state)
}

fn flat(
    memory: &mut GuestMemory,
    entry: u32,
    code: Descriptor,
    table: u64,
) -> Result<CpuState, BootError> {
    let descriptors = [0, 0, code.0, DATA.0].map(u64::to_le_bytes);
    let bytes = descriptors.as_flattened();
    write(memory, table, bytes)?;

    let mut state = CpuState::at_reset();
    state.cr0 = (Cr0::PE | Cr0::ET).bits();
    state.gdtr = TableRegister {
        base: table,
        limit: (bytes.len() - 1) as u16,
    };
    for register in SegmentRegister::ALL {
        *state.segment_mut(register) = if register == SegmentRegister::Cs {
            code.segment(CODE_SELECTOR)
        } else {
            DATA.segment(DATA_SELECTOR)
        };
    }
    state.rip = u64::from(entry);
    Ok(state)
}

/// Returns the root table, one table of page-directory pointers, and the page directories.
fn identity_tables() -> Vec<u8> {
    const ENTRIES: usize = 512;
    const TABLE_BYTES: u64 = 4096;
    let mut entries = vec![0; ENTRIES * (2 + DIRECTORIES as usize)];
    entries[0] = (PAGE_TABLES + TABLE_BYTES) | TABLE;
    for directory in 0..DIRECTORIES {
        let address = PAGE_TABLES + (2 + directory) * TABLE_BYTES;
        entries[ENTRIES + directory as usize] = address | TABLE;
    }
    for (page, entry) in (0u64..).zip(&mut entries[2 * ENTRIES..]) {
        *entry = page << 21 | PAGE;
    }
    entries
        .iter()
        .flat_map(|entry| entry.to_le_bytes())
        .collect()
}
