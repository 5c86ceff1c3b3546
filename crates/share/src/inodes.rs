//! The files that a guest knows, by number.
//!
//! A number stands for a file or directory, whatever its name is. The table holds an `O_PATH`
//! descriptor of the file, so that the guest's file stays the same when the host renames it. A
//! number is valid from the first reply that contains it until the guest has forgotten it as often
//! as replies contained it, and is never used again.
//!
//! A guest may know more files than a process may have descriptors. When descriptors run short, the
//! table closes those of the files that were opened longest ago (but never those of directories or
//! of open files). It opens them again by the name under which they were last seen, if that is
//! still the same file.

use crate::file_systems::FileSystem;
use crate::limits::{self, CountedFd};
use crate::protocol::ROOT;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

mod at_once;
mod saved;

pub use saved::KnownFiles;

/// Identifies a file of the host: its device and its inode number.
pub type Key = (u64, u64);

/// Returns the file that a stat describes.
pub const fn key(stat: &Stat) -> Key {
    (stat.st_dev, stat.st_ino)
}

/// Returns the type of the file that a stat describes.
pub fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Returns the path by which calls without a descriptor argument reach the file of a descriptor.
/// Such a path never follows a symbolic link that the descriptor refers to.
pub fn path_of(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Opens a single name in a directory, without following it.
///
/// # Errors
/// An error of the host.
pub fn open_beneath(
    directory: impl AsFd,
    name: &OsStr,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    // A rename elsewhere on the host may disturb the kernel's check.
    for _ in 0..16 {
        match open_with(&directory, name, flags, mode, ResolveFlags::empty()) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

/// Tries to open the name once, with additional rules.
fn open_with(
    directory: impl AsFd,
    name: &OsStr,
    flags: OFlags,
    mode: Mode,
    rules: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(directory, name, flags, mode, resolve | rules)
}

/// A file that the guest knows.
#[derive(Debug)]
pub struct Inode {
    /// The guest's number of the file.
    pub number: u64,
    /// Identifies the host's file.
    pub key: Key,
    /// The type of the file.
    pub kind: FileType,
    /// Whether this is a directory of a file system whose contents the guest does not see.
    pub is_sealed: bool,
    /// Whether the file system answers without another machine or process.
    pub is_local: bool,
    /// The number of its open handles.
    pub handles: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    fd: Option<Arc<CountedFd>>,
    /// The directory and the name by which it was last seen.
    parent: u64,
    name: OsString,
    /// The number of replies that contained it, minus the number that were forgotten.
    lookups: u64,
}

impl Inode {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its descriptor may be closed for a while.
    fn can_rest(&self) -> bool {
        self.kind != FileType::Directory && self.handles.load(Ordering::Relaxed) == 0
    }
}

#[derive(Debug, Default)]
struct Numbers {
    by_number: HashMap<u64, Arc<Inode>>,
    by_key: HashMap<Key, Arc<Inode>>,
    next: u64,
    /// The files whose descriptor may be closed, the first opened first.
    open: VecDeque<u64>,
    /// The devices other than the root's. The index of a device is a part of file numbers.
    devices: Vec<u64>,
}

/// The table of the files that a guest knows.
#[derive(Debug)]
pub struct Inodes {
    numbers: Mutex<Numbers>,
    root: Arc<Inode>,
    /// The maximum number of descriptors of all shares.
    limit: usize,
}

impl Inodes {
    /// Makes a table that contains the root directory.
    ///
    /// # Errors
    /// The directory cannot be examined.
    pub fn new(root: OwnedFd, limit: usize) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(&root)?;
        let root = Arc::new(Inode {
            number: ROOT,
            key: key(&stat),
            kind: kind(&stat),
            is_sealed: false,
            is_local: FileSystem::of(&root).is_local,
            handles: AtomicUsize::new(0),
            state: Mutex::new(State {
                fd: Some(Arc::new(CountedFd::new(root))),
                parent: ROOT,
                name: OsString::new(),
                lookups: 1,
            }),
        });
        let table = Self {
            numbers: Mutex::new(Numbers {
                next: ROOT + 1,
                ..Numbers::default()
            }),
            root,
            limit,
        };
        table.forget_all();
        Ok(table)
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets everything except the root directory.
    pub fn forget_all(&self) {
        let root = &self.root;
        let mut numbers = self.numbers();
        let old = std::mem::take(&mut *numbers);
        numbers.next = old.next;
        numbers.devices = old.devices.clone();
        numbers.by_number.insert(ROOT, Arc::clone(root));
        numbers.by_key.insert(root.key, Arc::clone(root));
        // The files are closed after the lock is released, because an immediate answer may need it.
        drop(numbers);
        drop(old);
    }

    /// Returns how many files the guest knows.
    pub fn count(&self) -> usize {
        self.numbers().by_number.len()
    }

    /// Returns the file with a number.
    ///
    /// # Errors
    /// ESTALE: there is none.
    pub fn get(&self, number: u64) -> Result<Arc<Inode>, Errno> {
        let numbers = self.numbers();
        numbers.by_number.get(&number).cloned().ok_or(Errno::STALE)
    }

    /// Returns the file's inode number for the guest: the host's number, made unique across
    /// devices.
    pub fn shown_number(&self, stat: &Stat) -> u64 {
        if stat.st_dev == self.root.key.0 {
            return stat.st_ino;
        }
        let devices = &mut self.numbers().devices;
        let place = devices.iter().position(|device| *device == stat.st_dev);
        let place = place.unwrap_or_else(|| {
            devices.push(stat.st_dev);
            devices.len() - 1
        });
        stat.st_ino ^ (place as u64 + 1) << 48
    }

    /// Returns an `O_PATH` descriptor of the file.
    ///
    /// # Errors
    /// ESTALE: the descriptor was closed to save descriptors, and the file's name now stands for
    /// another file.
    pub fn fd(&self, inode: &Inode) -> Result<Arc<CountedFd>, Errno> {
        if let Some(fd) = &inode.state().fd {
            return Ok(Arc::clone(fd));
        }
        let (parent, name) = {
            let state = inode.state();
            (state.parent, state.name.clone())
        };
        // Directories are never closed, so this does not continue upwards.
        let parent = self.get(parent)?;
        let directory = parent.state().fd.clone().ok_or(Errno::STALE)?;
        self.make_room()?;
        let fd = open_beneath(directory, &name, OFlags::PATH, Mode::empty());
        let fd = CountedFd::new(fd.map_err(|_| Errno::STALE)?);
        if key(&rustix::fs::fstat(&fd)?) != inode.key {
            return Err(Errno::STALE);
        }
        let fd = Arc::new(fd);
        inode.state().fd = Some(Arc::clone(&fd));
        self.numbers().open.push_back(inode.number);
        Ok(fd)
    }

    /// Returns a descriptor of a directory in which names are looked up or changed.
    ///
    /// # Errors
    /// ENOTDIR, or EPERM for a directory in which the guest sees nothing.
    pub fn directory(&self, inode: &Inode) -> Result<Arc<CountedFd>, Errno> {
        match inode.kind {
            FileType::Directory if inode.is_sealed => Err(Errno::PERM),
            FileType::Directory => self.fd(inode),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// Makes sure that another descriptor may be opened, by closing some if necessary.
    ///
    /// # Errors
    /// ENFILE: no descriptor can be closed.
    pub fn make_room(&self) -> Result<(), Errno> {
        if limits::open() < self.limit {
            return Ok(());
        }
        let mut numbers = self.numbers();
        let mut closed = Vec::new();
        // Several are closed together, because the next request will need one too.
        for _ in 0..numbers.open.len() {
            let Some(number) = numbers.open.pop_front() else {
                break;
            };
            let Some(inode) = numbers.by_number.get(&number).cloned() else {
                continue;
            };
            if inode.can_rest() {
                closed.extend(inode.state().fd.take());
            } else {
                numbers.open.push_back(number);
            }
            if closed.len() >= 64 {
                break;
            }
        }
        drop(numbers);
        drop(closed);
        if limits::open() < self.limit {
            Ok(())
        } else {
            Err(Errno::NFILE)
        }
    }

    /// Opens a name for a reply that contains the file's number, which increases its lookups by
    /// one.
    ///
    /// # Errors
    /// An error of the host, or ENFILE.
    pub fn look_up(&self, parent: &Arc<Inode>, name: &OsStr) -> Result<(Arc<Inode>, Stat), Errno> {
        let directory = self.directory(parent)?;
        self.make_room()?;
        let fd = open_beneath(directory, name, OFlags::PATH, Mode::empty())?;
        self.insert(parent, name, fd)
    }

    /// Adds a file that is already open by an `O_PATH` descriptor to the table, for such a reply.
    ///
    /// # Errors
    /// An error of the host.
    pub fn insert(
        &self,
        parent: &Arc<Inode>,
        name: &OsStr,
        fd: OwnedFd,
    ) -> Result<(Arc<Inode>, Stat), Errno> {
        let stat = rustix::fs::fstat(&fd)?;
        let key = key(&stat);
        let fd = CountedFd::new(fd);
        let file_system = match key.0 == parent.key.0 {
            true => FileSystem {
                is_of_kernel: false,
                is_local: parent.is_local,
            },
            false => FileSystem::of(&fd),
        };
        let mut numbers = self.numbers();
        if let Some(inode) = numbers.by_key.get(&key).cloned() {
            let mut state = inode.state();
            state.lookups = state.lookups.saturating_add(1);
            if inode.number != ROOT {
                state.parent = parent.number;
                name.clone_into(&mut state.name);
            }
            if state.fd.is_none() {
                state.fd = Some(Arc::new(fd));
                numbers.open.push_back(inode.number);
            }
            drop(state);
            return Ok((inode, stat));
        }
        let number = numbers.next;
        numbers.next += 1;
        let kind = kind(&stat);
        let inode = Arc::new(Inode {
            number,
            key,
            kind,
            is_sealed: file_system.is_of_kernel,
            is_local: file_system.is_local,
            handles: AtomicUsize::new(0),
            state: Mutex::new(State {
                fd: Some(Arc::new(fd)),
                parent: parent.number,
                name: name.to_owned(),
                lookups: 1,
            }),
        });
        numbers.by_number.insert(number, Arc::clone(&inode));
        numbers.by_key.insert(key, Arc::clone(&inode));
        if kind != FileType::Directory {
            numbers.open.push_back(number);
        }
        Ok((inode, stat))
    }

    /// Returns the directory and the name by which a file was last seen.
    ///
    /// # Errors
    /// ESTALE: there is no such file; EBUSY: it is the root.
    pub fn name(&self, number: u64) -> Result<(u64, Vec<u8>), Errno> {
        if number == ROOT {
            return Err(Errno::BUSY);
        }
        let inode = self.get(number)?;
        let state = inode.state();
        Ok((state.parent, state.name.as_bytes().to_vec()))
    }

    /// Records the new name of a file, by which it will be opened.
    pub fn moved(&self, key: Key, parent: &Inode, name: &OsStr) {
        let inode = self.numbers().by_key.get(&key).cloned();
        if let Some(inode) = inode.filter(|inode| inode.number != ROOT) {
            let mut state = inode.state();
            state.parent = parent.number;
            name.clone_into(&mut state.name);
        }
    }

    /// Handles the guest's forgetting of `times` replies that contained a file.
    pub fn forget(&self, number: u64, times: u64) {
        if number == ROOT {
            return;
        }
        let mut numbers = self.numbers();
        let Some(inode) = numbers.by_number.get(&number).cloned() else {
            return;
        };
        let left = {
            let mut state = inode.state();
            state.lookups = state.lookups.saturating_sub(times);
            state.lookups
        };
        if left == 0 {
            numbers.by_number.remove(&number);
            numbers.by_key.remove(&inode.key);
            // Most of the files that wait to be closed may have gone.
            if numbers.open.len() > 2 * numbers.by_number.len() + 64 {
                let Numbers {
                    open, by_number, ..
                } = &mut *numbers;
                open.retain(|number| by_number.contains_key(number));
            }
        }
        // If this was the last descriptor of a deleted file, closing it takes long.
        drop(numbers);
        drop(inode);
    }
}

/// Opens the shared directory.
///
/// # Errors
/// It cannot be opened, is no directory, or its files represent the host's kernel.
pub fn open_root(path: &std::path::Path) -> Result<OwnedFd, String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(CWD, path, flags, Mode::empty());
    let fd = fd.map_err(|error| match error {
        Errno::NOENT => "no such directory; check the path".into(),
        Errno::NOTDIR => "it is not a directory".into(),
        other => std::io::Error::from(other).to_string(),
    })?;
    let counted = CountedFd::new(fd);
    if FileSystem::of(&counted).is_of_kernel {
        return Err("its files represent the host's kernel".into());
    }
    let fd = counted.as_fd().try_clone_to_owned();
    fd.map_err(|error| error.to_string())
}
