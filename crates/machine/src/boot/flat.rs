//! Code without a header: boot sectors for real mode and flat images for 32-bit protected mode.

use super::image::{Image, require_memory, u16_at};
use super::{BootError, layout, state};
use tollgate_memory::GuestMemory;
use tollgate_x86::{CpuState, Gpr, SegmentRegister};

/// The address at which firmware loads a boot sector.
const BOOT_SECTOR_ADDRESS: u64 = 0x7c00;
/// The size of a boot sector in bytes.
const SECTOR: usize = 512;
/// The offset of the boot sector's signature.
const SIGNATURE_OFFSET: usize = 510;
/// The boot sector's signature.
const SIGNATURE: u16 = 0xaa55;
/// The BIOS number of the first hard disk, in DL on entry. No such disk exists.
const FIRST_HARD_DISK: u64 = 0x80;
/// The initial stack pointer of a flat image.
const FLAT_STACK: u64 = 0x9_0000;

/// The first bytes of file formats that are certainly not code to be entered at offset 0.
const FOREIGN_MAGICS: &[&[u8]] = &[
    b"\x1f\x8b",         // gzip
    b"\xfd7zXZ",         // xz
    b"\x28\xb5\x2f\xfd", // zstd
    b"BZh",              // bzip2
    b"\x89LZO",          // lzop
    b"\x04\x22\x4d\x18", // lz4
    b"\x02\x21\x4c\x18", // lz4, legacy
    b"PK\x03\x04",       // zip
    b"!<arch>",          // Debian package or static library
    b"#!",               // script
    b"MZ",               // DOS or PE program
    b"070701",           // cpio
    b"QFI\xfb",          // qcow2
    b"\xca\xfe\xba\xbe", // Mach-O or Java
    b"\x89PNG",
    b"%PDF",
];

/// Whether the bytes are a boot sector, possibly followed by more sectors.
pub fn is_boot_sector(bytes: &[u8]) -> bool {
    bytes.len() >= SECTOR && u16_at(bytes, SIGNATURE_OFFSET) == SIGNATURE && !is_foreign(bytes)
}

/// Whether the bytes could be code: they are not empty, not text, and of no other known format.
pub fn may_be_code(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(SECTOR)];
    let is_text = head
        .iter()
        .all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~'));
    let starts_empty = head.iter().take(16).all(|byte| *byte == 0);
    !is_text && !starts_empty && !is_foreign(bytes)
}

/// Whether the bytes are of another known format. (A Linux image that is cut off inside its setup
/// code begins as a PE program.)
fn is_foreign(bytes: &[u8]) -> bool {
    FOREIGN_MAGICS.iter().any(|magic| bytes.starts_with(magic))
}

/// Loads a boot sector, and everything that follows it in the file, at 7C00h and enters it in real
/// mode at 0000:7C00 with the stack below it. There is no BIOS to call.
///
/// # Errors
/// [`BootError`] if the file does not fit into conventional memory.
pub fn load_boot_sector(image: &Image, memory: &mut GuestMemory) -> Result<CpuState, BootError> {
    let room = layout::EXTENDED_BIOS_DATA - BOOT_SECTOR_ADDRESS;
    if image.size() > room {
        return Err(image.unsupported(format!(
            "a boot sector and the sectors after it may have {room} bytes, the file has {}",
            image.size()
        )));
    }
    image.fill(0..image.size(), BOOT_SECTOR_ADDRESS, memory)?;
    let mut state = CpuState::at_reset();
    state.load_real_mode_segment(SegmentRegister::Cs, 0);
    state.rip = BOOT_SECTOR_ADDRESS;
    state.gpr[Gpr::Rsp as usize] = BOOT_SECTOR_ADDRESS;
    state.gpr[Gpr::Rdx as usize] = FIRST_HARD_DISK;
    // Firmware clears the cache-disable bits, which are set after a reset.
    state.cr0 = tollgate_x86::Cr0::ET.bits();
    state.idtr.limit = 0x3ff;
    Ok(state)
}

/// Loads a flat image at 1 MiB and enters its first byte in 32-bit protected mode, with flat
/// segments, paging and interrupts disabled, a stack below 90000h, and all other registers zero.
///
/// # Errors
/// [`BootError::TooLittleMemory`].
pub fn load_flat(image: &Image, memory: &mut GuestMemory) -> Result<CpuState, BootError> {
    require_memory(memory, layout::KERNEL + image.size())?;
    image.fill(0..image.size(), layout::KERNEL, memory)?;
    let mut state = state::protected_mode(memory, layout::KERNEL as u32)?;
    state.gpr[Gpr::Rsp as usize] = FLAT_STACK;
    Ok(state)
}
