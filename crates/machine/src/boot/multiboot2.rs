//! Multiboot 2 (Multiboot2 Specification 2.0): the kernel's header is a list of tags for what it
//! needs, and the information for the kernel is a list of tags as well.
//!
//! Where the specification leaves a choice, this loader does what GRUB does on a PC without a
//! display: a requested video mode is not set, entry points for EFI are ignored, and the command
//! line and the texts of modules begin after the file's name.

use super::image::{Image, low_memory_end, u16_at, u32_at, write};
use super::modules::{self, Module, Placed};
use super::multiboot::{LOWEST_ADDRESS, LoadAddresses};
use super::room::Room;
use super::{BootError, e820, elf, layout, state};
use tollgate_memory::GuestMemory;
use tollgate_x86::{CpuState, Gpr, PhysicalAddress};

/// The first word of the header.
const HEADER_MAGIC: u32 = 0xe852_50d6;
/// The value that the kernel finds in EAX.
const LOADER_MAGIC: u64 = 0x36d7_6289;
/// The header must lie completely within this many bytes, at a multiple of 8.
const SEARCH_BYTES: usize = 32768;
/// The size of the header before its tags, in bytes.
const HEADER_BYTES: usize = 16;
/// The second word of the header: protected mode of the 80386.
const ARCHITECTURE_386: u32 = 0;

/// The kinds of tags in a header.
mod header_tag {
    pub const END: u16 = 0;
    pub const INFORMATION_REQUEST: u16 = 1;
    pub const ADDRESSES: u16 = 2;
    pub const ENTRY: u16 = 3;
    pub const CONSOLE: u16 = 4;
    pub const FRAME_BUFFER: u16 = 5;
    pub const ALIGN_MODULES: u16 = 6;
    pub const EFI_BOOT_SERVICES: u16 = 7;
    pub const EFI_ENTRY_32: u16 = 8;
    pub const EFI_ENTRY_64: u16 = 9;
    pub const RELOCATABLE: u16 = 10;
    /// Flag of a tag: a loader that does not know the tag may skip it.
    pub const OPTIONAL: u16 = 1;
    /// Flag in the console tag: the kernel must not be started without a console.
    pub const CONSOLE_REQUIRED: u32 = 1;
}

/// The kinds of tags in the information.
mod information_tag {
    pub const END: u32 = 0;
    pub const COMMAND_LINE: u32 = 1;
    pub const LOADER_NAME: u32 = 2;
    pub const MODULE: u32 = 3;
    pub const MEMORY: u32 = 4;
    pub const MEMORY_MAP: u32 = 6;
    pub const FRAME_BUFFER: u32 = 8;
    pub const RSDP: u32 = 15;
    pub const LOAD_BASE: u32 = 21;
    /// The tags that a kernel may require. There is no display and so no frame buffer to describe,
    /// but like GRUB we start a kernel that requests one.
    pub const ANSWERED: [u32; 9] = [
        END,
        COMMAND_LINE,
        LOADER_NAME,
        MODULE,
        MEMORY,
        MEMORY_MAP,
        FRAME_BUFFER,
        RSDP,
        LOAD_BASE,
    ];
}

/// The size of an entry of the memory map in bytes: start, size, kind, reserved.
const MAP_ENTRY_BYTES: u32 = 24;
/// The size of the ACPI root pointer in bytes, from its second version on.
const RSDP_BYTES: usize = 36;
const LOADER_NAME: &str = "tollgate";

/// The place of a valid header in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    offset: usize,
    bytes: usize,
}

/// Finds a valid multiboot 2 header.
pub fn find_header(bytes: &[u8]) -> Option<Header> {
    let end = bytes.len().min(SEARCH_BYTES);
    (0..end.saturating_sub(HEADER_BYTES - 1))
        .step_by(8)
        .find_map(|offset| {
            let words = [0, 4, 8, 12].map(|field| u32_at(bytes, offset + field));
            let sum = words.iter().fold(0u32, |sum, word| sum.wrapping_add(*word));
            let size = words[2] as usize;
            let fits = size >= HEADER_BYTES && size <= end - offset;
            (words[0] == HEADER_MAGIC && sum == 0 && fits).then_some(Header {
                offset,
                bytes: size,
            })
        })
}

/// What the tags of a header request.
#[derive(Default)]
struct Wishes {
    addresses: Option<LoadAddresses>,
    entry: Option<u32>,
}

