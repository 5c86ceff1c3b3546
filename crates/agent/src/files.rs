//! Files in and out of a guest that is kept. The agent runs this program again for each, as a command
//! with the command's user and directory.

use crate::protocol::kept::{GET, PUT};
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Carries out the command, and ends the process with its exit code.
pub fn main() {
    let words: Vec<_> = std::env::args_os().collect();
    let result = match &words[..] {
        [word, path, mode] if word == PUT => put(Path::new(path), mode),
        [word, path] if word == GET => get(Path::new(path)),
        _ => return eprintln!("tollgate-agent: this is the first process of a guest"),
    };
    if let Err(error) = result {
        eprintln!("{}: {error}", Path::new(&words[1]).display());
        std::process::exit(1);
    }
}

/// Writes standard input to a file, whose folders are made if they are missing. An empty mode leaves
/// that of a file that exists.
fn put(path: &Path, mode: &OsStr) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut file = File::create(path)?;
    let mode = mode.to_str().and_then(|it| u32::from_str_radix(it, 8).ok());
    if let Some(mode) = mode {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    io::copy(&mut io::stdin().lock(), &mut file)?;
    Ok(())
}

fn get(path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    io::copy(&mut file, &mut io::stdout().lock())?;
    Ok(())
}
