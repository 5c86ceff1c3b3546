//! The secret with which this user's runs sign the translations that they keep, so that later runs
//! tell them from files that come from elsewhere.

use std::io::{self, Read, Write};
use std::path::Path;

use rustix::rand::{GetRandomFlags, getrandom};
use tollgate_disk::NewFile;
use tollgate_machine::translations::Key;

use super::folders;
use crate::files::open_private;

/// The name of the file.
const NAME: &str = "translations-key";

/// The permissions of the file.
const MODE: u32 = 0o600;

/// The key, which is made when it is first needed. `None` if the user has no folder for it that
/// only the user can read.
pub fn signing_key() -> Option<Key> {
    let path = folders::secrets()?.join(NAME);
    let made = |error: io::Error| {
        // A file that cannot be read is replaced.
        let replace = error.kind() != io::ErrorKind::NotFound;
        make(&path, replace)
    };
    read(&path).or_else(made).ok()
}

fn read(path: &Path) -> io::Result<Key> {
    let mut key = [0; 16];
    open_private(path)?.read_exact(&mut key)?;
    Ok(Key(key))
}

/// Makes the key, unless another run has made it in the meantime.
fn make(path: &Path, replace: bool) -> io::Result<Key> {
    let mut key = [0; 16];
    let count = getrandom(&mut key, GetRandomFlags::empty())?;
    if count != key.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let file = NewFile::create(path, MODE)?;
    file.file().write_all(&key)?;
    match file.publish(replace) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => read(path),
    }
}
