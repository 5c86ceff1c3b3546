//! Runs the tests of the Python package, with this build's program.

use std::process::Command;
use std::time::Duration;

use tollgate_test_support::skip;

use crate::support::exec::text;
use crate::support::finish;
use crate::support::guests::{guests_folder, repository};

/// How long all of them may take.
const PATIENCE: Duration = Duration::from_secs(600);

#[test]
fn the_python_package_does_what_it_says() {
    let has_pytest = Command::new("python3")
        .args(["-c", "import pytest"])
        .output();
    if !has_pytest.is_ok_and(|output| output.status.success()) {
        skip::impossible("python3 with pytest is missing (apt-get install python3-pytest)");
        return;
    }
    let folder = repository().join("python");
    let mut tests = Command::new("python3");
    tests
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"])
        .env("PYTHONPATH", folder.join("src"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TOLLGATE_BINARY", env!("CARGO_BIN_EXE_tollgate"))
        .env("TOLLGATE_GUESTS", guests_folder())
        .current_dir(folder);
    let output = finish(&mut tests, PATIENCE);
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}
