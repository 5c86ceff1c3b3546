//! What an image is: format, sizes, backing file.

use crate::header::{Header, incompatible};
use crate::open::{DiskError, explain, open_file, open_unlocked};
use crate::options::Format;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What an image is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageInfo {
    /// The file.
    pub path: PathBuf,
    /// Its format.
    pub format: Format,
    /// Bytes of the disk that it holds.
    pub virtual_bytes: u64,
    /// Bytes that the file takes on the host.
    pub disk_bytes: u64,
    /// What only qcow2 images have.
    pub qcow2: Option<Qcow2Info>,
}

/// What only qcow2 images have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Qcow2Info {
    /// 2 or 3, which QEMU calls compat 0.10 and 1.1.
    pub version: u32,
    /// Bytes of the unit of allocation.
    pub cluster_bytes: u64,
    /// The name of the backing file, as it stands in the image: relative to its folder.
    pub backing: Option<String>,
    /// The backing file's format.
    pub backing_format: Option<String>,
    /// Snapshots in the image.
    pub snapshots: u32,
    /// Somebody did not close the image: its reference counts may be wrong.
    pub is_dirty: bool,
    /// The image is marked as damaged.
    pub is_corrupt: bool,
}

/// Looks at an image. Without a `format`, what the file begins with decides: nothing is opened
/// because of it. `share`: also while a machine writes it.
///
/// # Errors
/// [`DiskError`]: it cannot be read, is in use, or is damaged.
pub fn info(path: &Path, format: Option<Format>, share: bool) -> Result<ImageInfo, DiskError> {
    inspect(path, format, share).map_err(|error| DiskError {
        path: path.to_owned(),
        why: explain(&error),
    })
}

fn inspect(path: &Path, format: Option<Format>, share: bool) -> io::Result<ImageInfo> {
    let mut file = if share {
        open_unlocked(path, false, false)?
    } else {
        open_file(path, false, false)?
    };
    let metadata = file.metadata()?;
    let header = match format {
        Some(Format::Raw) => None,
        Some(Format::Qcow2) => match Header::read(&file)? {
            None => return Err(io::Error::other("it is not a qcow2 image")),
            header => header,
        },
        None => Header::read(&file)?,
    };
    let file_bytes = if metadata.file_type().is_block_device() {
        file.seek(SeekFrom::End(0))?
    } else {
        metadata.len()
    };
    Ok(ImageInfo {
        path: path.to_owned(),
        format: header.as_ref().map_or(Format::Raw, |_| Format::Qcow2),
        virtual_bytes: header.as_ref().map_or(file_bytes, |header| header.size),
        disk_bytes: metadata.blocks() * 512,
        qcow2: header.map(|header| Qcow2Info {
            version: header.version,
            cluster_bytes: header.cluster_bytes(),
            backing: header.backing,
            backing_format: header.backing_format,
            snapshots: header.snapshots,
            is_dirty: header.incompatible & incompatible::DIRTY != 0,
            is_corrupt: header.incompatible & incompatible::CORRUPT != 0,
        }),
    })
}
