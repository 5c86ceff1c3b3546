//! The directory into which an image is unpacked: nothing outside of it is read, written or removed,
//! whatever names and links the image has.
//!
//! Every name is found by openat2 with the directory as its root, as the guest will find it: absolute
//! links and `..` in links stay inside.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, UTIME_OMIT,
};
use rustix::io::Errno;

/// The most levels of folders that are removed, each of which takes a descriptor and some stack.
const MOST_LEVELS: usize = 256;
/// The bits of a file's permissions that are kept. Set-user-ID programs would act as this user.
const KEPT_BITS: u32 = 0o1777;
/// What the owner may do at least, so that the guest can read everything and this user remove it.
const OWN_FILE: u32 = 0o600;
const OWN_FOLDER: u32 = 0o700;
/// Folders that no layer describes.
const IMPLIED_FOLDER: u32 = 0o755;

/// A folder that was opened as the root of names.
pub struct Tree {
    root: OwnedFd,
}

/// A place: an open folder, and a name in it.
struct Spot {
    folder: OwnedFd,
    name: OsString,
}

/// The names of a path, none of which leads upwards.
///
/// # Errors
/// The path leads upwards, or names nothing in the root.
pub fn names(path: &[u8]) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(io::Error::other("it leads out of the image")),
            part if part.contains(&0) => return Err(io::Error::other("it has a zero byte")),
            part => names.push(OsStr::from_bytes(part).to_owned()),
        }
    }
    Ok(names)
}

