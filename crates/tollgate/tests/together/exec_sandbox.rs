//! Tests `tollgate exec --sandbox`: what a command sees that gets nothing of this host, and what ends it.

use std::fs;
use std::net::TcpListener;
use std::process::Output;

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::support::exec::{Place, text};
use crate::support::{GUEST_PATIENCE, PATIENCE, finish, tollgate};

/// Runs a shell's script in a sandbox.
#[track_caller]
fn sandboxed(place: &Place, flags: &[&str], script: &str) -> Output {
    let flags = [&["--sandbox"], flags].concat();
    let mut command = place.exec(&flags, &["sh", "-c", script]);
    command.env("SECRET", "token").env("LC_ALL", "C");
    finish(&mut command, GUEST_PATIENCE)
}

#[track_caller]
fn answer(place: &Place, flags: &[&str], script: &str) -> String {
    let output = sandboxed(place, flags, script);
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    text(&output.stdout)
}

#[test]
fn a_sandboxed_command_finds_nothing_of_this_host() {
    let place = Place::new();
    fs::write(place.here.join("private"), "x").unwrap();
    fs::create_dir(place.root.join("tmp")).unwrap();
    fs::write(place.root.join("tmp/of-the-root"), "x").unwrap();
    let here = place.here.display();
    // A directory of this host would be of this type; /run and /tmp are of the guest's memory.
    let script = format!(
        "pwd; uname -n; env | cut -d= -f1; \
         busybox ls /tmp /run /dev/shm; busybox ls /sys/class/net; test -e {here} && echo seen; \
         cut -d' ' -f3 /proc/mounts | busybox sort | busybox uniq -c | busybox grep virtiofs; \
         echo end"
    );
    let seen = answer(&place, &[], &script);
    let mut lines: Vec<&str> = seen.lines().map(str::trim).collect();
    for expected in [
        "/",
        "sandbox",
        "PATH",
        "HOME",
        "lo",
        "/tmp:",
        "/run:",
        "/dev/shm:",
    ] {
        let found = lines.iter().position(|line| *line == expected);
        lines.remove(found.unwrap_or_else(|| panic!("no {expected} in {seen}")));
    }
    // The shell makes these variables itself.
    let allowed = [
        "USER",
        "LOGNAME",
        "TERM",
        "COLORTERM",
        "PWD",
        "SHLVL",
        "OLDPWD",
        "_",
        "",
    ];
    lines.retain(|line| !allowed.contains(line));
    assert_eq!(lines, ["end"], "{seen}");
}

#[test]
fn a_sandboxed_command_changes_nothing_of_its_root() {
    let place = Place::new();
    let script = "echo changed > /etc/passwd; echo new > /new; cat /etc/passwd /new";
    assert_eq!(answer(&place, &[], script), "changed\nnew\n");
    assert!(!place.root.join("new").exists());
    let passwd = fs::read_to_string(place.root.join("etc/passwd")).unwrap();
    assert!(passwd.starts_with("root:"));
}

#[test]
fn what_is_given_by_name_reaches_a_sandbox() {
    let place = Place::new();
    fs::write(place.here.join("data"), "given\n").unwrap();
    let share = format!("{}:/in,ro", place.here.display());
    let script = "cat /in/data; echo x > /in/data; echo $?; echo $SECRET $A";
    let flags = ["--share", &share, "--env", "SECRET", "--env", "A=b"];
    let output = sandboxed(&place, &flags, script);
    assert_eq!(text(&output.stdout), "given\n1\ntoken b\n");
    assert_eq!(fs::read(place.here.join("data")).unwrap(), b"given\n");
}

#[test]
fn a_sandbox_reaches_the_network_only_as_rules_say() {
    let place = Place::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let [port, closed] = [&server, &other].map(|it| it.local_addr().unwrap().port());
    std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = server.accept().unwrap();
        stream.write_all(b"allowed\n").unwrap();
    });
    let rules = format!("--net=user,allow=host:{port}");
    let script = format!(
        "nc 10.0.2.2 {port} </dev/null; nc 10.0.2.2 {closed} </dev/null 2>/dev/null || echo refused"
    );
    assert_eq!(answer(&place, &[&rules], &script), "allowed\nrefused\n");
}

