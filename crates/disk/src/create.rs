//! Creates new disk images. A file gets its name only when the image is complete.

use crate::error::{DiskError, explain};
use crate::new_file::NewFile;
use crate::options::Format;
use imago::StorageOpenOptions;
use imago::file::File;
use imago::format::builder::FormatCreateBuilder;
use imago::qcow2::Qcow2;
use std::io;
use std::path::Path;

/// The permissions of new images, of which the process's umask removes some.
pub(crate) const IMAGE_MODE: u32 = 0o644;

/// Creates an image of `bytes` zeros, a multiple of 512, in a new file.
///
/// # Errors
/// [`DiskError`]: the file exists, or cannot be written.
pub fn create(path: &Path, format: Format, bytes: u64) -> Result<(), DiskError> {
    new_image(path, format, bytes, None).map_err(|error| failed(path, &error))
}

/// Creates a qcow2 image with a backing file. `backing` is the name of the backing file, relative
/// to the folder of the new image.
///
/// # Errors
/// As for [`create`].
pub fn create_over(
    path: &Path,
    bytes: u64,
    backing: &str,
    format: Format,
) -> Result<(), DiskError> {
    new_image(path, Format::Qcow2, bytes, Some((backing, format)))
        .map_err(|error| failed(path, &error))
}

fn new_image(
    path: &Path,
    format: Format,
    bytes: u64,
    backing: Option<(&str, Format)>,
) -> io::Result<()> {
    if !bytes.is_multiple_of(512) {
        return Err(io::Error::other("its size must be a multiple of 512 bytes"));
    }
    // This check avoids useless work. The name must still be free at the end.
    if path.symlink_metadata().is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let file = NewFile::create(path, IMAGE_MODE)?;
    match format {
        Format::Raw => file.file().set_len(bytes)?,
        Format::Qcow2 => {
            let mut builder = Qcow2::<File>::create_builder(storage(&file)?).size(bytes);
            if let Some((name, format)) = backing {
                builder = builder.backing(name.into(), format.name().into());
            }
            builder.create()?;
        }
    }
    file.publish(false)
}

/// Makes a file for imago from a new file.
pub(crate) fn storage(file: &NewFile) -> io::Result<File> {
    let options = StorageOpenOptions::new().write(true);
    File::from_open_file(file.file().try_clone()?, options)
}

pub(crate) fn failed(path: &Path, error: &io::Error) -> DiskError {
    DiskError {
        path: path.to_owned(),
        why: match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::AlreadyExists, _) => {
                "it exists; remove it, or choose another name".into()
            }
            (_, Some(libc::ENOENT)) => "its folder does not exist".into(),
            (_, Some(libc::EACCES | libc::EPERM)) => {
                "you may not write to its folder; check its permissions".into()
            }
            _ => explain(error),
        },
    }
}
