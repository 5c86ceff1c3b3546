//! Tests the output and the exit codes of commands that run no virtual machine: help, the doctor's
//! rows, and one clear line for each bad input.

use std::path::PathBuf;
use std::process::{Command, Output};

/// Runs `tollgate` with these arguments.
fn tollgate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(arguments)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A readable file, for arguments that are checked before its content is read.
fn some_file() -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    path.to_str().unwrap().to_owned()
}

/// Expects that `arguments` are refused with exit code 2 and exactly this line.
#[track_caller]
fn refused(arguments: &[&str], line: &str) {
    let output = tollgate(arguments);
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(errors, format!("tollgate: {line}\n"), "{arguments:?}");
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    assert_eq!(stdout(&output), "", "{arguments:?}");
}

#[test]
fn version_names_the_program_and_its_version() {
    let output = tollgate(&["--version"]);
    let expected = format!("tollgate {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(stdout(&output), expected);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn help_teaches_flags_keys_examples_and_exit_codes() {
    let output = tollgate(&["run", "--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = stdout(&output);
    for part in [
        "--kernel <PATH>",
        "--initrd <PATH>",
        "--append <STRING>",
        "-m, --memory <SIZE>",
        "--serial <WHERE>",
        "--debug-console <WHERE>",
        "--stats",
        "--stats-format <FORMAT>",
        "--stats-file <PATH>",
        "--symbols <FILE>",
        "--price-table <FILE>",
        "--trace <FILE>",
        "--trace-limit <SIZE>",
        "--perf-map",
        "--control <PATH>",
        "--reboot",
        "--triple-fault <ACTION>",
        "--device <NAME>",
        "--fw-cfg <FILE>",
        "--code-cache <SIZE>",
        "--verify-code",
        "--verify-shadow",
        "--knob <NAME=VALUE>",
        "Examples:",
        "Ctrl-A x",
        "Exit codes:",
        "triple fault",
    ] {
        assert!(help.contains(part), "{part} is missing in:\n{help}");
    }
    for command in [
        "run", "doctor", "control", "set", "cache", "screen", "type", "cost", "lab", "stats",
        "mark", "top", "pool", "ps", "kill", "cp", "logs",
    ] {
        assert!(stdout(&tollgate(&["--help"])).contains(command));
        assert_eq!(tollgate(&[command, "--help"]).status.code(), Some(0));
    }
}

#[test]
fn commands_that_are_missing_or_unknown_are_refused() {
    refused(
        &[],
        "no command given: expected exec, run, doctor, pool, ps, kill, cp, logs, control, set, medium, snapshot, reset, cache, screen, type, cost, lab, image, stats, mark or top; try 'tollgate --help'",
    );
    refused(
        &["dance"],
        "unknown command 'dance': expected exec, run, doctor, pool, ps, kill, cp, logs, control, set, medium, snapshot, reset, cache, screen, type, cost, lab, image, stats, mark or top; try 'tollgate --help'",
    );
    refused(
        &["lab", "dance"],
        "unknown command 'dance': expected list, show, all, report, vif, shadow, icache, interruptible or native; try 'tollgate lab --help'",
    );
}

#[test]
fn unknown_flags_are_refused_with_the_nearest_known_one() {
    refused(
        &["run", "--kernel", "k", "--xyzzy"],
        "unknown flag '--xyzzy'; try 'tollgate run --help'",
    );
    refused(
        &["run", "--kernel", "k", "--memroy", "1G"],
        "unknown flag '--memroy': did you mean --memory? try 'tollgate run --help'",
    );
    refused(
        &["run", "-kernel", "k"],
        "'-kernel' is QEMU's; here it is --kernel FILE; try 'tollgate run --help'",
    );
    refused(
        &["run", "--kernel", "k", "-stats"],
        "unknown flag '-stats': long flags take two dashes, --stats; try 'tollgate run --help'",
    );
    // The most similar flag is hidden, because it is for developers.
    refused(
        &["run", "--kernel", "k", "--registermap", "x"],
        "unknown flag '--registermap'; try 'tollgate run --help'",
    );
    refused(
        &["run", "--kernel", "k", "extra"],
        "unexpected argument 'extra'; try 'tollgate run --help'",
    );
    refused(
        &["doctor", "--bogus"],
        "unknown flag '--bogus'; try 'tollgate doctor --help'",
    );
}

#[test]
fn missing_and_repeated_flags_are_refused() {
    refused(
        &["run"],
        "nothing to boot: give --kernel, --drive, --floppy or --cdrom; try 'tollgate run --help'",
    );
    refused(
        &["run", "--kernel"],
        "--kernel <PATH> needs a value; try 'tollgate run --help'",
    );
    refused(
        &["run", "--kernel", "a", "--kernel", "b"],
        "--kernel <PATH> was given twice; try 'tollgate run --help'",
    );
    for flag in [
        &["--trace-ring"][..],
        &["--trace-since=a"],
        &["--trace-until", "a"],
        &["--trace-from=a"],
    ] {
        let name = flag[0].split('=').next().unwrap();
        refused(
            &[&["run", "--kernel", "k"], flag].concat(),
            &format!("{name} needs --trace <FILE>; try 'tollgate run --help'"),
        );
    }
}

#[test]
fn bad_sizes_are_refused_with_what_a_size_looks_like() {
    let expected = "expected a number with K, M, G or T, such as 512M or 1.5G";
    for (size, reason) in [
        ("12X", "unknown unit 'X'"),
        ("much", "not a size"),
        ("0", "zero"),
        ("99999999999T", "too large"),
    ] {
        refused(
            &["run", "--kernel", "k", "-m", size],
            &format!("--memory <SIZE>: '{size}': {reason}; {expected}"),
        );
        refused(
            &["run", "--kernel", "k", "--code-cache", size],
            &format!("--code-cache <SIZE>: '{size}': {reason}; {expected}"),
        );
    }
}

#[test]
fn sizes_that_no_machine_can_have_are_refused() {
    let kernel = some_file();
    for flag in ["--memory", "--code-cache"] {
        for size in ["1K", "1T"] {
            let output = tollgate(&["run", "--kernel", &kernel, flag, size]);
            assert_eq!(output.status.code(), Some(2), "{flag} {size}");
            let errors = String::from_utf8(output.stderr).unwrap();
            assert!(errors.starts_with("tollgate: "), "{errors}");
            assert_eq!(errors.lines().count(), 1, "{errors}");
        }
    }
}

#[test]
fn values_outside_a_list_are_refused_with_the_list() {
    refused(
        &["run", "--kernel", "k", "--knob", "memory-access=magic"],
        "--knob <NAME=VALUE>: 'memory-access=magic': the knob memory-access has no value 'magic'; \
         values are: checked, direct, adaptive",
    );
    // Each knob was a flag of its own in earlier versions.
    refused(
        &["run", "--kernel", "k", "--memory-access", "magic"],
        "--memory-access <VALUE>: 'magic' is not one of: checked, direct, adaptive; try 'tollgate run --help'",
    );
    refused(
        &[
            "run",
            "--kernel",
            &some_file(),
            "--knob",
            "vif=on",
            "--vif",
            "off",
        ],
        "--knob: the knob vif was given twice",
    );
    refused(
        &["run", "--kernel", "k", "--serial", "telnet:1"],
        "--serial <WHERE>: 'telnet:1': expected stdio, file:PATH, pty or null",
    );
    refused(
        &["run", "--kernel", "k", "--debug-console", "pty"],
        "--debug-console <WHERE>: 'pty': expected stdio, file:PATH or null",
    );
    refused(
        &["control", "s", "dance"],
        "<COMMAND>: 'dance' is not one of: status, stats, reset-stats, pause, resume, reset, quit, refused, power-button; \
         try 'tollgate control --help'",
    );
}

#[test]
fn fw_cfg_files_that_cannot_be_shown_are_refused_with_the_reason() {
    let expected =
        "expected NAME,string=TEXT or NAME,file=PATH, such as opt/org.example/key,string=1";
    refused(
        &["run", "--kernel", "k", "--fw-cfg", "opt/a"],
        &format!("--fw-cfg <FILE>: 'opt/a': it has no content; {expected}"),
    );
    let kernel = some_file();
    refused(
        &["run", "--kernel", &kernel, "--fw-cfg", "opt/a,file=/tmp"],
        "--fw-cfg: cannot read '/tmp': it is a folder; name a file",
    );
    refused(
        &["run", "--kernel", &kernel, "--fw_cfg", "etc/e820,string="],
        "fw_cfg file 'etc/e820' is the machine's own",
    );
}

#[test]
fn files_that_cannot_be_read_are_refused_with_the_reason() {
    refused(
        &["run", "--kernel", "/nonexistent/vmlinuz"],
        "--kernel: cannot read '/nonexistent/vmlinuz': no such file; check the path",
    );
    refused(
        &["run", "--kernel", "/tmp"],
        "--kernel: cannot read '/tmp': it is a folder; name a file",
    );
    refused(
        &["run", "--kernel", "two\nlines"],
        "--kernel: cannot read 'two lines': no such file; check the path",
    );
}

#[test]
fn outputs_that_cannot_be_written_are_refused_with_the_reason() {
    let kernel = some_file();
    refused(
        &[
            "run",
            "--kernel",
            &kernel,
            "--serial",
            "file:/nonexistent/log",
        ],
        "--serial: cannot write '/nonexistent/log': its folder does not exist",
    );
    refused(
        &["run", "--kernel", &kernel, "--debug-console", "file:/tmp"],
        "--debug-console: cannot write '/tmp': it is a folder; name a file in it",
    );
    refused(
        &["run", "--kernel", &kernel, "--control", &kernel],
        &format!(
            "--control: cannot create '{kernel}': the file exists and is no socket; \
             name another path"
        ),
    );
}

#[test]
fn a_control_command_without_a_machine_is_refused() {
    refused(
        &["control", "/nonexistent/vm.sock", "status"],
        "cannot connect to '/nonexistent/vm.sock': no such socket; \
         is the virtual machine running?",
    );
}

#[test]
fn doctor_shows_a_row_for_each_check_and_what_a_lack_costs() {
    let output = tollgate(&["doctor"]);
    let rows = stdout(&output);
    for what in [
        "AVX2",
        "BMI1",
        "BMI2",
        "FSGSBASE",
        "Linux 5.13",
        "memfd_create",
        "userfaultfd",
        "memfd_secret",
        "vm.max_map_count",
        "stack limit",
        "PMU",
        "/dev/kvm",
        "transparent huge pages",
        "memory overcommit",
        "protection keys",
        "place for shadow windows",
        "place for their anchors",
    ] {
        assert!(rows.contains(what), "{what} is missing in:\n{rows}");
    }
    let lacks = rows
        .lines()
        .filter(|line| line.starts_with("lacking") || line.starts_with("MISSING"));
    assert_eq!(lacks.count(), rows.matches("without it: ").count());
}

#[test]
fn doctor_exits_with_0_exactly_if_the_host_can_run_machines() {
    let output = tollgate(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let can_run = report["can_run"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(if can_run { 0 } else { 1 }));
    let checks = report["checks"].as_array().unwrap();
    let floor_holds = checks
        .iter()
        .all(|check| check["need"] != "required" || check["ok"] == true);
    assert_eq!(can_run, floor_holds);
}
