//! An image with the files that it names: its backing file, the backing file of that one, and so
//! on, and external data files.
//!
//! imago could open these files by itself. Here they are opened one by one, so that each is locked,
//! each header is checked, and no file is opened that the user does not permit.

use crate::error::explain;
use crate::header::{Header, incompatible};
use crate::host_file::{file_bytes, open_file, set_direct};
use crate::image_file::ImageFile;
use crate::options::{Backing, Format};
use crate::support::{refuse_unsupported, refuse_writing};
use imago::file::File;
use imago::format::builder::FormatDriverBuilder;
use imago::qcow2::Qcow2;
use imago::raw::Raw;
use imago::{DenyImplicitOpenGate, FormatAccess, StorageOpenOptions};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The maximum number of files below an image. A longer chain leads back to itself.
const MAX_BACKING_FILES: usize = 32;

/// How the files of a chain are opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    /// Whether the image is written. Its backing files never are.
    pub writes: bool,
    /// Whether the host's page cache is bypassed.
    pub is_direct: bool,
    /// The files that the images may name.
    pub backing: Backing,
}

/// An open and locked file of a chain.
pub(crate) struct Layer {
    pub file: fs::File,
    pub path: PathBuf,
    pub format: Format,
}

/// Opens an image and the files that it names.
///
/// # Errors
/// An error of the host, or a defect of one of the files.
pub(crate) fn open_chain(layer: Layer, access: Access) -> io::Result<FormatAccess<ImageFile>> {
    open_layer(layer, access, 0)
}

fn open_layer(layer: Layer, access: Access, depth: usize) -> io::Result<FormatAccess<ImageFile>> {
    let Layer { file, path, format } = layer;
    if format == Format::Raw {
        let raw = Raw::builder(ImageFile::new(storage(file, access)?)).write(access.writes);
        let raw = raw.open(DenyImplicitOpenGate::default())?;
        return Ok(FormatAccess::new(raw));
    }
    let header = Header::read(&file, file_bytes(&file)?)?
        .ok_or_else(|| io::Error::other("it is not a qcow2 image"))?;
    refuse_unsupported(&header)?;
    if access.writes {
        refuse_writing(&file, &header)?;
    }
    let data_file = data_file(&header, &path, access)?;
    let backing = backing(&header, &path, access, depth)?;
    let storage = storage(file, access)?;
    let storage = if access.writes {
        ImageFile::new(storage)
    } else {
        ImageFile::without_marks(storage)
    };
    let qcow2 = Qcow2::<ImageFile>::builder(storage)
        .write(access.writes)
        .data_file(data_file)
        .backing(backing)
        .open(DenyImplicitOpenGate::default())?;
    Ok(FormatAccess::new(qcow2))
}

/// Makes a file for imago.
fn storage(file: fs::File, access: Access) -> io::Result<File> {
    if access.is_direct {
        set_direct(&file)?;
    }
    let options = StorageOpenOptions::new()
        .write(access.writes)
        .direct(access.is_direct);
    File::from_open_file(file, options)
}

fn data_file(header: &Header, path: &Path, access: Access) -> io::Result<Option<ImageFile>> {
    if !header.has(incompatible::EXTERNAL_DATA) {
        return Ok(None);
    }
    let name = header.data_file.as_deref().ok_or_else(|| {
        io::Error::other("its data are in an external file, but it does not give the file's name")
    })?;
    let what = "data file";
    let path = resolve(path, what, name, access.backing)?;
    let result = open_file(&path, access.writes).and_then(|file| storage(file, access));
    let file = result.map_err(|error| about(what, &path, &error))?;
    Ok(Some(ImageFile::new(file)))
}

fn backing(
    header: &Header,
    path: &Path,
    access: Access,
    depth: usize,
) -> io::Result<Option<FormatAccess<ImageFile>>> {
    let Some(name) = header.backing.as_deref() else {
        return Ok(None);
    };
    if depth == MAX_BACKING_FILES {
        return Err(io::Error::other("it has too many backing files"));
    }
    let what = "backing file";
    let path = resolve(path, what, name, access.backing)?;
    let access = Access {
        writes: false,
        ..access
    };
    let open = || {
        let file = open_file(&path, false)?;
        let format = match header.backing_format.as_deref() {
            Some("qcow2") => Format::Qcow2,
            Some("raw" | "file") => Format::Raw,
            Some(format) => {
                let why = format!("its format '{format}' is not supported");
                return Err(io::Error::other(why));
            }
            None => match Header::read(&file, file_bytes(&file)?)? {
                Some(_) => Format::Qcow2,
                None => Format::Raw,
            },
        };
        let path = path.clone();
        open_layer(Layer { file, path, format }, access, depth + 1)
    };
    open().map(Some).map_err(|error| about(what, &path, &error))
}

/// Returns the path of a file that an image names, if the image may name it.
fn resolve(image: &Path, what: &str, name: &str, backing: Backing) -> io::Result<PathBuf> {
    let path = image.parent().unwrap_or(Path::new("")).join(name);
    match backing {
        Backing::Any => Ok(path),
        Backing::None => Err(io::Error::other(format!(
            "it has the {what} '{name}', which backing=none forbids"
        ))),
        Backing::SameDir => {
            let real = fs::canonicalize(&path).map_err(|error| about(what, &path, &error))?;
            if real.parent() == fs::canonicalize(image)?.parent() {
                return Ok(real);
            }
            Err(io::Error::other(format!(
                "its {what} '{name}' is not in its own folder, which backing=same-dir demands"
            )))
        }
    }
}

/// Returns an error about a file that an image names.
fn about(what: &str, path: &Path, error: &io::Error) -> io::Error {
    let why = explain(error);
    io::Error::other(format!("its {what} {}: {why}", path.display()))
}
