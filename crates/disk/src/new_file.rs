//! A file that gets its name only when it is complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file that is being written. If it is dropped, nothing remains. If the file system supports
/// files without a name (O_TMPFILE), nothing remains after the process is killed either.
pub(crate) struct NewFile {
    file: File,
    /// A temporary name, if the file needs one.
    temporary: Option<PathBuf>,
    path: PathBuf,
}

impl NewFile {
    /// Creates a file that will be called `path`.
    ///
    /// # Errors
    /// An error of the host.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o644);
        let unnamed = options
            .clone()
            .custom_flags(libc::O_TMPFILE)
            .open(folder_of(path));
        let (file, temporary) = match unnamed {
            Ok(file) => (file, None),
            Err(error) if is_unsupported(&error) => {
                let temporary = temporary_name(path)?;
                let file = options.create_new(true).open(&temporary)?;
                (file, Some(temporary))
            }
            Err(error) => return Err(error),
        };
        let path = path.to_owned();
        Ok(Self {
            file,
            temporary,
            path,
        })
    }

    /// Returns the file, for reading and writing.
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name, after its contents have reached stable storage. With `replace` an
    /// existing file of this name is replaced atomically.
    ///
    /// # Errors
    /// An error of the host; [`ErrorKind::AlreadyExists`] if there is such a file and it is not
    /// replaced.
    pub fn publish(mut self, replace: bool) -> io::Result<()> {
        self.file.sync_all()?;
        if self.temporary.is_none() {
            let name = if replace {
                temporary_name(&self.path)?
            } else {
                self.path.clone()
            };
            link(&self.file, &name)?;
            self.temporary = replace.then_some(name);
        }
        if let Some(temporary) = &self.temporary {
            if replace {
                fs::rename(temporary, &self.path)?;
                self.temporary = None;
            } else {
                // Unlike renaming, this fails if there is such a file.
                fs::hard_link(temporary, &self.path)?;
            }
        }
        File::open(folder_of(&self.path))?.sync_all()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = fs::remove_file(temporary);
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn temporary_name(path: &Path) -> io::Result<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::from(ErrorKind::IsADirectory))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}", std::process::id()));
    Ok(path.with_file_name(temporary))
}

/// Whether the error means that the file system does not support files without a name (open(2)).
fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)
    )
}

/// Gives a name to a file without one.
fn link(file: &File, path: &Path) -> io::Result<()> {
    let from = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let to = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: both names end with a zero byte and live until the call returns.
    let result = unsafe {
        libc::linkat(
            libc::AT_FDCWD,
            from.as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            libc::AT_SYMLINK_FOLLOW,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
