//! Names: LOOKUP and FORGET, and the requests that create, move and remove them.

use crate::answer::Answer;
use crate::inodes::{Inode, key, open_beneath, path_of};
use crate::limits::CountedFd;
use crate::owner::{MODE_BITS, Ownership};
use crate::protocol::{Header, Input, Output, opcode};
use crate::server::Server;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::sync::Arc;

impl Server {
    pub(crate) fn lookup(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
    ) -> Answer {
        let parent = self.inodes.get(header.node)?;
        let name = input.name()?;
        if parent.is_sealed {
            return Err(Errno::NOENT);
        }
        let found = self
            .owners
            .as_root(&self.inodes, &parent, || self.inodes.look_up(&parent, name));
        match found {
            Err(Errno::NOENT) => self.reply_missing(output),
            Err(error) => Err(error),
            Ok((inode, stat)) => self.reply_entry(&inode, &stat, output),
        }
    }

    /// Reports that a name does not exist. The guest may cache that for a while too, because
    /// programs look in many places.
    pub(crate) fn reply_missing(&self, output: &mut Output) -> Answer {
        if self.options.cache_seconds == 0 {
            return Err(Errno::NOENT);
        }
        output.zeros(16);
        output.u64(self.options.cache_seconds.into());
        output.zeros(104);
        Ok(())
    }

    pub(crate) fn forget(&self, header: &Header, mut input: Input<'_>) -> Answer {
        if header.opcode == opcode::FORGET {
            self.forget_one(header.node, input.u64()?);
            return Ok(());
        }
        let count = input.u32()?;
        input.u32()?;
        for _ in 0..count {
            let number = input.u64()?;
            self.forget_one(number, input.u64()?);
        }
        Ok(())
    }

    fn forget_one(&self, number: u64, times: u64) {
        self.unopened.close(number);
        self.unopened_directories.close(number);
        self.inodes.forget(number, times);
    }

    pub(crate) fn readlink(&self, header: &Header, output: &mut Output) -> Answer {
        let inode = self.inodes.get(header.node)?;
        if inode.kind != FileType::Symlink {
            return Err(Errno::INVAL);
        }
        let target = rustix::fs::readlinkat(&*self.inodes.fd(&inode)?, c"", Vec::new())?;
        output.bytes.extend(target.as_bytes());
        Ok(())
    }

    /// Returns owner and mode of a file that a request creates in a directory.
    pub(crate) fn wanted(
        &self,
        header: &Header,
        parent: &Inode,
        mode: u32,
        is_directory: bool,
    ) -> Result<Ownership, Errno> {
        let fd = self.inodes.directory(parent)?;
        let stat = rustix::fs::fstat(&*fd)?;
        let shown = self.owners.shown(&*fd, &stat);
        let owners = &self.owners;
        Ok(owners.of_new(shown, header.uid, header.gid, mode, is_directory))
    }

    /// Creates a file that is not opened, and describes it in the reply.
    fn make(
        &self,
        header: &Header,
        name: &OsStr,
        mode: u32,
        is_directory: bool,
        output: &mut Output,
        make: impl Fn(&CountedFd, Mode) -> Answer,
    ) -> Answer {
        self.check_writable()?;
        let parent = self.inodes.get(header.node)?;
        let wanted = self.wanted(header, &parent, mode, is_directory)?;
        let directory = self.inodes.directory(&parent)?;
        let mode = crate::owner::Owners::creation_mode(wanted);
        self.owners
            .as_root(&self.inodes, &parent, || make(&directory, mode))?;
        let (inode, mut stat) = self.inodes.look_up(&parent, name)?;
        // Another process may already have replaced the file.
        if stat.st_nlink > 0 {
            let settled = self.settle(&inode, &mut stat, wanted);
            if let Err(error) = settled {
                self.inodes.forget(inode.number, 1);
                return Err(error);
            }
        }
        self.reply_entry(&inode, &stat, output)
    }

    /// Gives a new file its owner and mode, and updates `stat`.
    pub(crate) fn settle(
        &self,
        inode: &Inode,
        stat: &mut rustix::fs::Stat,
        wanted: Ownership,
    ) -> Answer {
        let fd = self.inodes.fd(inode)?;
        self.owners.settle_new(&*fd, stat, wanted)?;
        *stat = rustix::fs::fstat(&*fd)?;
        Ok(())
    }

    pub(crate) fn mkdir(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
    ) -> Answer {
        let (mode, _umask) = (input.u32()?, input.u32()?);
        let name = input.name()?;
        self.make(header, name, mode & MODE_BITS, true, output, |fd, mode| {
            rustix::fs::mkdirat(fd, name, mode)
        })
    }

    pub(crate) fn mknod(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
    ) -> Answer {
        let (mode, device) = (input.u32()?, input.u32()?);
        let (_umask, _padding) = (input.u32()?, input.u32()?);
        let name = input.name()?;
        let kind = FileType::from_raw_mode(mode);
        match kind {
            FileType::RegularFile | FileType::Fifo | FileType::Socket => {}
            // The mark of an overlay file system for a removed file, which is no device.
            FileType::CharacterDevice if device == 0 => {}
            // A device of the host, which the guest may not create.
            FileType::CharacterDevice | FileType::BlockDevice => return Err(Errno::PERM),
            _ => return Err(Errno::INVAL),
        }
        self.make(header, name, mode & MODE_BITS, false, output, |fd, mode| {
            rustix::fs::mknodat(fd, name, kind, mode, 0)
        })
    }

