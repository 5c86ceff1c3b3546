//! Why an image cannot be used, in one line for a user.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// Why an image cannot be used. It prints as one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskError {
    /// The path of the image.
    pub path: PathBuf,
    /// What is wrong, and what the user can do about it.
    pub why: String,
}

impl fmt::Display for DiskError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "cannot use disk image '{}': {}",
            self.path.display(),
            self.why
        )
    }
}

impl std::error::Error for DiskError {}

/// Explains an error in one line, for a user who can do something about it.
pub(crate) fn explain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT) => "no such file; check the path".into(),
        Some(libc::EACCES | libc::EPERM) => {
            "you may not use it in this way; check its permissions, or open it read-only (readonly=on, tollgate exec without rw)".into()
        }
        Some(libc::EROFS) => "its file system is read-only; open it read-only (readonly=on, tollgate exec without rw)".into(),
        Some(libc::EISDIR) => "it is a folder; name a file".into(),
        Some(libc::EINVAL) => {
            format!("{error} (with cache=none: its file system may not know O_DIRECT)")
        }
        _ if error.kind() == ErrorKind::IsADirectory => "it is a folder; name a file".into(),
        _ => error.to_string(),
    }
}
