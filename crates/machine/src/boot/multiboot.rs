//! Multiboot 1 (Multiboot Specification 0.6.96): ELF files, and flat images whose header gives the
//! addresses.

use super::image::{Image, low_memory_end, u32_at, write};
use super::modules::{self, Module, Placed};
use super::room::Room;
use super::{BootError, e820, elf, layout, state};
use std::ops::Range;
use tollgate_memory::GuestMemory;
use tollgate_x86::{CpuState, Gpr};

/// The first word of the header.
const HEADER_MAGIC: u32 = 0x1bad_b002;
/// The value that the kernel finds in EAX.
const LOADER_MAGIC: u64 = 0x2bad_b002;
/// The header must lie completely within this many bytes from the start of the file.
const SEARCH_BYTES: usize = 8192;

/// Kernels may be loaded anywhere in conventional memory, including the BIOS data area.
pub(super) const LOWEST_ADDRESS: u64 = 0;
/// The size of an entry of the module list in bytes.
const MODULE_ENTRY_BYTES: u64 = 16;

/// Header flags.
mod flag {
    /// The kernel wants modules on page boundaries, where they always are.
    pub const ALIGN_MODULES: u32 = 1 << 0;
    /// The kernel wants memory information, which it always gets.
    pub const MEMORY: u32 = 1 << 1;
    /// The kernel wants a video mode. There is no display; kernels continue without it.
    pub const VIDEO: u32 = 1 << 2;
    /// These bits are requirements: a kernel that sets unknown ones among them must not be loaded.
    pub const REQUIRED: u32 = 0xffff;
    /// The header's address fields are valid.
    pub const ADDRESSES: u32 = 1 << 16;
}

/// Flags of the information structure.
mod information {
    pub const MEMORY: u32 = 1 << 0;
    pub const COMMAND_LINE: u32 = 1 << 2;
    pub const MODULES: u32 = 1 << 3;
    pub const MEMORY_MAP: u32 = 1 << 6;
    pub const LOADER_NAME: u32 = 1 << 9;
    /// The number of bytes up to the end of the field for the loader's name.
    pub const BYTES: u64 = 116;
}

const LOADER_NAME: &str = "tollgate";

/// Returns the offset of a valid multiboot header.
pub fn find_header(bytes: &[u8]) -> Option<usize> {
    let end = bytes.len().min(SEARCH_BYTES);
    (0..end.saturating_sub(11)).step_by(4).find(|&offset| {
        let [magic, flags, checksum] = [0, 4, 8].map(|field| u32_at(bytes, offset + field));
        magic == HEADER_MAGIC && magic.wrapping_add(flags).wrapping_add(checksum) == 0
    })
}

/// Loads the kernel, the modules after it, and the information about both where it does not overlap
/// the kernel.
///
/// # Errors
/// [`BootError`] if the header requires a feature that this machine lacks, the file is incomplete,
/// or memory does not suffice.
pub fn load(
    image: &Image,
    append: &str,
    modules: &[Module],
    memory: &mut GuestMemory,
) -> Result<CpuState, BootError> {
    let Some(header) = find_header(image.head()) else {
        return Err(image.unsupported("it has no multiboot header"));
    };
    let flags = u32_at(image.head(), header + 4);
    let known = flag::ALIGN_MODULES | flag::MEMORY | flag::VIDEO;
    let unknown = flags & flag::REQUIRED & !known;
    if unknown != 0 {
        return Err(image.unsupported(format!(
            "its multiboot header requires unknown features ({unknown:#x})"
        )));
    }
    let (entry, ranges) = if flags & flag::ADDRESSES != 0 {
        let (entry, range) = load_by_addresses(image, header, memory)?;
        (entry, Vec::from_iter([range]))
    } else {
        // An ELF64 file is entered in 32-bit mode too, as GRUB does it.
        let loaded = elf::load_segments(image, LOWEST_ADDRESS, memory)?;
        (loaded.entry, loaded.ranges)
    };
    let mut room = Room::new(ranges, memory);

    let placed = modules::place(modules, &mut room, memory)?;
    let mut text = TextArea::new();
    let mut loaded_modules = Vec::new();
    for (module, Placed { start, end }) in modules.iter().zip(placed) {
        loaded_modules.push((start, end, text.add(&module.text)?));
    }
    // The kernel's name comes first, as with other loaders.
    let command_line = text.add(format!("{} {append}", image.name()).trim_end())?;
    let loader_name = text.add(LOADER_NAME)?;

    let map = memory_map(memory);
    let descriptor_table = room.place(layout::DESCRIPTOR_TABLE, state::DESCRIPTOR_TABLE_BYTES)?;
    let modules_offset = information::BYTES + map.len() as u64;
    let information_bytes = modules_offset + MODULE_ENTRY_BYTES * modules.len() as u64;
    let information_address = room.place(layout::BOOT_INFORMATION, information_bytes)?;
    let text_address = room.place(layout::COMMAND_LINE, text.bytes.len() as u64)?;
    let map_address = information_address + information::BYTES;
    let modules_address = information_address + modules_offset;

    let mut module_list = Vec::new();
    for (start, end, string) in loaded_modules {
        for word in [start, end, text_address + string, 0] {
            module_list.extend((word as u32).to_le_bytes());
        }
    }
    write(memory, text_address, &text.bytes)?;
    write(memory, map_address, &map)?;
    write(memory, modules_address, &module_list)?;

    let mut words = [0u32; information::BYTES as usize / 4];
    words[0] = information::MEMORY
        | information::COMMAND_LINE
        | information::MODULES
        | information::MEMORY_MAP
        | information::LOADER_NAME;
    words[1] = (layout::EXTENDED_BIOS_DATA / 1024) as u32;
    words[2] = (low_memory_end(memory).saturating_sub(layout::KERNEL) / 1024) as u32;
    words[4] = (text_address + command_line) as u32;
    words[5] = modules.len() as u32;
    words[6] = modules_address as u32;
    words[11] = map.len() as u32;
    words[12] = map_address as u32;
    words[16] = (text_address + loader_name) as u32;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    write(memory, information_address, &bytes)?;

    let mut state = state::protected_mode_with_table_at(descriptor_table, memory, entry)?;
    state.gpr[Gpr::Rax as usize] = LOADER_MAGIC;
    state.gpr[Gpr::Rbx as usize] = information_address;
    Ok(state)
}

