//! `socket=PATH`: frames over a stream socket, each preceded by its length in four bytes, most
//! significant first. It is the framing of QEMU's `-netdev stream`, and of passt.

use crate::descriptor_end::{DescriptorEnd, FrameCarrier, Possible};
use crate::error::NetworkError;
use crate::frame::{Frame, MAX_FRAME};
use crate::link::Wire;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The size of a length in bytes.
const LENGTH: usize = 4;
/// The number of bytes that are read together.
const CHUNK: usize = 64 << 10;
/// The maximum number of chunks that are read, and written, in one round. Frames of the guest are
/// handled between two rounds.
const CHUNKS: usize = 16;
/// If this many bytes wait to be written, frames of the guest are dropped: the other side does not
/// read.
const MAX_WAITING: usize = 4 << 20;

/// A socket that carries frames.
pub struct Stream {
    socket: UnixStream,
    /// Received bytes that do not form a whole frame yet.
    input: Vec<u8>,
}

impl Stream {
    /// Connects to a socket.
    ///
    /// # Errors
    /// No process listens there, or the host has no descriptors left.
    pub fn connect(
        path: &Path,
        wire: Wire,
        report: Box<dyn FnMut(String) + Send>,
    ) -> Result<DescriptorEnd<Self>, NetworkError> {
        let what = || format!("socket: cannot connect to '{}'", path.display());
        let socket = UnixStream::connect(path).map_err(|error| NetworkError::new(what(), error))?;
        Self::over(socket, wire, report)
    }

