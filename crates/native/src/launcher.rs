//! The launcher: a small process that makes space processes for one that may no longer make any.
//!
//! A machine's threads are confined and cannot start a process. So a program that confines them calls
//! [`begin`] before: it forks a server that owns nothing but a socket, gives up all rights but those
//! that making space processes takes, and is the parent of all of them. It ends with the program, or
//! with the socket, and its processes end with it.
//!
//! What it is asked for are space processes, and it does nothing else. It gives the descriptor that comes with
//! a request to a new process, looks at none of what is in it, and acts on its own children only.

mod message;
mod serve;

use crate::exit::Death;
use crate::make::Made;
use crate::settings::Settings;
use crate::spawn::Child;
use message::{Reply, Request};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The launcher of this process, or why there is none although it was asked for.
static LAUNCHER: OnceLock<Result<Launcher, String>> = OnceLock::new();

/// This process's end of the launcher's socket.
pub struct Launcher {
    /// A request and its reply take one after the other.
    socket: Mutex<OwnedFd>,
}

/// Starts the launcher, which calls `confine` before its first work; [`crate::SpaceProcess::start`] uses
/// it from now on. Returns the socket's descriptor, which stays open as long as this process. To be
/// called once, while this process has a single thread, which must live as long as the process.
///
/// # Errors
/// The host refuses. No process for programs can be started from now on.
pub fn begin(confine: impl FnOnce() -> io::Result<()>) -> io::Result<RawFd> {
    let begun = fork(confine);
    let descriptor = begun.as_ref().map_or(-1, AsRawFd::as_raw_fd);
    let (launcher, result) = match begun {
        Ok(socket) => {
            let socket = Mutex::new(socket);
            (Ok(Launcher { socket }), Ok(descriptor))
        }
        Err(error) => (Err(error.to_string()), Err(error)),
    };
    let _ = LAUNCHER.set(launcher);
    result
}

/// Whether processes for programs can be started: this process was never confined, or its launcher
/// answers.
///
/// # Errors
/// The launcher was not started, or has ended.
pub fn answers() -> io::Result<()> {
    match current()? {
        None => Ok(()),
        Some(launcher) => match launcher.ask(Request::Hello, &[])? {
            (Reply::Done, _) => Ok(()),
            _ => Err(out_of_order()),
        },
    }
}

/// The launcher, or nothing if this process makes its processes itself.
///
/// # Errors
/// It could not be started.
pub fn current() -> io::Result<Option<&'static Launcher>> {
    let refused = |why: &String| io::Error::other(format!("no launcher of processes: {why}"));
    LAUNCHER
        .get()
        .map_or(Ok(None), |it| it.as_ref().map(Some).map_err(refused))
}

fn out_of_order() -> io::Error {
    io::Error::other("the launcher of processes has answered what was not asked")
}

fn fork(confine: impl FnOnce() -> io::Result<()>) -> io::Result<OwnedFd> {
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
    let (ours, theirs) = socketpair(family, SocketType::SEQPACKET, flags, None)?;
    let parent = std::process::id();
    // SAFETY: the child calls nothing that a thread of this process which it does not have could
    // hold a lock of; there is none, and if there were, the C library's own locks are whole after fork.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => serve::serve(&theirs, parent, confine),
        _ => Ok(ours),
    }
}

impl Launcher {
    fn socket(&self) -> MutexGuard<'_, OwnedFd> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(
        &self,
        request: Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<(Reply, Vec<OwnedFd>)> {
        let socket = self.socket();
        message::send(socket.as_fd(), &request.words(), descriptors)?;
        let received = message::receive(socket.as_fd())?;
        let Some(received) = received else {
            return Err(io::Error::other("the launcher of processes has ended"));
        };
        let reply = received.words.as_ref().and_then(Reply::parse);
        let reply = reply.ok_or_else(out_of_order)?;
        Ok((reply, received.descriptors))
    }

    /// Asks for what has no reply. If the launcher is gone, nothing is left to do.
    fn say(&self, request: Request, descriptors: &[BorrowedFd<'_>]) {
        let _ = message::send(self.socket().as_fd(), &request.words(), descriptors);
    }

    /// Has the launcher make a process ahead.
    pub(crate) fn prepare(&self, ram: BorrowedFd<'_>, settings: &Settings) {
        self.say(Request::Prepare(*settings), &[ram]);
    }

    /// Makes a process.
    pub(crate) fn make(&self, ram: BorrowedFd<'_>, settings: &Settings) -> io::Result<Made> {
        match self.ask(Request::Make(*settings), &[ram])? {
            (Reply::Made(number), descriptors) => {
                let descriptors = <[OwnedFd; 3]>::try_from(descriptors);
                let [descriptor, shared, results] = descriptors.map_err(|_| out_of_order())?;
                Ok(Made {
                    child: Child { number, descriptor },
                    shared,
                    results,
                })
            }
            (Reply::Refused(error), _) => Err(io::Error::from_raw_os_error(error)),
            _ => Err(out_of_order()),
        }
    }

    /// Why a process has ended, as far as the launcher knows.
    pub(crate) fn death(&self, number: i32) -> Option<Death> {
        match self.ask(Request::Death(number), &[]) {
            Ok((Reply::Dead(death), _)) => Some(death),
            _ => None,
        }
    }

    /// Ends a process.
    pub(crate) fn end(&self, number: i32) {
        self.say(Request::End(number), &[]);
    }

    /// Binds the tasks of a process to a processor.
    pub(crate) fn bind(&self, tasks: [i32; 2], processor: usize) {
        self.say(Request::Bind { tasks, processor }, &[]);
    }
}
