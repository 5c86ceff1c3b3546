//! Attributes: GETATTR, SETATTR, STATFS, and as a part of other replies.

use crate::answer::Answer;
use crate::inodes::{Inode, path_of};
use crate::owner::{Change, Ownership};
use crate::protocol::{Header, Input, Output, ROOT, set};
use crate::server::Server;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;

/// For utimensat: the time is not changed.
const UTIME_OMIT: i64 = 0x3fff_fffe;
/// For utimensat: the present time is set.
const UTIME_NOW: i64 = 0x3fff_ffff;

impl Server {
    /// Writes the attributes of a file (`fuse_attr`).
    pub(crate) fn put_attributes(&self, stat: &Stat, owner: Ownership, output: &mut Output) {
        output.u64(self.inodes.shown_number(stat));
        output.u64(stat.st_size as u64);
        output.u64(stat.st_blocks as u64);
        for seconds in [stat.st_atime, stat.st_mtime, stat.st_ctime] {
            output.u64(seconds as u64);
        }
        for part in [stat.st_atime_nsec, stat.st_mtime_nsec, stat.st_ctime_nsec] {
            output.u32(part as u32);
        }
        output.u32(stat.st_mode & !crate::owner::MODE_BITS | owner.mode);
        output.u32(u32::try_from(stat.st_nlink).unwrap_or(u32::MAX));
        output.u32(owner.uid);
        output.u32(owner.gid);
        // Device numbers in the kernel's form have twelve bits for the major and twenty for the
        // minor number.
        let (major, minor) = (
            rustix::fs::major(stat.st_rdev),
            rustix::fs::minor(stat.st_rdev),
        );
        output.u32(minor & 0xff | major << 8 | (minor & !0xff) << 12);
        output.u32(stat.st_blksize as u32);
        output.u32(0);
    }

    /// Writes the description of a file that the guest learns of (`fuse_entry_out`).
    pub(crate) fn put_entry(
        &self,
        inode: &Inode,
        stat: &Stat,
        owner: Ownership,
        output: &mut Output,
    ) {
        let seconds = u64::from(self.options.cache_seconds);
        output.u64(inode.number);
        output.u64(0);
        output.u64(seconds);
        output.u64(seconds);
        output.zeros(8);
        self.put_attributes(stat, owner, output);
    }

    /// Returns owner and mode of a file as the guest sees them.
    pub(crate) fn owner(&self, inode: &Inode, stat: &Stat) -> Result<Ownership, Errno> {
        Ok(self.owners.shown(&*self.inodes.fd(inode)?, stat))
    }

    /// Writes a reply that describes a file. If that fails, the lookup of the file is undone.
    pub(crate) fn reply_entry(&self, inode: &Inode, stat: &Stat, output: &mut Output) -> Answer {
        let owner = self.owner(inode, stat);
        let owner = owner.inspect_err(|_| self.inodes.forget(inode.number, 1))?;
        self.reply_entry_of(inode, stat, owner, output)
    }

    /// Writes a reply that describes a file whose owner is known.
    pub(crate) fn reply_entry_of(
        &self,
        inode: &Inode,
        stat: &Stat,
        owner: Ownership,
        output: &mut Output,
    ) -> Answer {
        self.put_entry(inode, stat, owner, output);
        if output.bytes.len() > output.capacity {
            self.inodes.forget(inode.number, 1);
            return Err(Errno::RANGE);
        }
        Ok(())
    }

    fn reply_attributes(&self, inode: &Inode, output: &mut Output) -> Answer {
        let fd = self.inodes.fd(inode)?;
        let stat = rustix::fs::fstat(&*fd)?;
        self.reply_attributes_of(&stat, self.owners.shown(&*fd, &stat), output);
        Ok(())
    }

    /// Writes the attributes of a file whose state and owner are known.
    pub(crate) fn reply_attributes_of(&self, stat: &Stat, owner: Ownership, output: &mut Output) {
        output.u64(self.options.cache_seconds.into());
        output.zeros(8);
        self.put_attributes(stat, owner, output);
    }

    pub(crate) fn getattr(&self, header: &Header, output: &mut Output) -> Answer {
        self.reply_attributes(&*self.inodes.get(header.node)?, output)
    }

