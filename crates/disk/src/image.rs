//! An open image, with the operations of a disk on the host's memory.

use crate::image_file::ImageFile;
use crate::options::Cache;
use imago::FormatAccess;
use imago::Mapping;
use imago::format::{Format, PreallocateMode};
use std::io::{self, IoSlice, IoSliceMut};

/// An open image. Offsets and lengths are in bytes; accesses beyond the end are errors.
pub struct Image {
    access: FormatAccess<ImageFile>,
    cache: Cache,
    discards: bool,
    is_writable: bool,
}

impl Image {
    pub(crate) const fn new(
        access: FormatAccess<ImageFile>,
        cache: Cache,
        discards: bool,
        is_writable: bool,
    ) -> Self {
        Self {
            access,
            cache,
            discards,
            is_writable,
        }
    }

    /// Returns the size of the disk in bytes.
    pub fn size(&self) -> u64 {
        self.access.size()
    }

    /// Whether the disk can be written.
    pub const fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Whether [`Image::discard`] has an effect.
    pub const fn discards(&self) -> bool {
        self.discards
    }

    /// Refuses ranges that are not on the disk.
    fn check(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let end = offset.checked_add(bytes);
        if end.is_some_and(|end| end <= self.size()) {
            Ok(())
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }

    /// Reads bytes from `offset` on into `data`.
    ///
    /// # Errors
    /// An error of the host or of the image.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.check(offset, data.len() as u64)?;
        self.access.read(data, offset)
    }

    /// Reads bytes from `offset` on into all of these slices, in order.
    ///
    /// # Errors
    /// An error of the host or of the image.
    pub fn read_into(&self, offset: u64, slices: Vec<IoSliceMut<'_>>) -> io::Result<()> {
        self.check(offset, slices.iter().map(|slice| slice.len() as u64).sum())?;
        self.access.read(slices, offset)
    }

    /// Returns how many bytes from `offset` on, at most `bytes`, are zero according to the image's
    /// tables. If it is 0, they must be read.
    ///
    /// # Errors
    /// An error of the host or of the image.
    pub(crate) fn known_zeroes(&self, offset: u64, bytes: u64) -> io::Result<u64> {
        match self.access.get_mapping(offset, bytes)? {
            (Mapping::Zero { .. }, length) => Ok(length.min(bytes)),
            _ => Ok(0),
        }
    }

    /// Writes `data` from `offset` on.
    ///
    /// # Errors
    /// An error of the host or of the image.
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check(offset, data.len() as u64)?;
        self.access.write(data, offset)
    }

    /// Writes all of these slices from `offset` on, in order.
    ///
    /// # Errors
    /// An error of the host or of the image.
    pub fn write_from(&self, offset: u64, slices: Vec<IoSlice<'_>>) -> io::Result<()> {
        self.check(offset, slices.iter().map(|slice| slice.len() as u64).sum())?;
        self.access.write(slices, offset)
    }

    /// Writes zeros. With `unmap` the host may take the storage back.
    ///
    /// # Errors
    /// An error of the host or of the image.
    pub fn write_zeroes(&mut self, offset: u64, bytes: u64, unmap: bool) -> io::Result<()> {
        self.check(offset, bytes)?;
        let result = if unmap && self.discards {
            self.access.discard_to_zero(offset, bytes)
        } else {
            self.access.write_zeroes(offset, bytes)
        };
        match result {
            // Version 2 of qcow2 has no clusters that read as zeros.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                self.write_each_zero(offset, bytes)
            }
            result => result,
        }
    }

    fn write_each_zero(&self, mut offset: u64, bytes: u64) -> io::Result<()> {
        static ZEROS: [u8; 65_536] = [0; 65_536];
        let end = offset + bytes;
        while offset < end {
            let length = (end - offset).min(ZEROS.len() as u64);
            self.access.write(&ZEROS[..length as usize], offset)?;
            offset += length;
        }
        Ok(())
    }

    /// Discards bytes that are no longer needed. Their contents are undefined afterwards.
    ///
    /// # Errors
    /// An error of the host or of the image.
    pub fn discard(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        self.check(offset, bytes)?;
        if !self.discards {
            return Ok(());
        }
        match self.access.discard_to_any(offset, bytes) {
            // Discarding is only a hint.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
            result => result,
        }
    }

    /// Gives the disk another size in bytes, rounded up to whole sectors. What is added reads as zeros;
    /// what is cut off is lost. Returns the new size.
    ///
    /// # Errors
    /// The image is not written, or an error of the host or of the image.
    pub fn resize(&mut self, bytes: u64) -> io::Result<u64> {
        const SECTOR: u64 = 512;
        if !self.is_writable {
            return Err(io::Error::other("the image is read-only"));
        }
        let sectors = bytes.div_ceil(SECTOR);
        let bytes = sectors.checked_mul(SECTOR).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or_else(|| io::Error::other("a disk has at least one sector"))?;
        let before = self.size();
        self.access.resize(bytes, PreallocateMode::None)?;
        // A file that grows has zeros there. A longer image below this one would show through.
        if self.access.inner().format() != Format::Raw {
            self.clear(before)?;
        }
        self.flush()?;
        Ok(self.size())
    }

    /// Makes everything from `offset` to the end zero that is not known to be.
    fn clear(&mut self, mut offset: u64) -> io::Result<()> {
        let end = self.size();
        while offset < end {
            let (mapping, bytes) = self.access.get_mapping(offset, end - offset)?;
            let is_zero = matches!(mapping, Mapping::Zero { .. });
            let bytes = bytes.clamp(1, end - offset);
            if !is_zero {
                self.write_zeroes(offset, bytes, false)?;
            }
            offset += bytes;
        }
        Ok(())
    }

    /// Makes all earlier writes reach stable storage, unless the cache is [`Cache::Unsafe`].
    ///
    /// # Errors
    /// An error of the host or of the image.
    pub fn flush(&self) -> io::Result<()> {
        if !self.is_writable || self.cache == Cache::Unsafe {
            return Ok(());
        }
        self.access.flush()?;
        self.access.sync()
    }

    /// Closes the image: all writes reach the file, and stable storage as with [`Image::flush`].
    ///
    /// # Errors
    /// An error of the host or of the image.
    pub fn close(self) -> io::Result<()> {
        if !self.is_writable {
            return Ok(());
        }
        self.access.flush()?;
        self.flush()
    }
}
