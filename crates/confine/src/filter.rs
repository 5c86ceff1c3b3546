//! The filters that the kernel applies to system calls, made from the lists.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, sock_filter,
};

use crate::calls::{self, Uses};
use crate::kind::ThreadKind;

/// The flags of clone that make a thread, rather than a process.
const THREAD: u64 = libc::CLONE_THREAD as u64;
/// The flags of clone that make namespaces, in the 32 bits that they have there.
const NAMESPACES: u64 = 0x7e02_0000;
/// What fcntl may be asked for: copies, flags, locks, and seals. It may not name a process that gets
/// signals.
const FCNTL: [i32; 13] = [
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_OFD_GETLK,
    libc::F_OFD_SETLK,
    libc::F_OFD_SETLKW,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
    libc::F_GETPIPE_SZ,
];
/// What ioctl may be asked for by all threads: what a terminal is like (TCGETS, TIOCGWINSZ, TIOCGPGRP),
/// how much can be read, and not to wait (FIONREAD, FIONBIO). The C libraries' constants differ in type.
const IOCTL: [u64; 5] = [0x5401, 0x5413, 0x540f, 0x541b, 0x5421];
/// What ioctl may not be asked for by any thread: to type into a terminal for its other users (TIOCSTI,
/// TIOCLINUX).
const NEVER_IOCTL: [u64; 2] = [0x5412, 0x541c];
/// What prctl may be asked for: a thread's name, how exact its timers are, names of memory, and giving
/// up privileges.
const PRCTL: [i32; 6] = [
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_SET_TIMERSLACK,
    libc::PR_SET_NO_NEW_PRIVS,
    libc::PR_GET_SECCOMP,
    libc::PR_SET_VMA,
];
/// The flags of open and openat that change anything.
const CHANGING: u64 = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND) as u64;

/// The rules of one call: it is allowed if one of them holds, and always if there is none.
type Rules = Vec<SeccompRule>;

/// A comparison of the lower half of an argument, as the kernel takes most of them.
fn argument(
    number: u8,
    comparison: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(number, SeccompCmpArgLen::Dword, comparison, value)
}

/// One rule for each of the values that an argument may have.
fn one_of(number: u8, values: impl IntoIterator<Item = u64>) -> Result<Rules, BackendError> {
    let rule = |value| SeccompRule::new(vec![argument(number, SeccompCmpOp::Eq, value)?]);
    values.into_iter().map(rule).collect()
}

/// A rule about the bits of one argument.
fn bits(number: u8, mask: u64, value: u64) -> Result<Rules, BackendError> {
    let condition = argument(number, SeccompCmpOp::MaskedEq(mask), value)?;
    Ok(vec![SeccompRule::new(vec![condition])?])
}

