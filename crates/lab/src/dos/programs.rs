//! Free programs for DOS that a script builds, and what a machine with DOS is made of.

use super::work::{Work, files};
use crate::experiment::LabError;
use crate::linux_guest::guests_folder;
use std::fs;
use std::path::{Path, PathBuf};
use tollgate_host_facts::file_words::reading;

/// The folder of these programs in that of the guests.
const FOLDER: &str = "dos-programs";
/// The script that fills it.
const SCRIPT: &str = "scripts/get-dos-programs";
/// A file for the disk C:, with its name.
type File = (String, Vec<u8>);

/// What a machine with DOS is made of: the floppy disk that boots, and the files on C:.
#[derive(Clone)]
pub struct Media {
    pub(super) floppy: PathBuf,
    pub(super) files: Vec<File>,
}

impl Media {
    /// The media for some work: DOS from this image of a floppy disk, and the programs that the
    /// work needs.
    ///
    /// # Errors
    ///
    /// [`LabError::NotRun`] if these programs are missing.
    pub fn of(floppy: &Path, work: &Work) -> Result<Self, LabError> {
        let ours = files().into_iter();
        let mut files: Vec<File> = ours.map(|(name, it)| (name.to_owned(), it)).collect();
        if !work.fetched.is_empty() {
            files.extend(read(guests_folder().as_deref(), work.fetched)?);
        }
        Ok(Self {
            floppy: floppy.to_owned(),
            files,
        })
    }
}

/// The programs with these names from the folder of guests.
fn read(guests: Option<&Path>, names: &[&str]) -> Result<Vec<File>, LabError> {
    let folder = guests.map(|guests| guests.join(FOLDER));
    let folder = folder.filter(|folder| folder.is_dir());
    let folder =
        folder.ok_or_else(|| LabError::NotRun(format!("no programs for DOS: run {SCRIPT}")))?;
    let read = |name: &&str| {
        let path = folder.join(name);
        let content = fs::read(&path).map_err(|error| {
            let (path, why) = (path.display(), reading(&error));
            LabError::NotRun(format!("cannot read '{path}': {why}; run {SCRIPT}"))
        })?;
        Ok(((*name).to_owned(), content))
    };
    names.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_programs_are_a_line_with_the_script_that_makes_them() {
        let folder = std::env::temp_dir().join(format!("dos-programs-{}", std::process::id()));
        let refused = |guests: Option<&Path>| match read(guests, &["A.COM", "B.COM"]) {
            Err(LabError::NotRun(why)) => why,
            other => panic!("{other:?}"),
        };
        let none = format!("no programs for DOS: run {SCRIPT}");
        assert_eq!(refused(None), none);
        assert_eq!(refused(Some(&folder)), none);
        fs::create_dir_all(folder.join(FOLDER)).unwrap();
        fs::write(folder.join(FOLDER).join("A.COM"), b"a").unwrap();
        let why = refused(Some(&folder));
        assert!(why.contains("B.COM") && why.ends_with(SCRIPT), "{why}");
        fs::write(folder.join(FOLDER).join("B.COM"), b"b").unwrap();
        let found = read(Some(&folder), &["A.COM", "B.COM"]).unwrap();
        assert_eq!(found[1], ("B.COM".to_owned(), b"b".to_vec()));
        fs::remove_dir_all(folder).unwrap();
    }
}
