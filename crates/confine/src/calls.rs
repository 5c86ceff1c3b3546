//! The system calls that each kind of thread may make, and their names.

use crate::kind::ThreadKind;

/// A system call: its number and its name.
pub type Call = (i64, &'static str);

/// Calls by their names.
macro_rules! calls {
    ($($name:ident)*) => { &[$((libc::$name, stringify!($name))),*] };
}

/// What every thread needs: its memory, its end, locks, time, signals, and its open descriptors.
/// Of those that [`crate::filter`] names, not every use is allowed.
const EVERY_THREAD: &[Call] = calls! {
    SYS_read SYS_write SYS_readv SYS_writev SYS_close SYS_fstat SYS_lseek
    SYS_poll SYS_ppoll SYS_fcntl SYS_ioctl SYS_dup
    SYS_mmap SYS_munmap SYS_mprotect SYS_mremap SYS_madvise SYS_brk
    SYS_futex SYS_sched_yield SYS_set_robust_list SYS_rseq SYS_membarrier
    SYS_exit SYS_exit_group SYS_restart_syscall
    SYS_clock_gettime SYS_clock_getres SYS_gettimeofday SYS_time SYS_clock_nanosleep SYS_nanosleep
    SYS_rt_sigreturn SYS_rt_sigprocmask SYS_sigaltstack SYS_tgkill
    SYS_getpid SYS_gettid SYS_getuid SYS_geteuid SYS_getgid SYS_getegid
    SYS_sched_getaffinity SYS_getcpu SYS_getrandom SYS_getrlimit SYS_prctl
    SYS_recvfrom SYS_sendto SYS_shutdown SYS_eventfd2
};

/// Reading and writing files that are open already.
const OPEN_FILES: &[Call] = calls! {
    SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2
    SYS_fsync SYS_fdatasync SYS_fallocate SYS_ftruncate SYS_fstatfs SYS_fadvise64 SYS_flock
    SYS_copy_file_range SYS_sync_file_range
};

/// Waiting for many descriptors, and datagrams.
const SOCKETS: &[Call] = calls! {
    SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_wait SYS_epoll_pwait SYS_epoll_pwait2
    SYS_accept4 SYS_accept SYS_recvmsg SYS_sendmsg SYS_recvmmsg SYS_sendmmsg
    SYS_getsockopt SYS_setsockopt SYS_getsockname SYS_getpeername SYS_prlimit64
};

/// Connections to the outside.
const CONNECTIONS: &[Call] = calls! { SYS_socket SYS_connect SYS_bind };

/// Running guest code: timers, sleep until a signal comes, threads that help, and on which processors
/// the thread itself runs.
const GUEST_CODE: &[Call] = calls! {
    SYS_timer_create SYS_timer_settime SYS_timer_gettime SYS_timer_getoverrun SYS_timer_delete
    SYS_rt_sigtimedwait SYS_clone SYS_prlimit64 SYS_sched_setaffinity
};

/// Looking for files beneath a directory that is open, and reading what they are.
const LOOK_UP: &[Call] = calls! {
    SYS_openat2 SYS_openat SYS_open SYS_statx SYS_newfstatat SYS_stat SYS_lstat SYS_readlinkat SYS_readlink SYS_getdents64
    SYS_getxattr SYS_fgetxattr SYS_listxattr SYS_flistxattr SYS_statfs
};

/// Changing files beneath a directory that is open.
const CHANGE: &[Call] = calls! {
    SYS_mkdirat SYS_mknodat SYS_unlinkat SYS_symlinkat SYS_linkat SYS_renameat2 SYS_renameat
    SYS_fchmod SYS_fchmodat SYS_chmod SYS_fchown SYS_fchownat SYS_utimensat SYS_truncate
    SYS_setxattr SYS_fsetxattr SYS_removexattr SYS_fremovexattr SYS_syncfs SYS_faccessat
    SYS_faccessat2 SYS_umask SYS_prlimit64 SYS_setrlimit
};

/// What the threads around the machine do in addition to all others: they set it up, obey control
/// clients, write what was measured, and start threads, which then confine themselves further. The
/// calls that start programs, and those that reach other processes, the kernel's own state or its
/// rarely used parts, are on no list.
const AROUND: &[Call] = calls! {
    SYS_access SYS_mkdir SYS_rmdir SYS_rename SYS_link SYS_unlink
    SYS_getcwd SYS_getpgrp SYS_getppid SYS_getpgid SYS_getsid SYS_getgroups SYS_uname SYS_sysinfo
    SYS_getrusage SYS_times SYS_socketpair SYS_listen SYS_pipe2 SYS_dup2 SYS_dup3 SYS_memfd_create
    SYS_memfd_secret SYS_splice SYS_sendfile SYS_select SYS_pselect6 SYS_set_tid_address SYS_arch_prctl
    SYS_rt_sigaction SYS_rt_sigpending SYS_rt_sigsuspend SYS_rt_sigqueueinfo SYS_signalfd4
    SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime SYS_getitimer SYS_setitimer
    SYS_mlock SYS_mlock2 SYS_munlock SYS_msync SYS_mincore SYS_pidfd_open SYS_fchdir SYS_utime
    SYS_seccomp SYS_capget SYS_capset SYS_landlock_create_ruleset SYS_landlock_add_rule
    SYS_landlock_restrict_self SYS_userfaultfd SYS_setsid SYS_sched_get_priority_min
    SYS_sched_getparam SYS_sched_getscheduler SYS_getpriority
};

/// Asking the launcher for processes, running programs in them, and making these leave. Of all but one,
/// not every use is allowed (see [`crate::filter`]).
const NATIVE: &[Call] = calls! {
    SYS_sendmsg SYS_recvmsg SYS_futex_waitv SYS_pidfd_send_signal
};

/// What the launcher may do, and the processes that it starts: serve a socket, make files in memory and
/// execute them, end and place its children; map memory, set up signals and a task, and filter
/// themselves further.
pub const LAUNCHER: &[Call] = calls! {
    SYS_futex SYS_rt_sigreturn SYS_recvmsg SYS_sendmsg SYS_read SYS_write SYS_pwrite64 SYS_close
    SYS_mmap SYS_munmap SYS_mprotect SYS_mremap SYS_madvise SYS_brk
    SYS_memfd_create SYS_ftruncate SYS_fstat SYS_pipe2 SYS_fcntl SYS_dup3 SYS_close_range
    SYS_clone SYS_execveat SYS_setpgid SYS_prctl SYS_arch_prctl SYS_prlimit64 SYS_setrlimit
    SYS_getpid SYS_getppid SYS_gettid SYS_waitid SYS_pidfd_send_signal SYS_tgkill SYS_sched_setaffinity
    SYS_rt_sigprocmask SYS_rt_sigaction SYS_sigaltstack SYS_set_tid_address SYS_seccomp
    SYS_restart_syscall SYS_exit SYS_exit_group
};

/// Starting and ending a program of the host, for a machine that has one.
pub const PROGRAMS: &[Call] = calls! {
    SYS_fork SYS_vfork SYS_execve SYS_wait4 SYS_waitid SYS_kill SYS_pidfd_send_signal SYS_setpgid
    SYS_chdir SYS_close_range
};

/// What no thread may do, for messages alone.
const NAMED: &[Call] = calls! {
    SYS_clone3 SYS_execveat SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_unshare SYS_setns
    SYS_mount SYS_umount2 SYS_pivot_root SYS_chroot SYS_bpf SYS_perf_event_open SYS_io_uring_setup
    SYS_io_uring_enter SYS_io_uring_register SYS_keyctl SYS_add_key SYS_request_key SYS_tkill
    SYS_init_module SYS_finit_module SYS_delete_module SYS_kexec_load SYS_reboot SYS_swapon
    SYS_open_by_handle_at SYS_name_to_handle_at SYS_process_madvise SYS_process_mrelease
    SYS_pidfd_getfd SYS_kcmp SYS_personality SYS_iopl SYS_ioperm SYS_modify_ldt SYS_setuid
    SYS_setgid SYS_setresuid SYS_setresgid SYS_setgroups SYS_move_mount SYS_open_tree SYS_fsmount
    SYS_mount_setattr SYS_fanotify_init SYS_inotify_init1 SYS_remap_file_pages SYS_pkey_mprotect
    SYS_vmsplice SYS_tee SYS_shmget SYS_shmat SYS_msgget SYS_semget SYS_mq_open
    SYS_creat SYS_openat SYS_pipe SYS_inotify_add_watch
    SYS_sched_setscheduler SYS_setpriority SYS_fsopen
};

/// What a machine has, as far as the lists depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Uses {
    /// It serves directories.
    pub shares: bool,
    /// It runs a program of the host.
    pub programs: bool,
    /// The descriptor of the socket of the launcher, if programs can run natively.
    pub launcher: Option<i32>,
}

