//! `--detach`: starts the same command again in the background, and waits until its machine runs.
//!
//! The process in the background has a socket as its standard input. It writes its machine's name there
//! once that runs; then this process ends, and the input with it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::control::run_time;
use crate::exit_code;
use crate::failure::Failure;
use crate::flags::PresenceArguments;
use crate::standard_output::{print, print_and_end};

/// The hidden flag of the process in the background, which names its log.
const FLAG: &str = "--detached-log";

static LOG: OnceLock<PathBuf> = OnceLock::new();

/// This process's log, if it runs in the background.
pub fn log() -> Option<PathBuf> {
    LOG.get().cloned()
}

/// Does what `--detach` says: `None` if this process shall run the machine itself, otherwise the exit
/// code of this process, whose machine runs in another one.
///
/// # Errors
/// One line says why there is no machine in the background.
pub fn begin(flags: &PresenceArguments) -> Result<Option<u8>, Failure> {
    if let Some(log) = &flags.detached_log {
        let _ = LOG.set(log.clone());
        return Ok(None);
    }
    match flags.detach {
        true => start().map(Some),
        false => Ok(None),
    }
}

/// Tells the process that started this one in the background that the machine runs.
pub fn report_ready(name: &str) {
    if LOG.get().is_some() {
        let _ = rustix::io::write(rustix::stdio::stdin(), format!("{name}\n").as_bytes());
    }
}

fn start() -> Result<u8, Failure> {
    let failed = |error| Failure::host(format!("--detach: {error}"));
    let folder = run_time::made().ok_or_else(|| {
        let folder = run_time::folder();
        Failure::host(format!(
            "--detach: '{}' is not a folder that only you can use",
            folder.display()
        ))
    })?;
    let log = folder.join(format!("{}.log", std::process::id()));
    let _ = fs::remove_file(&log);
    let output = File::options()
        .append(true)
        .create_new(true)
        .mode(0o600)
        .open(&log)
        .map_err(failed)?;
    let (mut ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut child = Command::new(std::env::current_exe().map_err(failed)?)
        .args(words(std::env::args_os().skip(1), &log))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(output.try_clone().map_err(failed)?)
        .stderr(output)
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let mut name = String::new();
    // One line, or the end.
    let mut byte = [0];
    while !name.ends_with('\n') && ours.read(&mut byte).is_ok_and(|count| count == 1) {
        name.push(byte[0].into());
    }
    if !name.is_empty() {
        print(&name)?;
        return Ok(exit_code::SUCCESS);
    }
    // It ended before its machine ran, or soon after.
    let status = child.wait().map_err(failed)?;
    let text = fs::read(&log).unwrap_or_default();
    let _ = fs::remove_file(&log);
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(print_and_end(
        &String::from_utf8_lossy(&text),
        code.unwrap_or(exit_code::HOST),
    ))
}

/// The words for the process in the background: the flag comes after the subcommand, before the words of
/// a guest's command.
fn words(words: impl Iterator<Item = OsString>, log: &Path) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    let place = words.len().min(1);
    let mut flag = OsString::from(FLAG);
    flag.push("=");
    flag.push(log);
    words.insert(place, flag);
    words
}