    /// Uses a socket that is connected.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub fn over(
        socket: UnixStream,
        wire: Wire,
        report: Box<dyn FnMut(String) + Send>,
    ) -> Result<DescriptorEnd<Self>, NetworkError> {
        let prepare = || {
            socket.set_nonblocking(true)?;
            let input = Vec::new();
            DescriptorEnd::new(Self { socket, input }, wire, report)
        };
        prepare().map_err(|error| NetworkError::new("socket", error))
    }

    /// Forwards the received frames that are complete.
    fn take_frames(&mut self, wire: &Wire) -> Result<(), String> {
        let mut rest = &self.input[..];
        while let Some((length, after)) = rest.split_first_chunk::<LENGTH>() {
            let length = u32::from_be_bytes(*length) as usize;
            if length > MAX_FRAME {
                return Err(format!("it sends a frame of {length} bytes"));
            }
            let Some((frame, after)) = after.split_at_checked(length) else {
                break;
            };
            wire.send(Frame::new(frame.to_vec()));
            rest = after;
        }
        let done = self.input.len() - rest.len();
        self.input.drain(..done);
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl FrameCarrier for Stream {
    type Output = u8;
    const GONE: &'static str = "the other side of the socket has gone";

    fn add(&self, frame: Vec<u8>, output: &mut VecDeque<u8>) {
        if output.len() < MAX_WAITING {
            let length = frame.len() as u32;
            output.extend(length.to_be_bytes());
            output.extend(frame);
        }
    }

    fn work(
        &mut self,
        wire: &Wire,
        output: &mut VecDeque<u8>,
        possible: &mut Possible,
    ) -> Result<(), String> {
        for _ in 0..CHUNKS {
            if !possible.writing || output.is_empty() {
                break;
            }
            let (first, _) = output.as_slices();
            match rustix::net::send(&self.socket, first, SendFlags::NOSIGNAL) {
                Ok(sent) => drop(output.drain(..sent)),
                Err(Errno::AGAIN) => possible.writing = false,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        for _ in 0..CHUNKS {
            if !possible.reading || !wire.has_room() {
                break;
            }
            let start = self.input.len();
            self.input.resize(start + CHUNK, 0);
            let read =
                rustix::net::recv(&self.socket, &mut self.input[start..], RecvFlags::empty());
            let bytes = read.map_or(0, |(bytes, _)| bytes);
            self.input.truncate(start + bytes);
            match read {
                Ok((0, _)) => return Err("it was closed".into()),
                Ok(_) => self.take_frames(wire)?,
                Err(Errno::AGAIN) => possible.reading = false,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{MacAddress, NetworkKind, NetworkOptions};
    use crate::{Adapter, Backend};
    use std::convert::Infallible;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(60);

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("tollgate-stream-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn start(path: &Path) -> (Adapter, Backend, Receiver<()>, Receiver<String>) {
        let options = NetworkOptions::new(NetworkKind::Socket(path.to_owned()));
        let (say, said) = channel();
        let (adapter, backend) = Backend::start(&options, MacAddress::of_adapter(0), move |line| {
            let _ = say.send(line);
        })
        .unwrap();
        let (tell, told) = channel();
        adapter.connect(move || {
            let _ = tell.send(());
        });
        (adapter, backend, told, said)
    }

    fn take(adapter: &Adapter) -> Option<Frame> {
        let taken: Result<_, Infallible> = adapter.take_if(|_| Ok(true));
        taken.unwrap()
    }

    #[test]
    fn frames_pass_both_ways_behind_their_lengths() {
        let folder = Folder::new("both");
        let path = folder.0.join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let (adapter, backend, told, said) = start(&path);
        let (mut peer, _) = listener.accept().unwrap();
        adapter.send(vec![7; 60]);
        adapter.send(vec![8; 1514]);
        let mut received = vec![0; 4 + 60 + 4 + 1514];
        peer.read_exact(&mut received).unwrap();
        assert_eq!(received[..5], [0, 0, 0, 60, 7]);
        assert_eq!(received[64..69], [0, 0, 5, 0xea, 8]);
        // The bytes arrive in pieces, and two frames together.
        peer.write_all(&[0, 0]).unwrap();
        peer.write_all(&[0, 2, 1, 2, 0, 0, 0, 1]).unwrap();
        peer.write_all(&[3]).unwrap();
        let mut frames = Vec::new();
        while frames.len() < 2 {
            frames.extend(take(&adapter));
            if frames.len() < 2 {
                adapter.look();
                frames.extend(take(&adapter));
            }
            if frames.len() < 2 {
                told.recv_timeout(PATIENCE).unwrap();
            }
        }
        assert_eq!(frames, [Frame::new(vec![1, 2]), Frame::new(vec![3])]);
        drop(peer);
        let line = said.recv_timeout(PATIENCE).unwrap();
        assert!(line.contains("gone"), "{line}");
        adapter.send(vec![9; 60]);
        drop(backend);
    }

    #[test]
    fn a_peer_that_sends_without_end_gets_what_the_guest_sends() {
        let folder = Folder::new("flood");
        let path = folder.0.join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let (adapter, backend, _told, _said) = start(&path);
        let (mut peer, _) = listener.accept().unwrap();
        let mut sender = peer.try_clone().unwrap();
        let flood = thread::spawn(move || {
            let mut frames = Vec::new();
            for _ in 0..100 {
                frames.extend(1500u32.to_be_bytes());
                frames.extend([0; 1500]);
            }
            // This runs until the network ends.
            while sender.write_all(&frames).is_ok() {}
        });
        let receiver = thread::spawn(move || {
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut received = [0; 4 + 60];
            peer.read_exact(&mut received).map(|()| received)
        });
        let mut count = 0;
        while !receiver.is_finished() {
            if take(&adapter).is_some() {
                count += 1;
            } else {
                adapter.look();
            }
            if count == 10_000 {
                adapter.send(vec![7; 60]);
            }
        }
        assert_eq!(receiver.join().unwrap().unwrap()[..5], [0, 0, 0, 60, 7]);
        drop((adapter, backend));
        flood.join().unwrap();
    }

    #[test]
    fn a_length_that_no_frame_has_ends_the_connection() {
        let folder = Folder::new("length");
        let path = folder.0.join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let (_adapter, _backend, _told, said) = start(&path);
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(&[0xff; 8]).unwrap();
        let line = said.recv_timeout(PATIENCE).unwrap();
        assert!(line.contains("a frame of 4294967295 bytes"), "{line}");
    }

    #[test]
    fn a_path_where_nobody_listens_is_refused() {
        let folder = Folder::new("nobody");
        let options = NetworkOptions::new(NetworkKind::Socket(folder.0.join("socket")));
        let refusal = Backend::start(&options, MacAddress::of_adapter(0), |_| {}).err();
        let line = refusal.unwrap().to_string();
        assert!(line.contains("socket: cannot connect to"), "{line}");
    }
}
