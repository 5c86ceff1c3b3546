//! One layer of an image: a tar archive, perhaps compressed, whose entries are put into a tree.
//!
//! A layer also removes what layers below have, by entries with names that begin with `.wh.` (the OCI
//! image specification, "Whiteouts"). They have no effect on the layer itself, so they are executed first:
//! a layer is read twice.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use sha2::{Digest, Sha256};
use tar::{Archive, EntryType, PaxExtensions};

use super::tree::Tree;

/// The beginning of names that remove others.
const WHITEOUT: &[u8] = b".wh.";
/// The name that removes everything that layers below have in its folder.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// The beginning of names that only old storage drivers understand.
const BOOKKEEPING: &[u8] = b".wh..wh.";
/// The most bytes of what describes an entry: a long name, or the extended header.
const MOST_HEADER: u64 = 1 << 20;
/// The most bytes of a path, Linux's own limit.
const MOST_PATH: usize = 4096;

/// What an image may take of the host, and what it has taken.
pub struct Budget {
    /// The bytes of files that may follow.
    pub bytes: u64,
    /// The entries that may follow.
    pub entries: u64,
    /// The files that were made.
    pub files: u64,
    /// The entries that were left out: devices.
    pub left_out: u64,
}

/// What is wrong with a layer.
#[derive(Debug)]
pub enum LayerError {
    /// The archive itself.
    Archive(io::Error),
    /// One of its entries.
    Entry(String, io::Error),
    /// The image is larger than it may be.
    TooLarge,
}

type Result<T> = std::result::Result<T, LayerError>;

/// An entry of the archive, with what entries before it have said about it.
struct Item<'a, R: Read> {
    path: Vec<u8>,
    link: Vec<u8>,
    entry: tar::Entry<'a, R>,
}

/// Executes the whiteouts of a layer. Returns the SHA-256 of the archive.
///
/// # Errors
/// The layer cannot be read, or an entry leads out of the tree.
pub fn remove_from(tree: &Tree, layer: impl Read, budget: &mut Budget) -> Result<[u8; 32]> {
    let mut hashed = Hashed {
        reader: decompressed(layer)?,
        hash: Sha256::new(),
        // What is skipped is decompressed too.
        left: budget.bytes.saturating_mul(2).saturating_add(1 << 30),
    };
    for_each(&mut hashed, |item| {
        let failed = |error| failed(&item.path, error);
        let (folder, name) = split(&item.path);
        if name == OPAQUE {
            tree.clear(folder).map_err(failed)?;
        } else if name.starts_with(WHITEOUT) && !name.starts_with(BOOKKEEPING) {
            let hidden = &name[WHITEOUT.len()..];
            if hidden.is_empty() || hidden == b"." || hidden == b".." {
                return Err(failed(io::Error::other("it removes no name")));
            }
            tree.remove(&[folder, b"/", hidden].concat())
                .map_err(failed)?;
        }
        Ok(())
    })?;
    // What follows the archive's end belongs to its hash.
    io::copy(&mut hashed, &mut io::sink()).map_err(archive)?;
    Ok(hashed.hash.finalize().into())
}

/// Puts the entries of a layer into the tree.
///
/// # Errors
/// The layer cannot be read, is too large, or has an entry that cannot be made.
pub fn put_into(tree: &Tree, layer: impl Read, budget: &mut Budget) -> Result<()> {
    for_each(decompressed(layer)?, |mut item| {
        let (path, link) = (&item.path, &item.link);
        let (_, name) = split(path);
        if name.starts_with(WHITEOUT) {
            return Ok(());
        }
        budget.entries = budget.entries.checked_sub(1).ok_or(LayerError::TooLarge)?;
        let header = item.entry.header();
        let failed = |error| failed(path, error);
        let mode = header.mode().map_err(failed)?;
        match header.entry_type() {
            EntryType::Regular | EntryType::Continuous => {
                let size = item.entry.size();
                budget.bytes = budget.bytes.checked_sub(size).ok_or(LayerError::TooLarge)?;
                let seconds = header.mtime().unwrap_or(0);
                let seconds = i64::try_from(seconds).unwrap_or(0);
                let count = tree.put_file(path, mode, seconds, &mut item.entry);
                if count.map_err(failed)? != size {
                    return Err(failed(io::ErrorKind::UnexpectedEof.into()));
                }
                budget.files += 1;
            }
            EntryType::Directory => tree.put_folder(path, mode).map_err(failed)?,
            EntryType::Symlink => tree.put_link(path, link).map_err(failed)?,
            EntryType::Link => tree.put_name(path, link).map_err(failed)?,
            EntryType::Fifo => tree.put_pipe(path, mode).map_err(failed)?,
            EntryType::Char | EntryType::Block => budget.left_out += 1,
            other => {
                let why = format!(
                    "entries of type {:?} are not known",
                    other.as_byte() as char
                );
                return Err(failed(io::Error::other(why)));
            }
        }
        Ok(())
    })
}

