//! Tests that bytes that the host does not take or give are reported, and change the exit code: a
//! full disk, a standard input that cannot be read, a file that may not grow.

use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use crate::support::exec::{Place, text};
use crate::support::folder::Folder;
use crate::support::{self, GUEST_PATIENCE, PATIENCE, ended, tollgate};

const FULL: &str = "the disk is full";

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

/// Runs a command whose standard output is on a full disk.
fn with_full_output(command: &mut Command) -> Output {
    let child = command
        .stdin(Stdio::null())
        .stdout(full())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    ended(child, GUEST_PATIENCE)
}

#[test]
fn a_command_s_output_on_a_full_disk_is_no_success() {
    let place = Place::new();
    // The first two commands end by themselves and by the loss; the others fail by themselves.
    for (script, code) in [("echo text", 125), ("exec yes", 125), ("echo; exit 3", 3)] {
        let output = with_full_output(&mut place.exec(&[], &["sh", "-c", script]));
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{script}: {errors}");
        let expected = format!("tollgate: cannot write standard output: {FULL}");
        assert!(errors.starts_with(&expected), "{script}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{script}: {errors}");
    }
    let mut command = place.exec(&[], &["sh", "-c", "echo out; echo err >&2"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped());
    let output = ended(child.stderr(full()).spawn().unwrap(), GUEST_PATIENCE);
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(text(&output.stdout), "out\n");
}

#[test]
fn a_standard_input_that_cannot_be_read_is_no_empty_one() {
    let place = Place::new();
    let with_input = |input: File| {
        let mut command = place.exec(&[], &["cat"]);
        let command = command.stdin(input).stdout(Stdio::piped());
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        ended(child, GUEST_PATIENCE)
    };
    let output = with_input(File::open("/").unwrap());
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{errors}");
    assert!(errors.contains("standard input is a directory"), "{errors}");
    // Nothing is mapped at address 0, so the read fails.
    let output = with_input(File::open("/proc/self/mem").unwrap());
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{errors}");
    assert!(errors.contains("cannot read standard input"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    // nohup replaces a terminal by such a descriptor.
    let null = OpenOptions::new().write(true).open("/dev/null").unwrap();
    let output = with_input(null);
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (Some(0), String::new())
    );
}

#[test]
fn commands_that_print_say_when_they_cannot() {
    let lines: [&[&str]; 5] = [
        &["doctor"],
        &["run", "--help"],
        &["run", "--cpu", "help"],
        &["run", "--device", "help"],
        &["lab", "list"],
    ];
    for words in lines {
        let output = with_full_output(tollgate().args(words));
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(8), "{words:?}: {errors}");
        let expected = format!("tollgate: cannot write standard output: {FULL}\n");
        assert_eq!(errors, expected, "{words:?}");
    }
}

#[test]
fn statistics_on_a_full_disk_are_no_success() {
    let folder = Folder::new();
    // The code switches the power off: mov dx, 604h; mov ax, 2000h; out dx, ax.
    let kernel = folder.boot_sector(&[0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef]);
    let mut command = tollgate();
    command.args(["run", "-m", "16M", "--serial", "null", "--kernel"]);
    command.arg(kernel);
    let run = |command: &mut Command, errors: Stdio| {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null());
        ended(child.stderr(errors).spawn().unwrap(), PATIENCE)
    };
    let output = run(&mut command, Stdio::piped());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = run(command.arg("--stats"), full().into());
    assert_eq!(output.status.code(), Some(8), "{output:?}");
}

/// Limits the size of the files that a command writes, in MiB.
fn limit_files(command: &mut Command, mebibytes: u64) {
    // SAFETY: between fork and exec only setrlimit(2) is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            let limit = libc::rlimit {
                rlim_cur: mebibytes << 20,
                rlim_max: mebibytes << 20,
            };
            match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
}

#[test]
fn a_limit_of_files_is_named_where_it_is_met() {
    let folder = Folder::new();
    let kernel = folder.boot_sector(&[0xf4]);
    let trace = folder.path("trace.json");
    let trace = trace.to_str().unwrap();
    let rows: [(&[&str], &str); 2] = [
        (&["-m", "512M"], "may write files of 16384 KiB (raise it"),
        (&["-m", "4M", "--trace", trace], "may not become that large"),
    ];
    for (flags, why) in rows {
        let mut command = tollgate();
        command.args(["run", "--serial", "null", "--kernel"]);
        command.arg(&kernel).args(flags);
        limit_files(&mut command, 16);
        let output = support::finish(&mut command, PATIENCE);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(
            errors.contains(why) && errors.contains("ulimit -f"),
            "{errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    let mut command = tollgate();
    limit_files(command.arg("doctor"), 16);
    let output = support::finish(&mut command, PATIENCE);
    let report = text(&output.stdout);
    assert!(report.contains("file size"), "{report}");
    assert!(report.contains("16 MiB"), "{report}");
}

#[test]
fn a_file_that_may_not_grow_is_an_error_in_the_guest() {
    let place = Place::new();
    let script = "busybox dd if=/dev/zero of=big bs=1M seek=300 count=1 && exit 9; echo more";
    let mut command = place.exec(&[], &["sh", "-c", script]);
    limit_files(&mut command, 300);
    let output = support::finish(&mut command, GUEST_PATIENCE);
    let errors = text(&output.stderr);
    assert_eq!(text(&output.stdout), "more\n", "{errors}");
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(errors.contains("File too large"), "{errors}");
}
