//! The guest's file systems: the root with an overlay in memory, those of the kernel, and shares.

use crate::disk;
use crate::protocol::{MOUNT_PARAMETER, READ_ONLY, ROOT_TAG, Root, Start};
use crate::refusal::Refusal;
use crate::sys::{self, MS_BIND, MS_MOVE, MS_NODEV, MS_NOSUID, MS_RDONLY, MS_REMOUNT};
use std::ffi::c_ulong;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// The folder in which each share is mounted first, in a folder named after its tag.
const SHARES: &str = "/shares";
/// The folders in which the root is assembled.
const LOWER: &str = "/shares/root";
/// The file system in memory that holds the guest's changes.
pub const UPPER: &str = "/upper";
const NEW: &str = "/new";

/// The folders of every root whose contents come from the kernel, except /proc. They are mounted in
/// the agent's first root, and moved with all that is mounted in them.
const OF_THE_KERNEL: [&str; 3] = ["/sys", "/dev", "/run"];

/// Places that are empty at first, their names in [`UPPER`], and their permissions.
const TMP: Fresh = Fresh("/tmp", "tmp", 0o1777);
const FRESH: [Fresh; 2] = [
    Fresh("/dev/shm", "shm", 0o1777),
    Fresh("/run", "run", 0o755),
];

/// A change of the flags of one of these.
const FRESH_FLAGS: c_ulong = MS_BIND | MS_REMOUNT | MS_NOSUID | MS_NODEV;

struct Fresh(&'static str, &'static str, u32);

/// Mounts a file system at a path, which is created.
///
/// # Errors
/// A line that names both, and says what the user can do about it.
pub fn mount(
    source: &str,
    target: impl AsRef<Path>,
    kind: &str,
    flags: c_ulong,
    data: &str,
) -> Result<(), Refusal> {
    let target = target.as_ref();
    let result =
        fs::create_dir_all(target).and_then(|()| sys::mount_at(source, target, kind, flags, data));
    result.map_err(|error| {
        let hint = match error.raw_os_error() {
            // ENODEV: the kernel does not support the file system.
            Some(19) => "; the kernel lacks this file system: give its modules with --modules",
            _ => "",
        };
        Refusal::own(format!(
            "cannot mount {source} ({kind}) at {}: {error}{hint}",
            target.display()
        ))
    })
}

/// Mounts the file systems that the agent itself needs.
pub fn mount_kernel_file_systems() -> Result<(), Refusal> {
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV, "")?;
    mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV, "")?;
    mount("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, "")
}

/// What is mounted before the agent knows its task.
pub struct Prepared {
    /// The tags of the shares that are mounted in [`SHARES`], and the results. A failure is
    /// reported to the host once it waits for the end of the command.
    shares: Vec<(String, Result<(), Refusal>)>,
}

/// Mounts what every root has, whichever it is, and the shares that the kernel's command line names.
/// No file of a share is looked at, so that a snapshot knows none.
pub fn prepare() -> Result<Prepared, Refusal> {
    mount(
        "devpts",
        "/dev/pts",
        "devpts",
        MS_NOSUID,
        "gid=5,mode=620,ptmxmode=666",
    )?;
    let flags = MS_NOSUID | MS_NODEV;
    mount("tmpfs", "/dev/shm", "tmpfs", flags, "mode=1777")?;
    mount("tmpfs", "/run", "tmpfs", flags, "mode=755")?;
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        // The link may already exist.
        let _ = symlink(target, format!("/dev/{name}"));
    }
    // Users other than root need no help for /dev/full and most other devices, but devtmpfs makes
    // the terminals' multiplexer for root alone.
    let _ = fs::set_permissions("/dev/ptmx", Permissions::from_mode(0o666));

    mount("tmpfs", UPPER, "tmpfs", 0, "mode=755")?;
    for name in ["changes", "work"] {
        fs::create_dir(format!("{UPPER}/{name}"))
            .map_err(|error| Refusal::own(format!("{UPPER}: {error}")))?;
    }
    for folder in [LOWER, NEW] {
        fs::create_dir_all(folder).map_err(|error| Refusal::own(format!("{folder}: {error}")))?;
    }
    let words = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let named = words.split_ascii_whitespace().filter_map(|word| {
        let (tag, access) = word.strip_prefix(MOUNT_PARAMETER)?.split_once(':')?;
        Some((tag.to_owned(), access == READ_ONLY))
    });
    let mut shares: Vec<_> = named
        .map(|(tag, is_read_only)| {
            let flags = if is_read_only { MS_RDONLY } else { 0 };
            let result = mount(&tag, Path::new(SHARES).join(&tag), "virtiofs", flags, "");
            (tag, result)
        })
        .collect();
    if let Some((_, root)) = shares.iter_mut().find(|(tag, _)| tag == ROOT_TAG)
        && root.is_ok()
    {
        *root = mount_overlay();
    }
    Ok(Prepared { shares })
}

