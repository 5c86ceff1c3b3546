//! PVH, Xen's boot protocol for kernels without firmware (docs/misc/pvh.pandoc and
//! public/arch-x86/hvm/start_info.h in Xen's source). An ELF note gives a 32-bit entry point, which
//! is entered with EBX pointing to a structure with memory map, command line and modules.

use super::image::{u32_at, u64_at, write};
use super::linux::{self, Kernel, Parameters};
use super::{BootError, e820, layout, state};
use tollgate_memory::GuestMemory;
use tollgate_x86::{CpuState, Gpr};

/// Note type XEN_ELFNOTE_PHYS32_ENTRY.
const PHYS32_ENTRY: u32 = 18;
/// The owner of the note, with its terminating zero.
const OWNER: &[u8] = b"Xen\0";

/// The first word of the start information.
const MAGIC: u32 = 0x336e_c578;
/// The version of the start information: the first with a memory map.
const VERSION: u32 = 1;
/// The size of the start information in bytes.
const START_INFORMATION_BYTES: u64 = 56;
/// The size of an entry of the module list in bytes.
const MODULE_BYTES: u64 = 32;

/// Returns the physical entry point in the notes of an ELF file, whose fields are aligned as the
/// program header says. Notes after a malformed one are ignored.
pub fn entry_in_notes(mut notes: &[u8], alignment: u64) -> Option<u64> {
    // Both classes use an alignment of 4 unless the header says 8.
    let alignment = if alignment == 8 { 8 } else { 4 };
    while notes.len() >= 12 {
        let [name_size, size, kind] = [0, 4, 8].map(|field| u32_at(notes, field));
        let name = notes.get(12..)?.get(..name_size as usize)?;
        let start = (12 + name.len()).next_multiple_of(alignment);
        let value = notes.get(start..)?.get(..size as usize)?;
        if kind == PHYS32_ENTRY && name == OWNER && matches!(value.len(), 4 | 8) {
            // Missing upper bytes count as zero.
            return Some(u64_at(value, 0));
        }
        notes = notes.get((start + value.len()).next_multiple_of(alignment)..)?;
    }
    None
}

/// Writes the start information and everything that it points to, and enters the kernel.
///
/// # Errors
/// [`BootError`] if the command line or the initial RAM disk does not fit.
pub fn enter(
    kernel: &Kernel,
    parameters: &Parameters,
    memory: &mut GuestMemory,
) -> Result<CpuState, BootError> {
    linux::write_command_line(parameters.command_line, kernel.command_line_limit, memory)?;
    let module = linux::place_initrd(parameters.initrd, kernel, memory)?;

    let modules_address = layout::BOOT_INFORMATION + START_INFORMATION_BYTES;
    let map_address = modules_address + MODULE_BYTES;
    let map = e820::memory_map(memory.ram().layout());
    let rsdp = parameters.rsdp.map_or(0, |address| address.0);

    let mut bytes = Vec::new();
    for word in [MAGIC, VERSION, 0, u32::from(module.is_some())] {
        bytes.extend(word.to_le_bytes());
    }
    for address in [modules_address, layout::COMMAND_LINE, rsdp, map_address] {
        bytes.extend(address.to_le_bytes());
    }
    bytes.extend((map.len() as u64).to_le_bytes());
    // An entry of the module list: address, size, no text, reserved.
    let (address, size) = module.unwrap_or((0, 0));
    for field in [address, size, 0, 0] {
        bytes.extend(field.to_le_bytes());
    }
    // The entries of the map are E820 entries followed by a reserved word.
    for range in &map {
        bytes.extend(range.to_bytes());
        bytes.extend([0; 4]);
    }
    write(memory, layout::BOOT_INFORMATION, &bytes)?;

    let mut state = state::protected_mode(memory, kernel.entry.address())?;
    state.gpr[Gpr::Rbx as usize] = layout::BOOT_INFORMATION;
    state.tr.limit = 0x67;
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a note with this owner.
    pub fn note(owner: &[u8], kind: u32, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [owner.len() as u32, value.len() as u32, kind] {
            bytes.extend(word.to_le_bytes());
        }
        for part in [owner, value] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn the_entry_is_found_behind_other_notes_in_both_widths() {
        let others = [
            note(b"GNU\0", 18, &[1, 2, 3, 4]),
            note(b"Xen\0", 6, b"linux\0"),
            note(b"", 0, b""),
        ]
        .concat();
        for value in [&[0x50, 8, 0, 1][..], &[0x50, 8, 0, 1, 0, 0, 0, 0]] {
            let notes = [others.clone(), note(OWNER, PHYS32_ENTRY, value)].concat();
            assert_eq!(entry_in_notes(&notes, 4), Some(0x100_0850));
        }
        assert_eq!(entry_in_notes(&others, 4), None);
    }

    #[test]
    fn notes_cut_anywhere_name_no_entry() {
        let notes = note(OWNER, PHYS32_ENTRY, &[0x50, 8, 0, 1]);
        for length in 0..notes.len() {
            assert_eq!(entry_in_notes(&notes[..length], 4), None, "{length}");
        }
    }
}
