//! Threads that turn hostile. Each attempt is made in a process of its own (this program, started
//! again), on a thread that was confined exactly as those of a machine are.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};
use tollgate_confine::{
    Confine, Part, Setup, ThreadKind, Tree, TreeAccess, begin, elsewhere, on_own_thread, report,
};

/// The exit code of a process that is ended for what a thread did.
const ENDED: u8 = 77;
/// The variable that names the attempt of a process that was started again.
const ATTEMPT: &str = "TOLLGATE_ATTEMPT";
/// The variable with the number of the process that started this one.
const PARENT: &str = "TOLLGATE_PARENT";
/// The variable with the descriptor of a launcher's socket, for machines with native programs.
const LAUNCHER: &str = "TOLLGATE_LAUNCHER";
/// The variable that names the directory that is served.
const SERVED: &str = "TOLLGATE_SERVED";

/// The result of a system call, which is an error if negative.
fn call(number: i64, arguments: [usize; 6]) -> Result<i64, i32> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the attempts pass pointers to live memory, or null; what they ask for is refused.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 {
        // SAFETY: errno is the calling thread's.
        return Err(unsafe { *libc::__errno_location() });
    }
    Ok(result)
}

fn plain(number: i64) -> Result<i64, i32> {
    call(number, [0; 6])
}

