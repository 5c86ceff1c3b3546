//! The properties of a disk image: format, sizes, backing file.

use crate::error::{DiskError, explain};
use crate::header::{Encryption, Header, incompatible};
use crate::host_file::{file_bytes, open_file, open_unlocked};
use crate::options::Format;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The properties of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageInfo {
    /// The path of the image.
    pub path: PathBuf,
    /// The image's format.
    pub format: Format,
    /// The size of the disk in bytes.
    pub virtual_bytes: u64,
    /// The number of bytes that the file occupies on the host.
    pub disk_bytes: u64,
    /// The properties that only qcow2 images have.
    pub qcow2: Option<Qcow2Info>,
}

/// The properties that only qcow2 images have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Qcow2Info {
    /// 2 or 3, which QEMU calls compat 0.10 and 1.1.
    pub version: u32,
    /// The size of the unit of allocation in bytes.
    pub cluster_bytes: u64,
    /// The name of the backing file as stored in the image, relative to the image's folder.
    pub backing: Option<String>,
    /// The backing file's format.
    pub backing_format: Option<String>,
    /// The number of snapshots in the image.
    pub snapshots: u32,
    /// The name of the external data file as stored in the image.
    pub data_file: Option<String>,
    /// How the data are encrypted.
    pub encryption: Option<Encryption>,
    /// Whether clusters are compressed with zstd and not with zlib.
    pub has_zstd: bool,
    /// Whether entries of L2 tables describe parts of a cluster.
    pub has_extended_l2: bool,
    /// Whether the image was not closed, so that its reference counts may be wrong.
    pub is_dirty: bool,
    /// Whether the image is marked as damaged.
    pub is_corrupt: bool,
}

/// Reads the properties of an image. Without a `format`, the first bytes of the file determine it;
/// no other file is opened because of that. With `share` this works even while a machine writes the
/// image.
///
/// # Errors
/// [`DiskError`]: the image cannot be read, is in use, or is damaged.
pub fn info(path: &Path, format: Option<Format>, share: bool) -> Result<ImageInfo, DiskError> {
    inspect(path, format, share).map_err(|error| DiskError {
        path: path.to_owned(),
        why: explain(&error),
    })
}

fn inspect(path: &Path, format: Option<Format>, share: bool) -> io::Result<ImageInfo> {
    let file = if share {
        open_unlocked(path, false)?
    } else {
        open_file(path, false)?
    };
    let file_bytes = file_bytes(&file)?;
    let header = match format {
        Some(Format::Raw) => None,
        Some(Format::Qcow2) => match Header::read(&file, file_bytes)? {
            None => return Err(io::Error::other("it is not a qcow2 image")),
            header => header,
        },
        None => Header::read(&file, file_bytes)?,
    };
    Ok(ImageInfo {
        path: path.to_owned(),
        format: header.as_ref().map_or(Format::Raw, |_| Format::Qcow2),
        virtual_bytes: header.as_ref().map_or(file_bytes, |header| header.size),
        disk_bytes: file.metadata()?.blocks() * 512,
        qcow2: header.map(|header| Qcow2Info {
            encryption: header.encryption,
            has_zstd: header.has(incompatible::COMPRESSION),
            has_extended_l2: header.has(incompatible::EXTENDED_L2),
            is_dirty: header.has(incompatible::DIRTY),
            is_corrupt: header.has(incompatible::CORRUPT),
            version: header.version,
            cluster_bytes: header.cluster_bytes(),
            backing: header.backing,
            backing_format: header.backing_format,
            data_file: header.data_file,
            snapshots: header.snapshots,
        }),
    })
}
