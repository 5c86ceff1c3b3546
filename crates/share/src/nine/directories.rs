//! READDIR: the entries of a directory, as the FUSE server lists them.

use super::attributes::qid_kind;
use super::calls::{Patient, User};
use super::fids::Use;
use super::files::transfer;
use super::message::{READ_HEADER_BYTES, Reply};
use super::server::{Answer, NineServer};
use crate::protocol::{Input, MAX_TRANSFER, OUT_HEADER_BYTES, opcode};
use rustix::io::Errno;

/// The position of the bits of a mode that say what a file is, in its entry.
const KIND_SHIFT: u32 = 12;

impl NineServer {
    pub(super) fn readdir(
        &self,
        patient: Patient,
        mut input: Input<'_>,
        reply: &mut Reply,
        capacity: usize,
    ) -> Answer {
        let fid = self.fids.get(input.u32()?)?;
        let (offset, count) = (input.u64()?, input.u32()? as usize);
        let Use::Directory(file) = &fid.usage else {
            return Err(Errno::BADF.into());
        };
        let room = capacity.saturating_sub(READ_HEADER_BYTES).min(MAX_TRANSFER);
        // An entry of FUSE is as long as one of 9P, and rounded up.
        let count = count.min(room);
        let body = transfer(file.handle, offset, count);
        let request = (opcode::READDIR, fid.node.number, User::ROOT);
        let answer = self.request(patient, request, &body, count)?;
        let mut entries = Input::new(answer.get(OUT_HEADER_BYTES..).unwrap_or_default());
        let start = reply.0.len();
        reply.u32(0);
        while !entries.rest().is_empty() {
            let (number, next) = (entries.u64()?, entries.u64()?);
            let (bytes, kind) = (entries.u32()? as usize, entries.u32()?);
            let padded = bytes.next_multiple_of(8);
            let name = entries.bytes(padded)?.get(..bytes).unwrap_or_default();
            reply.u8(qid_kind(kind << KIND_SHIFT));
            reply.u32(0);
            reply.u64(number);
            reply.u64(next);
            reply.u8(kind as u8);
            reply.text(name);
        }
        let bytes = (reply.0.len() - start - 4) as u32;
        reply.0[start..start + 4].copy_from_slice(&bytes.to_le_bytes());
        Ok(())
    }
}
