//! Support for the tests of the command: temporary folders, guests, sessions with a running
//! `tollgate`, terminals, the control socket.
//!
//! Nothing here measures speed: every wait has a limit that a slow, busy machine keeps.

pub mod cd;
pub mod control;
pub mod dos;
pub mod exec;
pub mod failing_host;
pub mod firecracker;
pub mod floppy;
pub mod folder;
pub mod grub;
pub mod guests;
pub mod linux;
pub mod pc;
pub mod picture;
pub mod qcow2;
pub mod repository;
pub mod session;
pub mod system;
pub mod terminal;
pub mod viewer;

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The limit of everything that does not boot an operating system.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long a guest operating system may take to boot or to answer. Code that was built without
/// optimization is several times slower.
pub const GUEST_PATIENCE: Duration =
    Duration::from_secs(if cfg!(debug_assertions) { 400 } else { 150 });

/// The cache folder of the commands under test, which is not the user's.
pub const CACHE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/cache");

/// The folder of secrets of the commands under test.
const STATE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/state");

/// The command under test, with folders of its own. Signals that the parent process of the tests has ignored, as a shell
/// does with SIGINT of background jobs, have their default action in it.
pub fn tollgate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.env("XDG_CACHE_HOME", CACHE);
    command.env("XDG_STATE_HOME", STATE);
    // SAFETY: between fork and exec only signal(2) is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            for number in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGTERM] {
                libc::signal(number, libc::SIG_DFL);
            }
            Ok(())
        });
    }
    command
}

/// The flags that make programs of guests run as `TOLLGATE_TEST_USER_CODE` says, for tests that do
/// not choose that themselves.
pub fn user_code_flags() -> Vec<String> {
    match tollgate_test_support::user_code() {
        Some(value) => vec!["--knob".to_owned(), format!("user-code={value}")],
        None => Vec::new(),
    }
}

/// Tries until there is a result, at most for [`PATIENCE`].
#[track_caller]
pub fn eventually<T>(what: &str, attempt: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, what, attempt)
}

/// Tries until there is a result, at most for `limit`.
#[track_caller]
pub fn within<T>(limit: Duration, what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(Instant::now() < end, "{what} did not come within {limit:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a command without input to its end, which must come within `limit`.
#[track_caller]
pub fn finish(command: &mut Command, limit: Duration) -> Output {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    ended(child, limit)
}

/// The output of a process that ends within `limit`. If it does not, it is killed and the test
/// fails.
#[track_caller]
pub fn ended(mut child: Child, limit: Duration) -> Output {
    // The pipe is read all the time, because a full pipe would stop the process.
    let stdout = child.stdout.take().map(read_all);
    let stderr = child.stderr.take().map(read_all);
    let end = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if Instant::now() >= end {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        thread::sleep(Duration::from_millis(5));
    };
    let text = |reader: Option<thread::JoinHandle<Vec<u8>>>| {
        reader.map_or_else(Vec::new, |reader| reader.join().unwrap())
    };
    let (stdout, stderr) = (text(stdout), text(stderr));
    let Some(status) = status else {
        panic!(
            "no end within {limit:?}; standard output: {}\nstandard error: {}",
            tail(&String::from_utf8_lossy(&stdout)),
            tail(&String::from_utf8_lossy(&stderr))
        );
    };
    Output {
        status,
        stdout,
        stderr,
    }
}

fn read_all(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

/// The last lines of a long text, for messages.
pub fn tail(text: &str) -> String {
    const LINES: usize = 40;
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Sends a signal to a process that was not waited for yet.
pub fn signal(process: u32, signal: libc::c_int) {
    let process = libc::pid_t::try_from(process).unwrap();
    // SAFETY: kill takes integers only. The child was not waited for, so its number is
    // still its own.
    assert_eq!(unsafe { libc::kill(process, signal) }, 0);
}
