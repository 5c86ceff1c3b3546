//! Tests `scripts/compare-speed` without a machine: its command line and its table.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Two rounds of four rows. `lost` is slower in Tollgate than in the better of QEMU's models, and
/// `job` never counts as native.
const RESULTS: &str = "\
tollgate 1 int won 10 aa
tcg 1 int won 20 aa
tcg-max 1 int won 30 aa
native 1 int won 5 aa
tollgate 2 int won 12 aa
tcg 2 int won 26 aa
tcg-max 2 int won 34 aa
native 2 int won 6 aa
tollgate 1 sys lost 40 bb
tcg 1 sys lost 50 bb
tcg-max 1 sys lost 20 bb
native 1 sys lost 10 bb
tollgate 1 job shell 30 cc
tcg 1 job shell 60 cc
native 1 job shell 3 cc
tollgate 1 fp absent - -
tcg 1 fp absent 60 cc
";

/// The table that the script makes of these lines, its JSON, and whether the script succeeds.
fn table(lines: &str, json: &Path) -> (String, serde_json::Value, bool) {
    let mut awk = Command::new("awk")
        .args(["-v", "best=max,-erms", "-v", "native=yes"])
        .arg("-v")
        .arg(format!("json={}", json.display()))
        .arg("-f")
        .arg(Path::new(REPOSITORY).join("benches/guest/table.awk"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("awk is part of every system");
    let mut input = awk.stdin.take().expect("it is piped");
    input.write_all(lines.as_bytes()).expect("it reads");
    drop(input);
    let output = awk.wait_with_output().expect("it ends");
    let text = String::from_utf8(output.stdout).expect("it writes text");
    let written = std::fs::read_to_string(json).expect("it writes the file");
    let json = serde_json::from_str(&written).expect("it is JSON");
    (text, json, output.status.success())
}

fn temporary(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.json", std::process::id()))
}

#[test]
fn the_table_names_what_is_lost_and_is_the_same_as_json() {
    let (text, json, content) = table(RESULTS, &temporary("table"));
    assert!(content, "{text}");
    assert!(text.contains("\nrows lost to TCG: sys/lost\n"), "{text}");
    assert_eq!(json["tcg"], "max,-erms");
    let rows = json["rows"].as_array().expect("rows");
    let row = |name: &str| {
        let found = rows.iter().find(|row| row["row"] == name);
        found.expect("the row is there")
    };
    let number = |row: &serde_json::Value, name: &str| row[name].as_f64();
    // The figures are medians of two rounds; the faster of QEMU's models counts.
    assert_eq!(number(row("won"), "tollgate"), Some(11.0));
    assert_eq!(number(row("won"), "times_tcg"), Some(0.4783));
    assert_eq!(number(row("won"), "times_native"), Some(2.0));
    assert_eq!(number(row("lost"), "times_tcg"), Some(2.0));
    assert_eq!(number(row("shell"), "native"), None);
    assert_eq!(number(row("absent"), "times_tcg"), None);
    let means = json["means"].as_array().expect("means");
    let all = means.last().expect("the mean of all rows");
    assert_eq!(all["group"], "all");
    let expected = (11.0 / 23.0 * 2.0 * 0.5_f64).cbrt();
    let mean = number(all, "times_tcg").expect("a number");
    assert!((mean - expected).abs() < 1e-3, "{mean} is not {expected}");
}

#[test]
fn different_results_of_a_row_fail() {
    let lines = RESULTS.replace("tcg 2 int won 26 aa", "tcg 2 int won 26 ab");
    let (text, _, content) = table(&lines, &temporary("differs"));
    assert!(!content);
    assert!(text.contains("different results: won"), "{text}");
}

#[test]
fn nothing_lost_is_said() {
    let won: Vec<_> = RESULTS
        .lines()
        .filter(|line| !line.contains("lost"))
        .collect();
    let (text, _, _) = table(&(won.join("\n") + "\n"), &temporary("won"));
    assert!(text.contains("\nrows lost to TCG: none\n"), "{text}");
}

#[test]
fn help_is_the_head_of_the_script_and_wrong_arguments_are_refused() {
    let script = Path::new(REPOSITORY).join("scripts/compare-speed");
    let run = |arguments: &[&str]| {
        let output = Command::new(&script).args(arguments).output();
        output.expect("bash is there")
    };
    let help = run(&["--help"]);
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(
        help.status.success() && text.contains("--json FILE"),
        "{help:?}"
    );
    for wrong in [
        &["--rounds", "0"][..],
        &["--milliseconds", "x"],
        &["--json"],
        &["--no-such"],
    ] {
        let output = run(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
        assert!(!output.stderr.is_empty());
    }
}
