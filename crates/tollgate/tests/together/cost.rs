//! Tests `tollgate cost`: every kind of exit gets a price, and the counts agree.

use crate::support::folder::Folder;
use crate::support::{GUEST_PATIENCE, ended, finish, tollgate};
use serde_json::Value;
use std::process::Stdio;
use tollgate_test_support::skip;

/// Runs `tollgate cost --quick` with more arguments.
#[track_caller]
fn cost(arguments: &[&str]) -> std::process::Output {
    let mut command = tollgate();
    command.args(["cost", "--quick", "--full"]).args(arguments);
    finish(&mut command, GUEST_PATIENCE)
}

#[test]
fn every_kind_is_priced_and_the_counts_agree() {
    let folder = Folder::new();
    let path = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let (json, csv, samples) = (path("cost.json"), path("cost.csv"), path("samples.csv"));
    let (svg, png) = (path("cost.svg"), path("cost.png"));
    let output = cost(&[
        "--json",
        &json,
        "--csv",
        &csv,
        "--samples-csv",
        &samples,
        "--plot",
        &svg,
    ]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("no measure of hardware exits"), "{table}");
    assert!(table.contains("Not in this version"), "{table}");

    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["is_complete"], true);
    let rows = report["rows"].as_array().unwrap();
    for kind in tollgate_lab::cost::kinds::KINDS.iter() {
        for pinned in [true, false] {
            let row = rows
                .iter()
                .find(|row| row["kind"] == kind.name && row["pinned"] == pinned);
            let row = row.unwrap_or_else(|| panic!("{} is missing", kind.name));
            assert!(row["single"]["count"].as_u64().unwrap() >= 20, "{row}");
            for count in row["counts"].as_array().unwrap() {
                let (expected, counted) = (&count["expected"], &count["counted"]);
                let agrees = expected == counted
                    || (count["at_least"] == true && counted.as_u64() > expected.as_u64());
                assert!(agrees, "{row}");
            }
            assert!(table.contains(kind.name), "{}", kind.name);
        }
    }

    // The exported files have the same counts.
    let csv = std::fs::read_to_string(&csv).unwrap();
    assert_eq!(csv.lines().count(), rows.len() + 1);
    for mode in [
        "real",
        "protected",
        "paged",
        "ring-3",
        "64-bit",
        "64-ring-3",
    ] {
        assert!(csv.contains(&format!("\nnull-hypercall,{mode},")), "{mode}");
        assert!(table.contains(mode), "{mode}");
    }
    let in_json: u64 = rows
        .iter()
        .map(|row| row["single"]["count"].as_u64().unwrap())
        .sum();
    let last = |line: &str| line.rsplit(',').next().unwrap().parse::<u64>().unwrap();
    let samples = std::fs::read_to_string(&samples).unwrap();
    assert_eq!(samples.lines().skip(1).map(last).sum::<u64>(), in_json);

    let drawn = std::fs::read_to_string(&svg).unwrap();
    assert!(drawn.contains("null-hypercall") && drawn.contains("pinned"));
    assert!(cost(&["--kind", "cli", "--plot", &png]).status.success());
    assert!(std::fs::read(&png).unwrap().starts_with(b"\x89PNG"));
}

