//! Sockets with a file, for this user only.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::host;

/// A socket's file, which is removed when this is dropped.
pub struct SocketFile {
    /// Where it is.
    pub path: PathBuf,
    /// Device and inode, to remove only our own.
    identity: (u64, u64),
}

/// Creates a socket and its file, accessible to this user only, and listens. A file left over by a
/// machine that is gone is replaced; one on which somebody listens is not. Accepting does not wait.
///
/// # Errors
/// One line that begins with `flag`: what is in the way.
pub fn listen(path: &Path, flag: &str) -> Result<(UnixListener, SocketFile), Failure> {
    let refuse =
        |why: String| Failure::usage(format!("{flag}: cannot create '{}': {why}", path.display()));
    remove_stale(path).map_err(&refuse)?;
    let listener = bind(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => refuse("its folder does not exist".into()),
        ErrorKind::PermissionDenied => refuse("you may not write there".into()),
        _ => refuse(error.to_string()),
    })?;
    let metadata = fs::symlink_metadata(path).map_err(|error| refuse(error.to_string()))?;
    let file = SocketFile {
        path: path.to_owned(),
        identity: (metadata.dev(), metadata.ino()),
    };
    Ok((listener, file))
}

impl SocketFile {
    /// Removes the file, unless somebody put another one in its place.
    pub fn remove(&self) {
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity);
        if is_ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Removes a socket file on which nobody listens.
fn remove_stale(path: &Path) -> Result<(), String> {
    match fs::symlink_metadata(path) {
        Err(_) => return Ok(()),
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => return Err("the file exists and is no socket; name another path".into()),
    }
    match UnixStream::connect(path) {
        Ok(_) => Err("another virtual machine listens there; name another path".into()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| format!("a stale socket is there: {error}"))
        }
        Err(error) => Err(format!("a socket is there already: {error}")),
    }
}

/// A listening socket whose file has mode 0600 from its first moment: Linux creates the
/// file with the mode that the unbound socket has.
fn bind(path: &Path) -> io::Result<UnixListener> {
    // SAFETY: sockaddr_un consists of integers, for which zero is valid.
    let mut address = unsafe { std::mem::zeroed::<libc::sockaddr_un>() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    // One byte stays zero as the end.
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::other(format!(
            "the path has {} bytes, a socket's may have {}",
            bytes.len(),
            address.sun_path.len() - 1
        )));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket takes and returns integers only.
    let socket: OwnedFd = host::owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    let fd: RawFd = socket.as_raw_fd();
    // SAFETY: fchmod takes integers only.
    host::check(unsafe { libc::fchmod(fd, 0o600) })?;
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `address` is a valid address of `length` bytes.
    host::check(unsafe { libc::bind(fd, (&raw const address).cast(), length) })?;
    // SAFETY: listen takes integers only.
    host::check(unsafe { libc::listen(fd, 16) })?;
    Ok(UnixListener::from(socket))
}
