//! Reading directories: OPENDIR, READDIR, READDIRPLUS.

use crate::answer::Answer;
use crate::handles::{Handle, UNOPENED};
use crate::inodes::Inode;
use crate::limits::CountedFd;
use crate::listing::Entry;
use crate::protocol::{Header, Input, MAX_TRANSFER, Output};
use crate::server::Server;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// The size in bytes of READDIRPLUS's description of a file, in addition to its entry.
const FILE_BYTES: usize = 128;

impl Server {
    pub(crate) fn opendir(&self, header: &Header, output: &mut Output) -> Answer {
        if self.lists_unopened() {
            // After this answer the guest's kernel opens no directory of this share.
            return Err(Errno::NOSYS);
        }
        let (inode, directory) = self.open_directory(header.node)?;
        self.put_handle(inode, directory, output);
        Ok(())
    }

    fn open_directory(&self, number: u64) -> Result<(Arc<Inode>, Option<CountedFd>), Errno> {
        let inode = self.inodes.get(number)?;
        if inode.kind != FileType::Directory {
            return Err(Errno::NOTDIR);
        }
        let directory = match inode.is_sealed {
            true => None,
            false => Some(self.reopen(&inode, OFlags::RDONLY | OFlags::DIRECTORY)?),
        };
        Ok((inode, directory))
    }

    /// Returns an open directory, or one that the request reads without having opened it.
    fn directory_to_read(&self, header: &Header, number: u64) -> Result<Arc<Handle>, Errno> {
        if number != UNOPENED || !self.lists_unopened() {
            return self.handles.get(number);
        }
        self.unopened_directories.get(header.node, || {
            let (inode, directory) = self.open_directory(header.node)?;
            Ok(Handle::new(inode, directory))
        })
    }

    pub(crate) fn readdir(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
        plus: bool,
    ) -> Answer {
        let handle = self.directory_to_read(header, input.u64()?)?;
        let (offset, size) = (input.u64()?, input.u32()? as usize);
        if handle.inode.kind != FileType::Directory {
            return Err(Errno::NOTDIR);
        }
        let Some(fd) = &handle.fd else {
            return Ok(());
        };
        let mut listing = handle.listing.lock().unwrap_or_else(|bad| bad.into_inner());
        listing.seek(fd, offset)?;
        let mut room = size.min(MAX_TRANSFER).min(output.room());
        loop {
            listing.fill(fd)?;
            let Some(entry) = listing.waiting.front() else {
                return Ok(());
            };
            let bytes = entry.bytes() + if plus { FILE_BYTES } else { 0 };
            if bytes > room {
                return Ok(());
            }
            room -= bytes;
            let Some(entry) = listing.take() else {
                return Ok(());
            };
            if plus {
                self.put_file(&handle, &entry, output);
            }
            self.put_directory_entry(&entry, output);
        }
    }

    /// Writes the description that a lookup of the entry would return, or zeros if the guest must
    /// look it up.
    fn put_file(&self, handle: &Handle, entry: &Entry, output: &mut Output) {
        let start = output.bytes.len();
        if !entry.is_dot() {
            let name = OsStr::from_bytes(entry.name.as_bytes());
            if let Ok((inode, stat)) = self.inodes.look_up(&handle.inode, name) {
                match self.owner(&inode, &stat) {
                    Ok(owner) => self.put_entry(&inode, &stat, owner, output),
                    Err(_) => self.inodes.forget(inode.number, 1),
                }
            }
        }
        output.bytes.resize(start + FILE_BYTES, 0);
    }

    /// Like [`readdir`](Self::readdir), but only with entries that have already been read, and of
    /// these only those whose files are immediately known.
    pub(crate) fn readdir_at_once(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
        plus: bool,
    ) -> Option<Answer> {
        let handle = match input.u64().ok()? {
            UNOPENED if self.lists_unopened() => self.unopened_directories.find(header.node)?,
            number => self.handles.get(number).ok()?,
        };
        let (offset, size) = (input.u64().ok()?, input.u32().ok()? as usize);
        if !handle.inode.is_local || handle.inode.kind != FileType::Directory {
            return None;
        }
        let mut listing = handle.listing.try_lock().ok()?;
        if offset == 0 || offset != listing.position {
            return None;
        }
        // The end is reported only once. A second request at the end reads the directory again,
        // because entries may have been added.
        if listing.waiting.is_empty() && std::mem::take(&mut listing.has_ended) {
            return Some(Ok(()));
        }
        let start = output.bytes.len();
        let mut room = size.min(MAX_TRANSFER).min(output.room());
        while let Some(entry) = listing.waiting.front() {
            let bytes = entry.bytes() + if plus { FILE_BYTES } else { 0 };
            if bytes > room || plus && !self.put_file_at_once(&handle, entry, output) {
                break;
            }
            room -= bytes;
            let entry = listing.take()?;
            self.put_directory_entry(&entry, output);
        }
        (output.bytes.len() > start).then_some(Ok(()))
    }

    /// Writes the description of a file. Returns false without writing if the file is not
    /// immediately known.
    fn put_file_at_once(&self, handle: &Handle, entry: &Entry, output: &mut Output) -> bool {
        let start = output.bytes.len();
        if !entry.is_dot() {
            let name = OsStr::from_bytes(entry.name.as_bytes());
            let Some(Ok((inode, stat))) = self.inodes.look_up_at_once(&handle.inode, name) else {
                return false;
            };
            let fd = self.inodes.open_fd(&inode);
            let owner = fd.and_then(|fd| self.owners.shown_at_once(&*fd, &stat));
            let Some(owner) = owner else {
                self.inodes.forget(inode.number, 1);
                return false;
            };
            self.put_entry(&inode, &stat, owner, output);
        }
        output.bytes.resize(start + FILE_BYTES, 0);
        true
    }

    fn put_directory_entry(&self, entry: &Entry, output: &mut Output) {
        let end = output.bytes.len() + entry.bytes();
        let name = entry.name.as_bytes();
        output.u64(entry.number);
        output.u64(entry.next);
        output.u32(name.len() as u32);
        output.u32(entry.kind);
        output.bytes.extend(name);
        output.bytes.resize(end, 0);
    }
}
