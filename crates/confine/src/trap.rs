//! The end of a process whose thread has asked for what is not on its list: a line and an exit code.

use std::cell::Cell;
use std::ffi::CStr;
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::calls;
use crate::kind::ThreadKind;

/// The code of a SIGSYS that a filter has sent.
const SYS_SECCOMP: i32 = 1;

/// The exit code of the process.
static EXIT_CODE: AtomicI32 = AtomicI32::new(1);

thread_local! {
    /// The calling thread's kind. Without a destructor and with a constant as its first value, it
    /// can be read in a signal handler.
    static KIND: Cell<Option<ThreadKind>> = const { Cell::new(None) };
}

/// Notes the calling thread's kind.
pub fn set_kind(kind: ThreadKind) {
    KIND.set(Some(kind));
}

/// The calling thread's kind, if it has entered one.
pub fn kind() -> Option<ThreadKind> {
    KIND.get()
}

/// Installs the handler of the signal that filters send.
///
/// # Errors
/// The kernel refuses.
pub fn install(exit_code: u8) -> io::Result<()> {
    EXIT_CODE.store(exit_code.into(), Ordering::Relaxed);
    // SAFETY: an all-zero sigaction is a valid starting value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_trap as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the action is initialised, and its handler uses only what a handler may.
    match unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The fields of siginfo_t that a filter's signal has.
#[repr(C)]
struct TrapInfo {
    signal: i32,
    error: i32,
    code: i32,
    padding: i32,
    address: usize,
    call: i32,
    architecture: u32,
}

/// A line that is put together without memory of the heap.
struct Line {
    bytes: [u8; 256],
    length: usize,
}

impl Line {
    const fn new() -> Self {
        Self {
            bytes: [0; 256],
            length: 0,
        }
    }

    fn add(&mut self, text: &str) {
        for (place, byte) in self.bytes[self.length..].iter_mut().zip(text.as_bytes()) {
            *place = *byte;
            self.length += 1;
        }
    }

    fn add_number(&mut self, number: i32) {
        let mut digits = [0; 12];
        let mut at = digits.len();
        let mut rest = number.unsigned_abs();
        while at > 0 {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.add(std::str::from_utf8(&digits[at..]).unwrap_or(""));
    }
}

/// What the C library's heap asks for when it happens to, and does without if it is refused: whether to
/// give memory back in a way that counts.
const OF_THE_HEAP: &CStr = c"/proc/sys/vm/overcommit_memory";

/// Whether the trapped call is the heap's own question.
///
/// # Safety
/// `path` is the path argument of a call that opens a file.
unsafe fn is_of_the_heap(path: *const libc::c_char) -> bool {
    // SAFETY: the C library passes a string. Of anything else this may end the process, which is due
    // then.
    !path.is_null() && unsafe { CStr::from_ptr(path) } == OF_THE_HEAP
}

extern "C" fn on_trap(_signal: i32, info: *mut libc::siginfo_t, frame: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo_t, which is larger and as aligned; of a signal from
    // elsewhere only the code is looked at.
    let info = unsafe { &*info.cast::<TrapInfo>() };
    if info.code == SYS_SECCOMP && i64::from(info.call) == libc::SYS_openat {
        // SAFETY: the kernel passes the interrupted thread's context, which is this thread's alone.
        let registers = unsafe { &mut (*frame.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let path = registers[libc::REG_RSI as usize] as usize as *const libc::c_char;
        // SAFETY: the second argument of this call is a path.
        if unsafe { is_of_the_heap(path) } {
            registers[libc::REG_RAX as usize] = -i64::from(libc::EACCES);
            return;
        }
    }
    let mut line = Line::new();
    let thread = KIND.get().map_or("?", ThreadKind::name);
    line.add("tollgate: confined: the ");
    line.add(thread);
    line.add(" thread ");
    if info.code == SYS_SECCOMP {
        line.add("asked for the system call ");
        match calls::name(info.call) {
            Some(name) => line.add(name),
            None => line.add_number(info.call),
        }
        line.add(", which its kind may not make: an error in tollgate, or an attack; ended\n");
    } else {
        line.add("got SIGSYS from outside; ended\n");
    }
    // SAFETY: the bytes are live. A write that fails changes nothing.
    unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.length) };
    // SAFETY: _exit takes an integer and runs no code of this process.
    unsafe { libc::_exit(EXIT_CODE.load(Ordering::Relaxed)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_where_its_room_ends() {
        let mut line = Line::new();
        line.add_number(0);
        line.add(" ");
        line.add_number(i32::MAX);
        assert_eq!(&line.bytes[..line.length], b"0 2147483647");
        for _ in 0..100 {
            line.add("words and ");
        }
        assert_eq!(line.length, line.bytes.len());
    }
}
