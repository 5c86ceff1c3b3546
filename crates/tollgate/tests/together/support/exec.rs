//! `tollgate exec` with a root of busybox.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};

use super::folder::Folder;
use super::guests::fetched;
use super::{GUEST_PATIENCE, finish, tollgate};

/// A folder with a root of busybox, and another one for commands to be in.
pub struct Place {
    /// For whatever else a test has.
    pub folder: Folder,
    /// The root.
    pub root: PathBuf,
    /// Where commands are.
    pub here: PathBuf,
}

/// The programs of busybox that the tests use.
const PROGRAMS: &[&str] = &[
    "sh", "cat", "echo", "env", "id", "kill", "mkdir", "nc", "pwd", "sleep", "stat", "stty",
    "test", "touch", "true", "tty", "uname", "wc", "yes",
];

impl Place {
    /// Makes both, the root with programs of 64 bits.
    pub fn new() -> Self {
        Self::with_programs_of("busybox-amd64/busybox")
    }

    /// The same with programs of 32 bits.
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

    /// `tollgate exec` with these flags and a command, in the folder; on its root unless they name
    /// an image.
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
        tollgate.args(flags).arg("--").args(command);
        tollgate
    }

    /// What a shell's script writes, and how it ends.
    #[track_caller]
    pub fn script(&self, flags: &[&str], script: &str) -> Output {
        finish(&mut self.exec(flags, &["sh", "-c", script]), GUEST_PATIENCE)
    }

    /// The same for one that must succeed and write nothing to standard error.
    #[track_caller]
    pub fn answer(&self, flags: &[&str], script: &str) -> String {
        let output = self.script(flags, script);
        assert_eq!(text(&output.stderr), "");
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
        text(&output.stdout)
    }
}

/// Text of bytes.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
