//! Where the guests are: kernels that `scripts/get-guests` fetched, and bare-metal
//! guests that are assembled from `tests/guests` here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The repository's folder.
pub fn repository() -> &'static Path {
    static REPOSITORY: OnceLock<PathBuf> = OnceLock::new();
    REPOSITORY.get_or_init(|| {
        let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        crate_folder.ancestors().nth(2).unwrap().to_owned()
    })
}

/// The folder that `scripts/get-guests` fills: what `TOLLGATE_GUESTS` names, `target/guests` by
/// default. A relative name counts from the repository, since tests run in the folders of their
/// crates.
pub fn guests_folder() -> PathBuf {
    let named = std::env::var_os("TOLLGATE_GUESTS");
    repository().join(named.unwrap_or_else(|| "target/guests".into()))
}

/// A file that `scripts/get-guests` provides, such as `debian-686/vmlinuz`. Without it
/// the test fails: it never passes for want of a guest.
#[track_caller]
pub fn fetched(name: &str) -> PathBuf {
    let path = guests_folder().join(name);
    assert!(
        path.is_file(),
        "the guest {} is missing: run scripts/get-guests",
        path.display()
    );
    path
}

/// The names of the bare-metal guests: the sources in `tests/guests`, sorted.
pub fn bare_metal_names() -> Vec<String> {
    let folder = repository().join("tests/guests");
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
    let output = Command::new(repository().join("tests/guests/build"))
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
