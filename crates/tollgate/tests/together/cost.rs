//! Tests `tollgate cost`: every kind of exit gets a price, and the counts agree.

use crate::support::folder::Folder;
use crate::support::{GUEST_PATIENCE, finish, tollgate};
use serde_json::Value;

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
    for kind in tollgate_lab::cost::kinds::KINDS {
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
