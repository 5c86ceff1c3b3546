//! The FUSE protocol as in Linux's `include/uapi/linux/fuse.h`: numbers, and readers and writers
//! for its structures, which are little-endian here.

use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;

/// The protocol's version.
pub const MAJOR: u32 = 7;
/// The newest minor version that is supported.
pub const MINOR: u32 = 38;
/// The oldest minor version that is supported: that of the first kernel with virtio-fs.
pub const OLDEST_MINOR: u32 = 31;

/// The size of a request's header in bytes.
pub const IN_HEADER_BYTES: usize = 40;
/// The size of a reply's header in bytes.
pub const OUT_HEADER_BYTES: usize = 16;
/// The maximum number of bytes of one read or write.
pub const MAX_TRANSFER: usize = 1 << 20;
/// The maximum number of pages of one read or write.
pub const MAX_PAGES: u16 = (MAX_TRANSFER / 4096) as u16;
/// The maximum size of a request in bytes: that of a write, and room for its header.
pub const MAX_REQUEST_BYTES: usize = MAX_TRANSFER + 4096;
/// The root directory's number.
pub const ROOT: u64 = 1;

/// Kinds of requests.
#[expect(missing_docs, reason = "named as in fuse.h")]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
}

/// Flags of INIT.
#[expect(missing_docs, reason = "named as in fuse.h")]
pub mod init_flag {
    pub const ASYNC_READ: u32 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u32 = 1 << 3;
    pub const BIG_WRITES: u32 = 1 << 5;
    pub const AUTO_INVAL_DATA: u32 = 1 << 12;
    pub const DO_READDIRPLUS: u32 = 1 << 13;
    pub const READDIRPLUS_AUTO: u32 = 1 << 14;
    pub const ASYNC_DIO: u32 = 1 << 15;
    pub const NO_OPEN_SUPPORT: u32 = 1 << 17;
    pub const PARALLEL_DIROPS: u32 = 1 << 18;
    pub const MAX_PAGES: u32 = 1 << 22;
    pub const CACHE_SYMLINKS: u32 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u32 = 1 << 24;
    pub const HANDLE_KILLPRIV_V2: u32 = 1 << 28;
}

/// The attributes that SETATTR sets.
#[expect(missing_docs, reason = "named as in fuse.h")]
pub mod set {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const HANDLE: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// OPEN, CREATE: set-user-ID and set-group-ID must be cleared.
pub const OPEN_KILL_SUIDGID: u32 = 1;
/// Reply to OPEN: the guest keeps its cache of the file.
pub const KEEP_CACHE: u32 = 1 << 1;
/// WRITE: the bytes come from the guest's page cache, so appending has already been handled.
pub const WRITE_FROM_CACHE: u32 = 1;
/// WRITE: set-user-ID and set-group-ID must be cleared.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// FSYNC: only the data.
pub const FSYNC_DATA: u32 = 1;

/// The header of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The kind of request.
    pub opcode: u32,
    /// The request's number, which the reply repeats.
    pub unique: u64,
    /// The number of the file.
    pub node: u64,
    /// The user in the guest that sends the request.
    pub uid: u32,
    /// The group in the guest that sends the request.
    pub gid: u32,
}

impl Header {
    /// Whether the guest's kernel waits for a reply.
    pub const fn is_answered(&self) -> bool {
        !matches!(
            self.opcode,
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT
        )
    }

    /// Returns the header of a request and the bytes after it, or `None` if the request is too
    /// short.
    pub fn read(request: &[u8]) -> Option<(Self, Input<'_>)> {
        let mut input = Input::new(request.get(..IN_HEADER_BYTES)?);
        let mut read = || {
            let bytes = input.u32()?;
            let header = Self {
                opcode: input.u32()?,
                unique: input.u64()?,
                node: input.u64()?,
                uid: input.u32()?,
                gid: input.u32()?,
            };
            Ok::<_, Errno>((header, bytes))
        };
        let (header, bytes) = read().ok()?;
        let body = request.get(IN_HEADER_BYTES..bytes as usize)?;
        Some((header, Input::new(body)))
    }
}

