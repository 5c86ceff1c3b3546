//! One connection: a socket of the guest's, and a Unix socket of the host's.
//!
//! ```text
//!   guest -- data --> output -- as much as it takes --> host     forwarded: what has left `output`
//!   guest <-- data, as much as the guest has room for -- host    sent: what has left the host
//! ```
//!
//! Each side tells the other how large its buffer is and how much has left it (5.10.6.3), and
//! never sends more than fits. A guest that does is reset. So one that does not read holds up its own
//! peer alone, and takes [`BUFFER`] bytes at most.

use super::packet::{Header, STREAM, operation, shutdown};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Bytes of the guest that wait for the host's socket at most.
pub const BUFFER: u32 = 128 << 10;
/// Bytes that a packet of data to the guest carries at most.
const CHUNK: u32 = 32 << 10;
/// Packets to the guest in one round; other connections come between two rounds.
const CHUNKS: usize = 4;

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The guest was asked, at this time.
    Requested(Instant),
    /// Both sides have agreed.
    Open,
}

/// What is to become of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It goes on.
    Goes,
    /// It is over, and the guest is told by a reset.
    Ends,
}

/// A connection.
pub struct Connection {
    /// The guest's port.
    pub guest_port: u32,
    /// The host's port.
    pub host_port: u32,
    /// How far it is.
    pub stage: Stage,
    host: OwnedFd,
    /// The host's socket may have something to read.
    pub readable: bool,
    /// The host's socket may take something.
    pub writable: bool,
    /// Bytes of the guest that the host has not taken.
    output: VecDeque<u8>,
    /// Bytes that have left `output`, modulo 2^32, and what the guest knows of it.
    forwarded: u32,
    told: u32,
    /// Bytes of the guest's buffer, and how many have left it.
    guest_buffer: u32,
    guest_forwarded: u32,
    /// Bytes sent to the guest, modulo 2^32.
    sent: u32,
    /// The guest was asked for its room since it last told.
    has_asked: bool,
    /// What the guest has shut down: see [`shutdown`].
    guest_shutdown: u32,
    /// The host's side knows that the guest sends no more.
    guest_ended: bool,
    /// The host sends no more.
    host_ended: bool,
}

impl Connection {
    /// With a socket of the host that does not block.
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

    /// Bytes that the guest has room for.
    fn room(&self) -> u32 {
        let under_way = self.sent.wrapping_sub(self.guest_forwarded);
        self.guest_buffer.saturating_sub(under_way)
    }

    /// Whether work can go on without an event, given room in the cable.
    pub fn has_more(&self) -> bool {
        self.stage == Stage::Open && self.reads() && self.room() > 0
    }

    fn reads(&self) -> bool {
        self.readable && !self.host_ended && self.guest_shutdown & shutdown::RECEIVE == 0
    }

    /// A packet's own fields; the rest of the header is the caller's.
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

    /// The guest has said how much room it has.
    pub fn credit(&mut self, header: &Header) {
        self.guest_buffer = header.buffer;
        self.guest_forwarded = header.forwarded;
        self.has_asked = false;
    }

    /// Data of the guest.
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

    /// The guest shuts down one direction, or both.
    pub const fn shut_down(&mut self, flags: u32) {
        self.guest_shutdown |= flags & shutdown::BOTH;
    }

    /// Tells the host's side something that is not the guest's. False: it does not take it.
    pub fn tell(&self, line: &str) -> bool {
        let sent = rustix::net::send(&self.host, line.as_bytes(), SendFlags::NOSIGNAL);
        sent == Ok(line.len())
    }

    /// Moves bytes both ways. Packets for the guest go to `send` as long as `has_room`.
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

    /// Hands the host what it takes.
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
                // Nobody reads any more.
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
