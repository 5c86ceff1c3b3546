//! The list of bare-metal guests, which are assembled from `tests/guests`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder with their sources and the script that assembles them.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guests")
}

/// The names of the bare-metal guests: the sources in `tests/guests`, sorted.
pub fn bare_metal_names() -> Vec<String> {
    let folder = sources();
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "S"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

/// A bare-metal guest. All of them are assembled once for each test program.
#[track_caller]
pub fn bare_metal(name: &str) -> PathBuf {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(assemble);
    let folder = folder.as_ref().unwrap_or_else(|error| panic!("{error}"));
    let path = folder.join(format!("{name}.elf"));
    assert!(path.is_file(), "there is no tests/guests/{name}.S");
    path
}

fn assemble() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests");
    let output = Command::new(sources().join("build"))
        .arg(&folder)
        .output()
        .map_err(|error| format!("cannot run tests/guests/build: {error}"))?;
    if output.status.success() {
        Ok(folder)
    } else {
        let message = String::from_utf8_lossy(&output.stderr);
        Err(format!("tests/guests/build failed: {message}"))
    }
}
