//! `-daemonize`: starts the same command again in the background, and waits until its machine runs.
//!
//! The process in the background has a socket as its standard input, over which it says that it runs.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use super::exit_code::{self, failed};
use crate::failure::Failure;

/// The variable that marks the process in the background.
const MARK: &str = "TOLLGATE_QEMU_IN_BACKGROUND";

/// Whether this is the process in the background.
pub fn is_in_background() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Starts the process in the background and returns this one's exit code.
///
/// # Errors
/// The host starts no process.
pub fn start() -> Result<u8, Failure> {
    let refused = |error| failed(format!("-daemonize: {error}"));
    let (mut ours, theirs) = UnixStream::pair().map_err(refused)?;
    let program = std::env::current_exe().map_err(refused)?;
    let mut command = Command::new(program);
    let mut words = std::env::args_os();
    if let Some(name) = words.next() {
        use std::os::unix::process::CommandExt;
        command.arg0(name);
    }
    let child = command
        .args(words)
        .env(MARK, "1")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn();
    let mut child = child.map_err(refused)?;
    drop(command);
    let mut byte = [0];
    if ours.read(&mut byte).is_ok_and(|count| count == 1) {
        return Ok(exit_code::SUCCESS);
    }
    // It has ended, and has said why.
    let status = child.wait().map_err(refused)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.unwrap_or(exit_code::FAILED))
}

/// Leaves the terminal of the process that started this one.
pub fn leave_terminal() {
    // It fails only for the leader of a group, which this process is not.
    let _ = rustix::process::setsid();
}

/// Tells the process that started this one that the machine runs, and gives up its streams.
pub fn report_ready() {
    let _ = rustix::io::write(rustix::stdio::stdin(), &[1]);
    let _ = std::io::stdout().flush();
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(null.as_fd());
        let _ = rustix::stdio::dup2_stdout(null.as_fd());
        let _ = rustix::stdio::dup2_stderr(null.as_fd());
    }
}
