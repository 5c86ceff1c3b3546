//! The secret with which this user's runs sign the translations that they keep, so that later runs
//! tell them from files that come from elsewhere.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::rand::{GetRandomFlags, getrandom};
use tollgate_machine::translations::Key;

use super::folders;
use crate::files::is_private;

/// The name of the file.
const NAME: &str = "translations-key";

/// The key, which is made when it is first needed. `None` if the user has no folder for it that
/// only the user can read.
pub fn signing_key() -> Option<Key> {
    let path = folders::secrets()?.join(NAME);
    read(&path).or_else(|_| make(&path)).ok()
}

fn read(path: &Path) -> io::Result<Key> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    if !(metadata.is_file() && is_private(&metadata)) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut key = [0; 16];
    file.read_exact(&mut key)?;
    Ok(Key(key))
}

/// Makes the key, unless another run has made it in the meantime.
fn make(path: &Path) -> io::Result<Key> {
    let mut key = [0; 16];
    let count = getrandom(&mut key, GetRandomFlags::empty())?;
    if count != key.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    let linked = file
        .write_all(&key)
        .and_then(|()| match fs::hard_link(&new, path) {
            // A file that cannot be read is replaced.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && read(path).is_err() => {
                fs::rename(&new, path)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        });
    let _ = fs::remove_file(&new);
    linked?;
    read(path)
}
