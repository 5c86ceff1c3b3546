//! `tollgate snapshot fork`: machines that continue from where a running one is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::support::control::{command, connect, connect_to_running};
use crate::support::exec::text;
use crate::support::folder::Folder;
use crate::support::linux::{self, DEBIAN_AMD64};
use crate::support::session::Session;
use crate::support::{GUEST_PATIENCE, eventually, finish, signal, tollgate, within};

/// inc word [0x7e00]; jmp back
const COUNTER: [u8; 6] = [0xff, 0x06, 0x00, 0x7e, 0xeb, 0xfa];

/// Runs `tollgate snapshot fork` with these words.
fn fork(socket: &Path, words: &[&str]) -> Output {
    let mut command = tollgate();
    command.args(["snapshot", "fork"]).arg(socket).args(words);
    finish(&mut command, GUEST_PATIENCE)
}

/// Forks that run, which end with this.
struct Forks(Vec<Value>);

impl Forks {
    /// The forks that the command has described.
    #[track_caller]
    fn started(output: &Output) -> Self {
        assert_eq!(text(&output.stderr), "");
        assert_eq!(output.status.code(), Some(0));
        let described: Value = serde_json::from_slice(&output.stdout).unwrap();
        Self(described["forks"].as_array().unwrap().clone())
    }

    fn path(&self, fork: usize, name: &str) -> PathBuf {
        self.0[fork][name].as_str().unwrap().into()
    }

    /// The complete lines that a fork's guest has written, without the rest of a line that it was
    /// writing when it was forked.
    fn lines(&self, fork: usize) -> Vec<String> {
        let written = fs::read(self.path(fork, "serial")).unwrap();
        let written = text(&written).replace('\r', "");
        let mut lines: Vec<String> = written.lines().skip(1).map(str::to_owned).collect();
        lines.pop();
        lines
    }

    /// The lines of a fork as soon as there are `count`.
    #[track_caller]
    fn first_lines(&self, fork: usize, count: usize) -> Vec<String> {
        within(GUEST_PATIENCE, "the fork's lines", || {
            let lines = self.lines(fork);
            (lines.len() >= count).then_some(lines)
        })
    }

    /// Ends a fork, and waits until it has ended.
    fn quit(&self, fork: usize) {
        let socket = self.path(fork, "control");
        let mut quit = tollgate();
        finish(quit.arg("control").arg(&socket).arg("quit"), GUEST_PATIENCE);
        eventually("the fork's end", || (!socket.exists()).then_some(()));
    }
}

impl Drop for Forks {
    fn drop(&mut self) {
        for fork in &self.0 {
            let mut quit = tollgate();
            let socket = fork["control"].as_str().unwrap();
            let _ = quit.args(["control", socket, "quit"]).output();
        }
    }
}

/// Starts a guest that counts in memory, with more flags.
fn counting(folder: &Folder, flags: &[&str]) -> (Session, PathBuf) {
    let socket = folder.path("vm.sock");
    let mut run = tollgate();
    run.args(["run", "-m", "16M", "--kernel"]);
    run.arg(folder.boot_sector(&COUNTER));
    run.arg("--control").arg(&socket).args(flags);
    let guest = Session::over_pipes(run);
    connect_to_running(&socket);
    (guest, socket)
}

