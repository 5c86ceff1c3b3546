//! Reads, creates and replaces files that the command line names, with errors of one line each, and
//! tells whether other users may use a file.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::geteuid;
use tollgate_host_facts::file_words::{reading, writing};

use crate::failure::Failure;

/// Reads a file of at most `limit` bytes, for the flag `flag`.
///
/// # Errors
///
/// One line says that the file cannot be read, or is too long.
pub fn read(path: &Path, flag: &str, limit: u64) -> Result<Vec<u8>, Failure> {
    let read = || {
        let mut content = Vec::new();
        File::open(path)?
            .take(limit.saturating_add(1))
            .read_to_end(&mut content)?;
        Ok(content)
    };
    let content: Vec<u8> = read().map_err(|error| refusal(path, flag, "read", &reading(&error)))?;
    if content.len() as u64 > limit {
        let why = format!("it has more than {} MiB", limit >> 20);
        return Err(refusal(path, flag, "use", &why));
    }
    Ok(content)
}

/// Creates or empties a file for the flag `flag`. If it is a pipe, its reader must have opened it
/// first.
///
/// Without O_NONBLOCK, opening a pipe that has no reader would wait.
pub fn create(path: &Path, flag: &str) -> Result<File, Failure> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        // Without O_NONBLOCK, opening a pipe that has no reader would wait.
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .and_then(|file| {
            set_blocking(&file)?;
            Ok(file)
        })
        .map_err(|error| refusal(path, flag, "write", &writing(&error)))
}

/// Writes a file under another name in its folder and then renames it, so that a reader finds the
/// old content or the new one. A pipe, a terminal or another device is written directly. Through a
/// symbolic link, the file that it leads to is replaced.
///
/// # Errors
///
/// The host's error; the old content is still there.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let path = match path.canonicalize() {
        Ok(found) if !found.metadata()?.is_file() => return std::fs::write(found, content),
        Ok(found) => found,
        // The path is a new file, or a link to one.
        Err(_) if path.is_symlink() => return std::fs::write(path, content),
        Err(_) => path.to_owned(),
    };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let unfinished = path.with_file_name(name);
    let written = std::fs::write(&unfinished, content).and_then(|()| {
        if let Ok(old) = path.metadata() {
            std::fs::set_permissions(&unfinished, old.permissions())?;
        }
        std::fs::rename(&unfinished, &path)
    });
    written.inspect_err(|_| {
        // If the file cannot be removed either, its name says that it is unfinished.
        let _ = std::fs::remove_file(&unfinished);
    })
}

/// A file that was created before there was something to write. If nothing is written, it is
/// removed again, unless it existed before.
#[derive(Debug)]
pub struct Reserved(Option<PathBuf>);

/// Calls [`create`] for a file that is written later or not at all.
///
/// # Errors
///
/// The errors of [`create`].
pub fn reserve(path: &Path, flag: &str) -> Result<(File, Reserved), Failure> {
    let is_new = path.symlink_metadata().is_err();
    let file = create(path, flag)?;
    Ok((file, Reserved(is_new.then(|| path.to_owned()))))
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let is_empty = |path: &PathBuf| {
            let found = path.symlink_metadata();
            found.is_ok_and(|found| found.is_file() && found.len() == 0)
        };
        if let Some(path) = self.0.take().filter(is_empty) {
            // If it cannot be removed, an empty file stays, which does no harm.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Opens a file for reading that belongs to this process's user and that no other user can do
/// anything with.
///
/// # Errors
/// An error of the host; [`io::ErrorKind::PermissionDenied`] if others may use the file, or if it is
/// no file.
pub fn open_private(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    match metadata.is_file() && is_private(&metadata) {
        true => Ok(file),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Whether the file or folder belongs to this process's user, and no other user may do anything with
/// it.
pub fn is_private(metadata: &Metadata) -> bool {
    metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o077 == 0
}

fn set_blocking(file: &File) -> io::Result<()> {
    Ok(fcntl_setfl(file, OFlags::empty())?)
}

fn refusal(path: &Path, flag: &str, what: &str, why: &str) -> Failure {
    Failure::usage(format!("{flag}: cannot {what} '{}': {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_refused_with_the_reason() {
        let why = |path: &str| read(Path::new(path), "--x", 10).unwrap_err().message;
        assert!(why("/nonexistent").contains("no such file"));
        assert!(why("/tmp").contains("it is a folder"));
        assert!(why("/dev/zero").contains("it has more than"));
        assert_eq!(read(Path::new("/dev/null"), "--x", 10), Ok(Vec::new()));
    }

    #[test]
    fn what_cannot_be_written_is_refused_with_the_reason() {
        let why = |path: &str| create(Path::new(path), "--x").unwrap_err().message;
        assert!(why("/nonexistent/file").contains("folder does not exist"));
        assert!(why("/tmp").contains("it is a folder"));
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_also_through_a_link() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = std::env::temp_dir().join(format!("tollgate-replace-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let [file, link, dangling] = ["file", "link", "dangling"].map(|name| folder.join(name));
        symlink("file", &link).unwrap();
        symlink("new", &dangling).unwrap();
        replace(&file, b"old").unwrap();
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&file, mode).unwrap();
        let before = file.metadata().unwrap().ino();
        let reader = File::open(&file).unwrap();
        replace(&link, b"a longer one").unwrap();
        assert_eq!(io::read_to_string(reader).unwrap(), "old");
        assert_eq!(std::fs::read(&file).unwrap(), b"a longer one");
        let after = file.metadata().unwrap();
        assert!(link.is_symlink() && after.ino() != before);
        assert_eq!(after.mode() & 0o777, 0o600);
        replace(&dangling, b"new").unwrap();
        assert_eq!(std::fs::read(folder.join("new")).unwrap(), b"new");
        replace(Path::new("/dev/null"), b"nothing").unwrap();
        assert!(replace(&folder, b"nothing").is_err());
        // No file with a temporary name stays.
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 4);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_others_may_use_is_not_private() {
        use std::os::unix::fs::PermissionsExt;
        let file = std::env::temp_dir().join(format!("tollgate-private-{}", std::process::id()));
        std::fs::write(&file, "").unwrap();
        for (mode, expected) in [(0o600, true), (0o700, true), (0o640, false), (0o602, false)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_private(&file.metadata().unwrap()), expected, "{mode:o}");
        }
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn a_file_that_was_reserved_for_nothing_goes_again() {
        use std::io::Write;
        let folder = std::env::temp_dir().join(format!("tollgate-reserve-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let [nothing, written, old] = ["nothing", "written", "old"].map(|name| folder.join(name));
        std::fs::write(&old, "").unwrap();
        drop(reserve(&nothing, "--x").unwrap());
        let (mut file, reserved) = reserve(&written, "--x").unwrap();
        file.write_all(b"1").unwrap();
        drop(reserved);
        drop(reserve(&old, "--x").unwrap());
        assert!(!nothing.exists() && written.exists() && old.exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
