//! One vsock connection: a socket of the guest, and a Unix socket of the host.
//!
//! ```text
//!   guest -- data --> output -- as much as it takes --> host     forwarded: what has left `output`
//!   guest <-- data, as much as the guest has room for -- host    sent: what has left the host
//! ```
//!
//! Each side tells the other how large its buffer is and how much has left it (5.10.6.3), and never
//! sends more than fits. A guest that does is reset. So a peer that does not read stops only its
//! own connection, which takes at most [`BUFFER`] bytes.

use super::packet::{Header, STREAM, operation, shutdown};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// The maximum number of bytes of the guest that wait for the host's socket.
pub const BUFFER: u32 = 128 << 10;
/// The maximum number of bytes in a data packet to the guest.
const CHUNK: u32 = 32 << 10;
/// The maximum number of packets to the guest in one round. Other connections are handled between
/// two rounds.
const CHUNKS: usize = 4;

/// The stage of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The guest was asked at this time.
    Requested(Instant),
    /// Both sides have agreed.
    Open,
}

/// What happens to a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The connection continues.
    Goes,
    /// It is over, and a reset reports that to the guest.
    Ends,
}

/// A connection between a guest's socket and a host's.
pub struct Connection {
    /// The guest's port.
    pub guest_port: u32,
    /// The host's port.
    pub host_port: u32,
    /// The stage of the connection.
    pub stage: Stage,
    host: OwnedFd,
    /// Whether the host's socket may have something to read.
    pub readable: bool,
    /// Whether the host's socket may accept data.
    pub writable: bool,
    /// Bytes of the guest that the host has not accepted yet.
    output: VecDeque<u8>,
    /// The number of bytes that have left `output`, modulo 2^32, and the value that the guest was
    /// told last.
    forwarded: u32,
    told: u32,
    /// The size of the guest's buffer in bytes, and the number of bytes that have left it.
    guest_buffer: u32,
    guest_forwarded: u32,
    /// The number of bytes sent to the guest, modulo 2^32.
    sent: u32,
    /// Whether the guest was asked for its room and has not answered yet.
    has_asked: bool,
    /// The directions that the guest has shut down: see [`shutdown`].
    guest_shutdown: u32,
    /// Whether the host's side was told that the guest sends no more.
    guest_ended: bool,
    /// Whether the host sends no more.
    host_ended: bool,
}

impl Connection {
    /// Makes a connection with a non-blocking socket of the host.
    pub fn new(guest_port: u32, host_port: u32, host: OwnedFd, stage: Stage) -> Self {
        Self {
            guest_port,
            host_port,
            stage,
            host,
            readable: true,
            writable: true,
            output: VecDeque::new(),
            forwarded: 0,
            told: 0,
            guest_buffer: 0,
            guest_forwarded: 0,
            sent: 0,
            has_asked: false,
            guest_shutdown: 0,
            guest_ended: false,
            host_ended: false,
        }
    }

    /// Returns the number of bytes that the guest has room for.
    fn room(&self) -> u32 {
        let under_way = self.sent.wrapping_sub(self.guest_forwarded);
        self.guest_buffer.saturating_sub(under_way)
    }

    /// Whether work can continue without an event if the cable has room.
    pub fn has_more(&self) -> bool {
        self.stage == Stage::Open && self.reads() && self.room() > 0
    }

    fn reads(&self) -> bool {
        self.readable && !self.host_ended && self.guest_shutdown & shutdown::RECEIVE == 0
    }

    /// Returns the connection's fields of a packet's header. The caller fills in the others.
    pub fn header(&mut self, operation: u16) -> Header {
        self.told = self.forwarded;
        Header {
            from_port: self.host_port,
            to_port: self.guest_port,
            kind: STREAM,
            operation,
            buffer: BUFFER,
            forwarded: self.forwarded,
            ..Header::default()
        }
    }

    /// Takes over the guest's report of its room.
    pub fn credit(&mut self, header: &Header) {
        self.guest_buffer = header.buffer;
        self.guest_forwarded = header.forwarded;
        self.has_asked = false;
    }

    /// Handles data of the guest.
    pub fn data(&mut self, data: &[u8]) -> Verdict {
        let is_possible = self.stage == Stage::Open
            && self.guest_shutdown & shutdown::SEND == 0
            && self.output.len() + data.len() <= BUFFER as usize;
        if !is_possible {
            return Verdict::Ends;
        }
        self.output.extend(data);
        Verdict::Goes
    }

    /// Handles the guest's shutdown of one direction or both.
    pub const fn shut_down(&mut self, flags: u32) {
        self.guest_shutdown |= flags & shutdown::BOTH;
    }

    /// Sends a line to the host's side that is not from the guest. Returns whether it was accepted.
    pub fn tell(&self, line: &str) -> bool {
        let sent = rustix::net::send(&self.host, line.as_bytes(), SendFlags::NOSIGNAL);
        sent == Ok(line.len())
    }

    /// Moves bytes in both directions. Packets for the guest go to `send` as long as `has_room`.
    pub fn work(
        &mut self,
        has_room: impl Fn() -> bool,
        mut send: impl FnMut(Header, &[u8]),
        buffer: &mut [u8],
    ) -> Verdict {
        if self.stage != Stage::Open {
            return Verdict::Goes;
        }
        if self.drain() == Verdict::Ends {
            return Verdict::Ends;
        }
        // A guest that has closed its socket waits for the answer.
        if self.guest_shutdown == shutdown::BOTH && self.output.is_empty() {
            return Verdict::Ends;
        }
        for _ in 0..CHUNKS {
            if !self.reads() || !has_room() {
                break;
            }
            let count = self.room().min(CHUNK) as usize;
            if count == 0 {
                if !std::mem::replace(&mut self.has_asked, true) {
                    send(self.header(operation::CREDIT_REQUEST), &[]);
                }
                break;
            }
            match rustix::net::recv(&self.host, &mut buffer[..count], RecvFlags::empty()) {
                Ok((0, _)) => {
                    self.host_ended = true;
                    let mut header = self.header(operation::SHUTDOWN);
                    header.flags = shutdown::SEND;
                    send(header, &[]);
                }
                Ok((count, _)) => {
                    self.sent = self.sent.wrapping_add(count as u32);
                    send(self.header(operation::DATA), &buffer[..count]);
                }
                Err(Errno::AGAIN) => self.readable = false,
                Err(Errno::INTR) => {}
                Err(_) => return Verdict::Ends,
            }
        }
        if self.forwarded.wrapping_sub(self.told) >= BUFFER / 2 {
            send(self.header(operation::CREDIT_UPDATE), &[]);
        }
        Verdict::Goes
    }

    /// Writes as many bytes to the host as it accepts.
    fn drain(&mut self) -> Verdict {
        while self.writable && !self.output.is_empty() {
            let (first, _) = self.output.as_slices();
            match rustix::net::send(&self.host, first, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.output.drain(..count);
                    self.forwarded = self.forwarded.wrapping_add(count as u32);
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                // The reader has gone.
                Err(_) => return Verdict::Ends,
            }
        }
        let has_ended = self.guest_shutdown & shutdown::SEND != 0 && self.output.is_empty();
        if has_ended && !std::mem::replace(&mut self.guest_ended, true) {
            let _ = rustix::net::shutdown(&self.host, Shutdown::Write);
        }
        Verdict::Goes
    }
}
