//! The modules of a multiboot kernel: files that are loaded in addition to it.

use super::BootError;
use super::files::HostFile;
use super::image::low_memory_end;
use super::room::Room;
use crate::comma_list;
use std::path::Path;
use tollgate_memory::GuestMemory;

/// A module: its file and the text that the kernel receives with it.
#[derive(Debug)]
pub struct Module {
    /// The file with the module's contents.
    pub file: HostFile,
    /// The file name and the arguments as they were given.
    pub text: String,
}

impl Module {
    /// Returns the text after the file name.
    pub fn arguments(&self) -> &str {
        self.text.split_once(' ').map_or("", |(_, text)| text)
    }
}

/// The place of a module in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// The physical address of the first byte, on a page boundary.
    pub start: u64,
    /// The first address after the module.
    pub end: u64,
}

/// Opens the modules that the user named: file names with arguments, separated by commas.
///
/// # Errors
/// [`BootError::Unreadable`] or [`BootError::InitrdTooLarge`].
pub fn open(list: &str, memory: &GuestMemory) -> Result<Vec<Module>, BootError> {
    comma_list::split(list)
        .into_iter()
        .map(|text| {
            let path = text.split(' ').next().unwrap_or("");
            Ok(Module {
                file: HostFile::open_initrd(Path::new(path), memory)?,
                text,
            })
        })
        .collect()
}

/// Loads the modules after all memory in use, and returns the place of each.
///
/// # Errors
/// [`BootError::InitrdTooLarge`].
pub fn place(
    modules: &[Module],
    room: &mut Room,
    memory: &mut GuestMemory,
) -> Result<Vec<Placed>, BootError> {
    let mut placed = Vec::new();
    for module in modules {
        let (start, top) = (room.behind(), low_memory_end(memory));
        let size = module.file.size();
        let end = start.saturating_add(size);
        if end > top {
            return Err(BootError::InitrdTooLarge {
                size,
                room: top.saturating_sub(start),
            });
        }
        module.file.fill(0, size, start, memory)?;
        room.take(start..end);
        placed.push(Placed { start, end });
    }
    Ok(placed)
}
