//! Open files: OPEN and RELEASE, READ and WRITE, and other operations on them.

use crate::answer::Answer;
use crate::handles::{Handle, UNOPENED};
use crate::inodes::Inode;
use crate::limits::CountedFd;
use crate::protocol::{
    FSYNC_DATA, Header, Input, KEEP_CACHE, MAX_TRANSFER, OPEN_KILL_SUIDGID, Output,
    WRITE_FROM_CACHE, WRITE_KILL_SUIDGID,
};
use crate::server::Server;
use rustix::buffer::spare_capacity;
use rustix::fs::{FallocateFlags, FileType, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use std::io::IoSlice;
use std::sync::Arc;

/// The maximum number of bytes that are copied by one request, because the thread serves other
/// requests, too.
const MAX_COPY: u64 = 64 << 20;

/// Where data is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    /// Whether the data goes to the end of the file, wherever that is.
    pub(crate) appends: bool,
}

impl Server {
    /// Opens a regular file that the guest knows. Flags that the guest's kernel implements itself
    /// (O_APPEND, O_DIRECT, and O_SYNC by FSYNC) are not passed to the host.
    pub(crate) fn open_known(
        &self,
        header: &Header,
        inode: &Inode,
        flags: OFlags,
        open_flags: u32,
    ) -> Result<CountedFd, Errno> {
        if inode.kind == FileType::Directory {
            return Err(Errno::ISDIR);
        }
        let changes = flags & OFlags::ACCMODE != OFlags::RDONLY || flags.contains(OFlags::TRUNC);
        if changes {
            self.check_writable()?;
        }
        let kept = OFlags::ACCMODE | OFlags::TRUNC | OFlags::SYNC | OFlags::DSYNC;
        let kills = open_flags & OPEN_KILL_SUIDGID != 0;
        if flags.contains(OFlags::TRUNC) || changes && kills {
            self.content_changes(header, inode, kills)?;
        }
        self.reopen(inode, flags & kept)
    }

    /// Clears set-user-ID and set-group-ID before a user of the guest changes the contents of a
    /// file. `kills` is set if the guest's kernel requests that.
    pub(crate) fn content_changes(&self, header: &Header, inode: &Inode, kills: bool) -> Answer {
        let fd = self.inodes.fd(inode)?;
        self.owners.content_changes(&*fd, kills || header.uid != 0)
    }

    /// Writes the description of an open file for the guest (`fuse_open_out`).
    pub(crate) fn put_handle(
        &self,
        inode: Arc<Inode>,
        file: Option<CountedFd>,
        output: &mut Output,
    ) {
        // The guest's kernel compares times and sizes, and drops its cache if they have changed.
        // Opening the file is no reason to drop it.
        let flags = match inode.kind {
            FileType::Directory => 0,
            _ => KEEP_CACHE,
        };
        let number = self.handles.insert(Handle::new(inode, file));
        output.u64(number);
        output.u32(flags);
        output.u32(0);
        // The guest would never receive the handle.
        if output.bytes.len() > output.capacity {
            self.handles.remove(number);
        }
    }

    pub(crate) fn open_file(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
    ) -> Answer {
        let (flags, open_flags) = (input.u32()?, input.u32()?);
        let inode = self.inodes.get(header.node)?;
        if self.reads_unopened() {
            // After this answer the guest's kernel opens no file of this share.
            return Err(Errno::NOSYS);
        }
        let flags = OFlags::from_bits_retain(flags);
        let file = self.open_known(header, &inode, flags, open_flags)?;
        self.put_handle(inode, Some(file), output);
        Ok(())
    }

    pub(crate) fn release(&self, mut input: Input<'_>) -> Answer {
        self.handles.remove(input.u64()?);
        Ok(())
    }

    /// Returns an open regular file.
    pub(crate) fn file(&self, number: u64) -> Result<Arc<Handle>, Errno> {
        let handle = self.handles.get(number)?;
        match handle.inode.kind {
            FileType::Directory => Err(Errno::ISDIR),
            _ => Ok(handle),
        }
    }

    /// Returns an open regular file, or one that the request reads without having opened it.
    fn file_to_read(&self, header: &Header, number: u64) -> Result<Arc<Handle>, Errno> {
        let open = || {
            let inode = self.inodes.get(header.node)?;
            self.open_known(header, &inode, OFlags::RDONLY, 0)
        };
        self.file_to_read_by(header, number, open)
    }

    /// Returns an open regular file, or one that `open` opens.
    pub(crate) fn file_to_read_by(
        &self,
        header: &Header,
        number: u64,
        open: impl FnOnce() -> Result<CountedFd, Errno>,
    ) -> Result<Arc<Handle>, Errno> {
        if number != UNOPENED || !self.reads_unopened() {
            return self.file(number);
        }
        self.unopened.get(header.node, || {
            let inode = self.inodes.get(header.node)?;
            Ok(Handle::new(inode, Some(open()?)))
        })
    }