/// The rules for a call of threads of a kind.
fn rules(kind: ThreadKind, call: i64, uses: Uses) -> Result<Rules, BackendError> {
    let is_around = kind == ThreadKind::Main;
    match call {
        libc::SYS_tgkill => one_of(0, [std::process::id().into()]),
        libc::SYS_clone if !uses.programs || !is_around => bits(0, THREAD | NAMESPACES, THREAD),
        // Code is only made where the machine is built.
        libc::SYS_mmap | libc::SYS_mprotect if !is_around => bits(2, libc::PROT_EXEC as u64, 0),
        libc::SYS_prctl => one_of(0, PRCTL.map(|option| option as u64)),
        libc::SYS_fcntl if !is_around => one_of(1, FCNTL.map(|command| command as u64)),
        libc::SYS_ioctl if is_around || kind == ThreadKind::Disk => {
            let never = |value| argument(1, SeccompCmpOp::Ne, value);
            let conditions: Result<Vec<_>, _> = NEVER_IOCTL.into_iter().map(never).collect();
            Ok(vec![SeccompRule::new(conditions?)?])
        }
        libc::SYS_ioctl => one_of(1, IOCTL),
        // To the other end of a connection, and nowhere else.
        libc::SYS_sendto if !is_around && kind != ThreadKind::Network => {
            let none = SeccompCondition::new(4, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
            Ok(vec![SeccompRule::new(vec![none])?])
        }
        // To the launcher, and to make a program leave its process.
        libc::SYS_sendmsg | libc::SYS_recvmsg if kind == ThreadKind::Vcpu => {
            one_of(0, uses.launcher.map(|descriptor| descriptor as u64))
        }
        libc::SYS_pidfd_send_signal if !is_around || !uses.programs => {
            one_of(1, [libc::SIGUSR1 as u64])
        }
        // Of the calling thread.
        libc::SYS_sched_setaffinity => one_of(0, [0]),
        libc::SYS_openat if kind == ThreadKind::Vcpu || kind == ThreadKind::Network => {
            bits(2, CHANGING, 0)
        }
        libc::SYS_open if kind == ThreadKind::Vcpu || kind == ThreadKind::Network => {
            bits(1, CHANGING, 0)
        }
        libc::SYS_socket if kind == ThreadKind::Network => {
            one_of(0, [libc::AF_INET as u64, libc::AF_INET6 as u64])
        }
        libc::SYS_socket if kind == ThreadKind::Vsock => one_of(0, [libc::AF_UNIX as u64]),
        _ => Ok(Vec::new()),
    }
}

/// The filter for threads of a kind.
///
/// # Errors
/// A list is too long, which a test would have found.
pub fn filter(kind: ThreadKind, uses: Uses) -> Result<BpfProgram, BackendError> {
    let mut map = BTreeMap::new();
    for (call, _) in calls::lists(kind, uses).into_iter().flatten() {
        map.insert(*call, rules(kind, *call, uses)?);
    }
    let program = compiled(map)?;
    Ok(without_clone3().into_iter().chain(program).collect())
}

/// The flags of clone with which the launcher starts a process (it waits until that has executed), and
/// those with which such a process makes its second task.
const CLONE: [i32; 2] = [
    libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD,
    libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID,
];
/// What the launcher and its processes may ask prctl for: to end with the parent, no privileges, names,
/// RDTSC that faults, and system calls as signals (PR_SET_SYSCALL_USER_DISPATCH).
const PRCTL_OF_LAUNCHER: [i32; 5] = [
    libc::PR_SET_PDEATHSIG,
    libc::PR_SET_NO_NEW_PRIVS,
    libc::PR_SET_NAME,
    libc::PR_SET_TSC,
    59,
];
/// What they may ask arch_prctl for: CPUID that faults (ARCH_SET_CPUID).
const ARCH_PRCTL: u64 = 0x1012;

/// The rules for a call of the launcher and its processes.
fn rules_of_launcher(call: i64) -> Result<Rules, BackendError> {
    match call {
        libc::SYS_clone => one_of(0, CLONE.map(|flags| flags as u64)),
        libc::SYS_prctl => one_of(0, PRCTL_OF_LAUNCHER.map(|option| option as u64)),
        libc::SYS_arch_prctl => one_of(0, [ARCH_PRCTL]),
        libc::SYS_fcntl => one_of(1, [libc::F_DUPFD, libc::F_GETFD].map(|it| it as u64)),
        libc::SYS_execveat => one_of(4, [libc::AT_EMPTY_PATH as u64]),
        libc::SYS_seccomp => one_of(0, [libc::SECCOMP_SET_MODE_FILTER.into()]),
        libc::SYS_pidfd_send_signal => one_of(1, [libc::SIGKILL as u64]),
        // It only asks whether a task exists.
        libc::SYS_tgkill => one_of(2, [0]),
        _ => Ok(Vec::new()),
    }
}

/// The filter for the launcher. It ends the process that does anything else, but only if no filter that
/// was added later decides otherwise: an action that is as strict gives way to the newer filter's.
///
/// # Errors
/// As for [`filter`].
pub fn of_launcher() -> Result<BpfProgram, BackendError> {
    let mut map = BTreeMap::new();
    for (call, _) in calls::LAUNCHER {
        map.insert(*call, rules_of_launcher(*call)?);
    }
    compiled(map)
}

/// The instructions that allow these calls under their rules, and trap all others.
fn compiled(rules: BTreeMap<i64, Vec<SeccompRule>>) -> Result<BpfProgram, BackendError> {
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Trap,
        SeccompAction::Allow,
        TargetArch::x86_64,
    )?;
    filter.try_into()
}

/// Instructions before a filter's own that make clone3 seem not to exist. The C library starts threads by
/// clone then, whose flags a filter can see.
fn without_clone3() -> [sock_filter; 3] {
    let instruction = |code: u32, k: u32, jt, jf| sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    // The number of the call is the first word of what a filter sees.
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let compare = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let refused = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    [
        instruction(load, 0, 0, 0),
        instruction(compare, libc::SYS_clone3 as u32, 0, 1),
        instruction(libc::BPF_RET | libc::BPF_K, refused, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_filter() {
        for kind in ThreadKind::ALL {
            for has_all in [false, true] {
                let uses = Uses {
                    shares: has_all,
                    programs: has_all,
                    launcher: has_all.then_some(3),
                };
                assert!(filter(kind, uses).unwrap().len() > 50, "{kind:?}");
            }
        }
    }
}
