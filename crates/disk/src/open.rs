//! Opens an image and all files that belong to it, and locks each of them.
//!
//! Locks are advisory (flock): a file that is written belongs to one machine, a file that is only
//! read may be shared. The locks end with the process.

use crate::chain::{Access, Layer, open_chain};
use crate::header::MAGIC;
use crate::image::Image;
use crate::image_file::ImageFile;
use crate::options::{Cache, DriveOptions, Format};
use imago::file::File;
use imago::format::builder::{FormatCreateBuilder, FormatDriverBuilder};
use imago::qcow2::Qcow2;
use imago::{DenyImplicitOpenGate, FormatAccess, StorageOpenOptions};
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Why an image cannot be used. It prints as one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskError {
    /// The path of the image.
    pub path: PathBuf,
    /// What is wrong, and what the user can do about it.
    pub why: String,
}

impl fmt::Display for DiskError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "cannot use disk image '{}': {}",
            self.path.display(),
            self.why
        )
    }
}

impl std::error::Error for DiskError {}

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

/// Opens a file and locks it, exclusively if it will be written.
pub(crate) fn open_file(path: &Path, write: bool) -> io::Result<fs::File> {
    let file = open_unlocked(path, write)?;
    lock(&file, write)?;
    Ok(file)
}

/// Opens a file of a kind that can be an image.
pub(crate) fn open_unlocked(path: &Path, write: bool) -> io::Result<fs::File> {
    let file = fs::OpenOptions::new()
        .read(true)
        .write(write)
        // Opening a pipe would wait for its other end.
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if !kind.is_file() && !kind.is_block_device() {
        return Err(io::Error::other("it is neither a file nor a block device"));
    }
    Ok(file)
}

/// Returns the size in bytes of a file or of a block device.
pub(crate) fn file_bytes(mut file: &fs::File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    if metadata.file_type().is_block_device() {
        file.seek(SeekFrom::End(0))
    } else {
        Ok(metadata.len())
    }
}

/// Makes reads and writes bypass the host's page cache from now on. Until then a file is read like
/// any other, so that reading its header and its tables needs no aligned memory.
pub(crate) fn set_direct(file: &fs::File) -> io::Result<()> {
    // SAFETY: fcntl takes and returns integers only with these commands.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_DIRECT) };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn lock(file: &fs::File, write: bool) -> io::Result<()> {
    let kind = if write { libc::LOCK_EX } else { libc::LOCK_SH };
    // SAFETY: flock takes and returns integers only.
    if unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(match error.kind() {
        ErrorKind::WouldBlock if write => io::Error::other(
            "another virtual machine uses it; only machines that do not change it can share it (readonly=on, snapshot=on, tollgate exec without rw)",
        ),
        ErrorKind::WouldBlock => io::Error::other("another virtual machine writes it"),
        _ => error,
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

/// Explains an error in one line, for a user who can do something about it.
pub(crate) fn explain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT) => "no such file; check the path".into(),
        Some(libc::EACCES | libc::EPERM) => {
            "you may not use it in this way; check its permissions, or open it read-only (readonly=on, tollgate exec without rw)".into()
        }
        Some(libc::EROFS) => "its file system is read-only; open it read-only (readonly=on, tollgate exec without rw)".into(),
        Some(libc::EISDIR) => "it is a folder; name a file".into(),
        Some(libc::EINVAL) => {
            format!("{error} (with cache=none: its file system may not know O_DIRECT)")
        }
        _ if error.kind() == ErrorKind::IsADirectory => "it is a folder; name a file".into(),
        _ => error.to_string(),
    }
}
