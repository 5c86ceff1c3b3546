//! The folders in which Tollgate keeps what later runs use again, and what they depend on.
//!
//! Everything there belongs to one user, and no other user can read or write it.

use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::files::is_private;

/// After this time, a file that is not finished was left by a run that was killed.
const UNFINISHED: Duration = Duration::from_secs(300);

/// A folder of the user for files of one kind, as the XDG base directory specification has them:
/// `$VARIABLE/tollgate/NAME`, or `$HOME/DEFAULT/tollgate/NAME`. It is made if it is not there.
/// `None` if it cannot be made, or if others may use it.
fn folder(variable: &str, default: &str, name: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = set(variable).map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(set("HOME")?).join(default)))?;
    made(base.join("tollgate").join(name))
}

/// A folder that only the user can use, which is made if it is not there.
pub fn made(folder: PathBuf) -> Option<PathBuf> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(&folder).ok()?;
    is_private(&fs::symlink_metadata(&folder).ok()?).then_some(folder)
}

/// The folder of templates.
pub fn templates() -> Option<PathBuf> {
    folder("XDG_CACHE_HOME", ".cache", "templates")
}

/// The folder of translations.
pub fn translations() -> Option<PathBuf> {
    folder("XDG_CACHE_HOME", ".cache", "translations")
}

/// The folder of secrets, which lies apart from what may be copied to other hosts.
pub fn secrets() -> Option<PathBuf> {
    folder("XDG_STATE_HOME", ".local/state", "secrets")
}

/// When a file was written last, and its size.
pub fn stamp(path: &Path) -> Option<(u64, i64, i64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
}

/// A number that another build of this program does not have.
pub fn build_stamp() -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    stamp(&std::env::current_exe().ok()?)?.hash(&mut hasher);
    Some(hasher.finish())
}

/// Removes files with this suffix, a dot and a word, until `most` are left, those first that were used
/// the longest time ago, and what killed runs have left behind. Files that differ from one of them
/// only in their extension stay and go with it.
pub fn remove_oldest(folder: &Path, suffix: &str, most: usize) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut kept: Vec<(SystemTime, PathBuf)> = Vec::new();
    let mut others: Vec<PathBuf> = Vec::new();
    for entry in entries {
        let Ok(modified) = entry.metadata().and_then(|metadata| metadata.modified()) else {
            continue;
        };
        let age = modified.elapsed().unwrap_or_default();
        if entry.file_name().to_string_lossy().ends_with(suffix) {
            kept.push((modified, entry.path()));
        } else if age > UNFINISHED {
            others.push(entry.path());
        }
    }
    kept.sort();
    let surplus = kept.len().saturating_sub(most);
    for (_, path) in kept.into_iter().take(surplus) {
        let _ = fs::remove_file(path);
    }
    for path in others {
        if !path.with_extension(&suffix[1..]).exists() {
            let _ = fs::remove_file(path);
        }
    }
}
