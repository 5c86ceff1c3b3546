//! Copies disk images, into another format or without unused space.

use crate::create::{IMAGE_MODE, failed, storage};
use crate::error::{DiskError, explain};
use crate::host_file::open_file;
use crate::image::Image;
use crate::new_file::NewFile;
use crate::open::{format_of_path, open};
use crate::options::{Backing, DriveOptions, Format};
use imago::format::builder::{FormatCreateBuilder, FormatDriverBuilder};
use imago::qcow2::Qcow2;
use imago::raw::Raw;
use imago::{DenyImplicitOpenGate, FormatAccess};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// The number of bytes that are read together.
const CHUNK_BYTES: u64 = 1 << 20;
/// Zeros are not written if they fill a block of this size in bytes.
const BLOCK_BYTES: usize = 4096;

/// The description of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Copy<'a> {
    /// The image to read, with its backing files.
    pub source: &'a Path,
    /// The source's format. `None` determines it from the name.
    pub source_format: Option<Format>,
    /// The files that the source may name.
    pub backing: Backing,
    /// The new image, which has no backing file.
    pub target: &'a Path,
    /// The new image's format.
    pub target_format: Format,
    /// Whether an existing file of this name is replaced, unless a machine uses it.
    pub replace: bool,
}

/// Copies an image. Zeros take no space in the copy. `progress` is called with the number of bytes
/// of the disk that are done, and with their total number.
///
/// # Errors
/// [`DiskError`] of the image that caused the error.
pub fn convert(copy: &Copy<'_>, mut progress: impl FnMut(u64, u64)) -> Result<(), DiskError> {
    let mut options = DriveOptions::new(copy.source);
    options.format = copy.source_format;
    options.backing = copy.backing;
    options.readonly = true;
    let source = open(&options)?;
    let source_failed = |error: &io::Error| DiskError {
        path: copy.source.to_owned(),
        why: explain(error),
    };
    let holes = Holes::of(&options).map_err(|error| source_failed(&error))?;
    let target_failed = |error: &io::Error| failed(copy.target, error);
    // The lock is held until the file is replaced, so that no machine can start to use the file.
    let _replaced = match copy.target.symlink_metadata() {
        Ok(_) if !copy.replace => return Err(target_failed(&io::ErrorKind::AlreadyExists.into())),
        Ok(metadata) if !metadata.is_file() => {
            let why = "it is not a regular file; give a regular file or a new name";
            return Err(target_failed(&io::Error::other(why)));
        }
        Ok(_) => Some(open_file(copy.target, true).map_err(|error| DiskError {
            path: copy.target.to_owned(),
            why: explain(&error),
        })?),
        Err(_) => None,
    };
    let file = NewFile::create(copy.target, IMAGE_MODE).map_err(|error| target_failed(&error))?;
    let size = source.size();
    let target =
        new_target(&file, copy.target_format, size).map_err(|error| target_failed(&error))?;
    let mut offset = 0;
    let mut buffer = vec![0; CHUNK_BYTES as usize];
    while offset < size {
        progress(offset, size);
        let zeroes =
            known_zeroes(&source, &holes, offset).map_err(|error| source_failed(&error))?;
        if zeroes > 0 {
            offset += zeroes;
            continue;
        }
        let chunk = &mut buffer[..CHUNK_BYTES.min(size - offset) as usize];
        source
            .read(offset, chunk)
            .map_err(|error| source_failed(&error))?;
        write_what_is_not_zero(&target, offset, chunk).map_err(|error| target_failed(&error))?;
        offset += chunk.len() as u64;
    }
    progress(size, size);
    target
        .flush()
        .and_then(|()| file.publish(copy.replace))
        .map_err(|error| target_failed(&error))
}

fn new_target(
    file: &NewFile,
    format: Format,
    bytes: u64,
) -> io::Result<FormatAccess<imago::file::File>> {
    match format {
        Format::Raw => {
            file.file().set_len(bytes)?;
            let raw = Raw::builder(storage(file)?).write(true);
            Ok(FormatAccess::new(
                raw.open(DenyImplicitOpenGate::default())?,
            ))
        }
        Format::Qcow2 => {
            // The size of the disk is a multiple of sectors, but the size of a raw image's file
            // need not be.
            let bytes = bytes.next_multiple_of(512);
            let create = Qcow2::<imago::file::File>::create_builder(storage(file)?).size(bytes);
            let qcow2 = create.create_open(DenyImplicitOpenGate::default(), |storage| {
                Ok(Qcow2::builder(storage).write(true))
            })?;
            Ok(FormatAccess::new(qcow2))
        }
    }
}

/// Returns how many bytes from `offset` on are zero according to image and file system.
fn known_zeroes(source: &Image, holes: &Holes, offset: u64) -> io::Result<u64> {
    let rest = source.size() - offset;
    let zeroes = source.known_zeroes(offset, rest)?;
    Ok(zeroes.max(holes.length_at(offset, rest)))
}

/// Writes the blocks of `data` that are not zero. Adjacent blocks are written together.
fn write_what_is_not_zero(
    target: &FormatAccess<imago::file::File>,
    offset: u64,
    data: &[u8],
) -> io::Result<()> {
    let blocks: Vec<&[u8]> = data.chunks(BLOCK_BYTES).collect();
    let mut at = 0;
    for run in blocks.chunk_by(|one, next| is_zero(one) == is_zero(next)) {
        let bytes: usize = run.iter().map(|block| block.len()).sum();
        if !is_zero(run[0]) {
            target.write(&data[at..at + bytes], offset + at as u64)?;
        }
        at += bytes;
    }
    Ok(())
}

fn is_zero(block: &[u8]) -> bool {
    block == &[0; BLOCK_BYTES][..block.len()]
}

/// The holes in a raw image's file.
struct Holes(Option<File>);

impl Holes {
    fn of(options: &DriveOptions) -> io::Result<Self> {
        let file = open_file(&options.path, false)?;
        let is_raw = format_of_path(options, &file)? == Format::Raw;
        Ok(Self(is_raw.then_some(file)))
    }

    /// Returns the number of bytes of the hole at `offset`, at most `rest`. It is 0 if there are
    /// data or nothing is known.
    fn length_at(&self, offset: u64, rest: u64) -> u64 {
        let Some(file) = &self.0 else { return 0 };
        let Ok(start) = libc::off_t::try_from(offset) else {
            return 0;
        };
        // SAFETY: lseek takes and returns only integers, and no other code uses the file's
        // position.
        let data = unsafe { libc::lseek(file.as_raw_fd(), start, libc::SEEK_DATA) };
        if data >= 0 {
            return (data as u64 - offset).min(rest);
        }
        match io::Error::last_os_error().raw_os_error() {
            // There are no data after the offset.
            Some(libc::ENXIO) => rest,
            _ => 0,
        }
    }
}
