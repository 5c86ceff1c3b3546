//! Answers 9P messages by the requests of the FUSE server that they consist of.

use super::calls::{Patient, Stop};
use super::fids::{Fid, Fids, Node, Use};
use super::message::{
    Head, LEAST_MESSAGE_BYTES, MAX_MESSAGE_BYTES, NO_FID, NO_USER, Reply, UNKNOWN_VERSION, VERSION,
    kind, text,
};
use super::progress::Progress;
use crate::options::{ShareError, ShareOptions};
use crate::protocol::Input;
use crate::server::Server;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// The result of a message: the answer's body was written, or not.
pub(super) type Answer = Result<(), Stop>;

/// A directory that is served by 9P. Any number of threads may call its methods.
#[derive(Debug)]
pub struct NineServer {
    pub(super) server: Arc<Server>,
    pub(super) fids: Fids,
    progress: Progress,
    /// The maximum size of a message on which both sides have agreed, or 0 before that.
    message_bytes: AtomicU32,
}

impl NineServer {
    /// Opens the directory.
    ///
    /// # Errors
    /// The directory cannot be shared.
    pub fn open(options: &ShareOptions) -> Result<Self, ShareError> {
        Ok(Self::with_server(Server::open(&Self::own(options))?))
    }

    /// Opens the directory with the caller's limit on descriptors.
    ///
    /// # Errors
    /// The directory cannot be shared.
    pub fn with_limit(options: &ShareOptions, descriptors: usize) -> Result<Self, ShareError> {
        let server = Server::with_limit(&Self::own(options), descriptors)?;
        Ok(Self::with_server(server))
    }

    /// Returns the options of the FUSE server: the client decides what it caches, and opens what
    /// it reads.
    fn own(options: &ShareOptions) -> ShareOptions {
        ShareOptions {
            cache_seconds: 0,
            reads_unopened: false,
            lists_unopened: false,
            ..options.clone()
        }
    }

    fn with_server(server: Server) -> Self {
        Self {
            server: Arc::new(server),
            fids: Fids::default(),
            progress: Progress::default(),
            message_bytes: AtomicU32::new(0),
        }
    }

    /// Forgets all files that the guest knows and has opened, because the guest has gone.
    pub fn reset(&self) {
        self.forget_session();
        self.progress.clear();
    }

    fn forget_session(&self) {
        self.fids.clear();
        self.server.reset();
        self.message_bytes.store(0, Ordering::Relaxed);
    }

    /// Returns the requests that threads work on.
    pub(crate) const fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Whether the guest knows a file, and so has mounted the share.
    pub fn is_mounted(&self) -> bool {
        !self.fids.is_empty()
    }

    /// Answers a message with at most `capacity` bytes. An empty answer means that the message is
    /// none, or that there is no room.
    pub fn handle(&self, message: &[u8], capacity: usize) -> Vec<u8> {
        self.answered(message, capacity, Patient::Yes)
            .unwrap_or_default()
    }

    /// Answers a message like [`handle`](Self::handle), but never waits. `None` means that a thread
    /// that may wait must handle the message.
    pub fn handle_at_once(&self, message: &[u8], capacity: usize) -> Option<Vec<u8>> {
        let begun = Instant::now();
        if self.server.patience.is_over(begun) {
            return None;
        }
        let answer = self.answered(message, capacity, Patient::No);
        self.server.patience.note(begun, Instant::now());
        answer
    }

    /// Returns the answer to a message that cannot be handled: EIO.
    pub fn failed(message: &[u8], capacity: usize) -> Vec<u8> {
        match Head::read(message) {
            Some((head, _)) => Reply::default().finish(head, Err(Errno::IO), capacity),
            None => Vec::new(),
        }
    }

    fn answered(&self, message: &[u8], capacity: usize, patient: Patient) -> Option<Vec<u8>> {
        if message.len() > MAX_MESSAGE_BYTES {
            return Some(Vec::new());
        }
        let Some((head, input)) = Head::read(message) else {
            return Some(Vec::new());
        };
        let agreed = self.message_bytes.load(Ordering::Relaxed) as usize;
        let capacity = match head.kind {
            kind::VERSION => capacity,
            _ => capacity.min(agreed.max(LEAST_MESSAGE_BYTES as usize)),
        };
        let mut reply = Reply::default();
        let result = match self.answer(patient, head, input, &mut reply, capacity) {
            Ok(()) => Ok(()),
            Err(Stop::MustWait) => return None,
            // The server uses this where a FUSE client would stop asking.
            Err(Stop::Error(Errno::NOSYS)) => Err(Errno::OPNOTSUPP),
            Err(Stop::Error(error)) => Err(error),
        };
        Some(reply.finish(head, result, capacity))
    }

