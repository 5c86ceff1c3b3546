//! A file of an image as imago sees it.
//!
//! imago refuses a qcow2 image that is marked as dirty or corrupt. Such an image can still be read,
//! because its data are where its tables say; only its reference counts are in doubt, which no read
//! needs. So a file that is only read can hide those marks.

use crate::header::{INCOMPATIBLE_OFFSET, incompatible};
use imago::Storage;
use imago::file::File;
use imago::io_buffers::{IoBuffer, IoVector, IoVectorMut};
use imago::storage::PreallocateMode;
use imago::storage::drivers::CommonStorageHelper;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The offset of the byte of a header that contains the marks: the last one of a big-endian number.
const MARKS_OFFSET: u64 = INCOMPATIBLE_OFFSET + 7;

/// A file of an image.
#[derive(Debug)]
pub(crate) struct ImageFile {
    file: File,
    hides_marks: bool,
}

impl ImageFile {
    /// Makes a file whose contents are shown unchanged.
    pub const fn new(file: File) -> Self {
        Self {
            file,
            hides_marks: false,
        }
    }

    /// Makes the file of a qcow2 image that is only read, without the marks "dirty" and "corrupt".
    pub const fn without_marks(file: File) -> Self {
        Self {
            file,
            hides_marks: true,
        }
    }
}

impl fmt::Display for ImageFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(formatter)
    }
}

impl Storage for ImageFile {
    fn mem_align(&self) -> usize {
        self.file.mem_align()
    }

    fn req_align(&self) -> usize {
        self.file.req_align()
    }

    fn zero_align(&self) -> usize {
        self.file.zero_align()
    }

    fn discard_align(&self) -> usize {
        self.file.discard_align()
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn resolve_relative_path<P: AsRef<Path>>(&self, relative: P) -> io::Result<PathBuf> {
        self.file.resolve_relative_path(relative)
    }

    fn get_filename(&self) -> Option<PathBuf> {
        self.file.get_filename()
    }

    unsafe fn pure_readv(&self, mut bufv: IoVectorMut<'_>, offset: u64) -> io::Result<()> {
        let marks = MARKS_OFFSET
            .checked_sub(offset)
            .filter(|marks| self.hides_marks && *marks < bufv.len());
        let Some(marks) = marks else {
            // SAFETY: the caller fulfils the requirements of this call, which are the same.
            return unsafe { self.file.pure_readv(bufv, offset) };
        };
        let mut buffer = IoBuffer::new(bufv.len() as usize, self.mem_align())?;
        // SAFETY: the buffer has the alignment that the file requires. Offset and length are the
        // caller's, which must be aligned.
        unsafe { self.file.pure_readv((&mut buffer).into(), offset)? };
        buffer.as_mut().into_slice()[marks as usize] &=
            !((incompatible::DIRTY | incompatible::CORRUPT) as u8);
        bufv.copy_from_slice(buffer.as_ref().into_slice());
        Ok(())
    }

    unsafe fn pure_writev(&self, bufv: IoVector<'_>, offset: u64) -> io::Result<()> {
        // SAFETY: the caller fulfils the requirements of this call, which are the same.
        unsafe { self.file.pure_writev(bufv, offset) }
    }

    unsafe fn pure_write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        // SAFETY: the caller fulfils the requirements of this call, which are the same.
        unsafe { self.file.pure_write_zeroes(offset, length) }
    }

    unsafe fn pure_write_allocated_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        // SAFETY: the caller fulfils the requirements of this call, which are the same.
        unsafe { self.file.pure_write_allocated_zeroes(offset, length) }
    }

    unsafe fn pure_discard(&self, offset: u64, length: u64) -> io::Result<()> {
        // SAFETY: the caller fulfils the requirements of this call, which are the same.
        unsafe { self.file.pure_discard(offset, length) }
    }

    fn flush(&self) -> io::Result<()> {
        self.file.flush()
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn settle_writes(&self) -> io::Result<()> {
        self.file.settle_writes()
    }

    unsafe fn invalidate_cache(&self) -> io::Result<()> {
        // SAFETY: the caller fulfils the requirements of this call, which are the same.
        unsafe { self.file.invalidate_cache() }
    }

    fn get_storage_helper(&self) -> &CommonStorageHelper {
        self.file.get_storage_helper()
    }

    fn resize(&self, new_size: u64, prealloc_mode: PreallocateMode) -> io::Result<()> {
        self.file.resize(new_size, prealloc_mode)
    }
}
