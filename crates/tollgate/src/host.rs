//! The few system calls that the standard library does not offer, each as a safe function.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::retry_on_intr;
use rustix::termios::tcgetwinsize;

use crate::signal_set::SignalSet;

/// The result of a system call that returns -1 on failure.
///
/// # Errors
///
/// The error in `errno`.
pub fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Takes ownership of the descriptor that a system call has just returned.
///
/// # Errors
/// The error in `errno` if `result` is negative.
pub fn owned(result: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: the system call has just returned this descriptor, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Ends the process immediately with this exit code. No destructors run: another thread may still
/// use what they destroy.
pub fn end_process(code: u8) -> ! {
    // SAFETY: _exit takes an integer and runs no code of this process.
    unsafe { libc::_exit(code.into()) }
}

/// A descriptor to wait for, as poll(2) takes it. A negative `fd` is ignored.
pub fn interest(fd: RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd {
        fd,
        events,
        revents: 0,
    }
}

/// Waits until a descriptor is ready or `timeout` is over. If a signal arrives, nothing is ready.
///
/// # Errors
///
/// The errors of poll(2), except for EINTR.
pub fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    poll_with_mask(fds, timeout, None)
}

/// Waits as [`poll`] does, with the signals of `mask` blocked in place of those that are blocked
/// now.
///
/// # Errors
///
/// The errors of ppoll(2), except for EINTR.
pub fn poll_with_mask(
    fds: &mut [libc::pollfd],
    timeout: Option<Duration>,
    mask: Option<&SignalSet>,
) -> io::Result<()> {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref);
    let mask = mask.map_or(std::ptr::null(), |mask| std::ptr::from_ref(mask.raw()));
    let count = fds.len() as libc::nfds_t;
    // SAFETY: `fds` is a valid array of `count` elements for the duration of the call; timeout
    // and mask are null or live.
    match check(unsafe { libc::ppoll(fds.as_mut_ptr(), count, timeout, mask) }) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {
            for fd in fds {
                fd.revents = 0;
            }
            Ok(())
        }
        Err(error) => Err(error),
        Ok(_) => Ok(()),
    }
}

/// Reads the bytes that are available, at most `buffer.len()`; 0 means the end.
///
/// # Errors
///
/// The errors of read(2), except for EINTR.
pub fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(retry_on_intr(|| rustix::io::read(fd, &mut *buffer))?)
}

/// Makes reads and writes of `fd` return instead of waiting. This affects every process that shares
/// the open file, so it must not be called for an inherited standard stream.
///
/// # Errors
///
/// The errors of fcntl(2).
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?)
}

/// A counter that becomes readable when another thread adds to it.
///
/// # Errors
///
/// The errors of eventfd(2).
pub fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes an [`event`] readable.
pub fn raise(event: BorrowedFd<'_>) {
    // A counter that is full is readable already, so a failure can be ignored.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Columns and rows of a terminal. `None` if the descriptor is not a terminal, or the terminal does
/// not know its size.
pub fn window_size(fd: BorrowedFd<'_>) -> Option<(usize, usize)> {
    let size = tcgetwinsize(fd).ok()?;
    let is_known = size.ws_col > 0 && size.ws_row > 0;
    is_known.then_some((size.ws_col.into(), size.ws_row.into()))
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};

    use super::*;

    #[test]
    fn a_raised_event_ends_a_poll() {
        let event = event().unwrap();
        let mut fds = [interest(event.as_raw_fd(), libc::POLLIN)];
        poll(&mut fds, Some(Duration::ZERO)).unwrap();
        assert_eq!(fds[0].revents, 0);
        raise(event.as_fd());
        poll(&mut fds, None).unwrap();
        assert_eq!(fds[0].revents, libc::POLLIN);
    }
}