/// The rest of a request.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Makes an input of all of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Takes the next `count` bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Errno> {
        let (taken, left) = self.0.split_at_checked(count).ok_or(Errno::INVAL)?;
        self.0 = left;
        Ok(taken)
    }

    /// Takes the next byte.
    ///
    /// # Errors
    /// There is none.
    pub fn u8(&mut self) -> Result<u8, Errno> {
        let (byte, left) = self.0.split_first().ok_or(Errno::INVAL)?;
        self.0 = left;
        Ok(*byte)
    }

    /// Takes the next 16-bit number.
    ///
    /// # Errors
    /// There is none.
    pub fn u16(&mut self) -> Result<u16, Errno> {
        let (bytes, left) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = left;
        Ok(u16::from_le_bytes(*bytes))
    }

    /// Takes the next 32-bit number.
    ///
    /// # Errors
    /// There is none.
    pub fn u32(&mut self) -> Result<u32, Errno> {
        let (bytes, left) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = left;
        Ok(u32::from_le_bytes(*bytes))
    }

    /// Takes the next 64-bit number.
    ///
    /// # Errors
    /// There is none.
    pub fn u64(&mut self) -> Result<u64, Errno> {
        let (bytes, left) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = left;
        Ok(u64::from_le_bytes(*bytes))
    }

    /// Takes the next text, up to its zero.
    ///
    /// # Errors
    /// The text has no end.
    pub fn text(&mut self) -> Result<&'a CStr, Errno> {
        let text = CStr::from_bytes_until_nul(self.0).map_err(|_| Errno::INVAL)?;
        self.bytes(text.to_bytes_with_nul().len())?;
        Ok(text)
    }

    /// Takes the next name of a file in a directory.
    ///
    /// # Errors
    /// The name has no end, is empty, too long, `.` or `..`, or contains a slash.
    pub fn name(&mut self) -> Result<&'a OsStr, Errno> {
        let name = self.text()?.to_bytes();
        match name {
            b"" | b"." | b".." => Err(Errno::INVAL),
            _ if name.contains(&b'/') => Err(Errno::INVAL),
            _ if name.len() > 255 => Err(Errno::NAMETOOLONG),
            _ => Ok(OsStr::from_bytes(name)),
        }
    }

    /// Returns the rest.
    pub const fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// A reply that is being written; it begins with room for the header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    /// The bytes of the reply.
    pub bytes: Vec<u8>,
    /// The number of bytes that the guest has room for, including the header.
    pub capacity: usize,
}

impl Output {
    /// Makes an empty reply.
    pub fn new(capacity: usize) -> Self {
        Self {
            bytes: vec![0; OUT_HEADER_BYTES],
            capacity,
        }
    }

    /// Returns how many more bytes there is room for.
    pub const fn room(&self) -> usize {
        self.capacity.saturating_sub(self.bytes.len())
    }

    /// Appends 16 bits.
    pub fn u16(&mut self, value: u16) {
        self.bytes.extend(value.to_le_bytes());
    }

    /// Appends 32 bits.
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }

    /// Appends 64 bits.
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend(value.to_le_bytes());
    }

    /// Appends zeros.
    pub fn zeros(&mut self, count: usize) {
        self.bytes.resize(self.bytes.len() + count, 0);
    }

    /// Returns the finished reply to a request.
    pub fn finish(mut self, unique: u64, result: Result<(), Errno>) -> Vec<u8> {
        let result = match result {
            Ok(()) if self.bytes.len() > self.capacity => Err(Errno::RANGE),
            other => other,
        };
        let error = result.err().map_or(0, |error| -error.raw_os_error());
        if error != 0 {
            self.bytes.truncate(OUT_HEADER_BYTES);
        }
        let bytes = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&bytes.to_le_bytes());
        self.bytes[4..8].copy_from_slice(&error.to_le_bytes());
        self.bytes[8..16].copy_from_slice(&unique.to_le_bytes());
        if self.bytes.len() > self.capacity {
            self.bytes.clear();
        }
        self.bytes
    }
}
