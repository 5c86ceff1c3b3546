//! Makes a terminal: the side of the person and the side of the program.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::eventually;

/// A new pseudo-terminal.
pub struct Terminal {
    /// The side at which a person reads and types.
    pub person: File,
    program: OwnedFd,
}

/// The flags of a terminal's settings: input, output, control, local.
pub type Settings = [libc::tcflag_t; 4];

impl Terminal {
    /// Opens a pseudo-terminal with the usual settings: lines, echo, signals.
    pub fn new() -> Self {
        let (mut person, mut program) = (0, 0);
        let null = std::ptr::null_mut();
        // SAFETY: both descriptors are valid for writing; null asks for the defaults.
        let result =
            unsafe { libc::openpty(&mut person, &mut program, null, null.cast(), null.cast()) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        for fd in [person, program] {
            // The side of the person must not stay open in programs that other tests start at the
            // same time. SAFETY: fcntl takes integers only with this command.
            let result = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
            assert_eq!(result, 0);
        }
        // SAFETY: openpty has just returned these descriptors.
        unsafe {
            Self {
                person: File::from_raw_fd(person),
                program: OwnedFd::from_raw_fd(program),
            }
        }
    }

    /// The settings as they are now.
    pub fn settings(&self) -> Settings {
        settings(&self.program)
    }

    /// Starts `command` as the process in this terminal's foreground.
    pub fn start(&self, mut command: Command) -> Child {
        let stdio = || Stdio::from(self.program.try_clone().unwrap());
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        // SAFETY: setsid and ioctl may be called between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        command.spawn().unwrap()
    }

    /// Calls [`Self::start`] and waits until the command has switched the terminal to raw mode.
    #[track_caller]
    pub fn start_raw(&self, command: Command) -> Child {
        let before = self.settings();
        let child = self.start(command);
        eventually("raw mode", || (self.settings() != before).then_some(()));
        child
    }
}

/// The settings of the terminal that a descriptor leads to.
pub fn settings(terminal: &impl AsRawFd) -> Settings {
    // SAFETY: termios consists of integers, for which zero is valid.
    let mut settings = unsafe { std::mem::zeroed::<libc::termios>() };
    // SAFETY: `settings` is valid for writing.
    let result = unsafe { libc::tcgetattr(terminal.as_raw_fd(), &mut settings) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    [
        settings.c_iflag,
        settings.c_oflag,
        settings.c_cflag,
        settings.c_lflag,
    ]
}