/// Loads the image by the header's address fields (Multiboot Specification, 3.1.3). Returns the
/// entry point and the loaded addresses.
fn load_by_addresses(
    image: &Image,
    header: usize,
    memory: &mut GuestMemory,
) -> Result<(u32, Range<u64>), BootError> {
    let bytes = image.read(header as u64, 32, "the multiboot header")?;
    let field = |offset: usize| u32_at(&bytes, offset);
    let addresses = LoadAddresses {
        header: field(12).into(),
        load_start: field(16).into(),
        load_end: field(20).into(),
        bss_end: field(24).into(),
    };
    Ok((field(28), addresses.load(image, header, memory)?))
}

/// The addresses in the header of an image that is not ELF, for both versions of multiboot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LoadAddresses {
    /// The address of the header itself.
    pub(super) header: u64,
    /// The address of the first byte that is loaded.
    pub(super) load_start: u64,
    /// The address after the last byte that is loaded. 0 loads the whole rest of the file.
    pub(super) load_end: u64,
    /// The address after the zeros that follow. 0 means that there are no such zeros.
    pub(super) bss_end: u64,
}

impl LoadAddresses {
    /// Loads the image whose header has this offset in the file, and returns the loaded addresses.
    pub(super) fn load(
        self,
        image: &Image,
        header: usize,
        memory: &mut GuestMemory,
    ) -> Result<Range<u64>, BootError> {
        let inconsistent = || image.unsupported("its multiboot addresses contradict each other");

        // load_start corresponds to the file offset `header - (self.header - load_start)`.
        let before_header = self
            .header
            .checked_sub(self.load_start)
            .ok_or_else(inconsistent)?;
        let file_start = (header as u64)
            .checked_sub(before_header)
            .ok_or_else(inconsistent)?;
        let size = match self.load_end {
            0 => image.size() - file_start,
            end => end.checked_sub(self.load_start).ok_or_else(inconsistent)?,
        };
        let end = (self.load_start + size).max(self.bss_end);
        let part = image.part(file_start, size, "the multiboot load range")?;
        image.load(part, self.load_start, end, LOWEST_ADDRESS, memory)?;
        Ok(self.load_start..end)
    }
}

/// Returns the memory map in multiboot's form, where the size of each entry precedes it.
fn memory_map(memory: &GuestMemory) -> Vec<u8> {
    let mut bytes = Vec::new();
    for range in e820::memory_map(memory.ram().layout()) {
        let entry = range.to_bytes();
        bytes.extend((entry.len() as u32).to_le_bytes());
        bytes.extend(entry);
    }
    bytes
}

/// Strings, one after the other.
struct TextArea {
    bytes: Vec<u8>,
}

impl TextArea {
    /// The maximum size of all strings together in bytes.
    const LIMIT: u64 = layout::COMMAND_LINE_END - layout::COMMAND_LINE;

    fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    /// Appends a string and returns its offset.
    fn add(&mut self, text: &str) -> Result<u64, BootError> {
        let offset = self.bytes.len() as u64;
        self.bytes.extend(text.as_bytes());
        self.bytes.push(0);
        if self.bytes.len() as u64 > Self::LIMIT {
            return Err(BootError::CommandLineTooLong {
                length: self.bytes.len() as u64,
                limit: Self::LIMIT,
            });
        }
        Ok(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_needs_a_right_checksum_and_alignment() {
        let mut bytes = vec![0; 100];
        bytes[40..44].copy_from_slice(&HEADER_MAGIC.to_le_bytes());
        assert_eq!(find_header(&bytes), None);
        bytes[48..52].copy_from_slice(&HEADER_MAGIC.wrapping_neg().to_le_bytes());
        assert_eq!(find_header(&bytes), Some(40));
        assert_eq!(find_header(&bytes[1..]), None);
        assert_eq!(find_header(&bytes[..51]), None);
    }
}
