//! Runs `tollgate exec` with a root that has busybox.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};

use super::folder::Folder;
use super::guests::fetched;
use super::{GUEST_PATIENCE, finish, tollgate, user_code_flags};

/// A folder with a root that has busybox, and another folder in which commands start.
pub struct Place {
    /// The folder for other files of a test.
    pub folder: Folder,
    /// The root of the guest.
    pub root: PathBuf,
    /// The folder in which commands start.
    pub here: PathBuf,
}

/// The programs of busybox that the tests use.
const PROGRAMS: &[&str] = &[
    "sh", "cat", "echo", "env", "id", "kill", "mkdir", "nc", "pwd", "sleep", "stat", "stty",
    "test", "touch", "true", "tty", "uname", "wc", "yes", "head", "od", "date", "cut",
];

impl Place {
    /// Makes both folders; the root has 64-bit programs.
    pub fn new() -> Self {
        Self::with_programs_of("busybox-amd64/busybox")
    }

    /// Makes both folders; the root has 32-bit programs.
    pub fn of_32_bits() -> Self {
        Self::with_programs_of("busybox/busybox")
    }

    fn with_programs_of(busybox: &str) -> Self {
        let folder = Folder::new();
        let (root, here) = (folder.path("root"), folder.path("here"));
        for directory in ["bin", "etc"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        fs::create_dir(&here).unwrap();
        fs::copy(fetched(busybox), root.join("bin/busybox")).unwrap();
        for program in PROGRAMS {
            symlink("busybox", root.join("bin").join(program)).unwrap();
        }
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:7:8::/home/ann:/bin/sh\n";
        fs::write(root.join("etc/passwd"), passwd).unwrap();
        Self { folder, root, here }
    }

    /// `tollgate exec` with these flags and a command, started in the folder, on its root unless
    /// the flags name an image.
    pub fn exec(&self, flags: &[&str], command: &[&str]) -> Command {
        let mut tollgate = tollgate();
        tollgate.current_dir(&self.here);
        tollgate.env(
            "TOLLGATE_GUESTS",
            fetched("debian-amd64/vmlinuz").ancestors().nth(2).unwrap(),
        );
        tollgate.arg("exec");
        if !flags.contains(&"-m") {
            tollgate.args(["-m", "256M"]);
        }
        if !flags.contains(&"--image") {
            tollgate.arg("--root").arg(&self.root);
        }
        if !flags.iter().any(|flag| flag.starts_with("user-code=")) {
            tollgate.args(user_code_flags());
        }
        tollgate.args(flags).arg("--").args(command);
        tollgate
    }

    /// Runs a shell's script and returns its output and its exit code.
    #[track_caller]
    pub fn script(&self, flags: &[&str], script: &str) -> Output {
        finish(&mut self.exec(flags, &["sh", "-c", script]), GUEST_PATIENCE)
    }

    /// Runs a script that must succeed and write nothing to standard error; returns its output.
    #[track_caller]
    pub fn answer(&self, flags: &[&str], script: &str) -> String {
        let output = self.script(flags, script);
        assert_eq!(text(&output.stderr), "");
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
        text(&output.stdout)
    }
}

/// The bytes as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
