//! One connection of a guest to a service: bytes pass between its socket and the responder.

use super::Responder;
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{Socket, State};
use std::collections::VecDeque;

/// The maximum number of bytes of a connection that the responder has not taken.
const MAX_RECEIVED: usize = 64 << 10;

/// A guest program's connection to the service.
pub struct Client {
    /// The handle of its socket in the stack.
    pub handle: SocketHandle,
    received: Vec<u8>,
    unsent: VecDeque<u8>,
    /// Whether the connection is closed when everything is sent.
    is_last: bool,
    /// The number of the round in which the client last sent something.
    pub last_round: u64,
}

impl Client {
    /// A connection that has just begun.
    pub const fn new(handle: SocketHandle, round: u64) -> Self {
        Self {
            handle,
            received: Vec::new(),
            unsent: VecDeque::new(),
            is_last: false,
            last_round: round,
        }
    }

    /// Gives the responder what has arrived, and sends its answers.
    pub fn serve(&mut self, socket: &mut Socket<'_>, responder: &dyn Responder, round: u64) {
        while socket.can_recv() && self.received.len() < MAX_RECEIVED {
            let room = MAX_RECEIVED - self.received.len();
            let taken = socket.recv(|data| {
                let count = data.len().min(room);
                self.received.extend_from_slice(&data[..count]);
                (count, ())
            });
            self.last_round = round;
            if taken.is_err() {
                break;
            }
        }
        while !self.is_last && self.unsent.len() < MAX_RECEIVED && !self.received.is_empty() {
            let answer = responder.answer(&mut self.received);
            self.is_last = answer.is_last;
            if answer.bytes.is_empty() {
                // A request that never becomes whole ends the connection.
                self.is_last |= self.received.len() >= MAX_RECEIVED;
                break;
            }
            self.unsent.extend(answer.bytes);
        }
        while socket.can_send() && !self.unsent.is_empty() {
            let sent = socket.send_slice(self.unsent.as_slices().0);
            match sent {
                Ok(count) if count > 0 => drop(self.unsent.drain(..count)),
                _ => break,
            }
        }
        let has_ended = socket.state() == State::CloseWait && !socket.can_recv();
        if self.unsent.is_empty() && (self.is_last || has_ended) {
            socket.close();
        }
    }
}