impl Wishes {
    /// Reads the tags.
    ///
    /// # Errors
    /// [`BootError::Unsupported`]: a required tag is unknown here or cannot be satisfied.
    fn read(image: &Image, header: Header) -> Result<Self, BootError> {
        let bytes = &image.head()[header.offset..header.offset + header.bytes];
        let architecture = u32_at(bytes, 4);
        if architecture != ARCHITECTURE_386 {
            return Err(image.unsupported(format!(
                "its multiboot 2 header is for another processor (architecture {architecture})"
            )));
        }
        let mut wishes = Self::default();
        let mut tags = &bytes[HEADER_BYTES..];
        while tags.len() >= 8 {
            let (kind, flags) = (u16_at(tags, 0), u16_at(tags, 2));
            let size = u32_at(tags, 4) as usize;
            let Some(tag) = tags.get(..size).filter(|tag| tag.len() >= 8) else {
                return Err(image.unsupported(format!(
                    "tag {kind} of its multiboot 2 header has {size} bytes and exceeds the header"
                )));
            };
            if kind == header_tag::END {
                break;
            }
            let is_optional = flags & header_tag::OPTIONAL != 0;
            match wishes.take(kind, tag) {
                Err(why) if !is_optional => return Err(image.unsupported(why)),
                _ => {}
            }
            tags = tags.get(size.next_multiple_of(8)..).unwrap_or(&[]);
        }
        Ok(wishes)
    }

    /// Reads one tag.
    ///
    /// # Errors
    /// A description of the request that cannot be satisfied.
    fn take(&mut self, kind: u16, tag: &[u8]) -> Result<(), String> {
        let needs = |size: usize| match tag.len() >= size {
            true => Ok(()),
            false => Err(format!("tag {kind} of its multiboot 2 header is too short")),
        };
        match kind {
            header_tag::INFORMATION_REQUEST => {
                let mut requests = tag[8..].chunks_exact(4).map(|word| u32_at(word, 0));
                match requests.find(|request| !information_tag::ANSWERED.contains(request)) {
                    Some(request) => Err(format!(
                        "its multiboot 2 header requires information that is not given here \
                         (tag 1, request for tag {request})"
                    )),
                    None => Ok(()),
                }
            }
            header_tag::ADDRESSES => {
                needs(24)?;
                self.addresses = Some(LoadAddresses {
                    header: u32_at(tag, 8).into(),
                    load_start: u32_at(tag, 12).into(),
                    load_end: u32_at(tag, 16).into(),
                    bss_end: u32_at(tag, 20).into(),
                });
                Ok(())
            }
            header_tag::ENTRY => {
                needs(12)?;
                self.entry = Some(u32_at(tag, 8));
                Ok(())
            }
            header_tag::CONSOLE => {
                needs(12)?;
                match u32_at(tag, 8) & header_tag::CONSOLE_REQUIRED {
                    0 => Ok(()),
                    _ => Err(
                        "its multiboot 2 header requires a console on a display (tag 4), \
                              and a machine without firmware has none"
                            .to_owned(),
                    ),
                }
            }
            header_tag::FRAME_BUFFER
            | header_tag::ALIGN_MODULES
            | header_tag::EFI_BOOT_SERVICES
            | header_tag::EFI_ENTRY_32
            | header_tag::EFI_ENTRY_64
            | header_tag::RELOCATABLE => Ok(()),
            _ => Err(format!(
                "its multiboot 2 header requires an unknown feature (tag {kind})"
            )),
        }
    }
}