    pub(crate) fn setattr(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
    ) -> Answer {
        self.check_writable()?;
        let inode = self.inodes.get(header.node)?;
        if inode.is_sealed {
            return Err(Errno::PERM);
        }
        let valid = input.u32()?;
        input.u32()?;
        let (handle, size) = (input.u64()?, input.u64()?);
        let _lock_owner = input.u64()?;
        let (accessed, modified, _changed) = (input.u64()?, input.u64()?, input.u64()?);
        let (accessed_part, modified_part) = (input.u32()?, input.u32()?);
        let _changed_part = input.u32()?;
        let mode = input.u32()?;
        input.u32()?;
        let (uid, gid) = (input.u32()?, input.u32()?);
        let has = |bit: u32| valid & bit != 0;

        let fd = self.inodes.fd(&inode)?;
        if has(set::SIZE) {
            self.content_changes(header, &inode, has(set::KILL_SUIDGID))?;
            self.truncate(&inode, has(set::HANDLE).then_some(handle), size)?;
        }
        let change = Change {
            uid: has(set::UID).then_some(uid),
            gid: has(set::GID).then_some(gid),
            mode: has(set::MODE).then_some(mode),
            // A new owner clears these bits (chown(2)), and so does a new size if the kernel says
            // so.
            clears_set_id: has(set::KILL_SUIDGID) || (has(set::UID | set::GID) && !has(set::MODE)),
        };
        if change != Change::default() {
            self.owners.change(&*fd, change)?;
        }
        if has(set::ATIME | set::MTIME) {
            let time = |bit: u32, now_bit: u32, seconds: u64, part: u32| Timespec {
                tv_sec: seconds as i64,
                tv_nsec: match (has(bit), has(now_bit)) {
                    (false, _) => UTIME_OMIT,
                    (true, true) => UTIME_NOW,
                    (true, false) => i64::from(part),
                },
            };
            let times = Timestamps {
                last_access: time(set::ATIME, set::ATIME_NOW, accessed, accessed_part),
                last_modification: time(set::MTIME, set::MTIME_NOW, modified, modified_part),
            };
            let path = path_of(&*fd);
            self.owners.as_root(&self.inodes, &inode, || {
                rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty())
            })?;
        }
        self.reply_attributes(&inode, output)
    }

    fn truncate(&self, inode: &Inode, handle: Option<u64>, size: u64) -> Answer {
        if inode.kind != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        // The size is larger than any offset.
        if i64::try_from(size).is_err() {
            return Err(Errno::FBIG);
        }
        if let Some(handle) = handle
            && let Ok(handle) = self.handles.get(handle)
            && handle.inode.number == inode.number
        {
            return rustix::fs::ftruncate(handle.fd()?, size);
        }
        let file = self.reopen(inode, OFlags::WRONLY)?;
        rustix::fs::ftruncate(&file, size)
    }

    pub(crate) fn statfs(&self, header: &Header, output: &mut Output) -> Answer {
        // The guest may ask before it knows any file.
        let number = if header.node == 0 { ROOT } else { header.node };
        let inode = self.inodes.get(number)?;
        let stat = rustix::fs::fstatfs(&*self.inodes.fd(&inode)?)?;
        for count in [
            stat.f_blocks as u64,
            stat.f_bfree as u64,
            stat.f_bavail as u64,
            stat.f_files as u64,
            stat.f_ffree as u64,
        ] {
            output.u64(count);
        }
        output.u32(stat.f_bsize as u32);
        output.u32(stat.f_namelen as u32);
        output.u32(stat.f_frsize as u32);
        output.zeros(28);
        Ok(())
    }

    /// Opens a file that the guest knows, for reading or writing. Only regular files and
    /// directories are opened, because opening a pipe or a device would have effects on the host.
    pub(crate) fn reopen(
        &self,
        inode: &Inode,
        flags: OFlags,
    ) -> Result<crate::limits::CountedFd, Errno> {
        match inode.kind {
            FileType::RegularFile | FileType::Directory => {}
            FileType::Symlink => return Err(Errno::LOOP),
            _ => return Err(Errno::NXIO),
        }
        self.inodes.make_room()?;
        let fd = self.inodes.fd(inode)?;
        let path = path_of(&*fd);
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let file = self.owners.as_root(&self.inodes, inode, || {
            rustix::fs::openat(CWD, &path, flags, Mode::empty())
        })?;
        Ok(crate::limits::CountedFd::new(file))
    }
}
