//! Tests `jailer`, as root and as an ordinary user, with a program that finds its libraries in its jail
//! and with one that does not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::{getegid, geteuid};
use serde_json::json;

use crate::support::exec::text;
use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::linux::{self, DEBIAN_AMD64};
use crate::support::session::Session;
use crate::support::{PATIENCE, finish};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tollgate-firecracker");

/// The folder with the jails of a test, and the user who may be made the owner of one.
struct Jails {
    folder: Folder,
    user: u32,
    group: u32,
}

impl Jails {
    fn new() -> Self {
        let (user, group) = match geteuid().is_root() {
            true => (1234, 1234),
            false => (geteuid().as_raw(), getegid().as_raw()),
        };
        Self {
            folder: Folder::new(),
            user,
            group,
        }
    }

    fn root(&self, id: &str) -> PathBuf {
        self.folder
            .path("jails/tollgate-firecracker")
            .join(id)
            .join("root")
    }

    fn command(&self, id: &str, flags: &[&str]) -> Command {
        let mut jailer = Command::new(env!("CARGO_BIN_EXE_jailer"));
        jailer
            .args(["--id", id, "--exec-file", PROGRAM])
            .arg(format!("--uid={}", self.user))
            .arg(format!("--gid={}", self.group))
            .arg("--chroot-base-dir")
            .arg(self.folder.path("jails"))
            .args(flags);
        jailer
    }

    fn run(&self, id: &str, flags: &[&str]) -> Output {
        finish(&mut self.command(id, flags), PATIENCE)
    }

    /// Puts the libraries of the program into a jail, as a package's static program does not need.
    fn put_libraries(&self, id: &str) {
        let listed = finish(Command::new("ldd").arg(PROGRAM), PATIENCE);
        for word in text(&listed.stdout).split_ascii_whitespace() {
            if word.starts_with('/') {
                self.put(id, Path::new(word), word);
            }
        }
    }

    fn put(&self, id: &str, from: &Path, to: &str) {
        let to = self.root(id).join(to.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    }
}

/// Expects that every line of the jailer is about a step that it has left out.
#[track_caller]
fn only_steps_left_out(errors: &str) {
    for line in errors.lines() {
        assert!(line.starts_with("jailer: left out"), "{errors}");
    }
}

#[test]
fn a_jailed_program_starts_wherever_its_root_is() {
    let jails = Jails::new();
    // Without libraries in the jail the root stays.
    let output = jails.run("plain", &["--", "--version"]);
    let errors = text(&output.stderr);
    only_steps_left_out(&errors);
    assert!(
        text(&output.stdout).starts_with("Firecracker v"),
        "{errors}"
    );
    assert!(errors.contains("a static build needs none") || errors.is_empty());

    jails.put_libraries("full");
    let output = jails.run("full", &["--new-pid-ns", "--", "--version"]);
    let errors = text(&output.stderr);
    only_steps_left_out(&errors);
    if geteuid().is_root() {
        assert_eq!(errors, "");
    }
    assert_eq!(output.status.code(), Some(0), "{errors}");
}

#[test]
fn a_machine_boots_in_a_jail() {
    let jails = Jails::new();
    jails.put_libraries("box");
    jails.put("box", &fetched("debian-amd64/vmlinux"), "vmlinux");
    jails.put(
        "box",
        &fetched(linux::initramfs(DEBIAN_AMD64)),
        "initrd.img",
    );
    let configuration = json!({
        "boot-source": {
            "kernel_image_path": "vmlinux", "initrd_path": "initrd.img", "boot_args": "console=ttyS0"
        },
        "drives": [],
        "machine-config": {"vcpu_count": 1, "mem_size_mib": 192},
    });
    fs::write(jails.root("box").join("vm.json"), configuration.to_string()).unwrap();
    let flags = [
        "--resource-limit",
        "no-file=1024",
        "--",
        "--no-api",
        "--config-file",
        "vm.json",
    ];
    let mut guest = Session::over_pipes(jails.command("box", &flags));
    linux::wait_for_shell(&mut guest);
    assert_eq!(guest.shell("echo from the jail"), "from the jail");
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}

#[test]
fn what_is_wrong_is_one_line() {
    let jails = Jails::new();
    for (flags, why) in [
        (
            &["--resource-limit", "cpu=1"][..],
            "expected fsize=BYTES or no-file=COUNT",
        ),
        (&["--parent-cgroup", "../a"], "without '..'"),
        (&["--id", "b"], "cannot be used multiple times"),
    ] {
        let mut jailer = jails.command("a", flags);
        let output = finish(jailer.stdin(Stdio::null()), PATIENCE);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            text(&output.stderr).contains(why),
            "{}",
            text(&output.stderr)
        );
    }
    let mut jailer = Command::new(env!("CARGO_BIN_EXE_jailer"));
    jailer.args([
        "--id",
        "a",
        "--uid",
        "1",
        "--gid",
        "1",
        "--exec-file",
        "/bin/true",
    ]);
    let output = finish(&mut jailer, PATIENCE);
    assert!(text(&output.stderr).contains("contains 'firecracker'"));
}
