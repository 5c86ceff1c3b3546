//! 32-bit ELF files: the loadable segments, for multiboot kernels and for a Linux
//! vmlinux, which is entered like a bzImage's 32-bit kernel.

use super::BootError;
use super::image::{Image, put, require_memory, u16_at, u32_at, write};
use super::linux::{self, Kernel, Parameters, ZERO_PAGE_BYTES, offset};
use tollgate_memory::GuestMemory;
use tollgate_x86::CpuState;

/// First four bytes.
const MAGIC: &[u8; 4] = b"\x7fELF";
/// Class, offset 4: 64-bit.
const CLASS_64: u8 = 2;
/// Class, offset 4: 32-bit.
const CLASS_32: u8 = 1;
/// Data, offset 5: little-endian.
const LITTLE_ENDIAN: u8 = 1;
/// Machine: Intel 80386.
const MACHINE_386: u16 = 3;
/// Program header type: loadable.
const LOADABLE: u32 = 1;
/// Bytes of the file header.
const HEADER_BYTES: u64 = 52;
/// Bytes of a program header.
const PROGRAM_HEADER_BYTES: u64 = 32;

/// Longest command line of a kernel that does not say (Linux's COMMAND_LINE_SIZE).
const COMMAND_LINE_LIMIT: u64 = 2047;
/// Highest address of the initial RAM disk that every 32-bit kernel can map.
const INITRD_MAX: u64 = 0x37ff_ffff;
/// Protocol version to report: the first with a place for the RSDP.
const PROTOCOL_VERSION: u16 = 0x020e;

/// Whether the bytes are an ELF file of any kind.
pub fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Where an ELF file was put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// Physical entry point.
    pub entry: u32,
    /// First address after the highest segment.
    pub end: u64,
}

/// Loads the segments of a 32-bit x86 ELF file at their physical addresses.
///
/// # Errors
/// [`BootError`] if the file is for another machine, incomplete, or does not fit.
pub fn load_segments(image: &Image, memory: &mut GuestMemory) -> Result<Loaded, BootError> {
    let header = image.slice(0, HEADER_BYTES, "the ELF header")?;
    if header[4] == CLASS_64 {
        return Err(image.needs_64_bit());
    }
    if header[4] != CLASS_32 || header[5] != LITTLE_ENDIAN || u16_at(header, 18) != MACHINE_386 {
        return Err(image.unsupported("it is an ELF file for another processor"));
    }
    let entry = u32_at(header, 24);
    let table = u64::from(u32_at(header, 28));
    let entry_size = u64::from(u16_at(header, 42));
    let count = u64::from(u16_at(header, 44));
    if entry_size < PROGRAM_HEADER_BYTES {
        return Err(image.unsupported("its ELF program headers are malformed"));
    }

    let mut loaded = Loaded { entry, end: 0 };
    let mut entry_is_virtual = None;
    let mut entry_is_physical = false;
    for index in 0..count {
        let program = image.slice(
            table.saturating_add(index * entry_size),
            PROGRAM_HEADER_BYTES,
            "the ELF program headers",
        )?;
        let field = |position: usize| u64::from(u32_at(program, 4 * position));
        let [
            kind,
            file_offset,
            virtual_address,
            physical,
            file_size,
            memory_size,
        ] = [0, 1, 2, 3, 4, 5].map(field);
        if kind != u64::from(LOADABLE) || memory_size == 0 {
            continue;
        }
        if file_size > memory_size {
            return Err(image.unsupported("an ELF segment is larger in the file than in memory"));
        }
        let bytes = image.slice(file_offset, file_size, "an ELF segment")?;
        let end = physical + memory_size;
        image.check_load_range(physical, end)?;
        require_memory(memory, end)?;
        // The rest of the segment is zero already: memory starts empty.
        write(memory, physical, bytes)?;
        loaded.end = loaded.end.max(end);

        let entry = u64::from(entry);
        entry_is_physical |= (physical..end).contains(&entry);
        if (virtual_address..virtual_address + memory_size).contains(&entry) {
            entry_is_virtual = Some((entry - virtual_address + physical) as u32);
        }
    }
    if loaded.end == 0 {
        return Err(image.unsupported("it has no loadable ELF segment"));
    }
    if !entry_is_physical && let Some(physical) = entry_is_virtual {
        loaded.entry = physical;
    }
    Ok(loaded)
}

/// Loads a Linux vmlinux and enters it by the 32-bit boot protocol.
///
/// # Errors
/// [`BootError`] as for [`load_segments`], or for what belongs to the kernel.
pub fn load_linux(
    image: &Image,
    parameters: &Parameters,
    memory: &mut GuestMemory,
) -> Result<CpuState, BootError> {
    let loaded = load_segments(image, memory)?;
    let mut zero_page = [0; ZERO_PAGE_BYTES];
    put(
        &mut zero_page,
        offset::BOOT_FLAG,
        &linux::BOOT_FLAG.to_le_bytes(),
    );
    put(&mut zero_page, offset::SIGNATURE, linux::SIGNATURE);
    put(
        &mut zero_page,
        offset::VERSION,
        &PROTOCOL_VERSION.to_le_bytes(),
    );
    zero_page[offset::LOAD_FLAGS] = linux::LOADED_HIGH;
    put(
        &mut zero_page,
        offset::CODE32_START,
        &loaded.entry.to_le_bytes(),
    );
    let kernel = Kernel {
        entry: loaded.entry,
        end: loaded.end,
        command_line_limit: COMMAND_LINE_LIMIT,
        initrd_address_max: INITRD_MAX,
    };
    linux::enter(zero_page, &kernel, parameters, memory)
}
