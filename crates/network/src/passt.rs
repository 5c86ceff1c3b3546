//! `passt`: user networking in a process of its own, which this process starts. It is found in
//! `PATH`. It listens on a socket in a folder that is removed once the connection is made, and ends
//! with that connection, so nothing remains of it however this process ends.

use crate::error::NetworkError;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The maximum time until passt listens on a loaded host.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(10);

/// A temporary folder, which is removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-passt-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The process. Dropping it ends it.
pub struct Passt(Child);

impl Drop for Passt {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `program`, which is passt or behaves like it, and connects to it.
///
/// # Errors
/// The program is not installed, or ends immediately; the message contains its last line.
pub fn start(program: &OsStr) -> Result<(UnixStream, Passt), NetworkError> {
    let failed = |why: String| NetworkError::new("passt", why);
    let folder = Folder::new().map_err(|error| failed(format!("no folder: {error}")))?;
    let (socket, log) = (folder.0.join("socket"), folder.0.join("log"));
    let output = File::create(&log).map_err(|error| failed(format!("no file: {error}")))?;
    let mut command = Command::new(program);
    command.args(["--foreground", "--one-off", "--quiet", "--socket"]);
    command.arg(&socket);
    if rustix::process::getuid().is_root() {
        // Otherwise passt would switch to another user, who may not use the folder.
        command.args(["--runas", "0:0"]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.stderr(output).spawn().map_err(|error| {
        failed(match error.kind() {
            io::ErrorKind::NotFound => {
                "it is not in PATH; install the package passt, or use --net user".into()
            }
            _ => error.to_string(),
        })
    })?;
    let mut passt = Passt(child);
    let end = Instant::now() + PATIENCE;
    loop {
        if let Ok(stream) = UnixStream::connect(&socket) {
            return Ok((stream, passt));
        }
        if !matches!(passt.0.try_wait(), Ok(None)) {
            return Err(failed(format!("it ended: {}", last_line(&log))));
        }
        if Instant::now() >= end {
            return Err(failed("it does not listen".into()));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns the program's last line, except complaints about the system's log.
fn last_line(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines().map(str::trim).rev();
    let line = lines.find(|line| !line.is_empty() && !line.contains("to syslog"));
    line.unwrap_or("without a word").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;

    /// Makes a program in a folder of its own.
    fn program(script: &str) -> (Folder, PathBuf) {
        let folder = Folder::new().unwrap();
        let path = folder.0.join("program");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        (folder, path)
    }

    #[test]
    fn a_program_that_listens_is_connected_to_and_ends_with_the_network() {
        let (_folder, path) = program(
            "#!/usr/bin/perl\nuse IO::Socket::UNIX;\n\
             my %a = @ARGV[3..4]; my $s = IO::Socket::UNIX->new(Local => $a{'--socket'}, Listen => 1);\n\
             my $c = $s->accept; while (sysread $c, my $b, 100) { syswrite $c, uc $b }\n",
        );
        let (mut stream, passt) = start(path.as_os_str()).unwrap();
        stream.write_all(b"frame").unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"FRAME");
        let process = PathBuf::from(format!("/proc/{}", passt.0.id()));
        assert!(process.exists());
        drop(passt);
        assert!(!process.exists());
    }

    #[test]
    fn a_program_that_ends_is_quoted() {
        let (_folder, path) = program(
            "#!/bin/sh\necho first >&2\necho no namespace >&2\necho Failed to send to syslog >&2\nexit 1\n",
        );
        let refusal = start(path.as_os_str()).err().unwrap().to_string();
        assert_eq!(refusal, "passt: it ended: no namespace");
        let refusal = start(OsStr::new("no-such-program"))
            .err()
            .unwrap()
            .to_string();
        assert!(refusal.contains("it is not in PATH"), "{refusal}");
    }
}
