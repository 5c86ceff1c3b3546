//! The files that a guest knows, as another server finds them again: by their names, if they are still
//! the same files.

use super::{Inode, Inodes, State, open_beneath};
use crate::limits::CountedFd;
use crate::protocol::ROOT;
use rustix::fs::{FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

/// All files that a guest knows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KnownFiles {
    /// Device and inode number of the directory that is served.
    root: (u64, u64),
    /// The next number.
    next: u64,
    devices: Vec<u64>,
    files: Vec<KnownFile>,
}

/// A file that a guest knows, other than the root.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct KnownFile {
    number: u64,
    key: (u64, u64),
    /// The bits of the mode that say what it is.
    kind: u32,
    is_sealed: bool,
    is_local: bool,
    parent: u64,
    name: Vec<u8>,
    lookups: u64,
}

impl KnownFiles {
    /// Whether the guest knows the directory itself alone.
    pub fn is_root_alone(&self) -> bool {
        self.files.is_empty()
    }
}

impl Inodes {
    /// Returns what the guest knows.
    pub fn known(&self) -> KnownFiles {
        let numbers = self.numbers();
        let mut files: Vec<KnownFile> = numbers
            .by_number
            .values()
            .filter(|inode| inode.number != ROOT)
            .map(|inode| {
                let state = inode.state();
                KnownFile {
                    number: inode.number,
                    key: inode.key,
                    kind: inode.kind.as_raw_mode(),
                    is_sealed: inode.is_sealed,
                    is_local: inode.is_local,
                    parent: state.parent,
                    name: state.name.as_bytes().to_vec(),
                    lookups: state.lookups,
                }
            })
            .collect();
        files.sort_by_key(|file| file.number);
        KnownFiles {
            root: self.root.key,
            next: numbers.next,
            devices: numbers.devices.clone(),
            files,
        }
    }

    /// Knows the files that another server's guest knows. Returns false if that served another
    /// directory. A file that is not there any more, or is another one, the guest finds stale.
    pub fn adopt(&self, known: &KnownFiles) -> bool {
        if known.is_root_alone() {
            return true;
        }
        if known.root != self.root.key {
            return false;
        }
        let mut directories = Vec::new();
        let mut numbers = self.numbers();
        numbers.devices.clone_from(&known.devices);
        numbers.next = numbers.next.max(known.next);
        for file in known.files.iter().filter(|file| file.number > ROOT) {
            let inode = Arc::new(Inode {
                number: file.number,
                key: file.key,
                kind: FileType::from_raw_mode(file.kind),
                is_sealed: file.is_sealed,
                is_local: file.is_local,
                handles: AtomicUsize::new(0),
                state: Mutex::new(State {
                    fd: None,
                    parent: file.parent,
                    name: OsString::from_vec(file.name.clone()),
                    lookups: file.lookups,
                }),
            });
            if inode.kind == FileType::Directory {
                directories.push(Arc::clone(&inode));
            }
            numbers.next = numbers.next.max(file.number.saturating_add(1));
            numbers.by_key.insert(inode.key, Arc::clone(&inode));
            numbers.by_number.insert(file.number, inode);
        }
        drop(numbers);
        self.open_directories(directories);
        true
    }

    /// Opens directories, each after the one that contains it. Others are opened when they are used.
    fn open_directories(&self, mut closed: Vec<Arc<Inode>>) {
        loop {
            let before = closed.len();
            closed.retain(|inode| !self.open_directory(inode));
            if closed.is_empty() || closed.len() == before {
                return;
            }
        }
    }

    /// Opens a directory if the one that contains it is open. Returns whether it is open now.
    fn open_directory(&self, inode: &Inode) -> bool {
        let (parent, name) = {
            let state = inode.state();
            (state.parent, state.name.clone())
        };
        let directory = self.get(parent).ok().and_then(|it| self.open_fd(&it));
        let Some(directory) = directory.filter(|_| self.has_room()) else {
            return false;
        };
        let Ok(fd) = open_beneath(directory, &name, OFlags::PATH, Mode::empty()) else {
            return false;
        };
        let fd = CountedFd::new(fd);
        let is_same = rustix::fs::fstat(&fd).is_ok_and(|stat| super::key(&stat) == inode.key);
        if is_same {
            inode.state().fd = Some(Arc::new(fd));
        }
        is_same
    }
}
