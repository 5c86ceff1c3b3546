//! The `tollgate` command. All of it is in the library of the same name, but for what must happen
//! before Rust's own start-up.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate::main()
}

/// Called by the C library before `main`.
#[used]
// SAFETY: the section holds pointers to functions that the C library calls once, in order.
#[unsafe(link_section = ".init_array")]
static OPEN_STREAMS: extern "C" fn() = open_streams;

/// Opens /dev/null for standard streams that are closed, as Rust's start-up does, but says so where
/// that is not there: without a message the process would abort.
extern "C" fn open_streams() {
    const MESSAGE: &[u8] =
        b"tollgate: a standard stream is closed, and /dev/null cannot be opened instead\n";
    for stream in 0..3 {
        // SAFETY: fcntl with this command takes and returns integers only.
        if unsafe { libc::fcntl(stream, libc::F_GETFD) } != -1 {
            continue;
        }
        // SAFETY: the path ends with NUL. The lowest free descriptor is this stream.
        if unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) } == -1 {
            // SAFETY: the message is readable; where nobody can be told nothing happens.
            unsafe {
                libc::write(2, MESSAGE.as_ptr().cast(), MESSAGE.len());
                libc::_exit(1);
            }
        }
    }
}
