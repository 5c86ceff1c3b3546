//! What separates a jailed machine from the host: its namespaces, its root, its devices.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::chown;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode};
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::process::{getegid, geteuid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use super::folder::INNER;

/// The device of tap interfaces in a jail.
const TUN: &str = "dev/net/tun";

/// Makes all files that were open when this process began close when it becomes another program.
///
/// # Errors
/// The kernel is older than Linux 5.11.
pub fn close_files_with_exec() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: the call changes a flag of descriptors; this process's own files have it already.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Joins a network namespace.
///
/// # Errors
/// One line says why not.
pub fn join_network(path: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("'{}': {error}", path.display());
    let file = File::open(path).map_err(failed)?;
    let kind = Some(LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(file.as_fd(), kind)
        .map_err(|error| failed(error.into()))
}

/// Makes new namespaces.
fn unshare(flags: UnshareFlags) -> Result<(), String> {
    // SAFETY: none of the flags that are used here separates file descriptors, and this process has
    // one thread.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(|error| error.to_string())
}

/// Gives processes that are started from now on a namespace of their own.
///
/// # Errors
/// One line says why not.
pub fn new_processes() -> Result<(), String> {
    unshare(UnshareFlags::NEWPID)
}

/// Makes a folder the root of this process. Users other than root do so in a user namespace, in which
/// they remain who they are.
///
/// # Errors
/// One line says why not.
pub fn change_root(root: &Path) -> Result<(), String> {
    let text = |error: rustix::io::Errno| error.to_string();
    if geteuid().is_root() {
        unshare(UnshareFlags::NEWNS)?;
    } else {
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
        for (file, content) in [
            ("/proc/self/setgroups", "deny".to_owned()),
            ("/proc/self/uid_map", format!("{user} {user} 1")),
            ("/proc/self/gid_map", format!("{group} {group} 1")),
        ] {
            fs::write(file, content).map_err(|error| format!("{file}: {error}"))?;
        }
    }
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(text)?;
    // The new root must be a mount.
    rustix::mount::mount_bind_recursive(root, root).map_err(text)?;
    rustix::process::chdir(root).map_err(text)?;
    // The old root is mounted over the new one, and removed.
    rustix::process::pivot_root(".", ".").map_err(text)?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(text)?;
    rustix::process::chroot(".").map_err(text)?;
    rustix::process::chdir("/").map_err(text)
}

/// Makes the device of tap interfaces in a jail.
///
/// # Errors
/// One line says why not.
pub fn make_device(jail: &Path) -> Result<(), String> {
    let mode = Mode::RUSR | Mode::WUSR;
    let device = rustix::fs::makedev(10, 200);
    match rustix::fs::mknodat(CWD, jail.join(TUN), FileType::CharacterDevice, mode, device) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Gives a jail to its user.
///
/// # Errors
/// One line says why not.
pub fn give_away(jail: &Path, user: u32, group: u32) -> Result<(), String> {
    let inner = INNER.iter().map(|inner| jail.join(inner));
    let tun = Some(jail.join(TUN)).filter(|tun| tun.exists());
    for path in inner.chain(tun).chain([jail.to_owned()]) {
        chown(&path, Some(user), Some(group))
            .map_err(|error| format!("'{}': {error}", path.display()))?;
    }
    Ok(())
}
