//! Files of the host that hold images: opened, locked, and measured.

use std::fs;
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a file and locks it, exclusively if it will be written.
pub(crate) fn open_file(path: &Path, write: bool) -> io::Result<fs::File> {
    let file = open_unlocked(path, write)?;
    lock(&file, write)?;
    Ok(file)
}

/// Opens a file of a kind that can be an image.
pub(crate) fn open_unlocked(path: &Path, write: bool) -> io::Result<fs::File> {
    let file = fs::OpenOptions::new()
        .read(true)
        .write(write)
        // Opening a pipe would wait for its other end.
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if !kind.is_file() && !kind.is_block_device() {
        return Err(io::Error::other("it is neither a file nor a block device"));
    }
    Ok(file)
}

/// Returns the size in bytes of a file or of a block device.
pub(crate) fn file_bytes(mut file: &fs::File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    if metadata.file_type().is_block_device() {
        file.seek(SeekFrom::End(0))
    } else {
        Ok(metadata.len())
    }
}

/// Makes reads and writes bypass the host's page cache from now on. Until then a file is read like
/// any other, so that reading its header and its tables needs no aligned memory.
pub(crate) fn set_direct(file: &fs::File) -> io::Result<()> {
    // SAFETY: fcntl takes and returns integers only with these commands.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_DIRECT) };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn lock(file: &fs::File, write: bool) -> io::Result<()> {
    let kind = if write { libc::LOCK_EX } else { libc::LOCK_SH };
    // SAFETY: flock takes and returns integers only.
    if unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(match error.kind() {
        ErrorKind::WouldBlock if write => io::Error::other(
            "another virtual machine uses it; only machines that do not change it can share it (readonly=on, snapshot=on, tollgate exec without rw)",
        ),
        ErrorKind::WouldBlock => io::Error::other("another virtual machine writes it"),
        _ => error,
    })
}