/// What 'docker save' writes for an image with one layer, which has one program and its names.
fn saved_image(program: &[u8]) -> Vec<u8> {
    let mut layer = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o755);
    header.set_size(program.len() as u64);
    layer
        .append_data(&mut header, "bin/busybox", program)
        .unwrap();
    let mut link = tar::Header::new_gnu();
    link.set_entry_type(tar::EntryType::Symlink);
    link.set_mode(0o777);
    link.set_size(0);
    layer
        .append_link(&mut link, "bin/sh", "/bin/busybox")
        .unwrap();
    let layer = layer.into_inner().unwrap();

    let hash: [u8; 32] = Sha256::digest(&layer).into();
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let configuration = json!({
        "architecture": "amd64",
        "rootfs": {"diff_ids": [format!("sha256:{hash}")]},
        "config": {"Cmd": ["sh", "-c", "echo $A"], "Env": ["A=b"]},
    });
    let manifest = json!([{"Config": "c.json", "RepoTags": ["box:1"], "Layers": ["layer.tar"]}]);
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in [
        ("c.json", configuration.to_string().into_bytes()),
        ("manifest.json", manifest.to_string().into_bytes()),
        ("layer.tar", layer),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        archive
            .append_data(&mut header, name, &content[..])
            .unwrap();
    }
    archive.into_inner().unwrap()
}

#[test]
fn a_container_image_is_unpacked_and_runs() {
    let mut place = Place::new();
    let (archive, directory) = (
        place.folder.path("image.tar"),
        place.folder.path("unpacked"),
    );
    let busybox = fs::read(place.root.join("bin/busybox")).unwrap();
    fs::write(&archive, saved_image(&busybox)).unwrap();
    let mut unpack = tollgate();
    unpack
        .args(["image", "unpack"])
        .args([&archive, &directory]);
    let unpacked = finish(&mut unpack, PATIENCE);
    assert_eq!(text(&unpacked.stderr), "");
    let printed = text(&unpacked.stdout);
    assert!(printed.starts_with("1 layers, 1 files, "), "{printed}");
    let root = directory.display();
    let advice = format!("tollgate exec --sandbox --root={root} --env=A=b -- sh -c 'echo $A'\n");
    assert!(printed.ends_with(&advice), "{printed}");
    place.root = directory;
    assert_eq!(
        answer(&place, &["--env=A=b"], "echo $A; busybox id -u"),
        "b\n0\n"
    );
}

#[test]
fn what_contradicts_a_sandbox_is_one_line() {
    let place = Place::new();
    let rows: [(&[&str], &str); 5] = [
        (&["--net"], "say what the command reaches"),
        (&["--rw", "."], "--rw lets the command change this host"),
        (&["--share", "."], "--share needs ,ro"),
        (&["--confine", "off"], "--confine off"),
        (&["--files", "1G"], "give more with --memory"),
    ];
    for (flags, why) in rows {
        let flags = [&["--sandbox"], flags].concat();
        let output = finish(&mut place.exec(&flags, &["true"]), PATIENCE);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{flags:?}: {errors}");
        assert!(
            errors.contains(why) && errors.lines().count() == 1,
            "{errors}"
        );
    }
}

#[test]
fn processes_files_memory_and_time_of_a_sandbox_end() {
    let place = Place::new();
    // The shell ends when it cannot start one more.
    let script = "while true; do sleep 1000 & done";
    let output = sandboxed(&place, &["--processes", "16"], script);
    let errors = text(&output.stderr);
    assert!(
        errors.contains("limit of processes (--processes)"),
        "{errors}"
    );
    assert_ne!(output.status.code(), Some(0));

    let bomb = "bomb() { bomb | bomb & }; bomb; sleep 1000";
    let output = sandboxed(&place, &["--processes", "32", "--timeout", "3"], bomb);
    assert_eq!(output.status.code(), Some(124), "{}", text(&output.stderr));

    // Each place takes something of the same memory.
    let script = "for place in / /tmp/ /run/ /dev/shm/; do head -c 3145728 /dev/zero > ${place}hog || \
                  echo full; done; exit 4";
    let output = sandboxed(&place, &["--files", "10M"], script);
    assert_eq!(text(&output.stdout), "full\n");
    let errors = text(&output.stderr);
    assert!(errors.contains("fill their limit (--files)"), "{errors}");
    assert_eq!(output.status.code(), Some(4));

    let output = sandboxed(&place, &["-m", "128M"], "exec busybox tail /dev/zero");
    let errors = text(&output.stderr);
    assert!(errors.contains("the guest's memory was full"), "{errors}");
    assert_eq!(output.status.code(), Some(137));

    let output = sandboxed(&place, &["--timeout", "1"], "while true; do true; done");
    assert_eq!(output.status.code(), Some(124), "{}", text(&output.stderr));
}

#[test]
fn limits_hold_without_a_sandbox_too() {
    let place = Place::new();
    let output = place.script(&["--processes", "16"], "while true; do sleep 1000 & done");
    assert!(text(&output.stderr).contains("limit of processes (--processes)"));
    let script = "head -c 9000000 /dev/zero > /run/hog; busybox rm /run/hog; echo $?";
    let output = place.script(&["--files", "4M"], script);
    // What was removed does not count at the end.
    assert_eq!(text(&output.stdout), "0\n");
    assert!(!text(&output.stderr).contains("--files"));
}