/// What a hostile thread tries: its name, and what it does.
type Attempt = (&'static str, fn() -> Result<i64, i32>);

const HOSTS: &std::ffi::CStr = c"/etc/hosts";

/// What ends the process. The name's first word is the call that the line must name.
const FORBIDDEN: &[Attempt] = &[
    ("open a file", || {
        call(libc::SYS_open, [HOSTS.as_ptr() as usize, 0, 0, 0, 0, 0])
    }),
    ("openat a file", || {
        let directory = libc::AT_FDCWD as usize;
        call(
            libc::SYS_openat,
            [directory, HOSTS.as_ptr() as usize, 0, 0, 0, 0],
        )
    }),
    ("openat2 a file", || plain(libc::SYS_openat2)),
    ("creat a file", || plain(libc::SYS_creat)),
    ("unlinkat a file", || plain(libc::SYS_unlinkat)),
    ("memfd_create a file", || plain(libc::SYS_memfd_create)),
    ("open_by_handle_at a file", || {
        plain(libc::SYS_open_by_handle_at)
    }),
    ("socket to anywhere", || {
        call(libc::SYS_socket, [libc::AF_INET as usize, 1, 0, 0, 0, 0])
    }),
    ("connect a socket", || plain(libc::SYS_connect)),
    ("bind a socket", || plain(libc::SYS_bind)),
    ("sendmsg with descriptors", || plain(libc::SYS_sendmsg)),
    ("sendto an address", || {
        let address = [0_u8; 16];
        call(
            libc::SYS_sendto,
            [3, 0, 0, 0, address.as_ptr() as usize, 16],
        )
    }),
    ("execve a program", || plain(libc::SYS_execve)),
    ("execveat a program", || plain(libc::SYS_execveat)),
    ("fork", || plain(libc::SYS_fork)),
    ("vfork", || plain(libc::SYS_vfork)),
    ("clone a process", || {
        call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0, 0])
    }),
    ("clone into a namespace", || {
        let flags = libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_NEWNS;
        call(libc::SYS_clone, [flags as usize, 0, 0, 0, 0, 0])
    }),
    ("kill a process", || {
        call(libc::SYS_kill, [parent(), 0, 0, 0, 0, 0])
    }),
    ("tgkill another process", || {
        call(libc::SYS_tgkill, [parent(), parent(), 0, 0, 0, 0])
    }),
    ("tkill a thread", || plain(libc::SYS_tkill)),
    ("pidfd_open a process", || plain(libc::SYS_pidfd_open)),
    ("pidfd_send_signal to a process", || {
        plain(libc::SYS_pidfd_send_signal)
    }),
    ("pidfd_send_signal to end a process", || {
        let signal = libc::SIGKILL as usize;
        call(libc::SYS_pidfd_send_signal, [5, signal, 0, 0, 0, 0])
    }),
    ("sendmsg to another socket", || {
        call(libc::SYS_sendmsg, [1, 0, 0, 0, 0, 0])
    }),
    ("recvmsg from another socket", || {
        call(libc::SYS_recvmsg, [1, 0, 0, 0, 0, 0])
    }),
    ("sched_setaffinity of a process", || {
        call(libc::SYS_sched_setaffinity, [parent(), 0, 0, 0, 0, 0])
    }),
    ("waitid for a process", || plain(libc::SYS_waitid)),
    ("fcntl to send signals", || {
        call(
            libc::SYS_fcntl,
            [0, libc::F_SETOWN as usize, parent(), 0, 0, 0],
        )
    }),
    ("process_vm_readv of a process", || {
        plain(libc::SYS_process_vm_readv)
    }),
    ("process_vm_writev of a process", || {
        plain(libc::SYS_process_vm_writev)
    }),
    ("ptrace a process", || {
        call(
            libc::SYS_ptrace,
            [libc::PTRACE_ATTACH as usize, parent(), 0, 0, 0, 0],
        )
    }),
    ("unshare", || {
        call(
            libc::SYS_unshare,
            [libc::CLONE_NEWUSER as usize, 0, 0, 0, 0, 0],
        )
    }),
    ("setns", || plain(libc::SYS_setns)),
    ("mount", || plain(libc::SYS_mount)),
    ("chroot", || plain(libc::SYS_chroot)),
    ("bpf", || plain(libc::SYS_bpf)),
    ("io_uring_setup", || plain(libc::SYS_io_uring_setup)),
    ("userfaultfd", || plain(libc::SYS_userfaultfd)),
    ("perf_event_open", || plain(libc::SYS_perf_event_open)),
    ("keyctl", || plain(libc::SYS_keyctl)),
    ("finit_module", || plain(libc::SYS_finit_module)),
    ("modify_ldt", || plain(libc::SYS_modify_ldt)),
    ("setuid", || plain(libc::SYS_setuid)),
    ("mmap of code", || {
        let (protection, flags) = (libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        call(
            libc::SYS_mmap,
            [0, 4096, protection as usize, flags as usize, usize::MAX, 0],
        )
    }),
    ("mprotect to code", || {
        call(
            libc::SYS_mprotect,
            [0, 0, libc::PROT_EXEC as usize, 0, 0, 0],
        )
    }),
    ("pkey_mprotect to code", || plain(libc::SYS_pkey_mprotect)),
    ("rt_sigaction", || plain(libc::SYS_rt_sigaction)),
    ("seccomp", || plain(libc::SYS_seccomp)),
    ("ioctl to type", || {
        let byte = b'x';
        call(
            libc::SYS_ioctl,
            [0, libc::TIOCSTI as usize, &raw const byte as usize, 0, 0, 0],
        )
    }),
    ("prctl to be traced", || {
        call(
            libc::SYS_prctl,
            [libc::PR_SET_PTRACER as usize, usize::MAX, 0, 0, 0, 0],
        )
    }),
];

/// The process that started this one.
fn parent() -> usize {
    std::env::var(PARENT).unwrap().parse().unwrap()
}

fn set_up(confine: Confine, trees: Vec<Tree>) -> Result<(), String> {
    let launcher = std::env::var(LAUNCHER).ok();
    begin(Setup {
        confine,
        trees,
        has_program: false,
        launcher: launcher.map(|descriptor| descriptor.parse().unwrap()),
        locks_memory: false,
        exit_code: ENDED,
    })
}

/// Runs `attempt` on a confined thread.
fn hostile<R>(kind: ThreadKind, attempt: impl FnOnce() -> R) -> R {
    // SAFETY: nothing here depends on the thread.
    let result = unsafe { on_own_thread(kind, attempt) };
    result.unwrap().unwrap()
}

/// The directory that the tests serve, read-only.
fn served() -> Vec<Tree> {
    let path = std::env::var_os(SERVED).map(PathBuf::from);
    let tree = |path| Tree {
        path,
        access: TreeAccess::Read,
    };
    path.map(tree).into_iter().collect()
}

