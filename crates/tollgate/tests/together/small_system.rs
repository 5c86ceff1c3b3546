//! Runs the 16-bit guest system from its image on disk, as `crates/lab/guests/small-system.md`
//! describes. The crate `lab` verifies what the system does.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::folder::Folder;
use crate::support::{GUEST_PATIENCE, finish, tollgate};

/// The exit codes that isa-debug-exit makes of the 10h and the 11h with which the system ends.
const DONE: i32 = 33;
const REFUSED: i32 = 35;

fn build(folder: &Folder) -> PathBuf {
    let image = folder.path("small-system.bin");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/guests/small-system/build");
    let status = Command::new(script).arg(&image).status();
    assert!(status.expect("the script starts").success());
    image
}

fn run(image: &Path, arguments: &str) -> Output {
    let mut command = tollgate();
    command.args(["run", "--kernel"]).arg(image);
    command.args(["--append", arguments]);
    finish(&mut command, GUEST_PATIENCE)
}

#[test]
fn the_image_runs_from_a_file_in_each_mode() {
    let folder = Folder::new();
    let image = build(&folder);
    for mode in ["real", "v86", "v86-iopl3"] {
        let output = run(&image, &format!("workload=mix mode={mode}"));
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(DONE), "{mode}: {text}");
        assert!(text.contains("\r\ndone mix ticks="), "{mode}: {text}");
    }
}

#[test]
fn a_wrong_command_line_is_one_line_and_an_exit_code() {
    let folder = Folder::new();
    let image = build(&folder);
    for (arguments, error) in [
        ("", "error: workload=NAME is missing\r\n"),
        ("workload=mixed", "error: wrong value: workload=mixed\r\n"),
        (
            "workload=mix rounds=65536",
            "error: wrong value: rounds=65536\r\n",
        ),
        ("workload=mix round=2", "error: no such option: round=2\r\n"),
        (
            "rate=4294967297 workload=mix",
            "error: wrong value: rate=4294967297\r\n",
        ),
    ] {
        let output = run(&image, arguments);
        assert_eq!(output.status.code(), Some(REFUSED), "{arguments}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), error);
    }
}
