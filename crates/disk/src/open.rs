//! Opens an image and all files that belong to it, and locks each of them.
//!
//! Locks are advisory (flock): a file that is written belongs to one machine, a file that is only
//! read may be shared. The locks end with the process.

use crate::chain::{Access, Layer, open_chain};
use crate::error::{DiskError, explain};
use crate::header::MAGIC;
use crate::host_file::open_file;
use crate::image::Image;
use crate::image_file::ImageFile;
use crate::options::{Cache, DriveOptions, Format};
use imago::file::File;
use imago::format::builder::{FormatCreateBuilder, FormatDriverBuilder};
use imago::qcow2::Qcow2;
use imago::{DenyImplicitOpenGate, FormatAccess, StorageOpenOptions};
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

/// Opens and locks an image.
///
/// # Errors
/// [`DiskError`]: the image cannot be read or written, has another format, or is in use.
pub fn open(options: &DriveOptions) -> Result<Image, DiskError> {
    open_image(options).map_err(|error| DiskError {
        path: options.path.clone(),
        why: explain(&error),
    })
}

fn open_image(options: &DriveOptions) -> io::Result<Image> {
    let writes_file = !options.readonly && !options.snapshot;
    let file = open_file(&options.path, writes_file)?;
    let format = format_of_path(options, &file)?;
    let layer = Layer {
        file,
        path: options.path.clone(),
        format,
    };
    let access = Access {
        writes: writes_file,
        is_direct: options.cache == Cache::None,
        backing: options.backing,
    };
    let access = open_chain(layer, access)?;
    if options.snapshot && !options.readonly {
        let overlay = overlay(access)?;
        return Ok(Image::new(overlay, Cache::Unsafe, options.discard, true));
    }
    Ok(Image::new(
        access,
        options.cache,
        options.discard && writes_file,
        writes_file,
    ))
}

/// Makes an image in an unnamed file, which takes all writes, with a read-only image below it.
fn overlay(base: FormatAccess<ImageFile>) -> io::Result<FormatAccess<ImageFile>> {
    let storage = File::from_open_file(unnamed_file()?, StorageOpenOptions::new().write(true))?;
    let storage = ImageFile::new(storage);
    let create = Qcow2::<ImageFile>::create_builder(storage).size(base.size());
    let qcow2 = create.create_open(DenyImplicitOpenGate::default(), |storage| {
        Ok(Qcow2::builder(storage).write(true).backing(Some(base)))
    })?;
    Ok(FormatAccess::new(qcow2))
}

/// Makes a file in `TMPDIR` or /var/tmp that disappears with its descriptor.
fn unnamed_file() -> io::Result<fs::File> {
    let folder = std::env::var_os("TMPDIR").map_or_else(|| "/var/tmp".into(), PathBuf::from);
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let result = options.clone().custom_flags(libc::O_TMPFILE).open(&folder);
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            let name = format!("tollgate-snapshot-{}", std::process::id());
            let path = folder.join(name);
            let file = options.create_new(true).open(&path)?;
            fs::remove_file(&path)?;
            Ok(file)
        }
        result => result,
    }
    .map_err(|error| {
        let folder = folder.display();
        io::Error::new(
            error.kind(),
            format!("no file for its snapshot in {folder} (TMPDIR chooses the folder): {error}"),
        )
    })
}

/// Returns the format that was given, or that the file's name implies. A guest can write anything
/// to a raw image, even a qcow2 header with the names of host files. So contents alone never make
/// an image qcow2.
pub(crate) fn format_of_path(options: &DriveOptions, file: &fs::File) -> io::Result<Format> {
    if let Some(format) = options.format {
        return Ok(format);
    }
    let extension = options.path.extension().unwrap_or_default();
    if extension == "qcow2" || extension == "qcow" {
        return Ok(Format::Qcow2);
    }
    let mut start = [0; MAGIC.len()];
    if file.read_exact_at(&mut start, 0).is_ok() && start == MAGIC {
        return Err(io::Error::other(
            "it looks like qcow2 but its name does not say so; add format=qcow2, or format=raw",
        ));
    }
    Ok(Format::Raw)
}
