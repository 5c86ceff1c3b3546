//! The pipe by which a process reports what its own program cannot forge: only the mapper, and the
//! stub before any program runs, may write to it.

use std::io;
use std::os::fd::OwnedFd;

/// The next byte of the pipe, or nothing if no process has its other end.
pub fn read_byte(results: &OwnedFd) -> io::Result<Option<u8>> {
    let mut byte = [0];
    loop {
        match rustix::io::read(results, &mut byte) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(byte[0])),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
