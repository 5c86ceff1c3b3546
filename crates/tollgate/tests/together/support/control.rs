//! A client of the control socket for tests.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use super::{PATIENCE, eventually};

/// Connects as soon as the machine listens.
#[track_caller]
pub fn connect(path: &Path) -> UnixStream {
    eventually("the control socket", || UnixStream::connect(path).ok())
}

/// Connects and waits until the machine has left its starting state.
#[track_caller]
pub fn connect_to_running(path: &Path) -> UnixStream {
    let socket = connect(path);
    eventually("the first instruction", || {
        let state = command(&socket, "status")["status"]["state"].clone();
        (state != "starting").then_some(())
    });
    socket
}

/// Connects, sends something, and disconnects without reading an answer. While many clients that
/// have disconnected are still counted, the machine may reject this client before it has sent
/// anything.
#[track_caller]
pub fn send_and_leave(path: &Path, bytes: &[u8]) {
    let mut client = UnixStream::connect(path).unwrap();
    if let Err(error) = client.write_all(bytes) {
        let turned_away = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
        assert!(turned_away.contains(&error.kind()), "{error}");
    }
}

/// Sends a request and returns the answer to it.
#[track_caller]
pub fn ask(mut socket: &UnixStream, request: &Value) -> Value {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    writeln!(socket, "{request}").unwrap();
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

/// Sends a command without arguments. On a busy host the vCPU may not answer in time, and the
/// command is sent again.
#[track_caller]
pub fn command(socket: &UnixStream, name: &str) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = ask(socket, &json!({ "command": name }));
        let is_late = answer["error"] == "the processor does not answer now";
        if !is_late || Instant::now() > end {
            return answer;
        }
    }
}

/// The guest's time in seconds, from a status.
#[track_caller]
pub fn guest_seconds(socket: &UnixStream) -> f64 {
    let answer = command(socket, "status");
    answer["status"]["guest_time_ns"].as_f64().unwrap() / 1e9
}