/// The names of the files in a folder.
fn names(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(folder.as_path()).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn forks_continue_from_the_same_state_and_go_their_own_ways() {
    let folder = Folder::new();
    let socket = folder.path("vm.sock");
    let mut run = linux::run(DEBIAN_AMD64);
    run.args(["-m", "192M", "--control"]).arg(&socket);
    let mut guest = linux::boot(run);
    let has_driver = guest.shell("ls /sys/bus/acpi/drivers/vmgenid | grep -c :") != "0";
    guest.type_line(
        "n=0; while :; do n=$((n+1)); \
         echo at $n $(head -c 8 /dev/urandom | od -An -tx1); done",
    );
    guest.wait_for("\nat 5 ");
    let forks = Forks::started(&fork(&socket, &["--count", "2", "--json"]));
    let number = |line: &str| line.split(' ').nth(1).unwrap().to_owned();
    let [one, other] = [0, 1].map(|fork| forks.first_lines(fork, 5));
    assert_eq!(number(&one[0]), number(&other[0]), "{one:?} {other:?}");
    assert!(number(&one[0]).parse::<u32>().unwrap() > 5, "{one:?}");
    if has_driver {
        within(GUEST_PATIENCE, "random numbers that differ", || {
            let [one, other] = [0, 1].map(|fork| forks.lines(fork));
            let mut pairs = one.iter().zip(&other);
            let differ = pairs.any(|(one, other)| number(one) == number(other) && one != other);
            differ.then_some(())
        });
    }
    // One fork is killed, and the other and the first machine go on.
    let process = forks.0[0]["pid"].as_u64().unwrap();
    signal(process.try_into().unwrap(), libc::SIGKILL);
    let before = forks.lines(1).len();
    forks.first_lines(1, before + 3);
    let last = guest.unread().matches("\nat ").count();
    within(GUEST_PATIENCE, "the first machine's lines", || {
        (guest.unread().matches("\nat ").count() > last + 3).then_some(())
    });
    // The snapshot that they have continued from is gone, and both of them use it.
    let left = names(&folder);
    assert!(!left.iter().any(|name| name.ends_with(".fork")), "{left:?}");
    // A fork can be forked and put back.
    let second = forks.path(1, "control");
    let again = Forks::started(&fork(&second, &["--json"]));
    assert_eq!(again.path(0, "control"), folder.path("vm-2-1.sock"));
    again.first_lines(0, 3);
    let reset = finish(tollgate().arg("reset").arg(&second), GUEST_PATIENCE);
    assert_eq!(reset.status.code(), Some(0), "{}", text(&reset.stderr));
    again.quit(0);
    forks.quit(1);
    assert_eq!(command(&connect(&socket), "quit")["ok"], true);
    guest.end();
}

#[test]
fn forks_of_a_machine_that_writes_to_a_disk_have_overlays_of_their_own() {
    let folder = Folder::new();
    let socket = folder.path("vm.sock");
    let disk = folder.path("disk.qcow2");
    let mut create = tollgate();
    create.args(["image", "create", "-f", "qcow2"]).arg(&disk);
    let created = finish(create.arg("8M"), GUEST_PATIENCE);
    assert_eq!(created.status.code(), Some(0), "{}", text(&created.stderr));
    let mut run = linux::run_with_modules(&folder, DEBIAN_AMD64);
    run.args(["--drive", &format!("file={}", disk.display())]);
    run.arg("--control").arg(&socket);
    let mut guest = linux::boot(run);
    linux::load_modules(&mut guest);
    guest.type_line(
        "n=0; while :; do n=$((n+1)); tag=$(head -c 8 /dev/urandom | od -An -tx1 | tr -d ' '); \
         echo $tag | dd of=/dev/vda conv=notrunc,fsync 2>/dev/null; \
         echo 3 > /proc/sys/vm/drop_caches; back=$(head -c 16 /dev/vda); \
         [ $tag = $back ] && echo at $n same || echo at $n other; done",
    );
    guest.wait_for("\nat 3 same");
    // While the machine goes on, forks would meet a disk that it changes.
    let refused = fork(&socket, &["--count", "2"]);
    let errors = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("disk.qcow2") && errors.contains("--then quit"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
    guest.wait_for("\nat 6 same");

    let forks = Forks::started(&fork(
        &socket,
        &["--count", "2", "--json", "--then", "quit"],
    ));
    assert_eq!(guest.end().code, Some(0));
    let image = fs::read(&disk).unwrap();
    for fork in 0..2 {
        let lines = forks.first_lines(fork, 4);
        let wrong = lines.iter().find(|line| !line.ends_with(" same"));
        assert_eq!(wrong, None, "{lines:?}");
    }
    // What a fork has written ends with it, so it can be neither forked nor put back.
    let socket = forks.path(0, "control");
    let again = fork(&socket, &[]);
    assert!(text(&again.stderr).contains("snapshot=on"), "{again:?}");
    let reset = finish(tollgate().arg("reset").arg(&socket), GUEST_PATIENCE);
    assert!(text(&reset.stderr).contains("snapshot=on"), "{reset:?}");
    let count = forks.lines(0).len();
    forks.first_lines(0, count + 2);
    forks.quit(0);
    forks.quit(1);
    assert!(fs::read(&disk).unwrap() == image, "a fork wrote the image");
}

#[test]
fn forks_get_the_next_free_names_and_the_snapshot_can_be_kept() {
    let folder = Folder::new();
    let (guest, socket) = counting(&folder, &["--serial", "null"]);
    folder.file("vm-1.serial", b"another's");
    let kept = folder.path("kept.snap");
    let keep = kept.display().to_string();
    let output = fork(&socket, &["--count", "2", "--keep", &keep, "--json"]);
    let forks = Forks::started(&output);
    assert_eq!(forks.0[0]["number"], 2);
    assert_eq!(
        names(&folder),
        [
            "guest.img",
            "kept.snap",
            "vm-1.serial",
            "vm-2.log",
            "vm-2.serial",
            "vm-2.sock",
            "vm-3.log",
            "vm-3.serial",
            "vm-3.sock",
            "vm.sock"
        ]
    );
    let mut check = tollgate();
    let checked = finish(check.args(["snapshot", "check"]).arg(&kept), GUEST_PATIENCE);
    assert_eq!(checked.status.code(), Some(0));
    // A fork is forked with what differs from its snapshot.
    let later = folder.path("later.snap");
    let (second, then) = (forks.path(0, "control"), later.display().to_string());
    let words = ["--base", &keep, "--keep", &then, "--json"];
    let again = Forks::started(&fork(&second, &words));
    let mut info = tollgate();
    info.args(["snapshot", "info", "--json"]).arg(&later);
    let described = finish(&mut info, GUEST_PATIENCE).stdout;
    let described: Value = serde_json::from_slice(&described).unwrap();
    assert_eq!(described["bases"][0]["path"], keep);
    let bytes = |file: &Path| fs::metadata(file).unwrap().len();
    assert!(bytes(&later) < bytes(&kept), "{described}");
    again.quit(0);
    // For people, with a pseudo-terminal for each.
    let prefix = folder.path("other").display().to_string();
    let output = fork(&socket, &["--prefix", &prefix, "--serial", "pty"]);
    let line = text(&output.stdout);
    assert!(line.starts_with("fork 1  process "), "{line}");
    assert!(line.contains("  serial /dev/"), "{line}");
    let socket_of_other = folder.path("other-1.sock");
    assert_eq!(command(&connect(&socket_of_other), "quit")["ok"], true);
    assert_eq!(command(&connect(&socket), "quit")["ok"], true);
    guest.end();
}

#[test]
fn a_wrong_number_of_forks_is_refused_and_the_machine_goes_on() {
    let folder = Folder::new();
    let (guest, socket) = counting(&folder, &[]);
    for count in ["0", "257", "many"] {
        let output = fork(&socket, &["--count", count]);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains("--count"), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    let nowhere = folder.path("none/vm").display().to_string();
    let output = fork(&socket, &["--prefix", &nowhere, "--then", "quit"]);
    assert!(text(&output.stderr).contains("cannot create files"));
    assert_eq!(names(&folder), ["guest.img", "vm.sock"]);
    assert_eq!(command(&connect(&socket), "quit")["ok"], true);
    guest.end();
    let output = fork(&socket, &[]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_machine_that_has_ended_for_forks_that_fail_leaves_its_snapshot() {
    let folder = Folder::new();
    let log = folder.path("out");
    let port = format!("log=file:{}", log.display());
    let (guest, socket) = counting(&folder, &["--port", &port]);
    // The fork cannot write its port's file.
    fs::create_dir(folder.path("vm-1.port-log")).unwrap();
    let output = fork(&socket, &["--then", "quit"]);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("fork 1 has ended: "), "{errors}");
    assert!(errors.contains("the machine's state is in '"), "{errors}");
    guest.end();
    let left = names(&folder);
    let snapshot = left.iter().find(|name| name.ends_with(".fork")).unwrap();
    let mut check = tollgate();
    let path = folder.path(snapshot);
    let checked = finish(check.args(["snapshot", "check"]).arg(path), GUEST_PATIENCE);
    assert_eq!(checked.status.code(), Some(0));
    assert!(!left.iter().any(|name| name.starts_with("vm-1.log")));
}
