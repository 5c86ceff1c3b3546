//! Requests that are answered immediately, on the thread that has them, because handing them to
//! another thread and being woken by it would cost more than the answer.
//!
//! That thread is the vCPU's: while it answers, the guest stands still. So nothing is done here
//! that may wait. Names are looked up if the host's kernel has them in memory (`RESOLVE_CACHED`),
//! data is read if it is in the page cache (`RWF_NOWAIT`), and directories are read as far as
//! entries are already here. Only file systems that need no network and no other process are asked.
//! Requests that change a file are left to the threads, because the host may make the writer wait
//! for the disk. Requests that fail are left to them too: an answer of `None` means that a thread
//! must handle the request.
//!
//! The attributes of files that are open here are in memory, but an extended attribute may be in a
//! block of its own, and a scanner may watch a file that is opened. After an answer that was late
//! for any reason, [`Patience`] makes the threads answer for a while, and for longer if that
//! happens again.

use crate::answer::Answer;
use crate::inodes::{Inode, path_of};
use crate::limits::CountedFd;
use crate::protocol::{Header, Input, MAX_REQUEST_BYTES, Output, opcode};
use crate::server::Server;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use rustix::io::{Errno, ReadWriteFlags};
use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::Instant;

/// The maximum number of bytes that are read immediately. The guest's kernel reads this many ahead.
const MOST_BYTES: usize = 128 << 10;
impl Server {
    /// Answers a request like [`handle`](Self::handle), but never waits. `None` means that the
    /// answer may have to wait: nothing was done, and a thread that may wait must handle the
    /// request.
    pub fn handle_at_once(&self, request: &[u8], capacity: usize) -> Option<Vec<u8>> {
        if request.len() > MAX_REQUEST_BYTES {
            return None;
        }
        let (header, input) = Header::read(request)?;
        let begun = Instant::now();
        if self.patience.is_over(begun) {
            return None;
        }
        let answer = match header.opcode {
            // The request has no answer.
            opcode::FORGET => self.forget_at_once(&header, input).map(|()| Vec::new()),
            _ => {
                let mut output = Output::new(capacity);
                let result = self.answer_at_once(&header, input, &mut output);
                result.map(|result| output.finish(header.unique, result))
            }
        };
        self.patience.note(begun, Instant::now());
        answer
    }

    /// Handles FORGET. Closing the last descriptor of a deleted file may take long, because its
    /// blocks are freed then.
    fn forget_at_once(&self, header: &Header, input: Input<'_>) -> Option<()> {
        let inode = self.local(header.node)?;
        if let Some(fd) = self.inodes.open_fd(&inode) {
            let stat = rustix::fs::fstat(&*fd).ok()?;
            if stat.st_nlink == 0 {
                return None;
            }
        }
        self.forget(header, input).ok()
    }

    /// Answers a request whose header has been read, if that needs no wait.
    pub(crate) fn answer_at_once(
        &self,
        header: &Header,
        input: Input<'_>,
        output: &mut Output,
    ) -> Option<Answer> {
        match header.opcode {
            opcode::LOOKUP => self.lookup_at_once(header, input, output),
            opcode::GETATTR => self.getattr_at_once(header, output),
            opcode::GETXATTR => self.getxattr_at_once(header, input, output),
            opcode::READLINK => self.readlink_at_once(header, output),
            opcode::OPEN => self.open_at_once(header, input, output),
            opcode::OPENDIR => self.opendir_at_once(header, output),
            opcode::READ => self.read_at_once(header, input, output),
            opcode::READDIR => self.readdir_at_once(header, input, output, false),
            opcode::READDIRPLUS => self.readdir_at_once(header, input, output, true),
            opcode::RELEASE | opcode::RELEASEDIR => self.release_at_once(input),
            _ => None,
        }
    }

    /// Returns a file of a file system that needs no other machine or process.
    fn local(&self, number: u64) -> Option<Arc<Inode>> {
        let inode = self.inodes.get(number).ok()?;
        (inode.is_local && !inode.is_sealed).then_some(inode)
    }

    fn lookup_at_once(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
    ) -> Option<Answer> {
        let parent = self.local(header.node)?;
        let name = input.name().ok()?;
        match self.inodes.look_up_at_once(&parent, name)? {
            Ok((inode, stat)) => self.entry_at_once(&inode, &stat, output),
            Err(Errno::NOENT) => Some(self.reply_missing(output)),
            Err(_) => None,
        }
    }

    /// Writes a reply that describes a file. If its owner cannot be read without a wait, the lookup
    /// of the file is undone.
    fn entry_at_once(&self, inode: &Inode, stat: &Stat, output: &mut Output) -> Option<Answer> {
        let fd = self.inodes.open_fd(inode);
        let owner = fd.and_then(|fd| self.owners.shown_at_once(&*fd, stat));
        match owner {
            Some(owner) => Some(self.reply_entry_of(inode, stat, owner, output)),
            None => {
                self.inodes.forget(inode.number, 1);
                None
            }
        }
    }

