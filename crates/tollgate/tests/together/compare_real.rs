//! Tests `scripts/compare-real` without a machine: its command line, its clocks and figures, its
//! initramfs.

use std::path::Path;
use std::process::{Command, Output};
use tollgate_test_support::skip;

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts");

/// The output of Python for these arguments in the folder; `None` if Python is missing.
fn python(folder: &Path, arguments: &[&str]) -> Option<Output> {
    let output = Command::new("python3")
        .arg("-B")
        .args(arguments)
        .current_dir(folder)
        .output();
    if output.is_err() {
        skip::impossible("python3 is missing (scripts/install-dependencies --with-real)");
    }
    output.ok()
}

fn compare_real(arguments: &[&str]) -> Option<Output> {
    python(Path::new(SCRIPTS), &[&["compare-real"], arguments].concat())
}

#[test]
fn its_own_facts_hold() {
    let folder = Path::new(SCRIPTS).join("real");
    if let Some(output) = python(&folder, &["-m", "unittest"]) {
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("Ran "), "{text}");
    }
}

#[test]
fn rows_are_listed_by_name_and_group() {
    let Some(all) = compare_real(&["--list"]) else {
        return;
    };
    let text = String::from_utf8_lossy(&all.stdout);
    assert!(all.status.success(), "{all:?}");
    assert!(text.lines().count() > 25, "{text}");
    for name in ["exec_true", "python_loop", "gcc", "sysbench_memory"] {
        assert!(
            text.lines().any(|line| line.starts_with(name)),
            "{name} is missing in {text}"
        );
    }
    let some = compare_real(&["--list", "--only", "git,sort"]).expect("python3 is there");
    let names: Vec<_> = String::from_utf8_lossy(&some.stdout)
        .lines()
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .collect();
    assert_eq!(names, ["sort", "git_status", "git_log"]);
}

#[test]
fn help_is_the_head_of_the_script() {
    let Some(help) = compare_real(&["--help"]) else {
        return;
    };
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(help.status.success(), "{help:?}");
    assert!(text.starts_with("compare-real - "), "{text}");
    assert!(text.contains("--tollgate 'PATH [OPTION...]'"), "{text}");
}

#[test]
fn a_wrong_command_line_is_exit_code_2() {
    for arguments in [
        &["--only", "no-such-row"][..],
        &["--arms", "kvm"],
        &["--rounds", "0"],
        &["--processes", "3"],
        &["--guest", "i386", "--arms", "native,uml"],
        &["--guest", "i386", "--kernel", "backports"],
        &["--no-such-flag"],
    ] {
        let Some(output) = compare_real(arguments) else {
            return;
        };
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(
            text.starts_with("compare-real: error: "),
            "{arguments:?}: {text}"
        );
    }
}
