//! The command's streams on the host: sends standard input to the guest in frames, and writes the
//! command's output.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl};
use tollgate_agent::protocol::{DATA, MAX_FRAME, frame};

use tollgate_confine::ThreadKind;
use tollgate_host_facts::file_words::reading;

use crate::failure::{Failure, say};
use crate::lost_output::LostOutput;
use crate::{host, terminal};

/// How often a background process checks whether it was brought to the foreground.
const FOREGROUND_RETRY: Duration = Duration::from_millis(200);
/// The number of bytes of output that are moved in one step.
const PIECE: usize = 64 << 10;

/// Both ends of the streams that are the guest's ports.
pub struct Links {
    /// This process's ends: control, input, output, errors.
    pub host: [UnixStream; 4],
    /// The machine's ends, in the same order.
    pub guest: [UnixStream; 4],
}

impl Links {
    /// Makes new streams.
    ///
    /// # Errors
    ///
    /// The errors of socketpair(2).
    pub fn new() -> io::Result<Self> {
        let [a, b, c, d] = [
            UnixStream::pair()?,
            UnixStream::pair()?,
            UnixStream::pair()?,
            UnixStream::pair()?,
        ];
        Ok(Self {
            host: [a.0, b.0, c.0, d.0],
            guest: [a.1, b.1, c.1, d.1],
        })
    }

    /// The machine's ends as descriptors.
    pub fn guest_descriptors(&self) -> [RawFd; 4] {
        [0, 1, 2, 3].map(|index| self.guest[index].as_raw_fd())
    }
}

/// Refuses a standard input that is known not to be readable before the start.
///
/// # Errors
///
/// One line says that it is a directory.
pub fn check_input() -> Result<(), Failure> {
    let stdin = io::stdin().as_fd().try_clone_to_owned();
    let is_directory =
        stdin.is_ok_and(|file| File::from(file).metadata().is_ok_and(|data| data.is_dir()));
    if is_directory {
        return Err(Failure::usage(
            "standard input is a directory, which cannot be read: redirect it from a file, or from \
             /dev/null",
        ));
    }
    Ok(())
}

/// Whether standard input is open for writing only, as `nohup` leaves it. There is no input then.
fn is_write_only(fd: impl AsFd) -> bool {
    let flags = fcntl_getfl(fd);
    flags.is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::WRONLY)
}

/// Reads standard input to its end and sends it, on a thread of its own, which ends with the
/// process at the latest. If reading fails, this is reported and `has_failed` becomes true: the
/// command then sees an end of its input although some is missing.
///
/// # Errors
/// The host starts no thread.
pub fn send_input(port: UnixStream, has_failed: Arc<AtomicBool>) -> io::Result<()> {
    let entry = tollgate_confine::entry_of_child(ThreadKind::Main);
    thread::Builder::new().name("stdin".into()).spawn(move || {
        entry.enter();
        // Sending fails if the guest has ended.
        let _ = copy_input(port, &has_failed);
    })?;
    Ok(())
}

fn copy_input(mut port: UnixStream, has_failed: &AtomicBool) -> io::Result<()> {
    let stdin = io::stdin();
    let is_terminal = stdin.is_terminal();
    if is_write_only(&stdin) {
        return port.write_all(&frame(DATA, &[]));
    }
    let mut buffer = vec![0; MAX_FRAME];
    loop {
        // Reading from the terminal would stop a background process.
        while is_terminal && !terminal::is_in_foreground() {
            thread::sleep(FOREGROUND_RETRY);
        }
        let count = match host::read(stdin.as_fd(), &mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait(stdin.as_fd().as_raw_fd(), libc::POLLIN);
                continue;
            }
            // The terminal was hung up, which is an end of the input.
            Err(_) if is_terminal => 0,
            Err(error) => {
                has_failed.store(true, Ordering::Release);
                let why = reading(&error);
                say(&format!(
                    "cannot read standard input: {why}; to the command it ends there"
                ));
                0
            }
        };
        port.write_all(&frame(DATA, &buffer[..count]))?;
        if count == 0 {
            return Ok(());
        }
    }
}

fn wait(fd: RawFd, events: libc::c_short) {
    let mut fds = [host::interest(fd, events)];
    // A failure here fails again in the write, where it is reported.
    let _ = host::poll(&mut fds, None);
}

/// The progress of one output.
#[derive(Default)]
pub struct Progress {
    /// The number of bytes that were written or dropped.
    pub moved: AtomicU64,
    /// Whether no more can be written: the reader has gone, or the host refuses to take more.
    pub is_broken: AtomicBool,
}

/// Writes what comes from `port` to `output`, on a thread of its own, and raises `event` after each
/// piece. Bytes that the host does not take although there is a reader are noted in `lost`.
///
/// # Errors
/// The host starts no thread.
pub fn receive_output(
    port: UnixStream,
    output: OwnedFd,
    event: Arc<OwnedFd>,
    lost: Arc<LostOutput>,
) -> io::Result<Arc<Progress>> {
    let progress = Arc::new(Progress::default());
    let shared = Arc::clone(&progress);
    let entry = tollgate_confine::entry_of_child(ThreadKind::Main);
    thread::Builder::new()
        .name("output".into())
        .spawn(move || {
            entry.enter();
            let output = File::from(output);
            copy_output(port, output, &lost, &shared, &event);
        })?;
    Ok(progress)
}

fn copy_output(
    mut port: UnixStream,
    mut output: File,
    lost: &LostOutput,
    progress: &Progress,
    event: &OwnedFd,
) {
    let mut buffer = vec![0; PIECE];
    while let Ok(count @ 1..) = port.read(&mut buffer) {
        if !progress.is_broken.load(Ordering::Acquire)
            && let Err(error) = write_all(&mut output, &buffer[..count])
        {
            lost.note_unless_gone(&error, &output);
            progress.is_broken.store(true, Ordering::Release);
        }
        progress.moved.fetch_add(count as u64, Ordering::AcqRel);
        host::raise(event.as_fd());
    }
}

/// Writes everything, even if another process has made the output non-blocking.
fn write_all(output: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match output.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait(output.as_raw_fd(), libc::POLLOUT);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
