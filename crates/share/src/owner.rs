//! The owner and the mode of a shared file as the guest sees them.
//!
//! The server is an ordinary process: everything that it creates belongs to its user, and it cannot
//! give files to other users. What the guest wants beyond that is stored with the file:
//!
//! - Files of the server's user, and of root, appear as those of the guest's root; all others have
//!   the host's numbers. So the guest's root finds its own files as root's, and the guest's user
//!   1000 is not the host's. With [`keeps_owners`](crate::ShareOptions::keeps_owners) all files
//!   have the host's numbers, and the guest's user with the number of the server's user owns that
//!   user's files.
//! - If a guest gives a file to another user, or sets its set-user-ID or set-group-ID bit, that is
//!   written to the extended attribute [`ATTRIBUTE`]. The host's file keeps the server's user, and
//!   never gets these bits, with which it would give the rights of that user to everyone on the
//!   host.
//! - The attribute counts only for files of the server's user. Its mode counts as long as the
//!   host's mode is the one that was stored with it, so that a chmod on the host is visible.
//! - If no attribute can be stored (for symbolic links, and on some file systems), the request
//!   succeeds without effect, as with many network file systems.
//!
//! With another [`SecurityModel`] than `Mapped`, nothing is stored: owners and modes are those of the
//! host's files, and a change is made there.

use crate::inodes::{Inode, Inodes, kind, path_of};
use crate::options::SecurityModel;
use rustix::fd::AsFd;
use rustix::fs::{CWD, FileType, Mode, Stat, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use std::sync::{Mutex, PoisonError};

/// The attribute: `UID GID MODE HOSTMODE`, with octal modes without the file's type.
pub const ATTRIBUTE: &str = "user.tollgate.owner";
/// All bits of a mode except the file's type.
pub const MODE_BITS: u32 = 0o7777;
/// Set-user-ID and set-group-ID.
pub const SET_ID: u32 = 0o6000;
/// Set-user-ID.
pub const SET_UID: u32 = 0o4000;
/// Set-group-ID.
pub const SET_GID: u32 = 0o2000;
/// The group may execute the file: without this bit, set-group-ID has another meaning.
const GROUP_EXECUTES: u32 = 0o010;

/// The owner and the mode of a file, without its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ownership {
    /// The user's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
    /// Permissions, set-user-ID, set-group-ID, sticky.
    pub mode: u32,
}

/// The changes that a request wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// The new user.
    pub uid: Option<u32>,
    /// The new group.
    pub gid: Option<u32>,
    /// The new mode.
    pub mode: Option<u32>,
    /// Whether set-user-ID is cleared, and also set-group-ID if the group may execute, for a
    /// regular file.
    pub clears_set_id: bool,
}

/// The server's user, and how it represents the guest's users.
#[derive(Debug)]
pub struct Owners {
    uid: u32,
    gid: u32,
    /// Whether the user's own files appear as those of the guest's root.
    is_root: bool,
    /// Where the guest's wishes are kept.
    security: SecurityModel,
    /// The mode bits that the process clears in files that it creates.
    umask: u32,
    /// Held while a file temporarily has another mode.
    opened: Mutex<()>,
}