    fn answer(
        &self,
        patient: Patient,
        head: Head,
        input: Input<'_>,
        reply: &mut Reply,
        capacity: usize,
    ) -> Answer {
        // What only reads may be answered at once.
        match head.kind {
            kind::WALK => return self.walk(patient, input, reply),
            kind::GETATTR => return self.getattr(patient, input, reply),
            kind::LOPEN => return self.lopen(patient, input, reply),
            kind::READ => return self.read(patient, input, reply, capacity),
            kind::READDIR => return self.readdir(patient, input, reply, capacity),
            kind::READLINK => return self.readlink(patient, input, reply),
            kind::XATTRWALK => return self.xattrwalk(patient, input, reply),
            kind::CLUNK => return self.clunk(patient, input),
            _ if patient == Patient::No => return Err(Stop::MustWait),
            _ => {}
        }
        match head.kind {
            kind::VERSION => self.version(input, reply),
            kind::ATTACH => self.attach(input, reply),
            kind::FLUSH => self.flush(head, input),
            kind::STATFS => self.statfs(input, reply),
            kind::LCREATE => self.lcreate(input, reply),
            kind::SYMLINK => self.symlink(input, reply),
            kind::MKNOD => self.mknod(input, reply),
            kind::MKDIR => self.mkdir(input, reply),
            kind::LINK => self.link(input),
            kind::RENAME => self.rename(input),
            kind::RENAMEAT => self.renameat(input),
            kind::UNLINKAT => self.unlinkat(input),
            kind::REMOVE => self.remove(input),
            kind::SETATTR => self.setattr(input),
            kind::XATTRCREATE => self.xattrcreate(input),
            kind::WRITE => self.write(input, reply),
            kind::FSYNC => self.fsync(input),
            kind::LOCK => self.lock(input, reply),
            kind::GETLOCK => self.getlock(input, reply),
            // This includes AUTH, because every client of the device is the guest's kernel, and
            // the messages of the older versions of the protocol.
            _ => Err(Errno::OPNOTSUPP.into()),
        }
    }

    /// Begins a session, which ends the one before.
    fn version(&self, mut input: Input<'_>, reply: &mut Reply) -> Answer {
        let (most, version) = (input.u32()?, text(&mut input)?);
        self.forget_session();
        if version != VERSION {
            reply.u32(most);
            reply.text(UNKNOWN_VERSION);
            return Ok(());
        }
        if most < LEAST_MESSAGE_BYTES {
            return Err(Errno::MSGSIZE.into());
        }
        let most = most.min(MAX_MESSAGE_BYTES as u32);
        self.message_bytes.store(most, Ordering::Relaxed);
        reply.u32(most);
        reply.text(VERSION);
        Ok(())
    }

    /// Gives a client's number to the shared directory, whatever name the client has for that.
    fn attach(&self, mut input: Input<'_>, reply: &mut Reply) -> Answer {
        let (fid, authority) = (input.u32()?, input.u32()?);
        let (_user_name, _name, uid) = (text(&mut input)?, text(&mut input)?, input.u32()?);
        if authority != NO_FID || self.message_bytes.load(Ordering::Relaxed) == 0 {
            return Err(Errno::INVAL.into());
        }
        let node = Node::root(&self.server);
        let attributes = self.attributes(Patient::Yes, node.number)?;
        let uid = if uid == NO_USER { 0 } else { uid };
        let usage = Use::Place;
        self.fids.add(fid, Fid { node, uid, usage })?;
        attributes.put_qid(reply);
        Ok(())
    }

    /// Waits until an earlier request has been answered, after which the client may use its tag for
    /// another one.
    fn flush(&self, head: Head, mut input: Input<'_>) -> Answer {
        self.progress.wait_for(input.u16()?, head.tag);
        Ok(())
    }
}
