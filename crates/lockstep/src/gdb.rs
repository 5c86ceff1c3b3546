//! A client of QEMU's gdb stub.

use crate::packet::{Decoder, encode, from_hex, to_hex};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// The state after the guest was resumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// It waits at an instruction boundary.
    Stopped,
    /// QEMU has ended: the guest left or reset itself.
    Gone,
}

/// A connection to a stub that waits for commands at an instruction boundary.
pub struct Gdb {
    stream: UnixStream,
    decoder: Decoder,
    buffer: Box<[u8; 65536]>,
}

impl Gdb {
    /// Uses a connected socket.
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            decoder: Decoder::default(),
            buffer: Box::new([0; 65536]),
        }
    }

    fn send(&mut self, data: &[u8]) -> io::Result<()> {
        // The `$` of the next packet acknowledges what came before it.
        self.stream.write_all(&encode(data))
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(packet) = self.decoder.next_packet() {
                return Ok(packet);
            }
            let count = self.stream.read(&mut self.buffer[..])?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.decoder.push(&self.buffer[..count]);
        }
    }

    /// Sends a packet and returns the answer.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub fn request(&mut self, data: &[u8]) -> io::Result<Vec<u8>> {
        self.send(data)?;
        self.receive()
    }

    /// Sends a packet whose answer must be OK.
    ///
    /// # Errors
    ///
    /// Those of the connection, or the stub refuses.
    pub fn command(&mut self, data: &str) -> io::Result<()> {
        match self.request(data.as_bytes())?.as_slice() {
            b"OK" => Ok(()),
            answer => Err(io::Error::other(format!(
                "QEMU's gdb stub answers '{}' to '{data}'",
                String::from_utf8_lossy(answer)
            ))),
        }
    }

    /// Sends a command to QEMU's monitor and returns its output.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub fn monitor(&mut self, command: &str) -> io::Result<String> {
        self.send(format!("qRcmd,{}", to_hex(command.as_bytes())).as_bytes())?;
        let mut text = Vec::new();
        loop {
            let packet = self.receive()?;
            match packet.split_first() {
                Some((b'O', digits)) if packet != b"OK" => {
                    text.extend(from_hex(digits).unwrap_or_default())
                }
                _ => break,
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Resumes the guest, with `s` for one instruction or `c` up to the next breakpoint.
    ///
    /// # Errors
    ///
    /// Those of the connection, except for its end.
    pub fn resume(&mut self, how: &str) -> io::Result<Stop> {
        match self.request(how.as_bytes()) {
            Ok(packet) if matches!(packet.first(), Some(b'W' | b'X')) => Ok(Stop::Gone),
            Ok(_) => Ok(Stop::Stopped),
            Err(error) => match error.kind() {
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::ConnectionReset => Ok(Stop::Gone),
                _ => Err(error),
            },
        }
    }

    /// Resumes the guest without waiting for it to stop.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub fn release(&mut self) -> io::Result<()> {
        self.send(b"c")
    }

    /// Sets or removes an instruction breakpoint at a linear address.
    ///
    /// # Errors
    ///
    /// Those of the connection, or the stub refuses.
    pub fn breakpoint(&mut self, linear: u64, set: bool) -> io::Result<()> {
        self.command(&format!("{}1,{linear:x},1", if set { 'Z' } else { 'z' }))
    }

    /// Reads a whole object such as the target's description.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub fn read_object(&mut self, object: &str) -> io::Result<String> {
        const PIECE: usize = 0x800;
        let mut text = Vec::new();
        loop {
            let packet =
                self.request(format!("qXfer:{object}:{:x},{PIECE:x}", text.len()).as_bytes())?;
            match packet.split_first() {
                Some((b'm', data)) if !data.is_empty() => text.extend_from_slice(data),
                Some((b'l', data)) => {
                    text.extend_from_slice(data);
                    return Ok(String::from_utf8_lossy(&text).into_owned());
                }
                _ => {
                    return Err(io::Error::other(format!(
                        "QEMU's gdb stub does not offer {object}"
                    )));
                }
            }
        }
    }
}
