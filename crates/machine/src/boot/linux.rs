//! The parts that both forms of a Linux kernel share: the zero page, the command line, the initial
//! RAM disk and the 32- and 64-bit entries (Documentation/arch/x86/boot.rst and zero-page.rst in
//! the kernel's source).

use super::files::HostFile;
use super::image::{low_memory_end, put, write};
use super::{BootError, e820, layout, state};
use tollgate_memory::GuestMemory;
use tollgate_x86::{CpuState, Gpr, PhysicalAddress};

/// The size of the zero page in bytes.
pub const ZERO_PAGE_BYTES: usize = 4096;

/// Offsets in the zero page. Those of the setup header are also offsets in a bzImage.
pub mod offset {
    /// Physical address of the RSDP, 8 bytes.
    pub const RSDP: usize = 0x070;
    /// Number of entries in the memory map, 1 byte.
    pub const MEMORY_MAP_COUNT: usize = 0x1e8;
    /// The memory map, 20 bytes an entry.
    pub const MEMORY_MAP: usize = 0x2d0;
    /// The first field of the setup header: number of 512-byte setup sectors, 1 byte.
    pub const SETUP_SECTORS: usize = 0x1f1;
    /// Size of the protected-mode code in 16-byte units, 4 bytes.
    pub const SYSTEM_SIZE: usize = 0x1f4;
    /// The value AA55h, 2 bytes.
    pub const BOOT_FLAG: usize = 0x1fe;
    /// A short jump, whose second byte gives the header's end.
    pub const JUMP: usize = 0x200;
    /// The characters "HdrS".
    pub const SIGNATURE: usize = 0x202;
    /// Protocol version, 2 bytes.
    pub const VERSION: usize = 0x206;
    /// Type of the boot loader, 1 byte.
    pub const LOADER_TYPE: usize = 0x210;
    /// Load flags, 1 byte.
    pub const LOAD_FLAGS: usize = 0x211;
    /// Entry point of the protected-mode code, 4 bytes.
    pub const CODE32_START: usize = 0x214;
    /// Address of the initial RAM disk, 4 bytes.
    pub const RAMDISK_IMAGE: usize = 0x218;
    /// Size of the initial RAM disk, 4 bytes.
    pub const RAMDISK_SIZE: usize = 0x21c;
    /// Address of the command line, 4 bytes.
    pub const COMMAND_LINE: usize = 0x228;
    /// Highest address the initial RAM disk may occupy, 4 bytes (2.03).
    pub const INITRD_ADDRESS_MAX: usize = 0x22c;
    /// Alignment of the kernel when it runs, 4 bytes (2.05).
    pub const KERNEL_ALIGNMENT: usize = 0x230;
    /// Whether the kernel may run at other addresses, 1 byte (2.05).
    pub const RELOCATABLE: usize = 0x234;
    /// Extended load flags, 2 bytes (2.12).
    pub const EXTENDED_FLAGS: usize = 0x236;
    /// Maximum length of the command line, 4 bytes (2.06).
    pub const COMMAND_LINE_SIZE: usize = 0x238;
    /// Address where the kernel prefers to run, 8 bytes (2.10).
    pub const PREFERRED_ADDRESS: usize = 0x258;
    /// Number of bytes from there that the kernel needs to start, 4 bytes (2.10).
    pub const INIT_SIZE: usize = 0x260;
}

/// The magic value at [`offset::SIGNATURE`].
pub const SIGNATURE: &[u8; 4] = b"HdrS";
/// The magic value at [`offset::BOOT_FLAG`].
pub const BOOT_FLAG: u16 = 0xaa55;
/// Load flag: the protected-mode code belongs at 1 MiB.
pub const LOADED_HIGH: u8 = 1;
/// The type of a boot loader without an assigned number.
const LOADER_UNDEFINED: u8 = 0xff;

/// The maximum length of the command line for a kernel that does not state it (Linux's
/// COMMAND_LINE_SIZE).
pub const COMMAND_LINE_LIMIT: u64 = 2047;
/// The highest address of an initial RAM disk that every 32-bit kernel can map.
pub const INITRD_MAX_32_BIT: u64 = 0x37ff_ffff;

/// An initial RAM disk.
#[derive(Clone, Copy)]
pub enum Initrd<'a> {
    /// A file of the host.
    File(&'a HostFile),
    /// Bytes that the caller has made.
    Bytes(&'a [u8]),
}

impl Initrd<'_> {
    fn size(self) -> u64 {
        match self {
            Self::File(file) => file.size(),
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }
}

/// What the loader passes to the kernel.
#[derive(Clone, Copy)]
pub struct Parameters<'a> {
    /// The command line, without a terminating zero.
    pub command_line: &'a str,
    /// The initial RAM disk.
    pub initrd: Option<Initrd<'a>>,
    /// The address of the ACPI root pointer.
    pub rsdp: Option<PhysicalAddress>,
}

