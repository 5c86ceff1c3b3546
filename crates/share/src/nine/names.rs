//! Walks from name to name, and the messages that create, move and remove names.

use super::calls::{Attributes, Patient, Stop, User, ended};
use super::fids::{Fid, Node, OpenFile, Use};
use super::message::{MAX_NAMES, Reply, text};
use super::server::{Answer, NineServer};
use crate::protocol::{Input, opcode};
use rustix::io::Errno;
use std::sync::Arc;

/// UNLINKAT: the name is that of a directory.
const REMOVE_DIRECTORY: u32 = 0x200;
/// LCREATE: the flags of open(2) that the server's process must not get.
const O_ACCMODE: u32 = 3;
const O_EXCL: u32 = 0o200;
const O_TRUNC: u32 = 0o1000;
const O_APPEND: u32 = 0o2000;
/// The flags of open(2) that are passed on. The client's kernel does what the others ask for.
pub(super) const OPEN_FLAGS: u32 = O_ACCMODE | O_EXCL | O_TRUNC | O_APPEND;

impl NineServer {
    /// Looks up a name in a directory; `..` is the directory in which this one was found, and never
    /// one above the share.
    fn step(
        &self,
        patient: Patient,
        from: &Arc<Node>,
        name: &[u8],
    ) -> Result<(Arc<Node>, Attributes), Stop> {
        if name == b".." {
            let node = Arc::clone(from.parent.as_ref().unwrap_or(from));
            let attributes = self.attributes(patient, node.number)?;
            return Ok((node, attributes));
        }
        let request = (opcode::LOOKUP, from.number, User::ROOT);
        let answer = self.ask(patient, request, &ended(name)?)?;
        self.found(from, &answer)
    }

    /// Returns the file that the answer to a look-up in a directory describes.
    fn found(&self, parent: &Arc<Node>, answer: &[u8]) -> Result<(Arc<Node>, Attributes), Stop> {
        let (number, attributes) = Attributes::of_entry(answer)?;
        Ok((parent.child(number), attributes))
    }

    pub(super) fn walk(&self, patient: Patient, mut input: Input<'_>, reply: &mut Reply) -> Answer {
        let (number, new, count) = (input.u32()?, input.u32()?, input.u16()?);
        let from = self.fids.get(number)?;
        if count > MAX_NAMES || number == new && !from.is_place() {
            return Err(Errno::INVAL.into());
        }
        if number != new && self.fids.get(new).is_ok() {
            return Err(Errno::INVAL.into());
        }
        let mut node = Arc::clone(&from.node);
        let mut qids = Reply(Vec::new());
        let mut found = 0;
        while found < count {
            match self.step(patient, &node, text(&mut input)?) {
                Ok((next, attributes)) => {
                    attributes.put_qid(&mut qids);
                    node = next;
                    found += 1;
                }
                // A part of the way exists, which the answer says by its number of names.
                Err(Stop::Error(_)) if found > 0 => break,
                Err(stop) => return Err(stop),
            }
        }
        reply.u16(found);
        reply.0.extend(qids.0);
        if found == count {
            let fid = Fid {
                node,
                uid: from.uid,
                usage: Use::Place,
            };
            match number == new {
                true => self.fids.change(new, fid),
                false => self.fids.add(new, fid)?,
            }
        }
        Ok(())
    }

    /// Creates a name by a FUSE request whose answer describes its file, and appends the identity
    /// of that.
    fn make(&self, fid: &Fid, gid: u32, opcode: u32, body: &[u8], reply: &mut Reply) -> Answer {
        let user = User { uid: fid.uid, gid };
        let answer = self.ask(Patient::Yes, (opcode, fid.node.number, user), body)?;
        // The look-up is given back with the node.
        let (_node, attributes) = self.found(&fid.node, &answer)?;
        attributes.put_qid(reply);
        Ok(())
    }

    pub(super) fn mkdir(&self, mut input: Input<'_>, reply: &mut Reply) -> Answer {
        let fid = self.fids.get(input.u32()?)?;
        let (name, mode, gid) = (text(&mut input)?, input.u32()?, input.u32()?);
        let body = [&mode.to_le_bytes(), &[0; 4], &*ended(name)?].concat();
        self.make(&fid, gid, opcode::MKDIR, &body, reply)
    }

    pub(super) fn mknod(&self, mut input: Input<'_>, reply: &mut Reply) -> Answer {
        let fid = self.fids.get(input.u32()?)?;
        let (name, mode) = (text(&mut input)?, input.u32()?);
        let (major, minor, gid) = (input.u32()?, input.u32()?, input.u32()?);
        // The server makes no node with another number than 0.
        let device = u32::from(major != 0 || minor != 0);
        let mut body = [mode.to_le_bytes(), device.to_le_bytes()].concat();
        body.extend([0; 8]);
        body.extend(ended(name)?);
        self.make(&fid, gid, opcode::MKNOD, &body, reply)
    }

