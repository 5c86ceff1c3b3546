//! What the threads of a share need of its server, whichever protocol it speaks.

use crate::nine::{self, NineServer};
use crate::protocol::{self, Header, opcode};
use crate::server::Server;
use crate::session::SavedSession;

/// Answers requests: a server, or a substitute in tests.
pub trait Service: Send + Sync {
    /// Answers a request with at most `capacity` bytes. An empty answer means that there is none.
    fn handle(&self, request: &[u8], capacity: usize) -> Vec<u8>;

    /// Answers a request if that needs no wait.
    fn handle_at_once(&self, request: &[u8], capacity: usize) -> Option<Vec<u8>>;

    /// Returns the answer to a request that cannot be handled. This uses nothing but the request.
    fn failed(&self, request: &[u8], capacity: usize) -> Vec<u8>;

    /// Forgets all files that the guest knows.
    fn reset(&self);

    /// Returns the kind of FUSE request under which a request is counted.
    fn counted_as(&self, request: &[u8]) -> u32;

    /// Notes that a request is sent to the threads. Numbers count up.
    fn begin(&self, _number: u64, _request: &[u8]) {}

    /// Notes that the answer to a request that was sent has been handed over.
    fn end(&self, _number: u64) {}

    /// Whether the guest has a session, by which it knows files.
    fn is_mounted(&self) -> bool;

    /// Returns the guest's session if it can be saved.
    fn saved_session(&self) -> Option<SavedSession>;

    /// Continues a saved session. Returns false if that is impossible.
    fn resume(&self, session: &SavedSession) -> bool;
}

impl Service for Server {
    fn handle(&self, request: &[u8], capacity: usize) -> Vec<u8> {
        self.handle(request, capacity)
    }

    fn handle_at_once(&self, request: &[u8], capacity: usize) -> Option<Vec<u8>> {
        self.handle_at_once(request, capacity)
    }

    fn failed(&self, request: &[u8], capacity: usize) -> Vec<u8> {
        Self::failed(request, capacity)
    }

    fn reset(&self) {
        self.reset();
        self.note_mounted(false);
    }

    fn counted_as(&self, request: &[u8]) -> u32 {
        Header::read(request).map_or(0, |(header, _)| header.opcode)
    }

    fn begin(&self, _number: u64, request: &[u8]) {
        match self.counted_as(request) {
            opcode::INIT => self.note_mounted(true),
            opcode::DESTROY => self.note_mounted(false),
            _ => {}
        }
    }

    fn is_mounted(&self) -> bool {
        self.is_mounted()
    }

    fn saved_session(&self) -> Option<SavedSession> {
        self.saved_session()
    }

    fn resume(&self, session: &SavedSession) -> bool {
        self.resume(session)
    }
}

/// The files that a client of 9P knows always include the root, whose numbers are its own, so no
/// session is saved.
impl Service for NineServer {
    fn handle(&self, request: &[u8], capacity: usize) -> Vec<u8> {
        self.handle(request, capacity)
    }

    fn handle_at_once(&self, request: &[u8], capacity: usize) -> Option<Vec<u8>> {
        self.handle_at_once(request, capacity)
    }

    fn failed(&self, request: &[u8], capacity: usize) -> Vec<u8> {
        Self::failed(request, capacity)
    }

    fn reset(&self) {
        self.reset();
    }

    fn counted_as(&self, request: &[u8]) -> u32 {
        nine::Head::read(request).map_or(0, |(head, _)| head.counted_as())
    }

    fn begin(&self, number: u64, request: &[u8]) {
        self.progress().begin(number, request);
    }

    fn end(&self, number: u64) {
        self.progress().end(number);
    }

    fn is_mounted(&self) -> bool {
        self.is_mounted()
    }

    fn saved_session(&self) -> Option<SavedSession> {
        None
    }

    fn resume(&self, _: &SavedSession) -> bool {
        false
    }
}

/// The sizes of a protocol's requests in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestSizes {
    /// The size of the smallest request.
    pub least: usize,
    /// The size of the largest request, and of the largest answer.
    pub most: usize,
}

impl RequestSizes {
    /// The sizes of FUSE requests.
    pub const FUSE: Self = Self {
        least: protocol::IN_HEADER_BYTES,
        most: protocol::MAX_REQUEST_BYTES,
    };
    /// The sizes of 9P messages.
    pub const NINE_P: Self = Self {
        least: nine::HEADER_BYTES,
        most: nine::MAX_MESSAGE_BYTES,
    };
}
