//! Makes a folder that only one test uses.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new folder, removed with its content at the end of the test.
pub struct Folder(PathBuf);

impl Folder {
    /// Creates the folder among the temporary files.
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// The path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Creates a file in the folder.
    pub fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// Creates a file of `bytes` zeros that takes no space.
    pub fn sparse_file(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.path(name);
        fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }

    /// A boot sector that begins with `code`.
    pub fn boot_sector(&self, code: &[u8]) -> PathBuf {
        let mut sector = [0; 512];
        sector[..code.len()].copy_from_slice(code);
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        self.file("guest.img", &sector)
    }

    /// The folder itself.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
