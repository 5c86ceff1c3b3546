//! Files of the host that a guest is started from.

use super::error::BootError;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use tollgate_host_facts::file_words;
use tollgate_memory::GuestMemory;

/// Reads a whole file of at most `limit` bytes. `too_large` makes the error for a larger file from
/// its size, as far as that is known. The file may be a pipe that never ends.
pub fn read_file(
    flag: &'static str,
    path: &Path,
    limit: u64,
    too_large: impl Fn(u64) -> BootError,
) -> Result<Vec<u8>, BootError> {
    let unreadable = |error: io::Error| BootError::Unreadable {
        flag,
        path: path.to_owned(),
        reason: file_words::reading(&error),
    };
    let file = File::open(path).map_err(unreadable)?;
    let size = file.metadata().map_err(unreadable)?.len();
    if size > limit {
        return Err(too_large(size));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    file.take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > limit {
        return Err(too_large(bytes.len() as u64));
    }
    Ok(bytes)
}

/// Reads an initial RAM disk or a module, which must fit into the machine's memory.
pub fn read_initrd(path: &Path, memory: &GuestMemory) -> Result<Vec<u8>, BootError> {
    let room = memory.ram().size();
    read_file("--initrd", path, room, |size| BootError::InitrdTooLarge {
        size,
        room,
    })
}