/// The mode and the physical address at which a kernel is entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// 32-bit protected mode without paging.
    Protected(u32),
    /// 64-bit mode with the first 4 GiB mapped to themselves.
    Long(u32),
}

impl Entry {
    /// Returns the physical address.
    pub fn address(self) -> u32 {
        match self {
            Self::Protected(address) | Self::Long(address) => address,
        }
    }
}

/// The properties of the kernel that the loader has found out.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// How the kernel is entered.
    pub entry: Entry,
    /// The first address that the kernel does not use while it starts.
    pub end: u64,
    /// The maximum length of the command line, without its terminating zero.
    pub command_line_limit: u64,
    /// The highest address that the initial RAM disk may occupy.
    pub initrd_address_max: u64,
}

/// Completes a zero page that already holds the setup header, writes it and everything that it
/// points to, and enters the kernel.
pub fn enter(
    mut zero_page: [u8; ZERO_PAGE_BYTES],
    kernel: &Kernel,
    parameters: &Parameters,
    memory: &mut GuestMemory,
) -> Result<CpuState, BootError> {
    zero_page[offset::LOADER_TYPE] = LOADER_UNDEFINED;

    write_command_line(parameters.command_line, kernel.command_line_limit, memory)?;
    put(
        &mut zero_page,
        offset::COMMAND_LINE,
        &(layout::COMMAND_LINE as u32).to_le_bytes(),
    );

    if let Some((address, size)) = place_initrd(parameters.initrd, kernel, memory)? {
        put(
            &mut zero_page,
            offset::RAMDISK_IMAGE,
            &(address as u32).to_le_bytes(),
        );
        put(
            &mut zero_page,
            offset::RAMDISK_SIZE,
            &(size as u32).to_le_bytes(),
        );
    }

    // The field was introduced with protocol 2.14. Older kernels treat it as padding and search the
    // firmware area.
    if let Some(rsdp) = parameters.rsdp {
        put(&mut zero_page, offset::RSDP, &rsdp.0.to_le_bytes());
    }

    let map = e820::memory_map(memory.ram().layout());
    zero_page[offset::MEMORY_MAP_COUNT] = map.len() as u8;
    for (index, range) in map.iter().enumerate() {
        put(
            &mut zero_page,
            offset::MEMORY_MAP + 20 * index,
            &range.to_bytes(),
        );
    }
    write(memory, layout::BOOT_INFORMATION, &zero_page)?;

    let mut state = match kernel.entry {
        Entry::Protected(entry) => state::protected_mode(memory, entry)?,
        Entry::Long(entry) => state::long_mode(memory, entry)?,
    };
    state.gpr[Gpr::Rsi as usize] = layout::BOOT_INFORMATION;
    Ok(state)
}

/// Writes the command line of at most `limit` bytes at an address that every protocol version can
/// express.
pub fn write_command_line(
    text: &str,
    limit: u64,
    memory: &mut GuestMemory,
) -> Result<(), BootError> {
    let room = layout::COMMAND_LINE_END - layout::COMMAND_LINE - 1;
    let (length, limit) = (text.len() as u64, limit.min(room));
    if length > limit {
        return Err(BootError::CommandLineTooLong { length, limit });
    }
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    write(memory, layout::COMMAND_LINE, &bytes)
}

/// Places the initial RAM disk, unless it is absent or empty, as high as the kernel and RAM allow.
/// Returns its address and size.
pub fn place_initrd(
    initrd: Option<Initrd>,
    kernel: &Kernel,
    memory: &mut GuestMemory,
) -> Result<Option<(u64, u64)>, BootError> {
    const PAGE_MASK: u64 = 0xfff;
    let Some(initrd) = initrd.filter(|initrd| initrd.size() > 0) else {
        return Ok(None);
    };
    let size = initrd.size();
    let top = low_memory_end(memory).min(kernel.initrd_address_max.saturating_add(1));
    let bottom = kernel.end.saturating_add(PAGE_MASK) & !PAGE_MASK;
    let address = top.saturating_sub(size) & !PAGE_MASK;
    if size > top || address < bottom {
        let room = top.saturating_sub(bottom);
        return Err(BootError::InitrdTooLarge { size, room });
    }
    match initrd {
        Initrd::File(file) => file.fill(0, size, address, memory)?,
        Initrd::Bytes(bytes) => write(memory, address, bytes)?,
    }
    Ok(Some((address, size)))
}
