//! The files that a multiboot kernel gets in addition to itself.

use super::image::{low_memory_end, write};
use super::room::Room;
use super::{BootError, read_initrd};
use crate::comma_list;
use std::path::Path;
use tollgate_memory::GuestMemory;

/// A module: its contents and the text that the kernel gets with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Module {
    /// Contents of the file.
    pub contents: Vec<u8>,
    /// File name and arguments, as given.
    pub text: String,
}

impl Module {
    /// What follows the file name.
    pub fn arguments(&self) -> &str {
        self.text.split_once(' ').map_or("", |(_, text)| text)
    }
}

/// Where a module lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Physical address of its first byte, on a page boundary.
    pub start: u64,
    /// First address after it.
    pub end: u64,
}

/// Reads the modules that the user named: file names with arguments, commas between them.
///
/// # Errors
/// [`BootError::Unreadable`] or [`BootError::InitrdTooLarge`].
pub fn read(list: &str, memory: &GuestMemory) -> Result<Vec<Module>, BootError> {
    comma_list::split(list)
        .into_iter()
        .map(|text| {
            let path = text.split(' ').next().unwrap_or("");
            Ok(Module {
                contents: read_initrd(Path::new(path), memory)?,
                text,
            })
        })
        .collect()
}

/// Loads the modules after all that is in use, and returns where each lies.
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
        let size = module.contents.len() as u64;
        let end = start.saturating_add(size);
        if end > top {
            return Err(BootError::InitrdTooLarge {
                size,
                room: top.saturating_sub(start),
            });
        }
        write(memory, start, &module.contents)?;
        room.take(start..end);
        placed.push(Placed { start, end });
    }
    Ok(placed)
}
