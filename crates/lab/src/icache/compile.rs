//! Programs that a compiler in the guest makes, and whose results are known.

use crate::experiment::{LabError, Options};
use crate::linux_guest::{Extra, System};
use std::fs;
use std::path::Path;

/// The programs, their common part, and the script that makes and runs them.
const SOURCES: [(&str, &str); 5] = [
    ("system.h", include_str!("../../guests/compile/system.h")),
    ("sieve.c", include_str!("../../guests/compile/sieve.c")),
    ("queens.c", include_str!("../../guests/compile/queens.c")),
    ("tokens.c", include_str!("../../guests/compile/tokens.c")),
    ("build", include_str!("../../guests/compile/build")),
];

/// A guest with the compiler tcc, which scripts/get-guests fetches, and the programs.
///
/// # Errors
///
/// The guest or the compiler is missing.
pub fn system(guest: &str, options: &Options) -> Result<System, LabError> {
    System::open_with(guest, &[], options, |folder, is_wide| {
        let compiler = folder.join(if is_wide { "tcc-amd64" } else { "tcc-i386" });
        let mut extras = vec![Extra::folder("tcc"), Extra::folder("compile")];
        add_files(&mut extras, &compiler, "tcc").map_err(|error| {
            let folder = compiler.display();
            LabError::NotRun(format!(
                "no C compiler for the guest, '{folder}': {error}; run scripts/get-guests"
            ))
        })?;
        let sources = SOURCES.map(|(name, text)| Extra::program(&format!("compile/{name}"), text));
        extras.extend(sources);
        Ok(extras)
    })
}

/// Adds the contents of a folder of the host, as `path` in the guest.
fn add_files(extras: &mut Vec<Extra>, folder: &Path, path: &str) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = format!("{path}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            extras.push(Extra::folder(&path));
            add_files(extras, &entry.path(), &path)?;
        } else {
            extras.push(Extra::program(&path, fs::read(entry.path())?));
        }
    }
    Ok(())
}