/// The lists for threads of a kind, which together say what they may do.
pub fn lists(kind: ThreadKind, uses: Uses) -> Vec<&'static [Call]> {
    let mut lists = vec![EVERY_THREAD];
    match kind {
        ThreadKind::Vcpu => {
            lists.extend([OPEN_FILES, GUEST_CODE]);
            if uses.shares {
                // It answers itself what the host's kernel has in memory.
                lists.push(LOOK_UP);
            }
            if uses.launcher.is_some() {
                lists.push(NATIVE);
            }
        }
        ThreadKind::Disk => lists.push(OPEN_FILES),
        // The first of its threads starts the others.
        ThreadKind::Share => lists.extend([OPEN_FILES, LOOK_UP, CHANGE, calls! { SYS_clone }]),
        ThreadKind::Network => {
            lists.extend([
                SOCKETS,
                CONNECTIONS,
                calls! { SYS_openat SYS_open SYS_statx SYS_newfstatat },
            ]);
        }
        ThreadKind::Vsock => lists.extend([SOCKETS, CONNECTIONS]),
        ThreadKind::Ports => lists.extend([SOCKETS, calls! { SYS_openat }]),
        ThreadKind::Vnc => lists.push(SOCKETS),
        ThreadKind::Worker => {}
        ThreadKind::Main => {
            lists.extend([
                OPEN_FILES,
                SOCKETS,
                CONNECTIONS,
                GUEST_CODE,
                LOOK_UP,
                CHANGE,
                AROUND,
            ]);
            if uses.programs {
                lists.push(PROGRAMS);
            }
            // The vCPU's thread has the limits of the thread that starts it, too.
            if uses.launcher.is_some() {
                lists.push(NATIVE);
            }
        }
    }
    lists
}