impl Prepared {
    /// Whether a share is mounted already.
    ///
    /// # Errors
    /// The mount has failed.
    fn take(&mut self, tag: &str) -> Result<bool, Refusal> {
        let Some(place) = self.shares.iter().position(|(known, _)| known == tag) else {
            return Ok(false);
        };
        let (_, result) = self.shares.swap_remove(place);
        result?;
        // The share may be another directory than the one that a snapshot's guest has mounted.
        sys::forget_attributes(Path::new(SHARES).join(tag));
        Ok(true)
    }
}

/// Mounts the root with the changes that are kept in memory.
fn mount_overlay() -> Result<(), Refusal> {
    let data = format!("lowerdir={LOWER},upperdir={UPPER}/changes,workdir={UPPER}/work");
    mount("overlay", NEW, "overlay", 0, &data)
}

/// Mounts the root that the task describes at [`NEW`].
fn mount_root(start: &Start) -> Result<(), Refusal> {
    let bottom = if start.root_is_writable { NEW } else { LOWER };
    match start.root {
        Root::Share => mount(ROOT_TAG, bottom, "virtiofs", MS_RDONLY, "")?,
        Root::Disk { partition } => disk::mount_root(partition, bottom, start.root_is_writable)?,
    }
    match start.root_is_writable {
        true => Ok(()),
        false => mount_overlay(),
    }
}

/// Mounts the root that the start file describes, with everything in it, and makes it the agent's
/// root.
pub fn enter(start: &Start, mut prepared: Prepared) -> Result<(), Refusal> {
    if start.root != Root::Share || !prepared.take(ROOT_TAG)? {
        mount_root(start)?;
    }
    let own = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| Refusal::own(format!("{what}: {error}"))
    };
    // What is mounted in the first root is found by these after the change to the new one.
    let open = |path: &Path| File::open(path).map_err(own(&path.display().to_string()));
    let folders: Vec<File> = OF_THE_KERNEL
        .iter()
        .map(|path| open(Path::new(path)))
        .collect::<Result<_, _>>()?;
    let mut shares = Vec::new();
    for share in &start.mounts {
        let is_mounted = prepared.take(&share.tag)?;
        let mounted = is_mounted.then(|| open(&Path::new(SHARES).join(&share.tag)));
        shares.push(mounted.transpose()?);
    }
    // With a limit on files, all that is kept in memory is in one file system, which has the limit.
    let mut fresh = Vec::new();
    if start.has_private_tmp {
        fresh.push(&TMP);
    }
    if start.limits.file_bytes.is_some() {
        fresh.extend(&FRESH);
    }
    let mut fresh_folders = Vec::new();
    for Fresh(_, name, mode) in &fresh {
        let path = Path::new(UPPER).join(name);
        fs::create_dir(&path)
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(*mode)))
            .map_err(own(name))?;
        fresh_folders.push(open(&path)?);
    }
    std::env::set_current_dir(NEW).map_err(own(NEW))?;
    sys::mount_at(".", "/", "", MS_MOVE, "").map_err(own("cannot move the root"))?;
    sys::change_root(".").map_err(own("cannot change the root"))?;
    std::env::set_current_dir("/").map_err(own("/"))?;

    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV, "")?;
    for (path, folder) in OF_THE_KERNEL.iter().zip(&folders) {
        move_mount(folder, Path::new(path))?;
    }
    // Files in the root's /tmp may be for the command; changes go to the overlay.
    if !Path::new("/tmp").is_dir() {
        let made = fs::create_dir("/tmp")
            .and_then(|()| fs::set_permissions("/tmp", Permissions::from_mode(0o1777)));
        made.map_err(own("/tmp"))?;
    }
    for (Fresh(path, ..), folder) in fresh.iter().zip(&fresh_folders) {
        let from = format!("/proc/self/fd/{}", folder.as_raw_fd());
        sys::mount_at(from, path, "", MS_BIND, "")
            .and_then(|()| sys::mount_at("", path, "", FRESH_FLAGS, ""))
            .map_err(own(path))?;
    }
    for (share, mounted) in start.mounts.iter().zip(&shares) {
        if let Some(mounted) = mounted {
            move_mount(mounted, &share.path)?;
        } else {
            let flags = if share.readonly { MS_RDONLY } else { 0 };
            mount(&share.tag, &share.path, "virtiofs", flags, "")?;
        }
    }
    sys::set_host_name(&start.host_name);
    Ok(())
}

/// Moves what is mounted at a folder, with all that is mounted in it, to a path, which is created.
/// The folder may lie outside of the agent's root.
fn move_mount(folder: &File, path: &Path) -> Result<(), Refusal> {
    let from = format!("/proc/self/fd/{}", folder.as_raw_fd());
    fs::create_dir_all(path)
        .and_then(|()| sys::mount_at(from, path, "", MS_MOVE, ""))
        .map_err(|error| Refusal::own(format!("cannot mount '{}': {error}", path.display())))
}

/// Leaves a root whose changes last: all remaining processes are ended, and the file system is left
/// as if the machine had been shut down.
pub fn leave(start: &Start) -> Result<(), Refusal> {
    if start.root_is_writable {
        disk::finish()?;
    }
    Ok(())
}