impl Tree {
    /// Opens a folder, which is made if it is missing, and must be empty.
    ///
    /// # Errors
    /// It cannot be made or opened, or has something in it.
    pub fn new(path: &Path) -> io::Result<Self> {
        match rustix::fs::mkdir(path, Mode::from_raw_mode(IMPLIED_FOLDER)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        let tree = Self { root };
        match children(&tree.root)?.is_empty() {
            true => Ok(tree),
            false => Err(io::Error::other("it is not empty")),
        }
    }

    /// Opens a folder of the tree by its names. Links are followed as the guest would.
    fn folder(&self, names: &[OsString]) -> Result<OwnedFd, Errno> {
        let mut path = OsString::from(".");
        for name in names {
            path.push("/");
            path.push(name);
        }
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let rules = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        loop {
            match rustix::fs::openat2(&self.root, &path, flags, Mode::empty(), rules) {
                // A rename elsewhere on the host may disturb the kernel's check.
                Err(Errno::AGAIN | Errno::INTR) => {}
                result => return result,
            }
        }
    }

    /// Opens a folder, and makes it and those above it if they are missing.
    fn made_folder(&self, names: &[OsString]) -> io::Result<OwnedFd> {
        match self.folder(names) {
            Err(Errno::NOENT) => {}
            result => return Ok(result?),
        }
        // Their number is that of the names in one path, whose length is limited.
        let missing = (0..names.len()).find(|&count| {
            let known = self.folder(&names[..=count]);
            matches!(known, Err(Errno::NOENT))
        });
        let Some(first) = missing else {
            return Ok(self.folder(names)?);
        };
        for count in first..names.len() {
            let above = self.folder(&names[..count])?;
            rustix::fs::mkdirat(&above, &names[count], Mode::from_raw_mode(IMPLIED_FOLDER))?;
        }
        Ok(self.folder(names)?)
    }

    /// The place of a path whose last name may be missing; `None` for the root itself.
    fn spot(&self, path: &[u8]) -> io::Result<Option<Spot>> {
        let mut names = names(path)?;
        let Some(name) = names.pop() else {
            return Ok(None);
        };
        let folder = self.made_folder(&names)?;
        Ok(Some(Spot { folder, name }))
    }

    /// The place of something new, from which everything was removed.
    fn free_spot(&self, path: &[u8]) -> io::Result<Spot> {
        let is_root = || io::Error::other("it is the root, which must be a folder");
        let spot = self.spot(path)?.ok_or_else(is_root)?;
        remove(&spot.folder, &spot.name, MOST_LEVELS)?;
        Ok(spot)
    }

    /// Makes a folder, or changes one that is there.
    ///
    /// # Errors
    /// The path leads out of the tree, or an error of the host.
    pub fn put_folder(&self, path: &[u8], mode: u32) -> io::Result<()> {
        let mode = Mode::from_raw_mode(mode & KEPT_BITS | OWN_FOLDER);
        let Some(Spot { folder, name }) = self.spot(path)? else {
            return Ok(rustix::fs::fchmod(&self.root, mode)?);
        };
        if kind(&folder, &name)? != Some(FileType::Directory) {
            remove(&folder, &name, MOST_LEVELS)?;
            rustix::fs::mkdirat(&folder, &name, mode)?;
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&folder, &name, flags, Mode::empty())?;
        Ok(rustix::fs::fchmod(made, mode)?)
    }

    /// Writes a file with this content.
    ///
    /// # Errors
    /// The path leads out of the tree, or an error of the host or of the content.
    pub fn put_file(
        &self,
        path: &[u8],
        mode: u32,
        seconds: i64,
        content: &mut impl Read,
    ) -> io::Result<u64> {
        let Spot { folder, name } = self.free_spot(path)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(folder, &name, flags, Mode::from_raw_mode(OWN_FILE))?;
        let mut file = File::from(file);
        let count = io::copy(content, &mut file)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o777 | OWN_FILE))?;
        let times = Timestamps {
            last_access: Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_OMIT,
            },
            last_modification: Timespec {
                tv_sec: seconds,
                tv_nsec: 0,
            },
        };
        // File systems differ in which times they have.
        let _ = rustix::fs::futimens(&file, &times);
        Ok(count)
    }

    /// Makes a symbolic link, wherever it leads: only the guest follows it.
    ///
    /// # Errors
    /// The path leads out of the tree, or an error of the host.
    pub fn put_link(&self, path: &[u8], target: &[u8]) -> io::Result<()> {
        let Spot { folder, name } = self.free_spot(path)?;
        Ok(rustix::fs::symlinkat(
            OsStr::from_bytes(target),
            folder,
            &name,
        )?)
    }

    /// Gives a file of the tree another name.
    ///
    /// # Errors
    /// One of the paths leads out of the tree, the second names no file, or an error of the host.
    pub fn put_name(&self, path: &[u8], target: &[u8]) -> io::Result<()> {
        let no_file = || io::Error::other("it is another name of something that is no file");
        let other = self.spot(target)?.ok_or_else(no_file)?;
        if !matches!(
            kind(&other.folder, &other.name)?,
            Some(FileType::RegularFile | FileType::Symlink)
        ) {
            return Err(no_file());
        }
        // A name for itself needs no change; to remove it first would lose the file.
        let own = self.spot(path)?.ok_or_else(no_file)?;
        if is_same(&own, &other)? {
            return Ok(());
        }
        remove(&own.folder, &own.name, MOST_LEVELS)?;
        let flags = AtFlags::empty();
        rustix::fs::linkat(&other.folder, &other.name, &own.folder, &own.name, flags)?;
        Ok(())
    }

    /// Makes a named pipe.
    ///
    /// # Errors
    /// The path leads out of the tree, or an error of the host.
    pub fn put_pipe(&self, path: &[u8], mode: u32) -> io::Result<()> {
        let Spot { folder, name } = self.free_spot(path)?;
        let mode = Mode::from_raw_mode(mode & 0o777 | OWN_FILE);
        Ok(rustix::fs::mknodat(folder, &name, FileType::Fifo, mode, 0)?)
    }

    /// Removes something with all that is in it, if it is there.
    ///
    /// # Errors
    /// The path leads out of the tree, or an error of the host.
    pub fn remove(&self, path: &[u8]) -> io::Result<()> {
        let mut names = names(path)?;
        let Some(name) = names.pop() else {
            return self.clear(b"");
        };
        match self.folder(&names) {
            Ok(folder) => remove(&folder, &name, MOST_LEVELS),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes all that is in a folder, if it is there.
    ///
    /// # Errors
    /// The path leads out of the tree, or an error of the host.
    pub fn clear(&self, path: &[u8]) -> io::Result<()> {
        let folder = match self.folder(&names(path)?) {
            Ok(folder) => folder,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for name in children(&folder)? {
            remove(&folder, &name, MOST_LEVELS)?;
        }
        Ok(())
    }
}

/// The type of a name, which is not followed; `None` if there is none.
fn kind(folder: impl AsFd, name: &OsStr) -> io::Result<Option<FileType>> {
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn is_same(one: &Spot, other: &Spot) -> io::Result<bool> {
    let identity = |spot: &Spot| {
        let stat = rustix::fs::fstat(&spot.folder)?;
        Ok::<_, io::Error>((stat.st_dev, stat.st_ino))
    };
    Ok(one.name == other.name && identity(one)? == identity(other)?)
}

/// The names in a folder.
fn children(folder: impl AsFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Removes a name with all that is in it, if it is there. Links are not followed.
fn remove(folder: impl AsFd, name: &OsStr, levels: usize) -> io::Result<()> {
    match rustix::fs::unlinkat(&folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    if levels == 0 {
        return Err(io::Error::other("its folders are nested too deeply"));
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let inner = rustix::fs::openat(&folder, name, flags, Mode::empty())?;
    for child in children(&inner)? {
        remove(&inner, &child, levels - 1)?;
    }
    Ok(rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR)?)
}
