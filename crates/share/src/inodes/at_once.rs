//! Look-ups that never wait, neither for a disk nor for a network, nor long for another thread.

use super::{CountedFd, Inode, Inodes, open_with};
use crate::limits;
use rustix::fs::{Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::sync::Arc;

impl Inodes {
    /// Returns the descriptor of a file, if it is open.
    pub fn open_fd(&self, inode: &Inode) -> Option<Arc<CountedFd>> {
        inode.state().fd.clone()
    }

    /// Whether another descriptor may be opened without closing others.
    pub fn has_room(&self) -> bool {
        limits::open() < self.limit
    }

    /// Like [`look_up`](Self::look_up), if the host's kernel has the answer in memory. Returns
    /// `None` if it has not, or if the name leads to another file system.
    pub fn look_up_at_once(
        &self,
        parent: &Arc<Inode>,
        name: &OsStr,
    ) -> Option<Result<(Arc<Inode>, Stat), Errno>> {
        let directory = self.open_fd(parent)?;
        if !parent.is_local || parent.is_sealed || !self.has_room() {
            return None;
        }
        // Hosts before Linux 5.12 do not support the first flag (EINVAL).
        let resolve = ResolveFlags::CACHED | ResolveFlags::NO_XDEV;
        match open_with(directory, name, OFlags::PATH, Mode::empty(), resolve) {
            Ok(fd) => Some(self.insert(parent, name, fd)),
            Err(Errno::NOENT) => Some(Err(Errno::NOENT)),
            Err(_) => None,
        }
    }
}