/// Loads the kernel, the modules after it, and the information about both where it does not overlap
/// the kernel.
///
/// # Errors
/// [`BootError`] if the header requires a feature that this machine lacks, the file is incomplete,
/// or memory does not suffice.
pub fn load(
    image: &Image,
    header: Header,
    append: &str,
    modules: &[Module],
    rsdp: Option<PhysicalAddress>,
    memory: &mut GuestMemory,
) -> Result<CpuState, BootError> {
    let wishes = Wishes::read(image, header)?;
    let (entry, ranges) = match wishes.addresses {
        Some(addresses) => {
            let range = addresses.load(image, header.offset, memory)?;
            let Some(entry) = wishes.entry else {
                return Err(image.unsupported(
                    "its multiboot 2 header has an address tag (2) and no entry address (tag 3)",
                ));
            };
            (entry, vec![range])
        }
        None => {
            // A 64-bit ELF file is entered in 32-bit mode too.
            let loaded = elf::load_segments(image, LOWEST_ADDRESS, memory)?;
            (wishes.entry.unwrap_or(loaded.entry), loaded.ranges)
        }
    };
    let base = ranges.iter().map(|range| range.start).min().unwrap_or(0);
    let mut room = Room::new(ranges, memory);
    let placed = modules::place(modules, &mut room, memory)?;

    let mut information = Information::new();
    information.text(information_tag::COMMAND_LINE, &[], append);
    information.text(information_tag::LOADER_NAME, &[], LOADER_NAME);
    for (module, Placed { start, end }) in modules.iter().zip(placed) {
        let addresses = [start as u32, end as u32];
        information.text(information_tag::MODULE, &addresses, module.arguments());
    }
    let lower = layout::EXTENDED_BIOS_DATA / 1024;
    let upper = low_memory_end(memory).saturating_sub(layout::KERNEL) / 1024;
    information.words(information_tag::MEMORY, &[lower as u32, upper as u32]);
    information.tag(information_tag::MEMORY_MAP, &memory_map(memory));
    if let Some(address) = rsdp {
        let mut pointer = [0; RSDP_BYTES];
        if memory.read(address, &mut pointer) {
            information.tag(information_tag::RSDP, &pointer);
        }
    }
    information.words(information_tag::LOAD_BASE, &[base as u32]);
    let bytes = information.finish();
    if bytes.len() as u64 > layout::COMMAND_LINE_END - layout::COMMAND_LINE {
        return Err(BootError::CommandLineTooLong {
            length: bytes.len() as u64,
            limit: layout::COMMAND_LINE_END - layout::COMMAND_LINE,
        });
    }

    let descriptor_table = room.place(layout::DESCRIPTOR_TABLE, state::DESCRIPTOR_TABLE_BYTES)?;
    let address = room.place(layout::COMMAND_LINE, bytes.len() as u64)?;
    write(memory, address, &bytes)?;
    let mut state = state::protected_mode_with_table_at(descriptor_table, memory, entry)?;
    state.gpr[Gpr::Rax as usize] = LOADER_MAGIC;
    state.gpr[Gpr::Rbx as usize] = address;
    Ok(state)
}

/// Returns the contents of the memory map's tag: the size of an entry, its version, the entries.
fn memory_map(memory: &GuestMemory) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [MAP_ENTRY_BYTES, 0] {
        bytes.extend(word.to_le_bytes());
    }
    for range in e820::memory_map(memory.ram().layout()) {
        bytes.extend(range.to_bytes());
        bytes.extend([0; 4]);
    }
    bytes
}

/// The information for the kernel: its size, a reserved word, and tags, each at a multiple of 8.
struct Information {
    bytes: Vec<u8>,
}

impl Information {
    fn new() -> Self {
        Self { bytes: vec![0; 8] }
    }

    fn tag(&mut self, kind: u32, contents: &[u8]) {
        let size = 8 + contents.len() as u32;
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend(size.to_le_bytes());
        self.bytes.extend(contents);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    fn words(&mut self, kind: u32, words: &[u32]) {
        let contents: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.tag(kind, &contents);
    }

    /// Adds a tag of some words and a zero-terminated text.
    fn text(&mut self, kind: u32, words: &[u32], text: &str) {
        let mut contents: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        contents.extend(text.as_bytes());
        contents.push(0);
        self.tag(kind, &contents);
    }

    fn finish(mut self) -> Vec<u8> {
        self.tag(information_tag::END, &[]);
        let size = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&size.to_le_bytes());
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_needs_a_right_checksum_alignment_and_size() {
        let header = |size: u32| {
            let sum = HEADER_MAGIC.wrapping_add(size).wrapping_neg();
            [HEADER_MAGIC, 0, size, sum].map(u32::to_le_bytes).concat()
        };
        let mut bytes = vec![0; 100];
        bytes[40..56].copy_from_slice(&header(24));
        let found = Some(Header {
            offset: 40,
            bytes: 24,
        });
        assert_eq!(find_header(&bytes), found);
        assert_eq!(find_header(&bytes[4..]), None);
        assert_eq!(find_header(&bytes[..60]), None);
        bytes[40..56].copy_from_slice(&header(8));
        assert_eq!(find_header(&bytes), None);
        bytes[40..56].copy_from_slice(&header(24));
        bytes[52] ^= 1;
        assert_eq!(find_header(&bytes), None);
        let mut late = vec![0; SEARCH_BYTES - 24];
        late.extend(header(24));
        late.extend([0; 8]);
        assert!(find_header(&late).is_some());
        late.splice(0..0, [0; 8]);
        assert_eq!(find_header(&late), None);
    }
}
