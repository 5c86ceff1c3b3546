//! Finds floppy disks with systems that are in no package.

use super::folder::Folder;
use super::guests::{guests_folder, repository};
use super::system::is_promised;
use std::path::PathBuf;
use std::process::Command;
use tollgate_test_support::skip;

/// An unpacked copy of `NAME.img.gz`, which is in the folder that `TOLLGATE_GUESTS` names
/// (`target/guests` by default), or in `shared/guests` next to the repository or in a folder above.
/// No package contains such an image, so a test is skipped without it.
///
/// # Panics
/// The image is missing although [`is_promised`] says that it exists.
pub fn unpacked(folder: &Folder, name: &str) -> Option<PathBuf> {
    let file = format!("{name}.img.gz");
    let shared = repository().ancestors().skip(1);
    let shared = shared.map(|above| above.join("shared/guests"));
    let mut places = std::iter::once(guests_folder()).chain(shared);
    let Some(packed) =
        places.find_map(|place| Some(place.join(&file)).filter(|path| path.is_file()))
    else {
        assert!(
            !is_promised(name),
            "TOLLGATE_TEST_SYSTEMS names {name}, and there is no {file}"
        );
        skip::impossible(&format!("no {file} in target/guests"));
        return None;
    };
    let image = folder.path(&format!("{name}.img"));
    let unpacked = Command::new("gzip").arg("-dc").arg(packed).output();
    std::fs::write(&image, unpacked.unwrap().stdout).unwrap();
    Some(image)
}