fn archive(error: io::Error) -> LayerError {
    LayerError::Archive(error)
}

fn failed(path: &[u8], error: io::Error) -> LayerError {
    LayerError::Entry(String::from_utf8_lossy(path).into_owned(), error)
}

/// The folder and the name of a path.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let path = match path {
        [rest @ .., b'/'] => rest,
        path => path,
    };
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(place) => (&path[..place], &path[place + 1..]),
        None => (b"", path),
    }
}

/// The archive without its compression, which its first bytes tell.
fn decompressed<'a>(layer: impl Read + 'a) -> Result<Box<dyn Read + 'a>> {
    const GZIP: &[u8] = &[0x1f, 0x8b];
    const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
    let mut layer = BufReader::with_capacity(64 << 10, layer);
    let beginning = layer.fill_buf().map_err(archive)?;
    Ok(if beginning.starts_with(GZIP) {
        Box::new(MultiGzDecoder::new(layer))
    } else if beginning.starts_with(ZSTD) {
        let decoder = StreamingDecoder::new(layer);
        Box::new(decoder.map_err(|error| archive(io::Error::other(error.to_string())))?)
    } else {
        Box::new(layer)
    })
}

/// A reader that computes the hash of what is read, up to a limit.
struct Hashed<R> {
    reader: R,
    hash: Sha256,
    left: u64,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.hash.update(&buffer[..count]);
        let too_large = || io::Error::other("it is larger than --limit allows");
        self.left = self.left.checked_sub(count as u64).ok_or_else(too_large)?;
        Ok(count)
    }
}

/// Calls a function for each entry, with its whole name.
fn for_each<R: Read>(reader: R, mut each: impl FnMut(Item<'_, R>) -> Result<()>) -> Result<()> {
    let mut archive_file = Archive::new(reader);
    let mut long_path = None;
    let mut long_link = None;
    // Without 'raw' the library takes descriptions of any length into memory.
    for entry in archive_file.entries().map_err(archive)?.raw(true) {
        let mut entry = entry.map_err(archive)?;
        match entry.header().entry_type() {
            EntryType::GNULongName => long_path = Some(terminated(description(&mut entry)?)),
            EntryType::GNULongLink => long_link = Some(terminated(description(&mut entry)?)),
            EntryType::XGlobalHeader => {}
            EntryType::XHeader => {
                let bytes = description(&mut entry)?;
                for extension in PaxExtensions::new(&bytes) {
                    let extension = extension.map_err(archive)?;
                    match extension.key_bytes() {
                        b"path" => long_path = Some(extension.value_bytes().to_vec()),
                        b"linkpath" => long_link = Some(extension.value_bytes().to_vec()),
                        b"size" => {
                            let why = "files larger than 8 GiB are not supported";
                            return Err(archive(io::Error::other(why)));
                        }
                        _ => {}
                    }
                }
            }
            _ => {
                let header = entry.header();
                let link = header.link_name_bytes().unwrap_or_default().into_owned();
                let path = header.path_bytes().into_owned();
                let (path, link) = (
                    long_path.take().unwrap_or(path),
                    long_link.take().unwrap_or(link),
                );
                if path.len().max(link.len()) > MOST_PATH {
                    let error = io::Error::other("its name is too long");
                    return Err(failed(&path[..path.len().min(80)], error));
                }
                each(Item { path, link, entry })?;
            }
        }
    }
    Ok(())
}

/// The content of an entry that describes the next one.
fn description(entry: &mut tar::Entry<'_, impl Read>) -> Result<Vec<u8>> {
    if entry.size() > MOST_HEADER {
        return Err(archive(io::Error::other("a name is too long")));
    }
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes).map_err(archive)?;
    Ok(bytes)
}

/// A name without the zero byte that ends it.
fn terminated(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.last() == Some(&0) {
        bytes.pop();
    }
    bytes
}