    pub(super) fn symlink(&self, mut input: Input<'_>, reply: &mut Reply) -> Answer {
        let fid = self.fids.get(input.u32()?)?;
        let (name, target, gid) = (text(&mut input)?, text(&mut input)?, input.u32()?);
        let body = [ended(name)?, ended(target)?].concat();
        self.make(&fid, gid, opcode::SYMLINK, &body, reply)
    }

    pub(super) fn link(&self, mut input: Input<'_>) -> Answer {
        let directory = self.fids.get(input.u32()?)?;
        let file = self.fids.get(input.u32()?)?;
        let name = ended(text(&mut input)?)?;
        let body = [&file.node.number.to_le_bytes(), &*name].concat();
        self.make(&directory, 0, opcode::LINK, &body, &mut Reply::default())
    }

    /// Creates a file and opens it; the directory's fid stands for the file from then on.
    pub(super) fn lcreate(&self, mut input: Input<'_>, reply: &mut Reply) -> Answer {
        let number = input.u32()?;
        let fid = self.fids.get(number)?;
        if !fid.is_place() {
            return Err(Errno::INVAL.into());
        }
        let name = ended(text(&mut input)?)?;
        let (flags, mode, gid) = (input.u32()?, input.u32()?, input.u32()?);
        let mut body: Vec<u8> = [flags & OPEN_FLAGS, mode, 0, 0]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        body.extend(name);
        let user = User { uid: fid.uid, gid };
        let request = (opcode::CREATE, fid.node.number, user);
        let answer = self.ask(Patient::Yes, request, &body)?;
        let (node, attributes) = self.found(&fid.node, &answer)?;
        let handle = Input::new(answer.get(128..).unwrap_or_default()).u64()?;
        let file = OpenFile::new(&self.server, handle, flags & OPEN_FLAGS);
        let created = Fid {
            node,
            uid: fid.uid,
            usage: Use::File(file),
        };
        self.fids.change(number, created);
        attributes.put_qid(reply);
        // The client chooses the size of its transfers.
        reply.u32(0);
        Ok(())
    }

    pub(super) fn renameat(&self, mut input: Input<'_>) -> Answer {
        let from = self.fids.get(input.u32()?)?;
        let old = ended(text(&mut input)?)?;
        let to = self.fids.get(input.u32()?)?;
        let new = ended(text(&mut input)?)?;
        self.move_name((from.node.number, &old), (to.node.number, &new))
    }

    fn move_name(&self, (from, old): (u64, &[u8]), (to, new): (u64, &[u8])) -> Answer {
        let body = [&to.to_le_bytes(), old, new].concat();
        self.ask(Patient::Yes, (opcode::RENAME, from, User::ROOT), &body)?;
        Ok(())
    }

    /// Moves the file of a fid, whatever its present name is.
    pub(super) fn rename(&self, mut input: Input<'_>) -> Answer {
        let fid = self.fids.get(input.u32()?)?;
        let to = self.fids.get(input.u32()?)?;
        let new = ended(text(&mut input)?)?;
        let (from, old) = self.server.inodes.name(fid.node.number)?;
        self.move_name((from, &ended(&old)?), (to.node.number, &new))
    }

    pub(super) fn unlinkat(&self, mut input: Input<'_>) -> Answer {
        let directory = self.fids.get(input.u32()?)?;
        let (name, flags) = (ended(text(&mut input)?)?, input.u32()?);
        let is_directory = flags & REMOVE_DIRECTORY != 0;
        self.remove_name(directory.node.number, &name, is_directory)
    }

    fn remove_name(&self, directory: u64, name: &[u8], is_directory: bool) -> Answer {
        let opcode = if is_directory {
            opcode::RMDIR
        } else {
            opcode::UNLINK
        };
        self.ask(Patient::Yes, (opcode, directory, User::ROOT), name)?;
        Ok(())
    }

    /// Removes the file of a fid. The fid is gone in any case.
    pub(super) fn remove(&self, mut input: Input<'_>) -> Answer {
        let fid = self.fids.remove(input.u32()?).ok_or(Errno::BADF)?;
        let (directory, name) = self.server.inodes.name(fid.node.number)?;
        let attributes = self.attributes(Patient::Yes, fid.node.number)?;
        self.remove_name(directory, &ended(&name)?, attributes.is_directory())
    }

    pub(super) fn readlink(
        &self,
        patient: Patient,
        mut input: Input<'_>,
        reply: &mut Reply,
    ) -> Answer {
        /// The maximum length of a link's target.
        const MOST: usize = 4096;
        let fid = self.fids.get(input.u32()?)?;
        let request = (opcode::READLINK, fid.node.number, User::ROOT);
        let answer = self.request(patient, request, &[], MOST)?;
        let target = answer.get(crate::protocol::OUT_HEADER_BYTES..);
        reply.text(target.unwrap_or_default());
        Ok(())
    }
}
