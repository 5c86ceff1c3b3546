//! Unpacks kernel modules in the compressed formats that distributions use.

use std::io::{self, Cursor, Read};

/// The maximum size of an unpacked file in bytes, which is many times the size of the largest
/// module.
const MAX_BYTES: usize = 256 << 20;

/// The content of a file, unpacked if it begins as xz, Zstandard or gzip files do.
///
/// # Errors
///
/// The file is damaged, or larger than any module.
pub fn unpack(content: Vec<u8>) -> io::Result<Vec<u8>> {
    let mut unpacked = Limited(Vec::new());
    match content.as_slice() {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            lzma_rs::xz_decompress(&mut Cursor::new(&content), &mut unpacked)
                .map_err(|error| io::Error::other(error.to_string()))?;
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(content.as_slice());
            let mut decoder = decoder.map_err(io::Error::other)?;
            io::copy(&mut decoder, &mut unpacked)?;
        }
        [0x1f, 0x8b, ..] => {
            let decoder = flate2::read::GzDecoder::new(content.as_slice());
            io::copy(&mut decoder.take(MAX_BYTES as u64 + 1), &mut unpacked)?;
        }
        _ => return Ok(content),
    }
    Ok(unpacked.0)
}

/// A buffer that takes at most [`MAX_BYTES`].
struct Limited(Vec<u8>);

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_BYTES {
            return Err(io::Error::other("it is too large for a module"));
        }
        self.0.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "module\n", as `xz --check=crc32 --lzma2=dict=1MiB`, `zstd` and `gzip -n` compress it.
    const XZ: &[u8] = b"\xfd\x37\x7a\x58\x5a\x00\x00\x01\x69\x22\xde\x36\x02\x00\x21\x01\x10\x00\
\x00\x00\xa8\x70\x8e\x86\x01\x00\x06\x6d\x6f\x64\x75\x6c\x65\x0a\x00\x00\x4f\x8a\x6e\x07\x00\x01\
\x1b\x07\x12\xeb\xd4\x17\x90\x42\x99\x0d\x01\x00\x00\x00\x00\x01\x59\x5a";
    const ZSTANDARD: &[u8] =
        b"\x28\xb5\x2f\xfd\x24\x07\x39\x00\x00\x6d\x6f\x64\x75\x6c\x65\x0a\x26\xd1\
\x51\x25";
    const GZIP: &[u8] =
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xcb\xcd\x4f\x29\xcd\x49\xe5\x02\x00\x4f\
\x8a\x6e\x07\x07\x00\x00\x00";

    #[test]
    fn modules_are_unpacked_however_they_are_compressed() {
        for packed in [XZ, ZSTANDARD, GZIP, b"module\n"] {
            assert_eq!(unpack(packed.to_vec()).unwrap(), b"module\n");
        }
        for packed in [XZ, ZSTANDARD, GZIP] {
            assert!(unpack(packed[..packed.len() / 2].to_vec()).is_err());
        }
    }
}
