//! The command line of `scripts/compare-real`, without a machine: what it lists and refuses.

use std::path::Path;
use std::process::{Command, Output};

fn compare_real(arguments: &[&str]) -> Option<Output> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/compare-real");
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: python3 is missing (scripts/install-dependencies --with-real)");
        return None;
    }
    Some(
        Command::new(script)
            .args(arguments)
            .output()
            .expect("the script starts"),
    )
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
