//! The guest's file systems: the root with an overlay in memory, those of the kernel, and shares.

use crate::disk;
use crate::protocol::{ROOT_TAG, Root, Start};
use crate::refusal::Refusal;
use crate::sys::{self, MS_MOVE, MS_NODEV, MS_NOSUID, MS_RDONLY};
use std::ffi::c_ulong;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// The folders in which the root is assembled.
const LOWER: &str = "/lower";
const UPPER: &str = "/upper";
const NEW: &str = "/new";

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
    mount("proc", "/proc", "proc", 0, "")?;
    mount("sysfs", "/sys", "sysfs", 0, "")?;
    mount("devtmpfs", "/dev", "devtmpfs", 0, "")
}

/// Mounts the root that the start file describes, with everything in it, and makes it the agent's
/// root.
pub fn enter(start: &Start) -> Result<(), Refusal> {
    let bottom = if start.root_is_writable { NEW } else { LOWER };
    match start.root {
        Root::Share => {
            let flags = if start.root_is_writable { 0 } else { MS_RDONLY };
            mount(ROOT_TAG, bottom, "virtiofs", flags, "")?;
        }
        Root::Disk { partition } => disk::mount_root(partition, bottom, start.root_is_writable)?,
    }
    if !start.root_is_writable {
        mount("tmpfs", UPPER, "tmpfs", 0, "mode=755")?;
        let folder = |name: &str| {
            fs::create_dir(format!("{UPPER}/{name}"))
                .map_err(|error| Refusal::own(format!("{UPPER}: {error}")))
        };
        folder("changes")?;
        folder("work")?;
        let data = format!("lowerdir={LOWER},upperdir={UPPER}/changes,workdir={UPPER}/work");
        mount("overlay", NEW, "overlay", 0, &data)?;
    }
    let own = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| Refusal::own(format!("{what}: {error}"))
    };
    std::env::set_current_dir(NEW).map_err(own(NEW))?;
    sys::mount_at(".", "/", "", MS_MOVE, "").map_err(own("cannot move the root"))?;
    sys::change_root(".").map_err(own("cannot change the root"))?;
    std::env::set_current_dir("/").map_err(own("/"))?;

    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV, "")?;
    mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV, "")?;
    mount("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, "")?;
    mount(
        "devpts",
        "/dev/pts",
        "devpts",
        MS_NOSUID,
        "gid=5,mode=620,ptmxmode=666",
    )?;
    let flags = MS_NOSUID | MS_NODEV;
    mount("tmpfs", "/dev/shm", "tmpfs", flags, "mode=1777")?;
    mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")?;
    // Files in the root's /tmp may be for the command; changes go to the overlay.
    if !Path::new("/tmp").is_dir() {
        let made = fs::create_dir("/tmp")
            .and_then(|()| fs::set_permissions("/tmp", Permissions::from_mode(0o1777)));
        made.map_err(own("/tmp"))?;
    }
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

    for share in &start.mounts {
        let flags = if share.readonly { MS_RDONLY } else { 0 };
        mount(&share.tag, &share.path, "virtiofs", flags, "")?;
    }
    sys::set_host_name(&start.host_name);
    Ok(())
}

/// Leaves a root whose changes last: all remaining processes are ended, and the file system is left
/// as if the machine had been shut down.
pub fn leave(start: &Start) -> Result<(), Refusal> {
    if start.root_is_writable {
        disk::finish()?;
    }
    Ok(())
}
