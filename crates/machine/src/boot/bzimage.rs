//! Linux's bzImage: real-mode setup code with a header, followed by the protected-mode kernel that
//! unpacks itself. The setup code is not executed. A 64-bit kernel is entered in long mode, any
//! other at its 32-bit entry.

use super::image::{Image, require_memory, u16_at, u32_at, u64_at};
use super::linux::{self, Entry, Kernel, Parameters, ZERO_PAGE_BYTES, offset};
use super::{BootError, layout};
use tollgate_memory::GuestMemory;
use tollgate_x86::CpuState;

/// The size of a setup sector in bytes.
const SECTOR: u64 = 512;
/// The number of setup sectors if the header says zero.
const DEFAULT_SETUP_SECTORS: u64 = 4;
/// Extended load flag XLF_KERNEL_64: the kernel has a 64-bit entry point. Only 64-bit kernels set
/// it; their 32-bit entry merely switches to long mode.
const HAS_64_BIT_ENTRY: u16 = 1;
/// The offset of the 64-bit entry point in the protected-mode code.
const LONG_ENTRY_OFFSET: u32 = 0x200;
/// The maximum length of the command line before protocol 2.06.
const OLD_COMMAND_LINE_LIMIT: u64 = 255;
/// The highest address of the initial RAM disk before protocol 2.03.
const OLD_INITRD_MAX: u64 = 0x37ff_ffff;

/// Whether the bytes are a bzImage of any version.
pub fn has_setup_header(bytes: &[u8]) -> bool {
    bytes.get(offset::SIGNATURE..offset::SIGNATURE + 4) == Some(linux::SIGNATURE)
}

/// Loads a bzImage at 1 MiB.
///
/// # Errors
/// [`BootError`] if the file is incomplete, or does not fit into memory with its initial RAM disk
/// and command line.
pub fn load(
    image: &Image,
    parameters: &Parameters,
    memory: &mut GuestMemory,
) -> Result<CpuState, BootError> {
    let bytes = image.head();
    let version = u16_at(bytes, offset::VERSION);
    let has = |since: u16| version >= since;
    if !has(0x0200) || bytes.get(offset::LOAD_FLAGS).unwrap_or(&0) & linux::LOADED_HIGH == 0 {
        return Err(image.unsupported("it is a zImage for low memory, not a bzImage"));
    }
    let is_64_bit = has(0x020c) && u16_at(bytes, offset::EXTENDED_FLAGS) & HAS_64_BIT_ENTRY != 0;

    let sectors = match bytes.get(offset::SETUP_SECTORS).copied().unwrap_or(0) {
        0 => DEFAULT_SETUP_SECTORS,
        sectors => u64::from(sectors),
    };
    let code_start = (sectors + 1) * SECTOR;
    // The field was 2 bytes wide before 2.04; the two bytes after it had another meaning.
    let paragraphs = if has(0x0204) {
        u32_at(bytes, offset::SYSTEM_SIZE)
    } else {
        u32::from(u16_at(bytes, offset::SYSTEM_SIZE))
    };
    let declared = u64::from(paragraphs) * 16;
    // The last paragraph may be incomplete.
    let present = image.size().saturating_sub(code_start);
    if present == 0 || present + 15 < declared {
        image.part(code_start, declared.max(1), "the protected-mode code")?;
    }
    let code = image.part(code_start, present, "the protected-mode code")?;

    let end = memory_needed(bytes, present);
    require_memory(memory, end)?;
    image.fill(code, layout::KERNEL, memory)?;

    let start = layout::KERNEL as u32;
    let kernel = Kernel {
        entry: if is_64_bit {
            Entry::Long(start + LONG_ENTRY_OFFSET)
        } else {
            Entry::Protected(start)
        },
        end,
        command_line_limit: if has(0x0206) {
            u64::from(u32_at(bytes, offset::COMMAND_LINE_SIZE))
        } else {
            OLD_COMMAND_LINE_LIMIT
        },
        initrd_address_max: if has(0x0203) {
            u64::from(u32_at(bytes, offset::INITRD_ADDRESS_MAX))
        } else {
            OLD_INITRD_MAX
        },
    };
    linux::enter(zero_page(bytes), &kernel, parameters, memory)
}

/// Returns the first address after all memory that the kernel uses before it has read the memory
/// map.
fn memory_needed(bytes: &[u8], code_size: u64) -> u64 {
    let loaded = layout::KERNEL + code_size;
    if u16_at(bytes, offset::VERSION) < 0x020a {
        return loaded;
    }
    let preferred = u64_at(bytes, offset::PREFERRED_ADDRESS);
    let runs_at = if bytes.get(offset::RELOCATABLE).copied().unwrap_or(0) != 0 {
        // The kernel runs where it was loaded, aligned, but not below its preferred address.
        let alignment = u64::from(u32_at(bytes, offset::KERNEL_ALIGNMENT)).max(1);
        layout::KERNEL
            .max(preferred)
            .checked_next_multiple_of(alignment)
            .unwrap_or(u64::MAX)
    } else {
        preferred
    };
    let init_size = u64::from(u32_at(bytes, offset::INIT_SIZE));
    loaded.max(runs_at.saturating_add(init_size))
}

/// Returns a zero page with a copy of the setup header. The header's own jump instruction gives the
/// header's length.
fn zero_page(bytes: &[u8]) -> [u8; ZERO_PAGE_BYTES] {
    let mut zero_page = [0; ZERO_PAGE_BYTES];
    let jump = usize::from(bytes.get(offset::JUMP + 1).copied().unwrap_or(0));
    let end = (offset::SIGNATURE + jump).clamp(offset::INIT_SIZE + 4, offset::MEMORY_MAP);
    let header = bytes.get(offset::SETUP_SECTORS..end).unwrap_or(&[]);
    zero_page[offset::SETUP_SECTORS..][..header.len()].copy_from_slice(header);
    zero_page
}
