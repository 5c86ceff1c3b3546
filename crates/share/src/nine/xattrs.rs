//! Extended attributes: XATTRWALK reads one, or the list of their names, through a fid of its own,
//! and XATTRCREATE turns a fid into one that is written and takes effect at its CLUNK.

use super::calls::{Patient, User, ended};
use super::fids::{Fid, Use, WrittenAttribute};
use super::message::{Reply, text};
use super::server::{Answer, NineServer};
use crate::protocol::{Input, OUT_HEADER_BYTES, opcode};
use rustix::io::Errno;
use std::sync::{Arc, Mutex, PoisonError};

/// The maximum size in bytes of a value, and of a list (limits.h).
const MAX_BYTES: usize = 65536;

impl WrittenAttribute {
    /// Writes a part of the value.
    ///
    /// # Errors
    /// ENOSPC: it is not a part of the value.
    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let start = usize::try_from(offset).map_err(|_| Errno::NOSPC)?;
        let end = start.checked_add(data.len()).ok_or(Errno::NOSPC)?;
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        if end > self.size || start > value.len() {
            return Err(Errno::NOSPC);
        }
        value.truncate(start);
        value.extend(data);
        Ok(())
    }
}

impl NineServer {
    pub(super) fn xattrwalk(
        &self,
        patient: Patient,
        mut input: Input<'_>,
        reply: &mut Reply,
    ) -> Answer {
        let fid = self.fids.get(input.u32()?)?;
        let (new, name) = (input.u32()?, text(&mut input)?);
        if self.fids.get(new).is_ok() {
            return Err(Errno::INVAL.into());
        }
        let opcode = match name.is_empty() {
            true => opcode::LISTXATTR,
            false => opcode::GETXATTR,
        };
        let mut body = (MAX_BYTES as u32).to_le_bytes().to_vec();
        body.extend([0; 4]);
        body.extend(ended(name)?);
        let request = (opcode, fid.node.number, User::ROOT);
        let mut answer = self.request(patient, request, &body, MAX_BYTES)?;
        let value = answer.split_off(OUT_HEADER_BYTES);
        reply.u64(value.len() as u64);
        let usage = Use::ReadsAttribute(Arc::new(value));
        self.fids.add(new, Fid { usage, ..fid })?;
        Ok(())
    }

    pub(super) fn xattrcreate(&self, mut input: Input<'_>) -> Answer {
        let number = input.u32()?;
        let fid = self.fids.get(number)?;
        let (name, size, flags) = (text(&mut input)?, input.u64()?, input.u32()?);
        if !fid.is_place() {
            return Err(Errno::INVAL.into());
        }
        self.server.check_writable()?;
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if size > MAX_BYTES {
            return Err(Errno::NOSPC.into());
        }
        let usage = Use::WritesAttribute(Arc::new(WrittenAttribute {
            name: ended(name)?,
            flags,
            size,
            value: Mutex::default(),
        }));
        self.fids.change(number, Fid { usage, ..fid });
        Ok(())
    }

    /// Sets the attribute that was written, or removes it if it has no value.
    pub(super) fn set_attribute(&self, fid: &Fid, attribute: &WrittenAttribute) -> Answer {
        let value = attribute.value.lock();
        let value = value.unwrap_or_else(PoisonError::into_inner);
        if value.len() != attribute.size {
            return Err(Errno::INVAL.into());
        }
        let (opcode, body) = match value.len() {
            0 => (opcode::REMOVEXATTR, attribute.name.clone()),
            bytes => {
                let mut body = (bytes as u32).to_le_bytes().to_vec();
                body.extend(attribute.flags.to_le_bytes());
                body.extend(&attribute.name);
                body.extend(&*value);
                (opcode::SETXATTR, body)
            }
        };
        let request = (opcode, fid.node.number, User::ROOT);
        self.ask(Patient::Yes, request, &body)?;
        Ok(())
    }
}
