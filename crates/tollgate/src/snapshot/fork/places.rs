//! The files of forks, whose names are reserved before anything is asked of the machine.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tollgate_host_facts::file_words::writing;

use crate::failure::Failure;
use crate::snapshot::separate::with_suffix;
use crate::unix_socket::MOST_BYTES;

/// The highest number that a fork can get.
const MOST_NUMBERS: u32 = 99_999;

/// The files of one fork. They are removed when this is dropped, unless [`Place::keep`] was called.
#[derive(Debug)]
pub struct Place {
    /// The number in the files' names.
    pub number: u32,
    /// The beginning of the files' names.
    pub prefix: PathBuf,
    log: File,
    is_kept: bool,
}

impl Place {
    /// The path of the control socket.
    pub fn control(&self) -> PathBuf {
        with_suffix(&self.prefix, ".sock")
    }

    /// The path of the file for the output of the serial port.
    pub fn serial(&self) -> PathBuf {
        with_suffix(&self.prefix, ".serial")
    }

    /// The path of the file for Tollgate's own messages.
    pub fn log(&self) -> PathBuf {
        with_suffix(&self.prefix, ".log")
    }

    /// The file for Tollgate's own messages.
    ///
    /// # Errors
    /// The errors of dup(2).
    pub fn log_file(&self) -> io::Result<File> {
        self.log.try_clone()
    }

    /// Keeps the files: a machine uses them.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Reserves the files with this number, unless one of them exists.
    fn reserve(prefix: &Path, number: u32) -> io::Result<Self> {
        let prefix = with_suffix(prefix, &format!("-{number}"));
        let exists = |suffix| with_suffix(&prefix, suffix).symlink_metadata().is_ok();
        if exists(".sock") || exists(".serial") {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let log = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(with_suffix(&prefix, ".log"))?;
        Ok(Self {
            number,
            prefix,
            log,
            is_kept: false,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_kept {
            for path in [self.control(), self.serial(), self.log()] {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// Reserves the files of `count` forks, whose names begin with `prefix`. Numbers whose files exist
/// are skipped.
///
/// # Errors
/// One line says why there can be no such files.
pub fn reserve(prefix: &Path, count: u32) -> Result<Vec<Place>, Failure> {
    let mut places = Vec::new();
    let mut number = 0;
    while places.len() < count as usize {
        number += 1;
        match Place::reserve(prefix, number) {
            Ok(place) => places.push(place),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < MOST_NUMBERS => {}
            Err(error) => {
                return Err(Failure::usage(format!(
                    "cannot create files '{}-{number}.*': {}",
                    prefix.display(),
                    writing(&error)
                )));
            }
        }
    }
    let longest = places.last().map(Place::control).unwrap_or_default();
    let bytes = longest.as_os_str().as_bytes().len();
    if bytes > MOST_BYTES {
        return Err(Failure::usage(format!(
            "the path '{}' has {bytes} bytes, a socket's may have {MOST_BYTES}; give a shorter \
             --prefix",
            longest.display()
        )));
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_whose_files_exist_are_skipped_and_what_is_not_kept_is_removed() {
        let name = format!("tollgate-places-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let prefix = folder.join("vm");
        fs::write(folder.join("vm-2.serial"), "old").unwrap();
        let mut places = reserve(&prefix, 2).unwrap();
        let numbers: Vec<u32> = places.iter().map(|place| place.number).collect();
        assert_eq!(numbers, [1, 3]);
        fs::write(places[0].serial(), "new").unwrap();
        fs::write(places[1].serial(), "new").unwrap();
        places[1].keep();
        drop(places);
        let mut left: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["vm-2.serial", "vm-3.log", "vm-3.serial"]);
        let long = folder.join("x".repeat(100));
        let error = reserve(&long, 1).unwrap_err().message;
        assert!(error.contains("shorter --prefix"), "{error}");
        let error = reserve(&folder.join("none/vm"), 1).unwrap_err().message;
        assert!(error.contains("cannot create files"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