    pub(crate) fn read(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
    ) -> Answer {
        let handle = self.file_to_read(header, input.u64()?)?;
        let (offset, size) = (position(input.u64()?)?, input.u32()? as usize);
        let room = size.min(MAX_TRANSFER).min(output.room());
        let end = output.bytes.len() + room;
        output.bytes.reserve_exact(room);
        let mut place = offset;
        // The host may return fewer bytes than there are.
        while output.bytes.len() < end {
            match rustix::io::pread(handle.fd()?, spare_capacity(&mut output.bytes), place) {
                Ok(0) => break,
                Ok(count) => place += count as u64,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        output.bytes.truncate(end);
        Ok(())
    }

    pub(crate) fn write(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
    ) -> Answer {
        self.check_writable()?;
        let handle = self.file(input.u64()?)?;
        let (offset, size) = (input.u64()?, input.u32()? as usize);
        let write_flags = input.u32()?;
        let _lock_owner = input.u64()?;
        let flags = OFlags::from_bits_retain(input.u32()?);
        input.u32()?;
        let data = input.bytes(size)?;
        let is_from_cache = write_flags & WRITE_FROM_CACHE != 0;
        let kills = write_flags & WRITE_KILL_SUIDGID != 0;
        // Bytes from the guest's page cache belong to no user: the guest's kernel has checked the
        // rights.
        let writer = Header {
            uid: if is_from_cache { 0 } else { header.uid },
            ..*header
        };
        let appends = flags.contains(OFlags::APPEND) && !is_from_cache;
        let place = Place {
            offset: position(offset)?,
            appends,
        };
        let written = self.write_data(&writer, &handle, place, data, kills)?;
        output.u32(written as u32);
        output.u32(0);
        Ok(())
    }

    /// Writes data to an open file for a user, and returns how many bytes were written. `kills` is
    /// set if the guest's kernel requests that set-user-ID and set-group-ID are cleared.
    pub(crate) fn write_data(
        &self,
        writer: &Header,
        handle: &Handle,
        place: Place,
        mut data: &[u8],
        kills: bool,
    ) -> Result<usize, Errno> {
        self.content_changes(writer, &handle.inode, kills)?;
        let (mut offset, mut written) = (place.offset, 0);
        while !data.is_empty() {
            let fd = handle.fd()?;
            let count = if place.appends {
                rustix::io::pwritev2(fd, &[IoSlice::new(data)], offset, ReadWriteFlags::APPEND)
            } else {
                rustix::io::pwrite(fd, data, offset)
            };
            match count {
                Ok(0) => break,
                Ok(count) => {
                    written += count;
                    offset += count as u64;
                    data = data.get(count..).unwrap_or_default();
                }
                Err(Errno::INTR) => {}
                // A part was written; the guest will try the rest.
                Err(_) if written > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }

    pub(crate) fn fsync(&self, mut input: Input<'_>) -> Answer {
        let number = input.u64()?;
        if number == UNOPENED && (self.reads_unopened() || self.lists_unopened()) {
            return Ok(());
        }
        let handle = self.handles.get(number)?;
        match (&handle.fd, input.u32()? & FSYNC_DATA) {
            (None, _) => Ok(()),
            (Some(fd), 0) => rustix::fs::fsync(fd),
            (Some(fd), _) => rustix::fs::fdatasync(fd),
        }
    }

    pub(crate) fn syncfs(&self, header: &Header) -> Answer {
        if self.options.readonly {
            return Ok(());
        }
        let inode = self.inodes.get(header.node)?;
        if inode.kind != FileType::Directory {
            return Err(Errno::INVAL);
        }
        let directory = self.reopen(&inode, OFlags::RDONLY | OFlags::DIRECTORY)?;
        rustix::fs::syncfs(&directory)
    }

    pub(crate) fn fallocate(&self, header: &Header, mut input: Input<'_>) -> Answer {
        self.check_writable()?;
        let handle = self.file(input.u64()?)?;
        let (offset, length) = (position(input.u64()?)?, position(input.u64()?)?);
        let mode = FallocateFlags::from_bits(input.u32()?).ok_or(Errno::OPNOTSUPP)?;
        // The protocol has no flag by which the guest's kernel could request this.
        self.content_changes(header, &handle.inode, false)?;
        rustix::fs::fallocate(handle.fd()?, mode, offset, length)
    }

    pub(crate) fn lseek(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
    ) -> Answer {
        /// For lseek(2): to data, and to a hole.
        const DATA: u32 = 3;
        const HOLE: u32 = 4;
        let handle = self.file_to_read(header, input.u64()?)?;
        let offset = position(input.u64()?)?;
        let to = match input.u32()? {
            DATA => SeekFrom::Data(offset),
            HOLE => SeekFrom::Hole(offset),
            // The guest's kernel handles all others itself.
            _ => return Err(Errno::INVAL),
        };
        output.u64(rustix::fs::seek(handle.fd()?, to)?);
        Ok(())
    }

    pub(crate) fn copy_file_range(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
    ) -> Answer {
        self.check_writable()?;
        let source = self.file(input.u64()?)?;
        let mut from = position(input.u64()?)?;
        let _node = input.u64()?;
        let target = self.file(input.u64()?)?;
        let mut to = position(input.u64()?)?;
        let length = input.u64()?.min(MAX_COPY) as usize;
        if input.u64()? != 0 {
            return Err(Errno::INVAL);
        }
        self.content_changes(header, &target.inode, false)?;
        let (source, target) = (source.fd()?, target.fd()?);
        let copied =
            rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), length)?;
        output.u32(copied as u32);
        output.u32(0);
        Ok(())
    }
}

/// Checks a position in a file, which must be less than 2^63.
pub(crate) fn position(offset: u64) -> Result<u64, Errno> {
    i64::try_from(offset).map_err(|_| Errno::INVAL)?;
    Ok(offset)
}
