//! A running `tollgate` that a test types to and reads from, over pipes or a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::terminal::Terminal;
use super::{GUEST_PATIENCE, PATIENCE, tail};

/// Everything that came out of a pipe so far, with line ends as \n.
#[derive(Default)]
struct Transcript {
    text: Mutex<Received>,
    grown: Condvar,
}

#[derive(Default)]
struct Received {
    bytes: Vec<u8>,
    is_complete: bool,
}

impl Transcript {
    /// Reads `source` to its end on a thread of its own.
    fn of(mut source: impl Read + Send + 'static) -> Arc<Self> {
        let transcript = Arc::new(Self::default());
        let writer = Arc::clone(&transcript);
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            loop {
                // A terminal whose program has ended reports an error.
                let count = source.read(&mut chunk).unwrap_or(0);
                let mut text = writer.text.lock().unwrap();
                // A guest ends lines with CR LF, a terminal may make that CR CR LF.
                let bytes = chunk[..count].iter().filter(|byte| **byte != b'\r');
                text.bytes.extend(bytes);
                text.is_complete = count == 0;
                writer.grown.notify_all();
                if count == 0 {
                    return;
                }
            }
        });
        transcript
    }

    /// Waits until `is_found` accepts the text that begins at the byte `start`; returns `Err` with
    /// the text if the text ends or `limit` is over before.
    fn wait<T>(
        &self,
        start: usize,
        limit: Duration,
        is_found: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<T, &'static str> {
        let end = Instant::now() + limit;
        let mut text = self.text.lock().unwrap();
        loop {
            if let Some(found) = is_found(&text.bytes[start..]) {
                return Ok(found);
            }
            if text.is_complete {
                return Err("the output ended");
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("the time is over");
            }
            text = self.grown.wait_timeout(text, left).unwrap().0;
        }
    }

    fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap().bytes).into_owned()
    }
}

/// How a session ended.
pub struct End {
    /// The exit code.
    pub code: Option<i32>,
    /// All of standard output; on a terminal, standard error as well.
    pub output: String,
    /// All of standard error; empty on a terminal.
    pub errors: String,
}

/// A running command. It is killed when the test ends before it does.
pub struct Session {
    child: Child,
    input: Box<dyn Write + Send>,
    output: Arc<Transcript>,
    errors: Option<Arc<Transcript>>,
    /// The output before this byte was waited for already.
    mark: usize,
    /// The number of shell commands so far.
    commands: u32,
}

impl Session {
    /// Starts `command` with pipes for input, output and errors.
    pub fn over_pipes(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let input = Box::new(child.stdin.take().unwrap());
        let output = Transcript::of(child.stdout.take().unwrap());
        let errors = Transcript::of(child.stderr.take().unwrap());
        Self::new(child, input, output, Some(errors))
    }

    /// Starts `command` in the foreground of `terminal` and waits for raw mode.
    #[track_caller]
    pub fn on_terminal(terminal: &Terminal, command: Command) -> Self {
        let child = terminal.start_raw(command);
        let person = || terminal.person.try_clone().unwrap();
        Self::new(child, Box::new(person()), Transcript::of(person()), None)
    }

    /// Replaces input and output by `port`, the program's side of a pseudo-terminal that the
    /// command named.
    pub fn through(mut self, port: File) -> Self {
        self.input = Box::new(port.try_clone().unwrap());
        self.output = Transcript::of(port);
        self.mark = 0;
        self
    }

    fn new(
        child: Child,
        input: Box<dyn Write + Send>,
        output: Arc<Transcript>,
        errors: Option<Arc<Transcript>>,
    ) -> Self {
        Self {
            child,
            input,
            output,
            errors,
            mark: 0,
            commands: 0,
        }
    }

    /// The process's number.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Waits for `text` in what was not waited for yet, at most for [`GUEST_PATIENCE`], and
    /// returns what came before it.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) -> String {
        let needle = text.as_bytes();
        let found = self.output.wait(self.mark, GUEST_PATIENCE, |bytes| {
            let at = bytes
                .windows(needle.len())
                .position(|part| part == needle)?;
            Some((String::from_utf8_lossy(&bytes[..at]).into_owned(), at))
        });
        match found {
            Ok((before, at)) => {
                self.mark += at + needle.len();
                before
            }
            Err(why) => panic!("waiting for {text:?}: {why}\n{}", self.so_far()),
        }
    }

    /// Waits for `text` on standard error and returns all that is there.
    #[track_caller]
    pub fn wait_for_error(&mut self, text: &str) -> String {
        let errors = self.errors.as_ref().unwrap();
        let found = errors.wait(0, PATIENCE, |bytes| {
            let errors = String::from_utf8_lossy(bytes).into_owned();
            errors.contains(text).then_some(errors)
        });
        found.unwrap_or_else(|why| panic!("waiting for {text:?}: {why}\n{}", self.so_far()))
    }

    /// The output since the last wait.
    pub fn unread(&self) -> String {
        let text = self.output.text.lock().unwrap();
        String::from_utf8_lossy(&text.bytes[self.mark..]).into_owned()
    }

    fn so_far(&self) -> String {
        let errors = self.errors.as_ref().map(|errors| errors.to_text());
        format!(
            "--- output (last lines)\n{}\n--- standard error\n{}",
            tail(&self.output.to_text()),
            tail(&errors.unwrap_or_default())
        )
    }

    /// Sends bytes.
    #[track_caller]
    pub fn type_bytes(&mut self, bytes: &[u8]) {
        self.input.write_all(bytes).unwrap();
        self.input.flush().unwrap();
    }

    /// Sends a line, ended by the key that ends lines.
    #[track_caller]
    pub fn type_line(&mut self, line: &str) {
        self.type_bytes(line.as_bytes());
        self.type_bytes(b"\r");
    }

    /// Lets the guest's shell run a command and returns its output.
    #[track_caller]
    pub fn shell(&mut self, command: &str) -> String {
        self.commands += 1;
        let number = self.commands;
        // The quotes keep the markers out of the shell's echo of the typed line.
        self.type_line(&format!(
            "echo '<''begin {number}>'; {command}; echo '<''end {number}>'"
        ));
        self.wait_for(&format!("<begin {number}>\n"));
        let output = self.wait_for(&format!("<end {number}>\n"));
        output.trim().to_owned()
    }

    /// Waits for the end, at most for [`PATIENCE`].
    #[track_caller]
    pub fn end(mut self) -> End {
        let limit = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                Instant::now() < limit,
                "the command does not end\n{}",
                self.so_far()
            );
            thread::sleep(Duration::from_millis(5));
        };
        // The reading threads may be slightly late. A terminal stays open.
        if let Some(errors) = &self.errors {
            for transcript in [&self.output, errors] {
                let _ = transcript.wait(0, PATIENCE, |_| None::<()>);
            }
        }
        End {
            code: status.code(),
            output: self.output.to_text(),
            errors: self
                .errors
                .as_ref()
                .map_or_else(String::new, |e| e.to_text()),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
