//! Tests `scripts/package`: the Debian package is complete, installs into a fresh root, and works
//! there for an ordinary user.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::support::exec::text;
use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::{GUEST_PATIENCE, finish};
use tollgate_test_support::skip;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// The limit allows for the large binary of a build without optimization.
const LIMIT: Duration = Duration::from_secs(300);
const ORDINARY: &str = "1234:1234";

fn succeeds(command: &mut Command) -> Output {
    let output = finish(command, LIMIT);
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// Makes both packages from the binary under test.
fn make(folder: &Path) -> (PathBuf, PathBuf) {
    let mut script = Command::new(Path::new(REPOSITORY).join("scripts/package"));
    script.args(["--binary", env!("CARGO_BIN_EXE_tollgate"), "--output"]);
    succeeds(script.arg(folder));
    let version = env!("CARGO_PKG_VERSION");
    (
        folder.join(format!("tollgate_{version}_amd64.deb")),
        folder.join(format!("tollgate-{version}-x86_64-linux.tar.gz")),
    )
}

fn is_root() -> bool {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A command in a mount namespace of its own, in which its user may mount.
fn unshared() -> Command {
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !is_root() {
        command.arg("--map-root-user");
    }
    command
}

/// A root with a shell, a kernel and an empty database of packages.
fn fresh_root(root: &Path) {
    for directory in [
        "bin",
        "dev",
        "proc",
        "tmp",
        "boot",
        "home",
        "etc",
        "var/lib/dpkg/info",
        "var/lib/dpkg/updates",
    ] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
    fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n").unwrap();
    fs::copy(fetched("busybox-amd64/busybox"), root.join("bin/busybox")).unwrap();
    for program in ["sh", "id", "cat", "uname"] {
        symlink("busybox", root.join("bin").join(program)).unwrap();
    }
    let guests = root.join("guests");
    for name in ["debian-amd64", "debian-amd64-modules"] {
        fs::create_dir_all(guests.join(name)).unwrap();
    }
    fs::copy(
        fetched("debian-amd64/vmlinuz"),
        guests.join("debian-amd64/vmlinuz"),
    )
    .unwrap();
    let modules = fetched("debian-amd64-modules/version");
    for file in fs::read_dir(modules.parent().unwrap()).unwrap() {
        let file = file.unwrap();
        let to = guests.join("debian-amd64-modules").join(file.file_name());
        fs::copy(file.path(), to).unwrap();
    }
}

#[test]
fn the_package_installs_in_a_fresh_root_and_works_for_an_ordinary_user() {
    let folder = Folder::new();
    let (package, tarball) = make(folder.as_path());

    let listed = text(&succeeds(Command::new("tar").arg("-tzf").arg(&tarball)).stdout);
    for file in [
        "bin/tollgate",
        "share/man/man1/tollgate.1.gz",
        "share/man/man1/tollgate-run.1.gz",
        "share/man/man1/tollgate-image-create.1.gz",
        "share/bash-completion/completions/tollgate",
        "share/zsh/vendor-completions/_tollgate",
        "share/fish/vendor_completions.d/tollgate.fish",
        "share/doc/tollgate/copyright",
        "share/doc/tollgate/third-party-notices.gz",
        "share/doc/tollgate/LICENSE-APACHE",
    ] {
        let is_there = listed
            .lines()
            .any(|line| line.ends_with(&format!("linux/{file}")));
        assert!(is_there, "{file} is missing in:\n{listed}");
    }
    assert!(!listed.contains("documents"), "{listed}");

    if !package.exists() {
        skip::missing("dpkg-deb is missing, so there is no Debian package");
        return;
    }

    // This root lacks the packages that the package needs. The binary under test may be linked with
    // the host's libraries, which are mounted there below.
    let root = folder.path("fresh");
    fresh_root(&root);
    let mut dpkg = match is_root() {
        true => Command::new("dpkg"),
        false => {
            let mut unshared = Command::new("unshare");
            unshared.args(["--map-root-user", "dpkg"]);
            unshared
        }
    };
    dpkg.arg(format!("--root={}", root.display()));
    dpkg.args(["--force-depends", "--install"]).arg(&package);
    if !is_root()
        && !finish(
            Command::new("unshare").args(["--map-root-user", "true"]),
            LIMIT,
        )
        .status
        .success()
    {
        skip::impossible("this host forbids user namespaces, so nothing is installed without root");
        return;
    }
    succeeds(&mut dpkg);
    let mut query = Command::new("dpkg");
    query
        .arg(format!("--root={}", root.display()))
        .args(["--verify", "tollgate"]);
    assert_eq!(text(&succeeds(&mut query).stdout), "");

    if !finish(unshared().arg("true"), LIMIT).status.success() {
        skip::impossible("this host forbids mounting, so there is no root of its own");
        return;
    }
    let user = match is_root() {
        true => format!("--userspec={ORDINARY} "),
        false => String::new(),
    };
    let script = format!(
        "set -e; cd \"$1\"; mount --rbind /proc proc; mount --rbind /dev dev; \
         for library in lib lib64 usr/lib usr/lib64; do \
             [ ! -d /$library ] || {{ mkdir -p $library; mount --bind /$library $library; }}; \
         done; \
         chown {ORDINARY} home 2>/dev/null || :; \
         exec chroot {user}. /bin/sh -c \"$2\""
    );
    let inside = "cd /home; TOLLGATE_GUESTS=/guests tollgate exec -m 256M -- \
        sh -c 'id -u; uname -s; echo made >file'; echo $?; cat file; tollgate --version";
    let mut command = unshared();
    command
        .args(["sh", "-c", &script, "sh"])
        .arg(&root)
        .arg(inside);
    command.env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin");
    let output = finish(&mut command, GUEST_PATIENCE);
    let user = if is_root() { "1234" } else { "0" };
    let expected = format!(
        "{user}\nLinux\n0\nmade\ntollgate {}\n",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
}

#[test]
fn the_script_refuses_what_it_does_not_know() {
    for (flags, why) in [
        (&["--bogus"][..], "unknown argument '--bogus'"),
        (&["--output"], "--output needs a value"),
        (&["--binary", "/none"], "no such binary: /none"),
    ] {
        let mut script = Command::new(Path::new(REPOSITORY).join("scripts/package"));
        let output = finish(script.args(flags), LIMIT);
        assert!(!output.status.success());
        let errors = text(&output.stderr);
        assert!(
            errors.contains(why) && errors.lines().count() == 1,
            "{errors}"
        );
    }
}