/// Starts this program again for one test, which makes the attempt.
fn again_with(test: &str, attempt: &str, served: Option<&Path>, launcher: Option<&str>) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        test,
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.env(PARENT, std::process::id().to_string());
    command.env(ATTEMPT, attempt).env_remove(SERVED);
    command.envs(served.map(|path| (SERVED, path)));
    command.envs(launcher.map(|descriptor| (LAUNCHER, descriptor)));
    command.output().unwrap()
}

/// Starts this program again for one test, without native programs.
fn again(test: &str, attempt: &str, served: Option<&Path>) -> Output {
    again_with(test, attempt, served, None)
}

#[test]
#[ignore = "started by the others"]
fn makes_an_attempt() {
    let Ok(name) = std::env::var(ATTEMPT) else {
        return;
    };
    let (_, attempt) = FORBIDDEN.iter().find(|(known, _)| *known == name).unwrap();
    set_up(Confine::Strict, served()).unwrap();
    let result = hostile(ThreadKind::Vcpu, attempt);
    println!("went on: {result:?}");
}

/// Whether this host can confine threads at all.
fn can_confine() -> bool {
    let can = Part::ALL.into_iter().all(tollgate_confine::host_offers);
    if !can {
        println!("not run: this host lacks seccomp or Landlock");
    }
    can
}

#[test]
fn each_attempt_of_the_vcpus_thread_ends_the_process_with_a_line() {
    each_attempt_ends_the_process(None);
}

#[test]
fn each_attempt_ends_the_process_where_programs_can_run_natively() {
    // The descriptor is not what an attempt uses.
    each_attempt_ends_the_process(Some("5"));
}

fn each_attempt_ends_the_process(launcher: Option<&str>) {
    if !can_confine() {
        return;
    }
    for (name, _) in FORBIDDEN {
        let output = again_with("makes_an_attempt", name, None, launcher);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(ENDED.into()),
            "{name}: {output:?}"
        );
        let call = name.split(' ').next().unwrap();
        let line = format!("the vcpu thread asked for the system call {call}, ");
        assert!(errors.contains(&line), "{name}: {errors}");
    }
}

/// A folder with a folder that is served, and a file that is not.
fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tollgate-hostile-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("served")).unwrap();
    std::fs::write(folder.join("served/inside"), "inside").unwrap();
    std::fs::write(folder.join("outside"), "outside").unwrap();
    folder
}

/// Opens a file as the file server does, relative to a directory.
fn open_at(path: &Path, flags: i32) -> Result<i64, i32> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    let how: [u64; 3] = [flags as u64, 0, 0];
    let directory = libc::AT_FDCWD as usize;
    let arguments = [
        directory,
        path.as_ptr() as usize,
        how.as_ptr() as usize,
        24,
        0,
        0,
    ];
    call(libc::SYS_openat2, arguments)
}

#[test]
#[ignore = "started by the others"]
fn opens_files() {
    let trees = served();
    let Some(served) = trees.first().map(|tree| tree.path.clone()) else {
        return;
    };
    set_up(Confine::Strict, trees).unwrap();
    let refused = Err(libc::EACCES);
    for kind in [ThreadKind::Vcpu, ThreadKind::Share] {
        hostile(kind, || {
            assert!(open_at(&served.join("inside"), libc::O_RDONLY).is_ok());
            assert_eq!(open_at(&served.join("inside"), libc::O_WRONLY), refused);
            assert_eq!(
                open_at(&served.join("new"), libc::O_WRONLY | libc::O_CREAT),
                refused
            );
            assert_eq!(open_at(&served.join("../outside"), libc::O_RDONLY), refused);
            assert_eq!(open_at(Path::new("/etc/passwd"), libc::O_RDONLY), refused);
            assert_eq!(
                open_at(Path::new("/proc/self/mem"), libc::O_RDONLY),
                refused
            );
            assert_eq!(open_at(Path::new("/dev/null"), libc::O_RDONLY), refused);
        });
    }
    println!("as it should be");
}