/// The name of a call, if it is known.
pub fn name(number: i32) -> Option<&'static str> {
    let lists = [
        NAMED,
        EVERY_THREAD,
        OPEN_FILES,
        SOCKETS,
        CONNECTIONS,
        GUEST_CODE,
        LOOK_UP,
        CHANGE,
        AROUND,
        NATIVE,
        PROGRAMS,
    ];
    let mut calls = lists.into_iter().flatten();
    let (_, name) = calls.find(|(known, _)| *known == i64::from(number))?;
    name.strip_prefix("SYS_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_starts_programs_or_reaches_other_processes() {
        for kind in ThreadKind::ALL {
            let uses = Uses {
                shares: true,
                programs: false,
                launcher: None,
            };
            let allowed: Vec<i64> = lists(kind, uses)
                .into_iter()
                .flatten()
                .map(|call| call.0)
                .collect();
            for (number, name) in NAMED.iter().chain(PROGRAMS) {
                let is_opening = *name == "SYS_openat";
                assert!(is_opening || !allowed.contains(number), "{kind:?} {name}");
            }
        }
    }

    #[test]
    fn calls_have_names() {
        assert_eq!(name(libc::SYS_openat as i32), Some("openat"));
        assert_eq!(name(libc::SYS_read as i32), Some("read"));
        assert_eq!(name(100_000), None);
    }
}
