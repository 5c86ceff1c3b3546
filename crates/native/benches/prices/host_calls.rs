//! A system call, and the signals that could end native code, each with the way back, in one process.

use crate::{print, time};
use std::ptr::null_mut;

/// `PR_SET_SYSCALL_USER_DISPATCH`, on, and the selector's value that blocks calls.
const USER_DISPATCH: libc::c_int = 59;
const DISPATCH_BLOCK: u8 = 1;

static mut SELECTOR: u8 = 0;

extern "C" fn step_over(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a context; the faulting instruction has 3 bytes.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        registers[libc::REG_RIP as usize] += 3;
    }
}

extern "C" fn nothing(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: one thread; rt_sigreturn must not be caught.
    unsafe { SELECTOR = 0 };
}

fn handle(
    signal: libc::c_int,
    handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void),
) {
    // SAFETY: an all-zero action is empty; the handler is one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(signal, &raw const action, null_mut());
    }
}

fn call() {
    // SAFETY: getppid has no effect.
    unsafe { libc::syscall(libc::SYS_getppid) };
}

/// Measures in a child, whose filters and handlers end with it.
fn in_child(measure: impl FnOnce()) {
    // SAFETY: this program has one thread.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            measure();
            libc::_exit(0);
        }
        libc::waitpid(child, null_mut(), 0);
    }
}

pub fn all(rounds: usize) {
    print("getppid", time(rounds, call));
    in_child(|| {
        handle(libc::SIGSYS, nothing);
        // Of getppid alone: load the number, compare, trap or allow.
        let mut filter = [
            (0x20, 0, 0, 0),
            (0x15, 0, 1, libc::SYS_getppid as u32),
            (0x06, 0, 0, libc::SECCOMP_RET_TRAP),
            (0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
        ]
        .map(|(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k });
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: the program lives through the call.
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::syscall(libc::SYS_seccomp, 1, 4, &raw const program);
        }
        print("SIGSYS by a seccomp filter and back", time(rounds, call));
    });
    in_child(|| {
        handle(libc::SIGSYS, nothing);
        // SAFETY: the selector is a static; calls are caught only while it says so.
        let result = unsafe { libc::prctl(USER_DISPATCH, 1, 0, 0, &raw mut SELECTOR) };
        if result != 0 {
            println!("not run: the host offers no system call user dispatch");
            return;
        }
        let times = time(rounds, || {
            // SAFETY: one thread.
            unsafe { SELECTOR = DISPATCH_BLOCK };
            call();
        });
        print("SIGSYS by system call user dispatch and back", times);
    });
    in_child(|| {
        handle(libc::SIGSEGV, step_over);
        let times = time(rounds, || {
            // SAFETY: the handler steps over the load, whose instruction has 3 bytes.
            unsafe {
                std::arch::asm!("mov {0:r}, qword ptr [{1}]", out(reg) _, in(reg) 8u64);
            }
        });
        print("SIGSEGV and back", times);
    });
}
