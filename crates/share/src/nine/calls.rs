//! The FUSE requests that a 9P message consists of, and what their answers say.

use super::server::NineServer;
use crate::protocol::{Header, Input, OUT_HEADER_BYTES, Output};
use rustix::io::Errno;

/// The size in bytes of a file's attributes (`fuse_attr`).
const ATTRIBUTES_BYTES: usize = 88;
/// The size in bytes of what precedes the attributes in the description of a file
/// (`fuse_entry_out`).
const ENTRY_HEAD_BYTES: usize = 40;
/// The size in bytes of what precedes the attributes in the answer to GETATTR.
const GETATTR_HEAD_BYTES: usize = 16;
/// Room for any answer that has no data of variable size.
const ROOM: usize = 512;

/// Why a message is not answered as asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The client gets an error.
    Error(Errno),
    /// A thread that may wait must handle the message. Nothing has been changed.
    MustWait,
}

impl From<Errno> for Stop {
    fn from(error: Errno) -> Self {
        Self::Error(error)
    }
}

/// Whether the calling thread may wait for the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patient {
    /// The thread may wait, because it serves the share alone.
    Yes,
    /// The thread may not: only what is in the host's memory is answered.
    No,
}

/// The user in the guest for whom something is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct User {
    /// The user's number.
    pub uid: u32,
    /// The number of the group that new files get.
    pub gid: u32,
}

impl User {
    /// The root of the guest, for requests whose answers depend on no user.
    pub const ROOT: Self = Self { uid: 0, gid: 0 };
}

/// The attributes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    /// The number, unique across the file systems of the share.
    pub inode: u64,
    /// The size in bytes.
    pub size: u64,
    /// The number of blocks of 512 bytes.
    pub blocks: u64,
    /// The times of the last access, modification and change: seconds and nanoseconds.
    pub times: [(u64, u32); 3],
    /// Type and permissions.
    pub mode: u32,
    /// The number of names.
    pub links: u32,
    /// The number of the owner in the guest.
    pub uid: u32,
    /// The owner's group.
    pub gid: u32,
    /// The device that the file stands for.
    pub device: u32,
    /// The preferred size of transfers.
    pub block_bytes: u32,
}

impl Attributes {
    fn read(bytes: &[u8]) -> Result<Self, Errno> {
        let mut input = Input::new(bytes.get(..ATTRIBUTES_BYTES).ok_or(Errno::IO)?);
        let (inode, size, blocks) = (input.u64()?, input.u64()?, input.u64()?);
        let seconds = [input.u64()?, input.u64()?, input.u64()?];
        let parts = [input.u32()?, input.u32()?, input.u32()?];
        Ok(Self {
            inode,
            size,
            blocks,
            times: std::array::from_fn(|time| (seconds[time], parts[time])),
            mode: input.u32()?,
            links: input.u32()?,
            uid: input.u32()?,
            gid: input.u32()?,
            device: input.u32()?,
            block_bytes: input.u32()?,
        })
    }

    /// Reads the attributes from the answer to GETATTR or SETATTR.
    ///
    /// # Errors
    /// EIO: the answer is too short.
    pub fn of_answer(answer: &[u8]) -> Result<Self, Errno> {
        Self::read(answer.get(GETATTR_HEAD_BYTES..).unwrap_or_default())
    }

    /// Reads the number and the attributes of a file from the answer to a look-up.
    ///
    /// # Errors
    /// EIO: the answer is too short.
    pub fn of_entry(answer: &[u8]) -> Result<(u64, Self), Errno> {
        let number = Input::new(answer).u64()?;
        let attributes = Self::read(answer.get(ENTRY_HEAD_BYTES..).unwrap_or_default())?;
        Ok((number, attributes))
    }
}

/// Returns a name with the zero that ends it in FUSE requests.
///
/// # Errors
/// EINVAL: it contains a zero.
pub fn ended(name: &[u8]) -> Result<Vec<u8>, Errno> {
    match name.contains(&0) {
        true => Err(Errno::INVAL),
        false => Ok([name, b"\0"].concat()),
    }
}

impl NineServer {
    /// Does what a FUSE request asks for, and returns its answer with room for a header before it.
    pub(super) fn request(
        &self,
        patient: Patient,
        (opcode, node, user): (u32, u64, User),
        body: &[u8],
        room: usize,
    ) -> Result<Vec<u8>, Stop> {
        let header = Header {
            opcode,
            unique: 0,
            node,
            uid: user.uid,
            gid: user.gid,
        };
        let mut output = Output::new(OUT_HEADER_BYTES + room);
        let result = match patient {
            Patient::Yes => self.server.answer(&header, Input::new(body), &mut output),
            Patient::No => {
                let answer = self
                    .server
                    .answer_at_once(&header, Input::new(body), &mut output);
                answer.ok_or(Stop::MustWait)?
            }
        };
        result?;
        Ok(output.bytes)
    }

    /// Does what a FUSE request asks for, and returns the body of its answer.
    pub(super) fn ask(
        &self,
        patient: Patient,
        request: (u32, u64, User),
        body: &[u8],
    ) -> Result<Vec<u8>, Stop> {
        let mut answer = self.request(patient, request, body, ROOM)?;
        Ok(answer.split_off(OUT_HEADER_BYTES))
    }
}
