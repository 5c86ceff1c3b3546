//! Files of the host that a guest is started from.
//!
//! A [`HostFile`] is opened and checked first, and its parts go from the file to guest memory
//! without a copy in between: reading a kernel of 50 MB into a buffer would cost more than all else
//! that precedes the guest's first instruction.

use super::error::BootError;
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tollgate_host_facts::file_words;
use tollgate_memory::GuestMemory;
use tollgate_x86::PhysicalAddress;

/// The most bytes that are copied in one go.
const MOST_COPIED: u64 = 64 << 10;

/// A file whose parts can be read in any order.
#[derive(Debug)]
pub struct HostFile {
    /// The flag that names the file.
    flag: &'static str,
    path: PathBuf,
    file: File,
    size: u64,
}

impl HostFile {
    /// Opens a file of at most `limit` bytes. `too_large` makes the error for a larger file from its
    /// size, as far as that is known. The file may be a pipe that never ends.
    ///
    /// # Errors
    /// [`BootError::Unreadable`], or that of `too_large`.
    pub fn open(
        flag: &'static str,
        path: &Path,
        limit: u64,
        too_large: impl Fn(u64) -> BootError,
    ) -> Result<Self, BootError> {
        let (file, size) = open(path, limit).map_err(|error| unreadable(flag, path, &error))?;
        if size > limit {
            return Err(too_large(size));
        }
        Ok(Self {
            flag,
            path: path.to_owned(),
            file,
            size,
        })
    }

    /// Opens an initial RAM disk or a module, which must fit into the machine's memory.
    ///
    /// # Errors
    /// [`BootError::Unreadable`] or [`BootError::InitrdTooLarge`].
    pub fn open_initrd(path: &Path, memory: &GuestMemory) -> Result<Self, BootError> {
        let room = memory.ram().size();
        Self::open("--initrd", path, room, |size| BootError::InitrdTooLarge {
            size,
            room,
        })
    }

    /// Returns the size in bytes that the file had when it was opened.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads bytes that lie in the file.
    ///
    /// # Errors
    /// [`BootError::Unreadable`], also if the file has become shorter.
    pub fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, BootError> {
        let mut bytes = vec![0; length];
        let read = self.file.read_exact_at(&mut bytes, offset);
        read.map_err(|error| unreadable(self.flag, &self.path, &error))?;
        Ok(bytes)
    }

    /// Reads `length` bytes that lie in the file into RAM at `address`.
    ///
    /// # Errors
    /// [`BootError::TooLittleMemory`] if there is no RAM at an address, and
    /// [`BootError::Unreadable`], also if the file has become shorter.
    pub fn fill(
        &self,
        mut offset: u64,
        length: u64,
        address: u64,
        memory: &mut GuestMemory,
    ) -> Result<(), BootError> {
        if length == 0 {
            return Ok(());
        }
        if memory.ram().is_secret() {
            return self.copy(offset, length, address, memory);
        }
        let pieces = [(PhysicalAddress(address), length)];
        let Some((mut ram, _counts_as_written_when_dropped)) = memory.lend_to_fill(&pieces) else {
            return Err(too_little(memory, address.saturating_add(length)));
        };
        let mut slices = ram.slices_to_fill();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let read = rustix::io::retry_on_intr(|| rustix::io::preadv(&self.file, rest, offset));
            let count = match read {
                Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                read => read.map_err(io::Error::from),
            };
            let count = count.map_err(|error| unreadable(self.flag, &self.path, &error))?;
            offset += count as u64;
            IoSliceMut::advance_slices(&mut rest, count);
        }
        Ok(())
    }

    /// Does what [`HostFile::fill`] does, by way of a buffer.
    fn copy(
        &self,
        offset: u64,
        length: u64,
        address: u64,
        memory: &mut GuestMemory,
    ) -> Result<(), BootError> {
        let end = address.saturating_add(length);
        for at in (address..end).step_by(MOST_COPIED as usize) {
            let count = MOST_COPIED.min(end - at) as usize;
            let bytes = self.read(offset + (at - address), count)?;
            if !memory.write(PhysicalAddress(at), &bytes) {
                return Err(too_little(memory, end));
            }
        }
        Ok(())
    }
}

/// Returns the error for memory that should end at `needed` or later.
pub fn too_little(memory: &GuestMemory, needed: u64) -> BootError {
    BootError::TooLittleMemory {
        needed,
        memory: memory.ram().size(),
    }
}

fn unreadable(flag: &'static str, path: &Path, error: &io::Error) -> BootError {
    BootError::Unreadable {
        flag,
        path: path.to_owned(),
        reason: file_words::reading(error),
    }
}

/// Opens a file and returns its size. What can be read only once, such as a pipe, or does not state
/// its size, is copied first, up to one byte more than `limit`.
fn open(path: &Path, limit: u64) -> io::Result<(File, u64)> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.len() > 0 {
        return Ok((file, metadata.len()));
    }
    let mut copy = File::from(rustix::fs::memfd_create("boot file", MemfdFlags::CLOEXEC)?);
    let size = io::copy(&mut file.take(limit.saturating_add(1)), &mut copy)?;
    Ok((copy, size))
}

/// Reads a whole file of at most `limit` bytes, see [`HostFile::open`].
///
/// # Errors
/// As for [`HostFile::open`].
pub fn read_file(
    flag: &'static str,
    path: &Path,
    limit: u64,
    too_large: impl Fn(u64) -> BootError,
) -> Result<Vec<u8>, BootError> {
    let file = HostFile::open(flag, path, limit, too_large)?;
    file.read(0, file.size() as usize)
}
