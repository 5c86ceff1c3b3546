//! Clients of the vsock's Unix socket that have connected and not yet sent their destination:
//! `CONNECT PORT\n`.

use rustix::net::RecvFlags;
use std::os::fd::OwnedFd;

/// A length in bytes that is larger than the longest valid line.
const MAX_LINE: usize = 32;

/// A client that has not sent its destination yet.
pub struct Client {
    socket: OwnedFd,
    /// Whether the client may have sent something.
    pub readable: bool,
}

/// The request of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// The line is not complete yet.
    Waits,
    /// The client requests a connection to this port of the guest.
    Connect(u32),
    /// The line is invalid, or the client has gone.
    Nonsense,
}

impl Client {
    /// Makes a client with a non-blocking socket.
    pub const fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            readable: true,
        }
    }

    /// Reads the line if it has arrived, and nothing after it, because that is for the guest.
    pub fn hear(&mut self) -> Asked {
        if !std::mem::take(&mut self.readable) {
            return Asked::Waits;
        }
        let mut line = [0; MAX_LINE];
        let count = match rustix::net::recv(&self.socket, &mut line[..], RecvFlags::PEEK) {
            Ok((0, _)) => return Asked::Nonsense,
            Ok((count, _)) => count,
            Err(rustix::io::Errno::AGAIN) => return Asked::Waits,
            Err(rustix::io::Errno::INTR) => {
                self.readable = true;
                return Asked::Waits;
            }
            Err(_) => return Asked::Nonsense,
        };
        let Some(end) = line[..count].iter().position(|byte| *byte == b'\n') else {
            return if count < MAX_LINE {
                Asked::Waits
            } else {
                Asked::Nonsense
            };
        };
        let mut read = [0; MAX_LINE];
        let _ = rustix::net::recv(&self.socket, &mut read[..=end], RecvFlags::empty());
        port(&line[..end]).map_or(Asked::Nonsense, Asked::Connect)
    }

    /// Returns the socket, from which the line has been read.
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

/// Returns the port in a line.
fn port(line: &[u8]) -> Option<u32> {
    let line = std::str::from_utf8(line).ok()?.trim_end_matches('\r');
    let (word, port) = line.split_once(' ')?;
    let port = port.trim();
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    (word.eq_ignore_ascii_case("connect") && is_number)
        .then(|| port.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_a_port() {
        assert_eq!(port(b"CONNECT 22"), Some(22));
        assert_eq!(port(b"connect 4294967295\r"), Some(u32::MAX));
        for wrong in [
            &b""[..],
            b"CONNECT",
            b"CONNECT ",
            b"CONNECT +2",
            b"CONNECT 4294967296",
            b"GET / HTTP",
            b"CONNECT \xff",
        ] {
            assert_eq!(port(wrong), None, "{wrong:?}");
        }
    }
}
