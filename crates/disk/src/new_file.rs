//! A file that gets its name only when it is complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// How many temporary names are tried.
const MOST_ATTEMPTS: u32 = 1000;

/// A file that is being written. If it is dropped, nothing remains. If the file system supports
/// files without a name (O_TMPFILE), nothing remains after the process is killed either.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    /// A temporary name, if the file needs one.
    temporary: Option<PathBuf>,
    path: PathBuf,
}

impl NewFile {
    /// Creates a file that will be called `path`, with these permissions, of which the process's
    /// umask removes some.
    ///
    /// # Errors
    /// An error of the host.
    pub fn create(path: &Path, mode: u32) -> io::Result<Self> {
        // A path without a name is refused now, not after everything is written.
        temporary_name(path, 0)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(mode);
        let unnamed = options
            .clone()
            .custom_flags(libc::O_TMPFILE)
            .open(folder_of(path));
        let (file, temporary) = match unnamed {
            Ok(file) => (file, None),
            Err(error) if is_unsupported(&error) => {
                let (file, temporary) =
                    with_temporary_name(path, |name| options.create_new(true).open(name))?;
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
            if replace {
                let ((), name) = with_temporary_name(&self.path, |name| link(&self.file, name))?;
                self.temporary = Some(name);
            } else {
                link(&self.file, &self.path)?;
            }
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
        match File::open(folder_of(&self.path)) {
            Ok(folder) => folder.sync_all(),
            // The user may write to the folder but not read it. The file is there; the host stores
            // its name when it wants to.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
            Err(error) => Err(error),
        }
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

/// Calls `make` with names in the folder of `path` until one is free, and returns it. A name that
/// exists is that of a process that was killed, or of one that writes the same file now, in another
/// container with the same process number. So it is left alone.
fn with_temporary_name<T>(
    path: &Path,
    mut make: impl FnMut(&Path) -> io::Result<T>,
) -> io::Result<(T, PathBuf)> {
    let mut attempt = 0;
    loop {
        let name = temporary_name(path, attempt)?;
        match make(&name) {
            Ok(made) => return Ok((made, name)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && attempt < MOST_ATTEMPTS => {
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn temporary_name(path: &Path, attempt: u32) -> io::Result<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::from(ErrorKind::IsADirectory))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}-{attempt}", std::process::id()));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, PermissionsExt};

    fn folder(name: &str) -> PathBuf {
        let name = format!("tollgate-new-file-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn a_file_has_its_name_only_when_it_is_complete() {
        let folder = folder("complete");
        let path = folder.join("file");
        fs::write(&path, "old").unwrap();
        let file = NewFile::create(&path, 0o600).unwrap();
        file.file().write_all_at(b"new", 0).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        file.publish(true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let file = NewFile::create(&path, 0o600).unwrap();
        let error = file.publish(false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        drop(NewFile::create(&path, 0o600).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"new");
        // No other name stays.
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_a_killed_process_with_the_same_number_has_left_is_in_no_ones_way() {
        let folder = folder("killed");
        let path = folder.join("file");
        let left = temporary_name(&path, 0).unwrap();
        fs::write(&left, "left").unwrap();
        let file = NewFile::create(&path, 0o600).unwrap();
        file.file().write_all_at(b"new", 0).unwrap();
        file.publish(true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read(&left).unwrap(), b"left");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_path_without_a_name_is_refused_before_anything_is_written() {
        let error = NewFile::create(Path::new("/"), 0o600).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
    }
}
