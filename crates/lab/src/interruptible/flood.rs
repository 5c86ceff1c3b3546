//! The host's end of a flood of datagrams.

use crate::experiment::LabError;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Bytes of a datagram.
const BYTES: usize = 512;
/// Datagrams that are sent in succession, and the pause after them.
const BURST: usize = 64;
const PAUSE: Duration = Duration::from_millis(1);

/// A socket that sends datagrams to a guest that has sent it one.
pub struct Flood {
    socket: UdpSocket,
    port: u16,
}

impl Flood {
    /// Opens the socket.
    ///
    /// # Errors
    ///
    /// The host refuses it.
    pub fn open() -> Result<Self, LabError> {
        let refused = |error| LabError::Host(format!("a socket for datagrams: {error}"));
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(refused)?;
        // It must be seen whether the flood should end.
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .map_err(refused)?;
        let port = socket.local_addr().map_err(refused)?.port();
        Ok(Self { socket, port })
    }

    /// The socket's port, on the host's loopback address.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Sends datagrams to a guest that asks for them while `run` runs.
    ///
    /// # Errors
    ///
    /// Those of `run`.
    pub fn during<T>(&self, run: impl FnOnce() -> Result<T, LabError>) -> Result<T, LabError> {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| self.send(&done));
            let ran = run();
            done.store(true, Ordering::SeqCst);
            ran
        })
    }

    fn send(&self, done: &AtomicBool) {
        let is_done = || done.load(Ordering::SeqCst);
        let peer = loop {
            if is_done() {
                return;
            }
            if let Ok((_, peer)) = self.socket.recv_from(&mut [0; BYTES]) {
                break peer;
            }
        };
        while !is_done() {
            for _ in 0..BURST {
                // What the network cannot take now is lost, as in any flood.
                let _ = self.socket.send_to(&[0x5a; BYTES], peer);
            }
            thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_asks_is_flooded_until_the_run_ends() {
        let flood = Flood::open().unwrap();
        let asker = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let received = flood.during(|| {
            let ask = asker.send_to(&[1], (Ipv4Addr::LOCALHOST, flood.port()));
            ask.map_err(|error| LabError::Host(error.to_string()))?;
            let mut bytes = [0; BYTES];
            let lengths = (0..2 * BURST).map(|_| asker.recv(&mut bytes).unwrap_or(0));
            Ok(lengths.sum::<usize>())
        });
        assert_eq!(received.unwrap(), 2 * BURST * BYTES);
        // Without a request the run is not held up.
        assert_eq!(flood.during(|| Ok(1)).unwrap(), 1);
    }
}
