//! `tollgate kill`: ends machines by their names, or sends their processes another signal.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::entry::{self, Facts};
use crate::exit_code;
use crate::failure::{Failure, say};
use crate::host;

/// How long the end of a process is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// The arguments of `tollgate kill`.
#[derive(Args, Debug)]
#[command(after_help = "\
A machine that is killed ends at once, as if its power was cut, and this command returns when its
process is gone. With --signal TERM 'tollgate run' ends in order, and 'tollgate exec' passes the
signal to its command.
Exit codes: 0 done, 1 a machine could not be ended, 2 no such machine.")]
pub struct KillArguments {
    /// The machines' names, as 'tollgate ps' lists them, or the numbers of their processes
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,

    /// The signal that is sent: KILL, TERM, INT, HUP, QUIT, USR1 or USR2
    #[arg(short, long, value_name = "SIGNAL", default_value = "KILL", value_parser = parse)]
    pub signal: Signal,
}

/// Parses a signal's name, with or without SIG.
fn parse(text: &str) -> Result<Signal, String> {
    let upper = text.to_ascii_uppercase();
    match upper.strip_prefix("SIG").unwrap_or(&upper) {
        "KILL" | "9" => Ok(Signal::KILL),
        "TERM" | "15" => Ok(Signal::TERM),
        "INT" | "2" => Ok(Signal::INT),
        "HUP" | "1" => Ok(Signal::HUP),
        "QUIT" | "3" => Ok(Signal::QUIT),
        "USR1" | "10" => Ok(Signal::USR1),
        "USR2" | "12" => Ok(Signal::USR2),
        _ => Err("expected KILL, TERM, INT, HUP, QUIT, USR1 or USR2".into()),
    }
}

/// Runs `tollgate kill` and returns its exit code: that of the last failure.
pub fn run(arguments: &KillArguments) -> u8 {
    let mut code = exit_code::SUCCESS;
    for name in &arguments.names {
        if let Err(failure) = entry::find(name).and_then(|it| end(&it, arguments.signal)) {
            code = failure.report();
        }
    }
    code
}

fn end(facts: &Facts, signal: Signal) -> Result<(), Failure> {
    let name = &facts.name;
    let failed = |error| Failure::host(format!("'{name}' cannot be ended: {error}"));
    let pid = i32::try_from(facts.pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::host(format!("'{name}' has no process")))?;
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    // The number may be another process's by now, unless the machine still holds its entry.
    if !entry::is_running(facts) {
        return Ok(());
    }
    match pidfd_send_signal(&process, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => return Err(failed(error)),
    }
    if signal == Signal::KILL && !has_ended(&process) {
        let seconds = PATIENCE.as_secs();
        say(&format!("'{name}' has not ended within {seconds} s"));
        return Err(failed(rustix::io::Errno::TIMEDOUT));
    }
    // This removes what the machine has left.
    entry::is_running(facts);
    Ok(())
}

/// Waits for the end of a process.
fn has_ended(process: &OwnedFd) -> bool {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut fds = [host::interest(process.as_raw_fd(), libc::POLLIN)];
        let left = deadline.saturating_duration_since(Instant::now());
        if host::poll(&mut fds, Some(left)).is_ok() && fds[0].revents != 0 {
            return true;
        }
        if left.is_zero() {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_their_usual_names() {
        assert_eq!(parse("SIGTERM"), Ok(Signal::TERM));
        assert_eq!(parse("kill"), Ok(Signal::KILL));
        assert!(parse("TERMINATE").is_err());
    }
}
