//! `tollgate-firecracker` under test, and a client of its interface.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::{CACHE, GUEST_PATIENCE, eventually};

/// The command under test.
pub fn firecracker() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate-firecracker"));
    command.env("XDG_CACHE_HOME", CACHE);
    command
}

/// A client of the interface at a socket.
pub struct Client(PathBuf);

/// What the interface has answered.
pub struct Answer {
    /// The status and the headers.
    pub head: String,
    /// The body; null if there is none.
    pub body: Value,
}

impl Answer {
    /// Whether the status is this number.
    pub fn is(&self, status: u32) -> bool {
        self.head.starts_with(&format!("HTTP/1.1 {status} "))
    }
}

impl Client {
    /// A client of the socket at this path, once it is there.
    #[track_caller]
    pub fn new(path: &Path) -> Self {
        eventually("the interface", || UnixStream::connect(path).ok());
        Self(path.into())
    }

    /// Sends one request.
    #[track_caller]
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        let mut stream = UnixStream::connect(&self.0).unwrap();
        stream.set_read_timeout(Some(GUEST_PATIENCE)).unwrap();
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        Answer {
            head: head.into(),
            body: serde_json::from_str(body).unwrap_or_default(),
        }
    }

    /// Sends a request that is carried out.
    #[track_caller]
    pub fn order(&self, method: &str, path: &str, body: Value) {
        let answer = self.ask(method, path, &body);
        assert!(
            answer.is(204),
            "{method} {path}: {} {}",
            answer.head,
            answer.body
        );
    }

    /// Reads something.
    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, &Value::Null);
        assert!(answer.is(200), "{path}: {} {}", answer.head, answer.body);
        answer.body
    }

    /// Why a request is refused.
    #[track_caller]
    pub fn refusal(&self, method: &str, path: &str, body: Value) -> String {
        let answer = self.ask(method, path, &body);
        assert!(answer.is(400), "{method} {path}: {}", answer.head);
        answer.body["fault_message"].as_str().unwrap().to_owned()
    }
}