    pub(crate) fn symlink(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
    ) -> Answer {
        let name = input.name()?;
        let target: &CStr = input.text()?;
        self.make(header, name, 0o777, false, output, |fd, _mode| {
            rustix::fs::symlinkat(target, fd, name)
        })
    }

    pub(crate) fn link(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
    ) -> Answer {
        self.check_writable()?;
        let inode = self.inodes.get(input.u64()?)?;
        let parent = self.inodes.get(header.node)?;
        let name = input.name()?;
        if inode.kind == FileType::Directory {
            return Err(Errno::PERM);
        }
        let directory = self.inodes.directory(&parent)?;
        let path = path_of(&*self.inodes.fd(&inode)?);
        self.owners.as_root(&self.inodes, &parent, || {
            rustix::fs::linkat(CWD, &path, &*directory, name, AtFlags::SYMLINK_FOLLOW)
        })?;
        let (inode, stat) = self.inodes.look_up(&parent, name)?;
        self.reply_entry(&inode, &stat, output)
    }

    pub(crate) fn unlink(
        &self,
        header: &Header,
        mut input: Input<'_>,
        is_directory: bool,
    ) -> Answer {
        self.check_writable()?;
        let parent = self.inodes.get(header.node)?;
        let name = input.name()?;
        let directory = self.inodes.directory(&parent)?;
        let flags = match is_directory {
            true => AtFlags::REMOVEDIR,
            false => AtFlags::empty(),
        };
        self.owners.as_root(&self.inodes, &parent, || {
            rustix::fs::unlinkat(&*directory, name, flags)
        })
    }

    pub(crate) fn rename(&self, header: &Header, mut input: Input<'_>, has_flags: bool) -> Answer {
        self.check_writable()?;
        let from = self.inodes.get(header.node)?;
        let to = self.inodes.get(input.u64()?)?;
        let mut flags = RenameFlags::empty();
        if has_flags {
            flags = RenameFlags::from_bits(input.u32()?).ok_or(Errno::INVAL)?;
            input.u32()?;
        }
        let (old, new) = (input.name()?, input.name()?);
        let (source, target) = (self.inodes.directory(&from)?, self.inodes.directory(&to)?);
        let rename = || rustix::fs::renameat_with(&*source, old, &*target, new, flags);
        self.owners.as_root(&self.inodes, &from, || {
            self.owners.as_root(&self.inodes, &to, rename)
        })?;
        self.note_name(&to, new);
        if flags.contains(RenameFlags::EXCHANGE) {
            self.note_name(&from, old);
        }
        Ok(())
    }

    /// Records the present name of a file.
    fn note_name(&self, parent: &Arc<Inode>, name: &OsStr) {
        let Ok(directory) = self.inodes.directory(parent) else {
            return;
        };
        if let Ok(stat) = rustix::fs::statat(&*directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            self.inodes.moved(key(&stat), parent, name);
        }
    }

    /// Creates a regular file, or opens an existing one.
    pub(crate) fn create(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
    ) -> Answer {
        self.check_writable()?;
        let (flags, mode) = (input.u32()?, input.u32()?);
        let (_umask, open_flags) = (input.u32()?, input.u32()?);
        let name = input.name()?;
        let parent = self.inodes.get(header.node)?;
        let wanted = self.wanted(header, &parent, mode & MODE_BITS, false)?;
        let directory = self.inodes.directory(&parent)?;
        let flags = OFlags::from_bits_retain(flags);
        self.inodes.make_room()?;
        let new = OFlags::CREATE | OFlags::EXCL | flags & OFlags::ACCMODE;
        let creation_mode = crate::owner::Owners::creation_mode(wanted);
        let created = self.owners.as_root(&self.inodes, &parent, || {
            open_beneath(&*directory, name, new, creation_mode)
        });
        match created {
            Ok(fd) => {
                let file = CountedFd::new(fd);
                let same = OFlags::PATH | OFlags::CLOEXEC;
                let fd = rustix::fs::openat(CWD, path_of(&file), same, Mode::empty())?;
                let (inode, mut stat) = self.inodes.insert(&parent, name, fd)?;
                if let Err(error) = self.settle(&inode, &mut stat, wanted) {
                    self.inodes.forget(inode.number, 1);
                    return Err(error);
                }
                self.reply_entry(&inode, &stat, output)?;
                self.put_handle(inode, Some(file), output);
                Ok(())
            }
            Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => {
                let (inode, _) = self.inodes.look_up(&parent, name)?;
                // O_TRUNC changes the file's attributes.
                let opened =
                    (self.open_known(header, &inode, flags, open_flags)).and_then(|file| {
                        let stat = rustix::fs::fstat(&*self.inodes.fd(&inode)?)?;
                        Ok((file, stat))
                    });
                let (file, stat) = opened.inspect_err(|_| self.inodes.forget(inode.number, 1))?;
                self.reply_entry(&inode, &stat, output)?;
                self.put_handle(inode, Some(file), output);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
