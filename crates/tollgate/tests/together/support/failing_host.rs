//! Simulates a host whose disk fails: reads and writes of files from some offset on return EIO.
//!
//! A filter of the kernel (seccomp(2)) makes these system calls fail, by their number and the
//! offset among their arguments. It needs no privilege and no file system of its own.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The system calls that take the offset as their fourth argument.
const CALLS: [libc::c_long; 6] = [
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
];

/// The offsets in `struct seccomp_data` of the number and of the lower half of the fourth argument.
const NUMBER: u32 = 0;
const OFFSET: u32 = 40;

const fn statement(code: u32, value: u32) -> libc::sock_filter {
    jump(code, value, 0, 0)
}

const fn jump(code: u32, value: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: if_true,
        jf: if_false,
        k: value,
    }
}

/// A filter that makes accesses at `offset` and above fail, below 4 GiB.
fn filter(offset: u32) -> Vec<libc::sock_filter> {
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let is_equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let is_not_below = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut filter = vec![statement(load, NUMBER)];
    for (index, call) in CALLS.iter().enumerate() {
        // The distance to the load of the offset, which follows the other comparisons and the first
        // answer.
        let distance = (CALLS.len() - index) as u8;
        filter.push(jump(is_equal, *call as u32, distance, 0));
    }
    filter.extend([
        statement(answer, libc::SECCOMP_RET_ALLOW),
        statement(load, OFFSET),
        jump(is_not_below, offset, 1, 0),
        statement(answer, libc::SECCOMP_RET_ALLOW),
        statement(answer, libc::SECCOMP_RET_ERRNO | libc::EIO as u32),
    ]);
    filter
}

/// Makes reads and writes of the program fail from `offset` on.
pub fn fail_from(command: &mut Command, offset: u32) {
    let mut filter = filter(offset);
    let install = move || {
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: both calls take integers and pointers to a structure and a filter that live
        // during the calls.
        let result = unsafe {
            match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
                0 => libc::prctl(
                    libc::PR_SET_SECCOMP,
                    libc::SECCOMP_MODE_FILTER,
                    &raw const program,
                ),
                error => error,
            }
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec the closure makes two system calls, and allocates nothing.
    unsafe { command.pre_exec(install) };
}
