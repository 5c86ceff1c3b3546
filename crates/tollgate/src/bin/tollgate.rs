//! The `tollgate` command. Everything is in the library of the same name, except what must happen
//! before Rust's own start-up.

use std::process::ExitCode;

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
    for stream in 0..3 {
        // SAFETY: fcntl takes and returns integers only with this command.
        if unsafe { libc::fcntl(stream, libc::F_GETFD) } != -1 {
            continue;
        }
        // SAFETY: the path ends with NUL. The lowest free descriptor is this stream.
        if unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) } == -1 {
            // SAFETY: the message is readable. If standard error is closed too, the call fails and
            // changes nothing.
            unsafe {
                libc::write(2, MESSAGE.as_ptr().cast(), MESSAGE.len());
                libc::_exit(1);
            }
        }
    }
}
