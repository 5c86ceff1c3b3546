//! The `tollgate` command. Everything is in the library of the same name, except what must happen
//! before Rust's own start-up.

use std::os::fd::IntoRawFd;
use std::process::ExitCode;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{fcntl_getfd, write};
use rustix::stdio::{stderr, stdin, stdout};

fn main() -> ExitCode {
    tollgate::main()
}

/// The C library calls this function before `main`.
#[used]
// SAFETY: the section holds pointers to functions that the C library calls once, in order.
#[unsafe(link_section = ".init_array")]
static OPEN_STREAMS: extern "C" fn() = open_streams;

/// Opens /dev/null for standard streams that are closed, as Rust's start-up does. If /dev/null is
/// missing, this reports it; Rust's start-up would abort the process without a message.
extern "C" fn open_streams() {
    const MESSAGE: &[u8] =
        b"tollgate: a standard stream is closed, and /dev/null cannot be opened instead\n";
    for stream in [stdin(), stdout(), stderr()] {
        if fcntl_getfd(stream).is_ok() {
            continue;
        }
        // The lowest free descriptor is this stream, which stays open.
        match open(c"/dev/null", OFlags::RDWR, Mode::empty()) {
            Ok(null) => _ = null.into_raw_fd(),
            Err(_) => {
                // If standard error is closed too, this fails and changes nothing.
                let _ = write(stderr(), MESSAGE);
                std::process::exit(1);
            }
        }
    }
}