impl Owners {
    /// Determines the owners for this process. Its own files appear as those of the guest's root
    /// unless it keeps owners.
    pub fn of_process(keeps_owners: bool, security: SecurityModel) -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let umask = status
            .lines()
            .find_map(|line| line.strip_prefix("Umask:"))
            .and_then(|text| u32::from_str_radix(text.trim(), 8).ok());
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            is_root: !keeps_owners && security == SecurityModel::Mapped,
            security,
            // The value is unknown, so the mode is always set again.
            umask: umask.unwrap_or(0o777),
            opened: Mutex::new(()),
        }
    }

    /// Returns owner and mode of the host's file without an attribute.
    fn plain(&self, stat: &Stat) -> Ownership {
        let shown = |id: u32, own: u32| if self.is_root && id == own { 0 } else { id };
        Ownership {
            uid: shown(stat.st_uid, self.uid),
            gid: shown(stat.st_gid, self.gid),
            mode: stat.st_mode & MODE_BITS,
        }
    }

    fn can_keep(&self, stat: &Stat) -> bool {
        let is_kept_kind =
            stat.st_mode & 0o170_000 == 0o100_000 || stat.st_mode & 0o170_000 == 0o040_000;
        self.security == SecurityModel::Mapped && stat.st_uid == self.uid && is_kept_kind
    }

    /// Returns the bits of a mode that the host's file gets.
    const fn host_mode(&self, mode: u32) -> u32 {
        match self.security {
            SecurityModel::Passthrough => mode,
            SecurityModel::Mapped | SecurityModel::None => mode & !SET_ID,
        }
    }

    /// Gives the host's file another owner, without following a symbolic link. With
    /// [`SecurityModel::None`] a refusal of the host is ignored.
    fn give(&self, fd: impl AsFd, before: Ownership, after: Ownership) -> Result<(), Errno> {
        let changed = |old: u32, new: u32| (new != old).then_some(new);
        let (uid, gid) = (
            changed(before.uid, after.uid),
            changed(before.gid, after.gid),
        );
        if uid.is_none() && gid.is_none() {
            return Ok(());
        }
        let given = rustix::fs::chownat(
            CWD,
            path_of(fd),
            uid.map(Uid::from_raw),
            gid.map(Gid::from_raw),
            rustix::fs::AtFlags::empty(),
        );
        match (given, self.security) {
            (Err(_), SecurityModel::None) => Ok(()),
            (given, _) => given,
        }
    }

    /// Returns owner and mode as the guest sees them.
    pub fn shown(&self, fd: impl AsFd, stat: &Stat) -> Ownership {
        Self::merged(self.plain(stat), self.kept(fd, stat))
    }

    /// Combines the host's owner and mode with those of the attribute.
    fn merged(plain: Ownership, kept: Option<(Ownership, u32)>) -> Ownership {
        let Some((kept, host_mode)) = kept else {
            return plain;
        };
        Ownership {
            mode: if plain.mode == host_mode {
                kept.mode
            } else {
                plain.mode
            },
            ..kept
        }
    }

    /// Returns owner and mode as the guest sees them, unless the file's mode must be widened to
    /// read them.
    pub fn shown_at_once(&self, fd: impl AsFd, stat: &Stat) -> Option<Ownership> {
        let kept = self.read_kept(fd, stat).ok()?;
        Some(Self::merged(self.plain(stat), kept))
    }

    /// Returns the contents of the attribute, with the host's mode that was stored in it.
    fn kept(&self, fd: impl AsFd, stat: &Stat) -> Option<(Ownership, u32)> {
        let read = || self.read_kept(&fd, stat);
        let kept = read().or_else(|_| self.opened(&fd, 0o400, read));
        kept.ok().flatten()
    }

    /// Returns the contents of the attribute if the file's present mode allows reading it.
    ///
    /// # Errors
    /// EACCES: the mode does not allow reading the attribute.
    fn read_kept(&self, fd: impl AsFd, stat: &Stat) -> Result<Option<(Ownership, u32)>, Errno> {
        if !self.can_keep(stat) {
            return Ok(None);
        }
        let mut value = [0; 64];
        match rustix::fs::getxattr(path_of(fd), ATTRIBUTE, &mut value) {
            Err(Errno::ACCESS) => Err(Errno::ACCESS),
            Err(_) => Ok(None),
            Ok(bytes) => Ok(value.get(..bytes).and_then(parse)),
        }
    }

    /// Changes owner and mode. The result is not returned, because the change may have had no
    /// effect.
    ///
    /// # Errors
    /// An error of the host: EPERM for files of other users.
    pub fn change(&self, fd: impl AsFd, change: Change) -> Result<(), Errno> {
        let stat = rustix::fs::fstat(&fd)?;
        let before = self.shown(&fd, &stat);
        let mut after = Ownership {
            uid: change.uid.unwrap_or(before.uid),
            gid: change.gid.unwrap_or(before.gid),
            mode: change.mode.map_or(before.mode, |mode| mode & MODE_BITS),
        };
        if change.clears_set_id && kind(&stat) == FileType::RegularFile {
            after.mode = without_set_id(after.mode);
        }
        if after == before {
            return Ok(());
        }
        if self.security != SecurityModel::Mapped {
            self.give(&fd, before, after)?;
        }
        if kind(&stat) == FileType::Symlink {
            return Ok(());
        }
        if stat.st_uid != self.uid && self.security == SecurityModel::Mapped {
            return Err(Errno::PERM);
        }
        let host_mode = if after.mode == before.mode {
            stat.st_mode & MODE_BITS
        } else {
            self.host_mode(after.mode)
        };
        let mut target = stat;
        target.st_mode = stat.st_mode & !MODE_BITS | host_mode;
        self.keep(&fd, &target, after)?;
        if host_mode == stat.st_mode & MODE_BITS {
            return Ok(());
        }
        rustix::fs::chmodat(
            CWD,
            path_of(&fd),
            Mode::from_raw_mode(host_mode),
            rustix::fs::AtFlags::empty(),
        )
    }

    /// Clears bits before the contents of a file change. The host's own set-user-ID bit, and
    /// set-group-ID if the group may execute, are always cleared: the file would otherwise be a
    /// program of the guest that runs with the rights of the file's owner. (The kernel does the
    /// same for a process without CAP_FSETID, but this process may have it.) The bits that the
    /// guest sees are cleared if `is_unprivileged` says that its writer has no right to keep them.
    ///
    /// # Errors
    /// An error of the host: the file must not be changed then.
    pub fn content_changes(&self, fd: impl AsFd, is_unprivileged: bool) -> Result<(), Errno> {
        let stat = rustix::fs::fstat(&fd)?;
        let mode = stat.st_mode & MODE_BITS;
        let host_mode = without_set_id(mode);
        let is_regular = kind(&stat) == FileType::RegularFile;
        if !is_regular || mode == host_mode && !is_unprivileged {
            return Ok(());
        }
        let shown = self.shown(&fd, &stat);
        if mode != host_mode {
            let set = || {
                rustix::fs::chmodat(
                    CWD,
                    path_of(&fd),
                    Mode::from_raw_mode(host_mode),
                    rustix::fs::AtFlags::empty(),
                )
            };
            match set() {
                // A process without rights to the file has no CAP_FSETID for it, so the kernel
                // clears the bits when it writes.
                Ok(()) | Err(Errno::PERM) => {}
                Err(error) => return Err(error),
            }
        }
        let wanted = Ownership {
            mode: match is_unprivileged {
                true => without_set_id(shown.mode),
                false => shown.mode,
            },
            ..shown
        };
        if mode == host_mode && wanted == shown {
            return Ok(());
        }
        let mut target = stat;
        target.st_mode = stat.st_mode & !MODE_BITS | host_mode;
        self.keep(&fd, &target, wanted)
    }

    /// Writes the attribute, or removes it if the host's file alone gives the same result.
    fn keep(&self, fd: impl AsFd, target: &Stat, wanted: Ownership) -> Result<(), Errno> {
        if !self.can_keep(target) {
            return Ok(());
        }
        let path = path_of(&fd);
        let Ownership { uid, gid, mode } = wanted;
        let host_mode = target.st_mode & MODE_BITS;
        let write = || {
            if self.plain(target) == wanted {
                return rustix::fs::removexattr(&path, ATTRIBUTE);
            }
            let value = format!("{uid} {gid} {mode:o} {host_mode:o}");
            rustix::fs::setxattr(&path, ATTRIBUTE, value.as_bytes(), XattrFlags::empty())
        };
        let result = match write() {
            Err(Errno::ACCESS) => self.opened(&fd, 0o600, write),
            other => other,
        };
        match result {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            other => other,
        }
    }

    /// Returns owner and mode of a file that a user of the guest creates in a directory with this
    /// ownership.
    pub fn of_new(
        &self,
        parent: Ownership,
        uid: u32,
        gid: u32,
        mode: u32,
        is_directory: bool,
    ) -> Ownership {
        let inherits = parent.mode & SET_GID != 0;
        let set_gid = if inherits && is_directory { SET_GID } else { 0 };
        Ownership {
            uid,
            gid: if inherits { parent.gid } else { gid },
            mode: mode & MODE_BITS | set_gid,
        }
    }

    /// Returns the mode with which the host creates a file. Further bits are set once it has its
    /// owner.
    pub const fn creation_mode(wanted: Ownership) -> Mode {
        Mode::from_raw_mode(wanted.mode & !SET_ID)
    }

    /// Gives a newly created file the owner and the mode that it should have.
    ///
    /// # Errors
    /// An error of the host.
    pub fn settle_new(&self, fd: impl AsFd, stat: &Stat, wanted: Ownership) -> Result<(), Errno> {
        if self.security != SecurityModel::Mapped {
            self.give(&fd, self.plain(stat), wanted)?;
        }
        if kind(stat) == FileType::Symlink {
            return Ok(());
        }
        let host_mode = self.host_mode(wanted.mode);
        let has_other_mode = stat.st_mode & MODE_BITS != host_mode;
        if has_other_mode || host_mode & self.umask != 0 {
            rustix::fs::chmodat(
                CWD,
                path_of(&fd),
                Mode::from_raw_mode(host_mode),
                rustix::fs::AtFlags::empty(),
            )?;
        }
        let mut target = *stat;
        target.st_mode = stat.st_mode & !MODE_BITS | host_mode;
        if self.plain(&target) == wanted {
            return Ok(());
        }
        self.keep(fd, &target, wanted)
    }

    /// Does something that the host refuses because the file's mode excludes its own owner, which
    /// does not apply to the guest's root. The mode gets `bits` added for that time.
    fn opened<T>(
        &self,
        fd: impl AsFd,
        bits: u32,
        mut act: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let _only = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have just added the bits.
        let refused = match act() {
            Err(Errno::ACCESS) => Errno::ACCESS,
            other => return other,
        };
        let stat = rustix::fs::fstat(&fd)?;
        let mode = stat.st_mode & MODE_BITS;
        if stat.st_uid != self.uid || mode & bits == bits || kind(&stat) == FileType::Symlink {
            return Err(refused);
        }
        let path = path_of(&fd);
        let set = |mode| {
            rustix::fs::chmodat(
                CWD,
                &path,
                Mode::from_raw_mode(mode),
                rustix::fs::AtFlags::empty(),
            )
        };
        set(mode | bits)?;
        let result = act();
        set(mode)?;
        result
    }

    /// Does something with a file as the guest's root may, whatever the file's mode is.
    ///
    /// # Errors
    /// An error of the host.
    pub fn as_root<T>(
        &self,
        inodes: &Inodes,
        inode: &Inode,
        mut act: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match act() {
            Err(Errno::ACCESS) => {
                let bits = if inode.kind == FileType::Directory {
                    0o700
                } else {
                    0o600
                };
                self.opened(&*inodes.fd(inode)?, bits, act)
            }
            other => other,
        }
    }
}

/// Returns a regular file's mode without set-user-ID, and without set-group-ID if the group may
/// execute.
const fn without_set_id(mode: u32) -> u32 {
    match mode & GROUP_EXECUTES {
        0 => mode & !SET_UID,
        _ => mode & !SET_ID,
    }
}

/// Parses the attribute.
fn parse(value: &[u8]) -> Option<(Ownership, u32)> {
    let text = std::str::from_utf8(value).ok()?;
    let mut words = text.split(' ');
    let uid = words.next()?.parse().ok()?;
    let gid = words.next()?.parse().ok()?;
    let mut mode = || u32::from_str_radix(words.next()?, 8).ok();
    let (mode, host_mode) = (mode()?, mode()?);
    let ownership = Ownership {
        uid,
        gid,
        mode: mode & MODE_BITS,
    };
    Some((ownership, host_mode))
}
