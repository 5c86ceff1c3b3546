//! Temporary files without names, which disappear with the process.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A file without a name, with a path that is valid in this process.
pub struct NamelessFile(File);

impl NamelessFile {
    /// Makes a file of `bytes` zeros.
    ///
    /// # Errors
    ///
    /// The folder for temporary files does not permit it.
    pub fn zeroed(bytes: u64) -> io::Result<Self> {
        let file = Self::new()?;
        file.0.set_len(bytes)?;
        Ok(file)
    }

    /// Makes a file with this content.
    ///
    /// # Errors
    ///
    /// The folder for temporary files does not permit it, or has no room.
    pub fn with(content: &[u8]) -> io::Result<Self> {
        let mut file = Self::new()?;
        file.0.write_all(content)?;
        Ok(file)
    }

    fn new() -> io::Result<Self> {
        in_folder(&std::env::temp_dir()).map(Self)
    }

    /// A path for this process, valid as long as the file exists.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

/// Makes an empty file without a name in this folder, for reading and writing.
///
/// # Errors
///
/// The folder does not permit it.
pub fn in_folder(folder: &Path) -> io::Result<File> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("tollgate-lab-{}-{number}", std::process::id()));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_their_content_and_no_name() {
        let (one, other) = (
            NamelessFile::with(b"text").unwrap(),
            NamelessFile::zeroed(3).unwrap(),
        );
        assert_eq!(std::fs::read(one.path()).unwrap(), b"text");
        assert_eq!(std::fs::read(other.path()).unwrap(), [0; 3]);
        let target = std::fs::read_link(one.path()).unwrap();
        assert!(target.to_string_lossy().ends_with("(deleted)"));
    }
}
