//! GETATTR, SETATTR, STATFS, and the identities of files ("qids").

use super::calls::{Attributes, Patient, Stop, User};
use super::fids::Use;
use super::message::Reply;
use super::server::{Answer, NineServer};
use crate::protocol::{Input, opcode, set};

/// In a qid: a directory.
const DIRECTORY: u8 = 0x80;
/// In a qid: a symbolic link.
const SYMBOLIC_LINK: u8 = 0x02;
/// The bits of a mode that say what a file is, and two values of them.
const KIND: u32 = 0o170_000;
const KIND_DIRECTORY: u32 = 0o040_000;
const KIND_LINK: u32 = 0o120_000;
/// The attributes that GETATTR returns: all of stat(2).
const BASIC: u64 = 0x7ff;
/// The kind of file system in the answer to STATFS (`V9FS_MAGIC`).
const FILE_SYSTEM: u32 = 0x0102_1997;

/// What SETATTR changes.
mod change {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    /// The time of access is the message's, not the present.
    pub const ATIME_SET: u32 = 1 << 7;
    /// The time of modification is the message's, not the present.
    pub const MTIME_SET: u32 = 1 << 8;
}

/// Returns the kind of file in a qid, by the bits of a mode.
pub(super) const fn qid_kind(mode: u32) -> u8 {
    match mode & KIND {
        KIND_DIRECTORY => DIRECTORY,
        KIND_LINK => SYMBOLIC_LINK,
        _ => 0,
    }
}

impl Attributes {
    /// Whether the file is a directory.
    pub(super) const fn is_directory(&self) -> bool {
        self.mode & KIND == KIND_DIRECTORY
    }

    /// Appends the identity of the file: its kind, a number that changes with its content, and its
    /// own number.
    pub(super) fn put_qid(&self, reply: &mut Reply) {
        let (seconds, part) = self.times[1];
        let version = seconds as u32 ^ part ^ (self.size as u32) << 8;
        reply.u8(qid_kind(self.mode));
        reply.u32(version);
        reply.u64(self.inode);
    }
}

impl NineServer {
    /// Returns the attributes of a file.
    pub(super) fn attributes(&self, patient: Patient, number: u64) -> Result<Attributes, Stop> {
        let answer = self.ask(patient, (opcode::GETATTR, number, User::ROOT), &[])?;
        Ok(Attributes::of_answer(&answer)?)
    }

    pub(super) fn getattr(
        &self,
        patient: Patient,
        mut input: Input<'_>,
        reply: &mut Reply,
    ) -> Answer {
        let (fid, _wanted) = (input.u32()?, input.u64()?);
        let fid = self.fids.get(fid)?;
        let attributes = self.attributes(patient, fid.node.number)?;
        reply.u64(BASIC);
        attributes.put_qid(reply);
        reply.u32(attributes.mode);
        reply.u32(attributes.uid);
        reply.u32(attributes.gid);
        reply.u64(attributes.links.into());
        reply.u64(attributes.device.into());
        reply.u64(attributes.size);
        reply.u64(attributes.block_bytes.into());
        reply.u64(attributes.blocks);
        for (seconds, part) in attributes.times {
            reply.u64(seconds);
            reply.u64(part.into());
        }
        // The time of birth, the generation and the version of the data are not known.
        for _ in 0..4 {
            reply.u64(0);
        }
        Ok(())
    }

    pub(super) fn setattr(&self, mut input: Input<'_>) -> Answer {
        let fid = self.fids.get(input.u32()?)?;
        let (valid, mode) = (input.u32()?, input.u32()?);
        let (uid, gid, size) = (input.u32()?, input.u32()?, input.u64()?);
        let (accessed, accessed_part) = (input.u64()?, input.u64()?);
        let (modified, modified_part) = (input.u64()?, input.u64()?);
        let has = |bit: u32| valid & bit != 0;
        let mut wanted = 0;
        for (bit, same) in [
            (change::MODE, set::MODE),
            (change::UID, set::UID),
            (change::GID, set::GID),
            (change::SIZE, set::SIZE),
            (change::ATIME, set::ATIME),
            (change::MTIME, set::MTIME),
        ] {
            wanted |= if has(bit) { same } else { 0 };
        }
        if has(change::ATIME) && !has(change::ATIME_SET) {
            wanted |= set::ATIME_NOW;
        }
        if has(change::MTIME) && !has(change::MTIME_SET) {
            wanted |= set::MTIME_NOW;
        }
        let mut handle = 0;
        // The file may be open although its mode forbids opening it.
        if let Use::File(file) = &fid.usage
            && file.is_writable()
        {
            handle = file.handle;
            wanted |= set::HANDLE;
        }
        let part = |part: u64| u32::try_from(part).unwrap_or(u32::MAX);
        let quads = [handle, size, 0, accessed, modified, 0];
        let words = [
            part(accessed_part),
            part(modified_part),
            0,
            mode,
            0,
            uid,
            gid,
            0,
        ];
        let mut body: Vec<u8> = [wanted, 0].iter().flat_map(|it| it.to_le_bytes()).collect();
        body.extend(quads.iter().flat_map(|quad| quad.to_le_bytes()));
        body.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        let user = User {
            uid: fid.uid,
            gid: 0,
        };
        self.ask(
            Patient::Yes,
            (opcode::SETATTR, fid.node.number, user),
            &body,
        )?;
        Ok(())
    }

    pub(super) fn statfs(&self, mut input: Input<'_>, reply: &mut Reply) -> Answer {
        let fid = self.fids.get(input.u32()?)?;
        let request = (opcode::STATFS, fid.node.number, User::ROOT);
        let answer = self.ask(Patient::Yes, request, &[])?;
        let mut answer = Input::new(&answer);
        let counts = [
            answer.u64()?,
            answer.u64()?,
            answer.u64()?,
            answer.u64()?,
            answer.u64()?,
        ];
        let (_block, longest_name, fragment) = (answer.u32()?, answer.u32()?, answer.u32()?);
        reply.u32(FILE_SYSTEM);
        // Blocks are counted in these.
        reply.u32(fragment);
        for count in counts {
            reply.u64(count);
        }
        reply.u64(0);
        reply.u32(longest_name);
        Ok(())
    }
}
