//! Creates Unix sockets that only this user can access, and removes their files.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::failure::Failure;

/// The maximum length of a socket's path: an address has room for one byte more, which ends the
/// path (unix(7)).
pub const MOST_BYTES: usize = 107;

/// A socket's file, which is removed when this is dropped.
pub struct SocketFile {
    /// The path of the file.
    pub path: PathBuf,
    /// Device and inode of the file, so that no other file is removed.
    identity: (u64, u64),
}

/// Creates a socket and its file, accessible to this user only, and listens. A file that a dead
/// machine has left is replaced; a socket on which a process listens is not. Accepting does not
/// wait.
///
/// # Errors
///
/// One line that begins with `flag` says why the socket cannot be made.
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
    /// Removes the file, unless another file took its place.
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

/// Removes a socket file on which no process listens.
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
    let bytes = path.as_os_str().len();
    if bytes > MOST_BYTES {
        return Err(io::Error::other(format!(
            "the path has {bytes} bytes, a socket's may have {MOST_BYTES}"
        )));
    }
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    net::bind(&socket, &address)?;
    net::listen(&socket, 16)?;
    Ok(UnixListener::from(socket))
}
