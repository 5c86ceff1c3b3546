//! Open files: LOPEN and CLUNK, READ and WRITE, FSYNC and locks.

use super::calls::{Patient, Stop, User};
use super::fids::{Fid, OpenFile, Use};
use super::message::{HEADER_BYTES, READ_HEADER_BYTES, Reply, text};
use super::names::OPEN_FLAGS;
use super::server::{Answer, NineServer};
use crate::files::{Place, position};
use crate::protocol::{FSYNC_DATA, Header, Input, MAX_TRANSFER, OUT_HEADER_BYTES, opcode};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// LOCK: the lock is granted.
const GRANTED: u8 = 0;
/// GETLOCK: there is no lock in the way.
const UNLOCKED: u8 = 2;

impl OpenFile {
    fn open_flags(&self) -> OFlags {
        OFlags::from_bits_retain(self.flags)
    }

    /// Whether the file was opened for writing.
    pub(super) fn is_writable(&self) -> bool {
        self.open_flags() & OFlags::ACCMODE != OFlags::RDONLY
    }
}

impl NineServer {
    pub(super) fn lopen(
        &self,
        patient: Patient,
        mut input: Input<'_>,
        reply: &mut Reply,
    ) -> Answer {
        let (number, flags) = (input.u32()?, input.u32()? & OPEN_FLAGS);
        let fid = self.fids.get(number)?;
        if !fid.is_place() {
            return Err(Errno::INVAL.into());
        }
        let attributes = self.attributes(patient, fid.node.number)?;
        let is_directory = attributes.is_directory();
        let opcode = match is_directory {
            true => opcode::OPENDIR,
            false => opcode::OPEN,
        };
        let user = User {
            uid: fid.uid,
            gid: 0,
        };
        let body = [flags.to_le_bytes(), [0; 4]].concat();
        let answer = self.ask(patient, (opcode, fid.node.number, user), &body)?;
        let file = OpenFile::new(&self.server, Input::new(&answer).u64()?, flags);
        let usage = match is_directory {
            true => Use::Directory(file),
            false => Use::File(file),
        };
        self.fids.change(number, Fid { usage, ..fid });
        attributes.put_qid(reply);
        // The client chooses the size of its transfers.
        reply.u32(0);
        Ok(())
    }

