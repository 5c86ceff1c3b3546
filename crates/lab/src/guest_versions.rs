//! The versions of the guests of a run, as the scripts that fetch them have recorded them.

use crate::experiment::{GuestImages, Results};
use crate::linux_guest::{guests_folder, kernel_folder};
use std::fs;
use std::path::Path;

/// The files in which the folder of a guest records its packages; the first one that exists is valid.
const RECORDS: [&str; 2] = ["version", "packages"];

/// `NAME: VERSION` of each measured guest whose version is recorded, or the name of the file that the
/// user has supplied for it. Kernels of ours are part of this build and have no version of their own.
pub fn recorded(results: &Results, images: &GuestImages) -> Vec<String> {
    let mut guests: Vec<&str> = Vec::new();
    for cell in &results.cells {
        if !cell.samples().is_empty() && !guests.contains(&cell.guest.as_str()) {
            guests.push(&cell.guest);
        }
    }
    let folder = guests_folder();
    let of = |guest: &str| match images.path(guest) {
        Some(path) => Some(format!(
            "{guest}: '{}'",
            path.file_name()?.to_string_lossy()
        )),
        None => {
            let record = record(&folder.as_deref()?.join(folder_name(guest)))?;
            Some(format!("{guest}: {}", in_short(&record)?))
        }
    };
    guests.into_iter().filter_map(of).collect()
}

/// The name of the folder of a guest in the folder of guests.
fn folder_name(guest: &str) -> &str {
    match guest.starts_with("linux-") {
        true => kernel_folder(guest),
        false => guest,
    }
}

fn record(folder: &Path) -> Option<String> {
    let mut files = RECORDS.iter().map(|name| folder.join(name));
    files.find_map(|file| fs::read_to_string(file).ok())
}

/// The first package, and how many there are in addition; `None` without any.
fn in_short(record: &str) -> Option<String> {
    let mut lines = record.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next()?.replace('\t', " ");
    Some(match lines.count() {
        0 => first,
        count => format!("{first} and {count} further packages"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_shown_by_its_first_package() {
        let of = |record| in_short(record).unwrap();
        assert_eq!(of("linux-image 6.1.192-2\n"), "linux-image 6.1.192-2");
        assert_eq!(
            of("bash\t5.2\nzlib\t1.2\n"),
            "bash 5.2 and 1 further packages"
        );
        assert_eq!(in_short("\n"), None);
    }

    #[test]
    fn kernels_are_found_by_the_names_of_their_guests() {
        assert_eq!(folder_name("linux-686"), "debian-686");
        assert_eq!(folder_name("database-amd64"), "database-amd64");
    }
}
