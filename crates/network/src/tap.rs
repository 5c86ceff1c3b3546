//! `tap=NAME` and `fd=N`: a descriptor that transfers one frame with each read and write, such as a
//! tap interface of the host.

use crate::descriptor_end::{DescriptorEnd, FrameCarrier, Possible};
use crate::error::NetworkError;
use crate::frame::{Frame, MAX_FRAME};
use crate::link::Wire;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

mod device;

/// The maximum number of frames that are read, and written, in one round.
const FRAMES: usize = 64;
/// If this many frames wait to be written, those of the guest are dropped. It is the queue length
/// of an interface.
const MAX_WAITING: usize = 1000;

/// A tap interface, or a socket that preserves frame boundaries.
pub struct Tap {
    descriptor: OwnedFd,
    /// The size in bytes of the header before each frame that a tap may have been opened with. It
    /// is all zero, because checksums are complete and segments are split.
    header: usize,
}

impl Tap {
    /// Opens the tap interface NAME, which is created if it does not exist.
    ///
    /// # Errors
    /// The host does not permit it, or has no such devices.
    pub fn named(
        name: &str,
        wire: Wire,
        report: Box<dyn FnMut(String) + Send>,
    ) -> Result<DescriptorEnd<Self>, NetworkError> {
        let descriptor = device::open(name)
            .map_err(|why| NetworkError::new(format!("tap: cannot use '{name}'"), why))?;
        Self::over(descriptor, wire, report)
    }

    /// Uses a descriptor that this process was started with: a tap, or a socket that preserves
    /// frame boundaries.
    ///
    /// # Errors
    /// It is not open, or neither of these.
    pub fn inherited(
        number: RawFd,
        wire: Wire,
        report: Box<dyn FnMut(String) + Send>,
    ) -> Result<DescriptorEnd<Self>, NetworkError> {
        let descriptor = device::inherited(number)
            .map_err(|why| NetworkError::new(format!("fd: cannot use descriptor {number}"), why))?;
        Self::over(descriptor, wire, report)
    }

    fn over(
        descriptor: OwnedFd,
        wire: Wire,
        report: Box<dyn FnMut(String) + Send>,
    ) -> Result<DescriptorEnd<Self>, NetworkError> {
        let prepare = || {
            let flags = rustix::fs::fcntl_getfl(&descriptor)?;
            rustix::fs::fcntl_setfl(&descriptor, flags | rustix::fs::OFlags::NONBLOCK)?;
            let header = device::header_bytes(&descriptor);
            DescriptorEnd::new(Self { descriptor, header }, wire, report)
        };
        prepare().map_err(|error: io::Error| NetworkError::new("tap", error))
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl FrameCarrier for Tap {
    /// A frame with its header.
    type Output = Vec<u8>;
    const GONE: &'static str = "the host's end has gone";

    fn add(&self, frame: Vec<u8>, output: &mut VecDeque<Vec<u8>>) {
        if output.len() < MAX_WAITING {
            output.push_back([vec![0; self.header], frame].concat());
        }
    }

    fn work(
        &mut self,
        wire: &Wire,
        output: &mut VecDeque<Vec<u8>>,
        possible: &mut Possible,
    ) -> Result<(), String> {
        for _ in 0..FRAMES {
            let Some(frame) = output.front().filter(|_| possible.writing) else {
                break;
            };
            match rustix::io::write(&self.descriptor, frame) {
                Err(Errno::AGAIN) => possible.writing = false,
                Err(Errno::INTR) => {}
                Err(error) if is_fatal(error) => return Err(error.to_string()),
                // The frame was sent, or is lost as frames are, for example because the interface
                // is down.
                _ => drop(output.pop_front()),
            }
        }
        let mut buffer = vec![0; self.header + MAX_FRAME];
        for _ in 0..FRAMES {
            if !possible.reading || !wire.has_room() {
                break;
            }
            match rustix::io::read(&self.descriptor, &mut buffer) {
                Ok(0) => return Err(Errno::PIPE.to_string()),
                Ok(count) => {
                    if let Some(frame) = buffer[..count].get(self.header..) {
                        wire.send(Frame::new(frame.to_vec()));
                    }
                }
                Err(Errno::AGAIN) => possible.reading = false,
                Err(Errno::INTR) => {}
                Err(error) if is_fatal(error) => return Err(error.to_string()),
                Err(_) => possible.reading = false,
            }
        }
        Ok(())
    }
}

/// Whether the error means that the other side has gone.
fn is_fatal(error: Errno) -> bool {
    matches!(
        error,
        Errno::BADF | Errno::BADFD | Errno::PIPE | Errno::CONNRESET | Errno::NODEV
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{MacAddress, NetworkKind, NetworkOptions};
    use crate::{Adapter, Backend};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::convert::Infallible;
    use std::os::fd::AsRawFd;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn start(kind: NetworkKind) -> Result<(Adapter, Backend, Receiver<String>), NetworkError> {
        let options = NetworkOptions::new(kind);
        let (say, said) = channel();
        let (adapter, backend) =
            Backend::start(&options, MacAddress::of_adapter(0), move |line| {
                let _ = say.send(line);
            })?;
        Ok((adapter, backend, said))
    }

    fn wait(adapter: &Adapter) -> Frame {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            let taken: Result<_, Infallible> = adapter.take_if(|_| Ok(true));
            if let Some(frame) = taken.unwrap() {
                return frame;
            }
            assert!(std::time::Instant::now() < end, "no frame");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn frames_pass_both_ways_one_at_a_time() {
        let kind = SocketType::SEQPACKET;
        let (own, peer) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let (adapter, backend, said) = start(NetworkKind::Descriptor(own.as_raw_fd())).unwrap();
        adapter.send(vec![7; 60]);
        adapter.send(vec![8; 1514]);
        let mut buffer = [0; 2000];
        assert_eq!(rustix::io::read(&peer, &mut buffer), Ok(60));
        assert_eq!(rustix::io::read(&peer, &mut buffer), Ok(1514));
        assert_eq!(buffer[0], 8);
        for size in [60, 1514] {
            rustix::io::write(&peer, &vec![9; size]).unwrap();
        }
        assert_eq!(wait(&adapter), Frame::new(vec![9; 60]));
        assert_eq!(wait(&adapter), Frame::new(vec![9; 1514]));
        // The descriptor that the process was started with stays open.
        drop(own);
        drop(peer);
        let line = said.recv_timeout(PATIENCE).unwrap();
        assert!(line.contains("the host's end has gone"), "{line}");
        adapter.send(vec![7; 60]);
        drop(backend);
    }

    #[test]
    fn what_is_no_tap_is_refused_with_its_reason() {
        let file = std::fs::File::open("/dev/null").unwrap();
        for (kind, why) in [
            (
                NetworkKind::Descriptor(99_999),
                "fd: cannot use descriptor 99999",
            ),
            (
                NetworkKind::Descriptor(file.as_raw_fd()),
                "neither a tap nor",
            ),
            (NetworkKind::Tap("a/b".into()), "tap: cannot use 'a/b'"),
            (
                NetworkKind::Tap("a-name-that-is-too-long".into()),
                "at most 15",
            ),
        ] {
            let line = start(kind).err().unwrap().to_string();
            assert!(line.contains(why), "{line}");
            assert_eq!(line.lines().count(), 1);
        }
    }
}
