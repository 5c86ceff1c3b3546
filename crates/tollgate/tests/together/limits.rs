//! Tests small limits of the shell: `ulimit -v`, `ulimit -s`, closed standard streams.

use std::process::{Command, Output};

use crate::support::folder::Folder;
use crate::support::{PATIENCE, finish};

/// Runs `tollgate run` in a shell with these limits; the guest writes 0 to isa-debug-exit.
fn run(limits: &str, redirection: &str) -> Output {
    let folder = Folder::new();
    // The code is: xor al, al; out F4h, al
    let kernel = folder.boot_sector(&[0x30, 0xc0, 0xe6, 0xf4]);
    let line =
        format!("{limits}; exec \"$0\" run -m 16M --serial null --kernel \"$1\" {redirection}");
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", &line, env!("CARGO_BIN_EXE_tollgate")])
        .arg(kernel);
    finish(&mut shell, PATIENCE)
}

#[track_caller]
fn ends_well(output: &Output) {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn a_small_stack_will_do() {
    for kilobytes in [64, 128, 1024] {
        let output = run(&format!("ulimit -s {kilobytes}"), "");
        ends_well(&output);
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn too_few_addresses_are_one_clear_line() {
    let output = run("ulimit -v 4000000", "");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.contains("address space (3906 MiB, 'ulimit -v' with 67108864 at least)"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn few_addresses_are_warned_of() {
    let output = run("ulimit -v 80000000", "");
    ends_well(&output);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("guests may run slowly"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn closed_streams_are_as_good_as_null() {
    for redirection in ["<&-", "<&- >&-", "<&- >&- 2>&-"] {
        ends_well(&run("true", redirection));
    }
}

#[test]
fn too_few_open_files_are_one_clear_line() {
    for (command, code, count) in [("run", 2, 8), ("exec", 125, 64)] {
        let folder = Folder::new();
        let kernel = folder.boot_sector(&[0xf4]);
        let line = format!(
            "ulimit -n {count}; exec \"$0\" {command} -m 16M --kernel \"$1\" {}",
            match command {
                "run" => "--serial null --port a=stdout --port b=stdout --port c=stdout",
                _ => "true",
            }
        );
        let mut shell = Command::new("/bin/sh");
        let program = env!("CARGO_BIN_EXE_tollgate");
        shell.args(["-c", &line, program]).arg(kernel);
        let output = finish(&mut shell, PATIENCE);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains("'ulimit -n'"), "{command}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{command}: {errors}");
        assert_eq!(output.status.code(), Some(code), "{command}: {errors}");
    }
}
