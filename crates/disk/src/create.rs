//! New images.

use crate::open::{DiskError, explain};
use crate::options::Format;
use imago::file::File;
use imago::format::builder::FormatCreateBuilder;
use imago::qcow2::Qcow2;
use imago::{Storage, StorageCreateOptions};
use std::fs;
use std::io;
use std::path::Path;

/// Creates an image of `bytes` zeros, a multiple of 512, in a new file.
///
/// # Errors
/// [`DiskError`]: the file exists, or cannot be written.
pub fn create(path: &Path, format: Format, bytes: u64) -> Result<(), DiskError> {
    let result = match format {
        _ if !bytes.is_multiple_of(512) => {
            Err(io::Error::other("its size must be a multiple of 512 bytes"))
        }
        Format::Raw => fs::File::create_new(path).and_then(|file| file.set_len(bytes)),
        Format::Qcow2 => create_qcow2(path, bytes, None),
    };
    result.map_err(|error| failed(path, &error))
}

/// Creates a qcow2 image that shows another image until something is written to it. `backing`
/// is the other image's name as seen from the new one's folder.
///
/// # Errors
/// As [`create`].
pub fn create_over(
    path: &Path,
    bytes: u64,
    backing: &str,
    format: Format,
) -> Result<(), DiskError> {
    create_qcow2(path, bytes, Some((backing, format))).map_err(|error| failed(path, &error))
}

fn create_qcow2(path: &Path, bytes: u64, backing: Option<(&str, Format)>) -> io::Result<()> {
    let options = StorageCreateOptions::new().filename(path).overwrite(false);
    let mut builder = Qcow2::<File>::create_builder(File::create_open(options)?).size(bytes);
    if let Some((name, format)) = backing {
        builder = builder.backing(name.into(), format.name().into());
    }
    builder.create()
}

fn failed(path: &Path, error: &io::Error) -> DiskError {
    DiskError {
        path: path.to_owned(),
        why: match error.kind() {
            io::ErrorKind::AlreadyExists => "it exists; remove it, or choose another name".into(),
            _ => explain(error),
        },
    }
}
