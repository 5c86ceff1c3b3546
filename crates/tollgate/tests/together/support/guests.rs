//! Finds the guests that `scripts/get-guests` has fetched.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The repository's folder.
pub fn repository() -> &'static Path {
    static REPOSITORY: OnceLock<PathBuf> = OnceLock::new();
    REPOSITORY.get_or_init(|| {
        let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        crate_folder.ancestors().nth(2).unwrap().to_owned()
    })
}

/// The folder that `scripts/get-guests` fills: the one that `TOLLGATE_GUESTS` names,
/// `target/guests` by default. A relative name counts from the repository, because tests run in the
/// folders of their crates.
pub fn guests_folder() -> PathBuf {
    let named = std::env::var_os("TOLLGATE_GUESTS");
    repository().join(named.unwrap_or_else(|| "target/guests".into()))
}

/// A file that `scripts/get-guests` provides, such as `debian-686/vmlinuz`. If it is missing, the
/// test fails.
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
