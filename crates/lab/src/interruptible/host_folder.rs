//! A folder on the host for programs that run there without a machine, which disappears with its value.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A private folder in the folder for temporary files.
pub struct HostFolder(PathBuf);

impl HostFolder {
    /// Makes an empty folder; `None` if the host does not permit it.
    pub fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-lab-native-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::DirBuilder::new().mode(0o700).create(&path).ok()?;
        Some(Self(path))
    }

    /// The path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Adds a program; `None` if the host does not permit it.
    pub fn add_program(&self, name: &str, content: &[u8]) -> Option<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o700)
            .open(self.file(name))
            .ok()?;
        file.write_all(content).ok()
    }
}

impl Drop for HostFolder {
    fn drop(&mut self) {
        // A folder that cannot be removed is left for the host to clean up.
        let _ = fs::remove_dir_all(&self.0);
    }
}