#[test]
fn the_same_guest_runs_in_other_machines() {
    let folder = Folder::new();
    let path = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let (json, csv, svg) = (path("with.json"), path("with.csv"), path("with.svg"));
    let output = cost(&[
        "--with", "qemu,kvm", "--json", &json, "--csv", &csv, "--plot", &svg,
    ]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("nanobenchmarks of Adams"), "{table}");
    let comparison: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(comparison["is_complete"], true);
    let ran = |name: &str| {
        let machines = comparison["machines"].as_array().unwrap();
        let machine = machines.iter().find(|it| it["name"] == name).unwrap();
        machine["not_run"].is_null()
    };
    let measured = |kind: &str, machine: &str| {
        let lines = comparison["lines"].as_array().unwrap();
        let line = lines
            .iter()
            .find(|it| it["kind"] == kind && it["machine"] == machine);
        let line = line.unwrap_or_else(|| panic!("{kind} in {machine} is missing"));
        line["finding"]["measured"]["row"]["single"]["count"].as_u64()
    };
    for kind in tollgate_lab::cost::comparison::KINDS {
        assert!(measured(kind, "tollgate").is_some(), "{kind}");
    }
    // The host's own page faults and system calls need no privilege, ports do.
    for kind in [
        "syscall-sysret",
        "call-return",
        "page-fault-iret",
        "divide-error-iret",
    ] {
        assert!(measured(kind, "native").is_some(), "{kind}");
    }
    assert_eq!(measured("port-in", "native"), None);
    if ran("qemu") {
        for kind in tollgate_lab::cost::comparison::KINDS {
            // The translator has no hypercalls.
            let has_it = kind != "null-hypercall";
            assert_eq!(measured(kind, "qemu").is_some(), has_it, "{kind}");
        }
    } else {
        skip::impossible("no QEMU on this host");
    }
    let lines = comparison["lines"].as_array().unwrap().len();
    assert_eq!(
        std::fs::read_to_string(&csv).unwrap().lines().count(),
        lines + 1
    );
    assert!(
        std::fs::read_to_string(&svg)
            .unwrap()
            .contains("cumulative share")
    );
}

#[test]
fn a_linux_guest_prices_the_hypercall_by_two_system_calls() {
    let folder = Folder::new();
    let path = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let (json, svg) = (path("calls.json"), path("calls.svg"));
    let output = cost(&["--system-calls", "--json", &json, "--plot", &svg]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let table = String::from_utf8(output.stdout).unwrap();
    let results: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    for calls in results["calls"].as_array().unwrap() {
        let samples = &calls["finding"]["Ok"];
        let Some(hypercalls) = samples["hypercalls"].as_u64() else {
            assert!(table.contains("not run: no "), "{table}");
            skip::missing("Linux guests (scripts/get-guests) or modules (scripts/get-modules)");
            return;
        };
        // Hypercalls that warm up are counted, but not timed.
        let marked = samples["marked"].as_array().unwrap().len() as u64;
        assert_eq!(hypercalls, marked + 100);
        assert_eq!(samples["nothing"].as_array().unwrap().len() as u64, marked);
    }
    assert!(
        table.contains("difference") && table.contains("95 % of 200 hypercalls"),
        "{table}"
    );
    assert!(
        std::fs::read_to_string(&svg)
            .unwrap()
            .contains("linux-amd64")
    );
}

#[test]
fn a_signal_ends_it_and_what_is_finished_is_shown() {
    let mut child = tollgate()
        .args(["cost", "--full", "--kind", "cli", "--samples", "2000000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut progress = std::io::BufReader::new(child.stderr.take().unwrap());
    loop {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut progress, &mut line).unwrap();
        assert!(!line.is_empty(), "it ended by itself");
        // The first row is finished.
        if line.starts_with("tollgate: [") && !line.starts_with("tollgate: [1/") {
            break;
        }
    }
    let process = child.id().to_string();
    let mut kill = std::process::Command::new("kill");
    let killed = finish(kill.args(["-TERM", &process]), GUEST_PATIENCE);
    assert!(killed.status.success());
    let output = ended(child, GUEST_PATIENCE);
    assert_eq!(output.status.code(), Some(143));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(
        table.contains("INTERRUPTED") && table.contains("\ncli "),
        "{table}"
    );
}

#[test]
fn only_the_kinds_asked_for_are_priced() {
    let output = cost(&["--kind", "cpuid", "--kind", "cli"]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(
        table.contains("\ncpuid ") && table.contains("\ncli "),
        "{table}"
    );
    assert!(!table.contains("\nsti "), "{table}");
}

#[test]
fn wrong_arguments_are_explained() {
    for (arguments, words) in [
        (
            ["--kind", "vmexit"],
            "--kind: no kind of exit is called 'vmexit'",
        ),
        (["--plot", "plot.pdf"], "must end in .svg or .png"),
        (["--csv", "/nonexistent/x"], "cannot write '/nonexistent/x'"),
    ] {
        let output = cost(&arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(words), "{errors}");
    }
}

#[test]
fn the_ledgers_own_cost_is_measured() {
    let output = cost(&["--ledger-overhead"]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{table}");
    for words in ["interpreter", "sysenter-sysexit", "counts only", "ratio"] {
        assert!(table.contains(words), "{table}");
    }
}