    pub(super) fn read(
        &self,
        patient: Patient,
        mut input: Input<'_>,
        reply: &mut Reply,
        capacity: usize,
    ) -> Answer {
        let fid = self.fids.get(input.u32()?)?;
        let (offset, count) = (input.u64()?, input.u32()? as usize);
        let room = capacity.saturating_sub(READ_HEADER_BYTES).min(MAX_TRANSFER);
        let count = count.min(room);
        let file = match &fid.usage {
            Use::File(file) => file,
            Use::ReadsAttribute(value) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let rest = value.get(start.min(value.len())..).unwrap_or_default();
                let data = &rest[..rest.len().min(count)];
                reply.u32(data.len() as u32);
                reply.0.extend(data);
                return Ok(());
            }
            _ => return Err(Errno::BADF.into()),
        };
        let body = transfer(file.handle, offset, count);
        let request = (opcode::READ, fid.node.number, User::ROOT);
        let mut answer = self.request(patient, request, &body, count)?;
        // The header of the FUSE answer becomes this answer's, which is shorter.
        let bytes = answer.len() - OUT_HEADER_BYTES;
        answer.drain(..OUT_HEADER_BYTES - READ_HEADER_BYTES);
        answer[HEADER_BYTES..READ_HEADER_BYTES].copy_from_slice(&(bytes as u32).to_le_bytes());
        reply.0 = answer;
        Ok(())
    }

    pub(super) fn write(&self, mut input: Input<'_>, reply: &mut Reply) -> Answer {
        let fid = self.fids.get(input.u32()?)?;
        let (offset, count) = (input.u64()?, input.u32()? as usize);
        let data = input.bytes(count)?;
        let file = match &fid.usage {
            Use::File(file) => file,
            Use::WritesAttribute(attribute) => {
                attribute.write(offset, data)?;
                reply.u32(count as u32);
                return Ok(());
            }
            _ => return Err(Errno::BADF.into()),
        };
        self.server.check_writable()?;
        let place = Place {
            offset: position(offset)?,
            appends: file.open_flags().contains(OFlags::APPEND),
        };
        let handle = self.server.handles.get(file.handle)?;
        let writer = Header {
            opcode: opcode::WRITE,
            unique: 0,
            node: fid.node.number,
            uid: fid.uid,
            gid: 0,
        };
        let written = self
            .server
            .write_data(&writer, &handle, place, data, false)?;
        reply.u32(written as u32);
        Ok(())
    }

    pub(super) fn fsync(&self, mut input: Input<'_>) -> Answer {
        let (fid, data) = (self.fids.get(input.u32()?)?, input.u32()?);
        let (Use::File(file) | Use::Directory(file)) = &fid.usage else {
            return Err(Errno::BADF.into());
        };
        let flags = if data != 0 { FSYNC_DATA } else { 0 };
        let mut body = file.handle.to_le_bytes().to_vec();
        body.extend(flags.to_le_bytes());
        let request = (opcode::FSYNC, fid.node.number, User::ROOT);
        self.ask(Patient::Yes, request, &body)?;
        Ok(())
    }

    /// Takes a number's meaning away, and closes its file.
    pub(super) fn clunk(&self, patient: Patient, mut input: Input<'_>) -> Answer {
        let number = input.u32()?;
        if patient == Patient::No && !self.closes_at_once(&self.fids.get(number)?) {
            return Err(Stop::MustWait);
        }
        let fid = self.fids.remove(number).ok_or(Errno::BADF)?;
        match &fid.usage {
            Use::WritesAttribute(attribute) => self.set_attribute(&fid, attribute),
            _ => Ok(()),
        }
    }

    /// Whether a fid's file is closed without a wait: it was only read, and is not freed then.
    fn closes_at_once(&self, fid: &Fid) -> bool {
        let (Use::File(file) | Use::Directory(file)) = &fid.usage else {
            let inode = self.server.inodes.get(fid.node.number);
            let fd = inode.ok().filter(|inode| inode.is_local);
            let fd = fd.and_then(|inode| self.server.inodes.open_fd(&inode));
            let stat = fd.and_then(|fd| rustix::fs::fstat(&*fd).ok());
            let is_used = matches!(fid.usage, Use::WritesAttribute(_));
            return !is_used && stat.is_some_and(|stat| stat.st_nlink > 0);
        };
        let handle = self.server.handles.get(file.handle).ok();
        handle.is_some_and(|handle| {
            let stat = handle.fd().ok().and_then(|fd| rustix::fs::fstat(fd).ok());
            handle.inode.is_local && !file.is_writable() && stat.is_some_and(|it| it.st_nlink > 0)
        })
    }

    pub(super) fn lock(&self, mut input: Input<'_>, reply: &mut Reply) -> Answer {
        self.fids.get(input.u32()?)?;
        let (_kind, _flags) = (input.u8()?, input.u32()?);
        let (_start, _length, _process) = (input.u64()?, input.u64()?, input.u32()?);
        text(&mut input)?;
        reply.u8(GRANTED);
        Ok(())
    }

    pub(super) fn getlock(&self, mut input: Input<'_>, reply: &mut Reply) -> Answer {
        self.fids.get(input.u32()?)?;
        let _kind = input.u8()?;
        let (start, length, process) = (input.u64()?, input.u64()?, input.u32()?);
        let client = text(&mut input)?;
        reply.u8(UNLOCKED);
        reply.u64(start);
        reply.u64(length);
        reply.u32(process);
        reply.text(client);
        Ok(())
    }
}

/// Returns the body of a FUSE request to read `count` bytes of an open file.
pub(super) fn transfer(handle: u64, offset: u64, count: usize) -> Vec<u8> {
    let mut body = [handle.to_le_bytes(), offset.to_le_bytes()].concat();
    body.extend((count as u32).to_le_bytes());
    body.resize(40, 0);
    body
}
