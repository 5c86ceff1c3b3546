//! The files of an image: those of a folder (an OCI image layout), or of a tar archive that holds such a
//! folder or is the output of `docker save`.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Take};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use tar::{Archive, EntryType};

use super::tree::names;

/// The most bytes of a file that is read as a whole: a list of layers, or a description.
const MOST_TEXT: u64 = 4 << 20;
/// The most files of an archive. A layer is one or two files.
const MOST_FILES: usize = 100_000;
/// The most links from one name of an archive to the next.
const MOST_LINKS: usize = 8;

/// Where an image is.
pub enum Source {
    /// In a folder with a file for each part.
    Folder(OwnedFd),
    /// An archive, and where its files are in it.
    Archive {
        /// The open archive, from which parts are read.
        file: File,
        /// The places of its files, by their paths without `.` and `..`.
        places: HashMap<Vec<u8>, Place>,
    },
}

/// The place of a file in an archive.
#[derive(Clone)]
pub enum Place {
    /// A part of it.
    Part {
        /// The first byte.
        begin: u64,
        /// The number of bytes.
        size: u64,
    },
    /// That of another file.
    Link(Vec<u8>),
}

impl Source {
    /// Opens a folder or an archive.
    ///
    /// # Errors
    /// It cannot be read, or is something else.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Ok(Self::Folder(file.into()));
        }
        if !metadata.is_file() {
            return Err(io::Error::other("it is no folder and no file"));
        }
        let mut beginning = [0; 4];
        let count = file.read(&mut beginning)?;
        if let [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd] = &beginning[..count] {
            let why = "the archive is compressed as a whole: decompress it first";
            return Err(io::Error::other(why));
        }
        file.seek(SeekFrom::Start(0))?;
        let places = places(&file)?;
        Ok(Self::Archive { file, places })
    }

    /// Opens one file. The path may come from the image.
    ///
    /// # Errors
    /// There is none, or it leads elsewhere.
    pub fn file(&self, path: &str) -> io::Result<Take<File>> {
        match self {
            Self::Folder(folder) => {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let rules = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
                let file = rustix::fs::openat2(folder, path, flags, Mode::empty(), rules)?;
                let stat = rustix::fs::fstat(&file)?;
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::RegularFile => Ok(File::from(file).take(u64::MAX)),
                    _ => Err(io::Error::other("it is no file")),
                }
            }
            Self::Archive { file, places } => {
                let mut name = normal(path.as_bytes())?;
                for _ in 0..MOST_LINKS {
                    match places.get(&name) {
                        Some(Place::Part { begin, size }) => {
                            let mut file = file.try_clone()?;
                            file.seek(SeekFrom::Start(*begin))?;
                            return Ok(file.take(*size));
                        }
                        Some(Place::Link(other)) => name = other.clone(),
                        None => break,
                    }
                }
                Err(io::ErrorKind::NotFound.into())
            }
        }
    }

    /// Reads a whole file that is not large.
    ///
    /// # Errors
    /// There is none, or it is too large.
    pub fn text(&self, path: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file(path)?
            .take(MOST_TEXT + 1)
            .read_to_end(&mut bytes)?;
        match bytes.len() as u64 > MOST_TEXT {
            true => Err(io::Error::other("it is too large for a description")),
            false => Ok(bytes),
        }
    }
}

/// A path of names only.
fn normal(path: &[u8]) -> io::Result<Vec<u8>> {
    Ok(names(path)?.join(OsStr::new("/")).as_bytes().to_vec())
}

/// The place to which a link at a path leads, inside the archive.
fn target(path: &[u8], link: &[u8]) -> Option<Vec<u8>> {
    let mut parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    parts.pop();
    for part in link.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => _ = parts.pop()?,
            part => parts.push(part),
        }
    }
    Some(parts.join(&b'/'))
}

/// The places of the files of an archive.
fn places(file: &File) -> io::Result<HashMap<Vec<u8>, Place>> {
    let mut archive = Archive::new(file);
    let mut places = HashMap::new();
    // Names of images' files are short, so descriptions of longer ones are left unread.
    for entry in archive.entries_with_seek()?.raw(true) {
        let entry = entry?;
        let header = entry.header();
        let Ok(path) = normal(&header.path_bytes()) else {
            continue;
        };
        let place = match header.entry_type() {
            EntryType::Regular => Place::Part {
                begin: entry.raw_file_position(),
                size: entry.size(),
            },
            EntryType::Symlink => {
                let link = header.link_name_bytes().unwrap_or_default();
                match target(&path, &link) {
                    Some(target) => Place::Link(target),
                    None => continue,
                }
            }
            _ => continue,
        };
        places.insert(path, place);
        if places.len() > MOST_FILES {
            return Err(io::Error::other(
                "the archive has too many files for an image",
            ));
        }
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_an_archive_stay_in_it() {
        let to = |path: &str, link: &str| target(path.as_bytes(), link.as_bytes());
        assert_eq!(
            to("b/layer.tar", "../a/layer.tar"),
            Some(b"a/layer.tar".to_vec())
        );
        assert_eq!(to("x", "y"), Some(b"y".to_vec()));
        assert_eq!(to("b/x", "../../etc/passwd"), None);
    }
}
