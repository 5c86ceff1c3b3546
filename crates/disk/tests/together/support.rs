//! Shared parts of the tests of image files: a folder for the files, and QEMU's own `qemu-img`
//! (Debian package qemu-utils, which scripts/install-dependencies installs), which decides whether
//! an image is correct.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Between fork and exec, a child holds the locks of all images that this process has open,
/// including those of other tests, so only one test runs at a time.
static TURN: Mutex<()> = Mutex::new(());

/// A folder that is removed at the end.
pub struct Folder(
    pub PathBuf,
    #[expect(dead_code, reason = "held")] MutexGuard<'static, ()>,
);

impl Folder {
    pub fn new() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-disk-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path, turn)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs qemu-img. Returns whether it succeeded, and its output.
pub fn qemu_img(arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> (bool, String) {
    let output = Command::new("qemu-img")
        .args(arguments.iter().map(|argument| argument.as_ref()))
        .output()
        .expect("qemu-img (scripts/install-dependencies installs it)");
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}
