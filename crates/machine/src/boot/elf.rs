//! ELF files, 32- and 64-bit: the loadable segments, and the entry points in notes and headers.
//!
//! An ELF kernel without a multiboot header is entered in one of two ways. If a Xen note gives a
//! PVH entry, that one is used, as QEMU, Firecracker and Cloud Hypervisor do. Otherwise the kernel
//! is Linux's vmlinux, which is entered at `e_entry` by the boot protocol of its class.

use super::image::{Image, put, u16_at, u32_at, u64_at};
use super::linux::{self, Entry, Kernel, Parameters, ZERO_PAGE_BYTES, offset};
use super::pvh;
use super::{BootError, layout};
use std::ops::Range;
use tollgate_memory::GuestMemory;
use tollgate_x86::CpuState;

/// The first four bytes of the file.
const MAGIC: &[u8; 4] = b"\x7fELF";
/// The class at offset 4: 32-bit.
const CLASS_32: u8 = 1;
/// The class at offset 4: 64-bit.
const CLASS_64: u8 = 2;
/// The data encoding at offset 5: little-endian.
const LITTLE_ENDIAN: u8 = 1;
/// Machine: Intel 80386.
const MACHINE_386: u16 = 3;
/// Machine: AMD x86-64.
const MACHINE_X86_64: u16 = 62;
/// Program header type: loadable.
const LOADABLE: u32 = 1;
/// Program header type: notes.
const NOTES: u32 = 4;

/// The number of bytes of a segment of notes that are looked at. Those of kernels have less than a
/// tenth of it.
const NOTES_BYTES: u64 = 64 << 10;

/// The boot protocol version to report: the first with a field for the RSDP.
const PROTOCOL_VERSION: u16 = 0x020e;

/// Whether the bytes are an ELF file of any kind.
pub fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// The width of a file's addresses, which is also the mode that its code is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// ELF32 for the 80386.
    Bits32,
    /// ELF64 for the x86-64.
    Bits64,
}

/// The result of loading an ELF file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// The width of the file's addresses.
    pub class: Class,
    /// The physical entry point, below 4 GiB.
    pub entry: u32,
    /// The physical entry point for PVH, if the file has one.
    pub pvh_entry: Option<u32>,
    /// The physical addresses of the segments. There is at least one.
    pub ranges: Vec<Range<u64>>,
}

/// The fields of the file header that describe the program headers.
struct Header {
    class: Class,
    entry: u64,
    table: u64,
    entry_size: u64,
    count: u64,
}

impl Header {
    fn read(image: &Image) -> Result<Self, BootError> {
        const WHAT: &str = "the ELF header";
        let start = image.read(0, 20, WHAT)?;
        let class = match (start[4], start[5], u16_at(&start, 18)) {
            (CLASS_32, LITTLE_ENDIAN, MACHINE_386) => Class::Bits32,
            (CLASS_64, LITTLE_ENDIAN, MACHINE_X86_64) => Class::Bits64,
            _ => return Err(image.unsupported("it is an ELF file for another processor")),
        };
        let header = match class {
            Class::Bits32 => {
                let bytes = &image.read(0, 52, WHAT)?;
                Self {
                    class,
                    entry: u64::from(u32_at(bytes, 24)),
                    table: u64::from(u32_at(bytes, 28)),
                    entry_size: u64::from(u16_at(bytes, 42)),
                    count: u64::from(u16_at(bytes, 44)),
                }
            }
            Class::Bits64 => {
                let bytes = &image.read(0, 64, WHAT)?;
                Self {
                    class,
                    entry: u64_at(bytes, 24),
                    table: u64_at(bytes, 32),
                    entry_size: u64::from(u16_at(bytes, 54)),
                    count: u64::from(u16_at(bytes, 56)),
                }
            }
        };
        if header.entry_size < header.program_bytes() {
            return Err(image.unsupported("its ELF program headers are malformed"));
        }
        Ok(header)
    }

    /// Returns the size of a program header in bytes.
    fn program_bytes(&self) -> u64 {
        match self.class {
            Class::Bits32 => 32,
            Class::Bits64 => 56,
        }
    }

    fn program(&self, image: &Image, index: u64) -> Result<Program, BootError> {
        let bytes = &image.read(
            self.table.saturating_add(index * self.entry_size),
            self.program_bytes(),
            "the ELF program headers",
        )?;
        let word = |position: usize| u64::from(u32_at(bytes, 4 * position));
        let long = |position: usize| u64_at(bytes, 8 * position);
        Ok(match self.class {
            Class::Bits32 => Program {
                kind: u32_at(bytes, 0),
                file_offset: word(1),
                virtual_address: word(2),
                physical: word(3),
                file_size: word(4),
                memory_size: word(5),
                alignment: word(7),
            },
            Class::Bits64 => Program {
                kind: u32_at(bytes, 0),
                file_offset: long(1),
                virtual_address: long(2),
                physical: long(3),
                file_size: long(4),
                memory_size: long(5),
                alignment: long(6),
            },
        })
    }
}

