//! Moves the command's output to the host.

use crate::sys::{self, PollFd};
use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// The number of bytes that are moved together.
const PIECE: usize = 32 << 10;

/// The thread that moves a stream's bytes.
pub struct Pump {
    thread: JoinHandle<u64>,
    stop: Arc<Stop>,
    source: Sender<OwnedFd>,
}

/// The requests to the thread.
pub struct Stop {
    bell: PipeWriter,
    /// Whether the command has ended: the bytes already there are moved, and no more.
    is_last: AtomicBool,
    /// Whether the host has stopped reading the stream.
    is_closed: AtomicBool,
}

impl Stop {
    fn ring(&self) {
        let _ = (&self.bell).write(&[1]);
    }

    /// Closes the stream because the host has stopped reading, so that its writers get an error.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.ring();
    }
}

impl Pump {
    /// Starts the thread, which waits until it gets the source of the bytes for `port`. It drops
    /// `starting` before it waits.
    pub fn start(mut port: File, starting: Sender<()>) -> io::Result<Self> {
        Self::start_to(move |bytes| port.write_all(bytes), starting)
    }

    /// Starts the thread as [`Self::start`] does, with a destination that takes pieces of the bytes.
    pub fn start_to(
        destination: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static,
        starting: Sender<()>,
    ) -> io::Result<Self> {
        let (ear, bell) = io::pipe()?;
        let stop = Arc::new(Stop {
            bell,
            is_last: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        });
        let shared = Arc::clone(&stop);
        let (sender, source) = channel::<OwnedFd>();
        let thread = std::thread::spawn(move || {
            drop(starting);
            match source.recv() {
                Ok(source) => pump(source.into(), destination, ear, &shared),
                // The stream has no source.
                Err(_) => 0,
            }
        });
        Ok(Self {
            thread,
            stop,
            source: sender,
        })
    }

    /// Begins to move bytes from `source`.
    pub fn begin(&self, source: OwnedFd) {
        // The thread waits for this and has not ended.
        let _ = self.source.send(source);
    }

    /// Returns what can close the stream.
    pub fn stop(&self) -> Arc<Stop> {
        Arc::clone(&self.stop)
    }

    /// Moves the remaining bytes, and returns how many bytes were moved in total.
    pub fn finish(self) -> u64 {
        // A thread that still waits for its source ends by this.
        drop(self.source);
        self.stop.is_last.store(true, Ordering::SeqCst);
        self.stop.ring();
        self.thread.join().unwrap_or(0)
    }
}

fn pump(
    mut source: File,
    mut destination: impl FnMut(&[u8]) -> io::Result<()>,
    mut ear: PipeReader,
    stop: &Stop,
) -> u64 {
    let mut moved = 0;
    let mut buffer = vec![0; PIECE];
    let mut is_at_end = false;
    loop {
        // This is read before polling again, so that everything written before the end is seen.
        let is_last = stop.is_last.load(Ordering::SeqCst);
        if stop.is_closed.load(Ordering::SeqCst) || is_at_end && is_last {
            return moved;
        }
        let mut fds = [PollFd::input(ear.as_fd()), PollFd::input(source.as_fd())];
        let count = if is_at_end { 1 } else { 2 };
        sys::wait_for(&mut fds[..count], !is_last);
        if fds[0].revents != 0 {
            let _ = ear.read(&mut [0; 16]);
        }
        if fds[1].revents == 0 {
            is_at_end |= is_last;
            continue;
        }
        match source.read(&mut buffer) {
            Ok(0) => is_at_end = true,
            Ok(count) => {
                if destination(&buffer[..count]).is_err() {
                    return moved;
                }
                moved += count as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // A terminal that no process has open returns EIO.
            Err(_) => is_at_end = true,
        }
    }
}