#[test]
fn threads_that_serve_files_open_no_others() {
    if !can_confine() {
        return;
    }
    let folder = folder();
    let output = again("opens_files", "", Some(&folder.join("served")));
    std::fs::remove_dir_all(&folder).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("as it should be"), "{output:?}");
}

#[test]
#[ignore = "started by the others"]
fn shows_its_status() {
    if std::env::var_os(ATTEMPT).is_none() {
        return;
    }
    set_up(Confine::Strict, Vec::new()).unwrap();
    hostile(ThreadKind::Vcpu, || {
        // SAFETY: gettid has no preconditions.
        let thread = unsafe { libc::gettid() };
        // SAFETY: nothing here depends on the thread.
        let status = unsafe {
            elsewhere(|| std::fs::read_to_string(format!("/proc/self/task/{thread}/status")))
        };
        println!("{}", status.unwrap());
    });
    println!("{:?}", report().unwrap());
}

#[test]
fn the_vcpus_thread_has_no_privileges_and_no_core_file() {
    if !can_confine() {
        return;
    }
    let output = again("shows_its_status", "status", None);
    let text = String::from_utf8_lossy(&output.stdout);
    for line in [
        "CapEff:\t0000000000000000",
        "CapPrm:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.contains("missing: []"), "{text}");
}

#[test]
#[ignore = "started by the others"]
fn starts_a_thread() {
    if std::env::var_os(ATTEMPT).is_none() {
        return;
    }
    set_up(Confine::Strict, Vec::new()).unwrap();
    hostile(ThreadKind::Vcpu, || {
        let entry = tollgate_confine::entry_of_child(ThreadKind::Worker);
        let thread = std::thread::spawn(move || {
            entry.enter();
            plain(libc::SYS_socket)
        });
        println!("went on: {:?}", thread.join().unwrap());
    });
}

#[test]
fn threads_of_the_vcpus_thread_are_as_confined() {
    if !can_confine() {
        return;
    }
    let output = again("starts_a_thread", "thread", None);
    let errors = String::from_utf8_lossy(&output.stderr);
    let line = "the worker thread asked for the system call socket, ";
    assert!(errors.contains(line), "{output:?}");
    assert_eq!(output.status.code(), Some(ENDED.into()));
}

#[test]
#[ignore = "started by the others"]
fn lacks_rules_for_files() {
    if std::env::var_os(ATTEMPT).is_none() {
        return;
    }
    let refused = [(libc::SYS_landlock_create_ruleset, Vec::new())]
        .into_iter()
        .collect();
    let filter = SeccompFilter::new(
        refused,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        TargetArch::x86_64,
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    apply_filter(&program).unwrap();
    println!("strict: {:?}", set_up(Confine::Strict, Vec::new()));
    println!("auto: {:?}", set_up(Confine::Auto, Vec::new()));
    println!("{:?}", report());
}

#[test]
fn a_host_without_a_part_is_named_by_strict_and_told_by_auto() {
    if !can_confine() {
        return;
    }
    let output = again("lacks_rules_for_files", "lack", None);
    let text = String::from_utf8_lossy(&output.stdout);
    let line = "--confine strict: this host lacks rules for files (Landlock";
    assert!(text.contains(line), "{output:?}");
    assert!(text.contains("auto: Ok(())"), "{output:?}");
    assert!(text.contains("missing: [Files]"), "{output:?}");
    assert_eq!(output.status.signal(), None);
}

#[test]
#[ignore = "started by the others"]
fn gives_memory_back() {
    if std::env::var_os(ATTEMPT).is_none() {
        return;
    }
    set_up(Confine::Strict, Vec::new()).unwrap();
    hostile(ThreadKind::Vcpu, || {
        for _ in 0..10 {
            let pieces: Vec<Vec<u8>> = (0..200).map(|_| vec![1; 100_000]).collect();
            drop(pieces);
        }
    });
    println!("as it should be");
}

#[test]
fn the_c_librarys_heap_works_on_the_vcpus_thread() {
    if !can_confine() {
        return;
    }
    let output = again("gives_memory_back", "heap", None);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("as it should be"), "{output:?}");
}