/// One program header.
struct Program {
    kind: u32,
    file_offset: u64,
    virtual_address: u64,
    physical: u64,
    file_size: u64,
    memory_size: u64,
    alignment: u64,
}

/// Loads the segments of an ELF file for x86 at their physical addresses. Segments in conventional
/// memory must not begin below `lowest`.
///
/// # Errors
/// [`BootError`] if the file is for another machine, incomplete, or does not fit into memory.
pub fn load_segments(
    image: &Image,
    lowest: u64,
    memory: &mut GuestMemory,
) -> Result<Loaded, BootError> {
    let header = Header::read(image)?;
    let mut pvh_entry = None;
    // The physical addresses of the loaded segments. If e_entry is a virtual address,
    // `entry_is_virtual` holds the corresponding physical one.
    let mut ranges = Vec::new();
    let mut entry_is_virtual = None;
    for index in 0..header.count {
        let program = header.program(image, index)?;
        if program.kind == NOTES {
            let (start, bytes) = (program.file_offset, program.file_size);
            image.part(start, bytes, "an ELF note")?;
            let notes = image.read(start, bytes.min(NOTES_BYTES), "an ELF note")?;
            pvh_entry = pvh_entry.or(pvh::entry_in_notes(&notes, program.alignment));
        }
        if program.kind != LOADABLE || program.memory_size == 0 {
            continue;
        }
        if program.file_size > program.memory_size {
            return Err(image.unsupported("an ELF segment is larger in the file than in memory"));
        }
        let part = image.part(program.file_offset, program.file_size, "an ELF segment")?;
        let start = program.physical;
        let segment_end = start.saturating_add(program.memory_size);
        image.load(part, start, segment_end, lowest, memory)?;
        ranges.push(start..segment_end);
        if let Some(inside) = header.entry.checked_sub(program.virtual_address)
            && inside < program.memory_size
        {
            entry_is_virtual = Some(start + inside);
        }
    }
    if ranges.is_empty() {
        return Err(image.unsupported("it has no loadable ELF segment"));
    }
    let loaded_address = |address: u64, what: &str| {
        let is_loaded = ranges.iter().any(|range| range.contains(&address));
        u32::try_from(address)
            .ok()
            .filter(|_| is_loaded)
            .ok_or_else(|| {
                image.unsupported(format!("{what} lies outside of the segments that it loads"))
            })
    };
    const ENTRY: &str = "its entry point";
    let entry = match entry_is_virtual {
        Some(physical) => {
            loaded_address(header.entry, ENTRY).or_else(|_| loaded_address(physical, ENTRY))?
        }
        None => loaded_address(header.entry, ENTRY)?,
    };
    let pvh_entry = match pvh_entry {
        Some(address) => Some(loaded_address(address, "its PVH entry point")?),
        None => None,
    };
    Ok(Loaded {
        class: header.class,
        entry,
        pvh_entry,
        ranges,
    })
}

/// Loads an ELF kernel that is not for multiboot, and enters it by PVH or as Linux.
///
/// # Errors
/// [`BootError`] as for [`load_segments`], or if the command line or the initial RAM disk does not
/// fit.
pub fn load_kernel(
    image: &Image,
    parameters: &Parameters,
    memory: &mut GuestMemory,
) -> Result<CpuState, BootError> {
    let loaded = load_segments(image, layout::COMMAND_LINE_END, memory)?;
    let end = loaded.ranges.iter().map(|range| range.end).max();
    let initrd_address_max = match loaded.class {
        Class::Bits32 => linux::INITRD_MAX_32_BIT,
        Class::Bits64 => u64::from(u32::MAX),
    };
    let kernel = |entry| Kernel {
        entry,
        end: end.unwrap_or(0),
        command_line_limit: linux::COMMAND_LINE_LIMIT,
        initrd_address_max,
    };
    match (loaded.pvh_entry, loaded.class) {
        (Some(entry), _) => pvh::enter(&kernel(Entry::Protected(entry)), parameters, memory),
        (None, Class::Bits32) => {
            enter_linux(&kernel(Entry::Protected(loaded.entry)), parameters, memory)
        }
        (None, Class::Bits64) => {
            enter_linux(&kernel(Entry::Long(loaded.entry)), parameters, memory)
        }
    }
}

/// Enters a vmlinux, which has no setup header.
fn enter_linux(
    kernel: &Kernel,
    parameters: &Parameters,
    memory: &mut GuestMemory,
) -> Result<CpuState, BootError> {
    let mut zero_page = [0; ZERO_PAGE_BYTES];
    let fields: [(usize, &[u8]); 5] = [
        (offset::BOOT_FLAG, &linux::BOOT_FLAG.to_le_bytes()),
        (offset::SIGNATURE, linux::SIGNATURE),
        (offset::VERSION, &PROTOCOL_VERSION.to_le_bytes()),
        (offset::LOAD_FLAGS, &[linux::LOADED_HIGH]),
        (offset::CODE32_START, &kernel.entry.address().to_le_bytes()),
    ];
    for (position, bytes) in fields {
        put(&mut zero_page, position, bytes);
    }
    linux::enter(zero_page, kernel, parameters, memory)
}