    fn getattr_at_once(&self, header: &Header, output: &mut Output) -> Option<Answer> {
        let inode = self.local(header.node)?;
        let fd = self.inodes.open_fd(&inode)?;
        let stat = rustix::fs::fstat(&*fd).ok()?;
        let owner = self.owners.shown_at_once(&*fd, &stat)?;
        self.reply_attributes_of(&stat, owner, output);
        Some(Ok(()))
    }

    fn getxattr_at_once(
        &self,
        header: &Header,
        input: Input<'_>,
        output: &mut Output,
    ) -> Option<Answer> {
        if self.options.hides_attributes {
            return None;
        }
        let inode = self.local(header.node)?;
        self.inodes.open_fd(&inode)?;
        match self.getxattr_by(header, input, output, |_, read| read()) {
            Err(Errno::ACCESS) => None,
            answer => Some(answer),
        }
    }

    fn readlink_at_once(&self, header: &Header, output: &mut Output) -> Option<Answer> {
        let inode = self.local(header.node)?;
        self.inodes.open_fd(&inode)?;
        Some(self.readlink(header, output))
    }

    /// Opens a file or directory for reading, as [`reopen`](Self::reopen) does.
    fn reopen_at_once(&self, inode: &Inode, flags: OFlags) -> Option<CountedFd> {
        if !matches!(inode.kind, FileType::RegularFile | FileType::Directory) {
            return None;
        }
        if !self.inodes.has_room() {
            return None;
        }
        let fd = self.inodes.open_fd(inode)?;
        // The call does not wait for the holder of a lease on the file.
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let file = rustix::fs::openat(CWD, path_of(&*fd), flags, Mode::empty());
        Some(CountedFd::new(file.ok()?))
    }

    fn open_at_once(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
    ) -> Option<Answer> {
        let flags = OFlags::from_bits_retain(input.u32().ok()?);
        let inode = self.local(header.node)?;
        let changes = flags & OFlags::ACCMODE != OFlags::RDONLY || flags.contains(OFlags::TRUNC);
        if changes || self.reads_unopened() || inode.kind != FileType::RegularFile {
            return None;
        }
        let file = self.reopen_at_once(&inode, OFlags::RDONLY)?;
        self.put_handle(inode, Some(file), output);
        Some(Ok(()))
    }

    fn opendir_at_once(&self, header: &Header, output: &mut Output) -> Option<Answer> {
        let inode = self.local(header.node)?;
        if inode.kind != FileType::Directory || self.lists_unopened() {
            return None;
        }
        let directory = self.reopen_at_once(&inode, OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.put_handle(inode, Some(directory), output);
        Some(Ok(()))
    }

    fn read_at_once(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
    ) -> Option<Answer> {
        let open = || {
            let inode = self.local(header.node).ok_or(Errno::AGAIN)?;
            match inode.kind {
                FileType::RegularFile => self.reopen_at_once(&inode, OFlags::RDONLY),
                _ => None,
            }
            .ok_or(Errno::AGAIN)
        };
        let handle = self.file_to_read_by(header, input.u64().ok()?, open).ok()?;
        let (mut place, size) = (input.u64().ok()?, input.u32().ok()? as usize);
        i64::try_from(place).ok()?;
        let start = output.bytes.len();
        let room = size.min(output.room());
        if !handle.inode.is_local || room > MOST_BYTES {
            return None;
        }
        output.zeros(room);
        let mut left = output.bytes.get_mut(start..)?;
        while !left.is_empty() {
            let pieces = &mut [IoSliceMut::new(left)];
            match rustix::io::preadv2(handle.fd().ok()?, pieces, place, ReadWriteFlags::NOWAIT) {
                Ok(0) => break,
                Ok(count) => {
                    place += count as u64;
                    left = left.get_mut(count..)?;
                }
                // A part is not in memory, or the file system does not support the check.
                Err(_) => return None,
            }
        }
        let missing = left.len();
        output.bytes.truncate(start + room - missing);
        Some(Ok(()))
    }

    /// Closes a file that was open for reading. The file stays open in the table of files, so
    /// nothing else happens.
    fn release_at_once(&self, mut input: Input<'_>) -> Option<Answer> {
        let number = input.u64().ok()?;
        let handle = self.handles.get(number).ok()?;
        let flags = rustix::fs::fcntl_getfl(handle.fd().ok()?).ok()?;
        let is_for_reading = flags & OFlags::ACCMODE == OFlags::RDONLY;
        if !handle.inode.is_local || !is_for_reading {
            return None;
        }
        self.handles.remove(number);
        Some(Ok(()))
    }
}
