//! The messages of 9P2000.L, as Linux's `include/net/9p/9p.h` numbers them, and how they are read
//! and written. All numbers are little-endian; a text has its length in 16 bits before it.

use crate::protocol::{Input, MAX_TRANSFER, opcode};
use rustix::io::Errno;

/// The size of a message's header in bytes: its size, its kind and its tag.
pub const HEADER_BYTES: usize = 7;
/// The size in bytes of the header of an answer to a read, up to its data.
pub const READ_HEADER_BYTES: usize = HEADER_BYTES + 4;
/// The maximum size of a message in bytes: that of a write, and room for its header.
pub const MAX_MESSAGE_BYTES: usize = MAX_TRANSFER + 4096;
/// The smallest maximum that a client may ask for.
pub const LEAST_MESSAGE_BYTES: u32 = 4096;
/// The version of the protocol that is spoken.
pub const VERSION: &[u8] = b"9P2000.L";
/// The answer to other versions.
pub const UNKNOWN_VERSION: &[u8] = b"unknown";
/// The maximum number of names in one walk.
pub const MAX_NAMES: u16 = 16;
/// The number that stands for no file.
pub const NO_FID: u32 = u32::MAX;
/// The user's number of a client that has none.
pub const NO_USER: u32 = u32::MAX;
/// The kind of the answer that reports an error.
pub const ERROR: u8 = 7;

/// Kinds of requests. The kind of an answer is one more.
pub mod kind {
    pub const STATFS: u8 = 8;
    pub const LOPEN: u8 = 12;
    pub const LCREATE: u8 = 14;
    pub const SYMLINK: u8 = 16;
    pub const MKNOD: u8 = 18;
    pub const RENAME: u8 = 20;
    pub const READLINK: u8 = 22;
    pub const GETATTR: u8 = 24;
    pub const SETATTR: u8 = 26;
    pub const XATTRWALK: u8 = 30;
    pub const XATTRCREATE: u8 = 32;
    pub const READDIR: u8 = 40;
    pub const FSYNC: u8 = 50;
    pub const LOCK: u8 = 52;
    pub const GETLOCK: u8 = 54;
    pub const LINK: u8 = 70;
    pub const MKDIR: u8 = 72;
    pub const RENAMEAT: u8 = 74;
    pub const UNLINKAT: u8 = 76;
    pub const VERSION: u8 = 100;
    pub const ATTACH: u8 = 104;
    pub const FLUSH: u8 = 108;
    pub const WALK: u8 = 110;
    pub const READ: u8 = 116;
    pub const WRITE: u8 = 118;
    pub const CLUNK: u8 = 120;
    pub const REMOVE: u8 = 122;
}

/// The kind of a message, and the number that its answer repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The kind of the message.
    pub kind: u8,
    /// The request's number.
    pub tag: u16,
}

impl Head {
    /// Returns the head of a message and the bytes after it, or `None` if the message is shorter
    /// than it says. Some kernels do not count the data of a write in the size that they say.
    pub fn read(message: &[u8]) -> Option<(Self, Input<'_>)> {
        let (head, body) = message.split_first_chunk::<HEADER_BYTES>()?;
        let [s0, s1, s2, s3, kind, t0, t1] = *head;
        let bytes = u32::from_le_bytes([s0, s1, s2, s3]) as usize;
        let tag = u16::from_le_bytes([t0, t1]);
        let is_whole = (HEADER_BYTES..=message.len()).contains(&bytes);
        is_whole.then(|| (Self { kind, tag }, Input::new(body)))
    }

    /// Returns the kind of FUSE request under which this message is counted.
    pub const fn counted_as(self) -> u32 {
        match self.kind {
            kind::STATFS => opcode::STATFS,
            kind::LOPEN => opcode::OPEN,
            kind::LCREATE => opcode::CREATE,
            kind::SYMLINK => opcode::SYMLINK,
            kind::MKNOD => opcode::MKNOD,
            kind::RENAME | kind::RENAMEAT => opcode::RENAME,
            kind::READLINK => opcode::READLINK,
            kind::GETATTR => opcode::GETATTR,
            kind::SETATTR => opcode::SETATTR,
            kind::XATTRWALK => opcode::GETXATTR,
            kind::XATTRCREATE => opcode::SETXATTR,
            kind::READDIR => opcode::READDIR,
            kind::FSYNC => opcode::FSYNC,
            kind::LINK => opcode::LINK,
            kind::MKDIR => opcode::MKDIR,
            kind::UNLINKAT | kind::REMOVE => opcode::UNLINK,
            kind::VERSION => opcode::INIT,
            kind::FLUSH => opcode::INTERRUPT,
            kind::WALK => opcode::LOOKUP,
            kind::READ => opcode::READ,
            kind::WRITE => opcode::WRITE,
            kind::CLUNK => opcode::FORGET,
            _ => 0,
        }
    }
}

/// Takes the next text of a message.
///
/// # Errors
/// The message ends before the text does.
pub fn text<'a>(input: &mut Input<'a>) -> Result<&'a [u8], Errno> {
    let bytes = input.u16()?;
    input.bytes(bytes.into())
}

/// An answer that is being written; it begins with room for the header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply(pub Vec<u8>);

impl Default for Reply {
    fn default() -> Self {
        Self(vec![0; HEADER_BYTES])
    }
}

impl Reply {
    /// Appends a byte.
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    /// Appends 16 bits.
    pub fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    /// Appends 32 bits.
    pub fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    /// Appends 64 bits.
    pub fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    /// Appends a text of less than 64 KiB.
    pub fn text(&mut self, text: &[u8]) {
        self.u16(text.len() as u16);
        self.0.extend(text);
    }

    /// Returns the finished answer to a request, of at most `capacity` bytes. It is empty if not
    /// even the report of an error has room.
    pub fn finish(mut self, head: Head, result: Result<(), Errno>, capacity: usize) -> Vec<u8> {
        let result = match result {
            Ok(()) if self.0.len() > capacity => Err(Errno::MSGSIZE),
            other => other,
        };
        let kind = match result {
            Ok(()) => head.kind.wrapping_add(1),
            Err(error) => {
                self.0.truncate(HEADER_BYTES);
                self.u32(error.raw_os_error() as u32);
                ERROR
            }
        };
        if self.0.len() > capacity {
            return Vec::new();
        }
        let bytes = self.0.len() as u32;
        self.0[..4].copy_from_slice(&bytes.to_le_bytes());
        self.0[4] = kind;
        self.0[5..7].copy_from_slice(&head.tag.to_le_bytes());
        self.0
    }
}
