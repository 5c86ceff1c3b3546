//! `tollgate exec --in NAME`: runs a command in a machine that was started with `--keep`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tollgate_agent::credit::Credit;
use tollgate_agent::protocol::kept::{CREDIT, ERRORS, INPUT, MOST, OUTPUT, decode_credit};
use tollgate_agent::protocol::{Frames, MAX_FRAME, TASK, ToGuest, ToHost, code, frame, record};

use super::own_terminal::{own_terminal, window_size};
use super::{ExecArguments, report_end, session, streams};
use crate::control::client::accepted;
use crate::exit_code;
use crate::failure::{Failure, one_line};
use crate::host;
use crate::machines;
use crate::signals::{self, Asked, Signals};
use crate::terminal::{self, RawTerminal};

/// How long the command may take to end after its time is over.
const GRACE: Duration = Duration::from_secs(5);
/// The number of times that an ending signal must come to end this process.
const INSISTENT: u32 = 3;

/// A connection on which a machine that stays runs one command.
pub struct Connection {
    stream: UnixStream,
    frames: Frames,
    /// The connection to the pool that lends the machine.
    _lease: Option<UnixStream>,
}

/// What a machine says about a command.
pub enum Heard {
    /// Bytes of standard output.
    Output(Vec<u8>),
    /// Bytes of standard error.
    Errors(Vec<u8>),
    /// Bytes of standard input that the command has taken.
    Taken(usize),
    /// A message about its life.
    Message(ToHost),
}

impl Connection {
    /// Connects to the machine with a name.
    ///
    /// # Errors
    /// One line says that there is none, or that it takes no commands.
    pub fn open(name: &str) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::host(format!("the machine '{name}' does not answer: {error}"))
        };
        let facts = machines::find(name)?;
        let socket = facts.socket.unwrap_or_default();
        let (stream, answer) = ask(&socket).map_err(failed)?;
        accepted(&answer)?;
        let frames = Frames::default();
        // A pool says where a machine is, which ends with the connection to the pool.
        let Some(machine) = answer["socket"].as_str() else {
            return Ok(Self {
                stream,
                frames,
                _lease: None,
            });
        };
        let (own, answer) = ask(Path::new(machine)).map_err(failed)?;
        accepted(&answer)?;
        Ok(Self {
            stream: own,
            frames,
            _lease: Some(stream),
        })
    }

    /// Runs the command that these records describe.
    ///
    /// # Errors
    /// The machine has gone.
    pub fn run(&mut self, records: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for piece in records.chunks(MOST) {
            bytes.extend(frame(TASK, piece));
        }
        bytes.extend(frame(TASK, &[]));
        self.stream.write_all(&bytes)
    }

    /// The way to the command, for another thread.
    ///
    /// # Errors
    /// The host gives no descriptor.
    pub fn sender(&self) -> io::Result<UnixStream> {
        self.stream.try_clone()
    }

    /// Waits for what the machine says next.
    ///
    /// # Errors
    /// The machine has gone, or does not keep to the protocol.
    pub fn next(&mut self) -> io::Result<Heard> {
        loop {
            if let Some(heard) = self.taken()? {
                return Ok(heard);
            }
            self.receive()?;
        }
    }

    /// What was received and not taken yet.
    fn taken(&mut self) -> io::Result<Option<Heard>> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let Some((kind, rest)) = self.frames.take().map_err(|_| invalid())? else {
            return Ok(None);
        };
        let heard = match kind {
            OUTPUT => Heard::Output(rest),
            ERRORS => Heard::Errors(rest),
            CREDIT => Heard::Taken(decode_credit(&rest).ok_or_else(invalid)?.1),
            _ => Heard::Message(ToHost::decode(kind, &rest).ok_or_else(invalid)?),
        };
        Ok(Some(heard))
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; 4 * MAX_FRAME];
        match self.stream.read(&mut buffer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.frames.extend(&buffer[..count]);
                Ok(())
            }
        }
    }
}

/// Connects to a socket and asks to run a command. Returns the answer.
fn ask(socket: &Path) -> io::Result<(UnixStream, Value)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(b"{\"command\":\"exec\"}\n")?;
    let mut line = Vec::new();
    let mut byte = [0];
    // What follows the answer is read elsewhere.
    while stream.read(&mut byte)? == 1 && byte != *b"\n" {
        line.extend(byte);
    }
    Ok((stream, serde_json::from_slice(&line).unwrap_or_default()))
}

/// Runs the command in the machine with this name and returns its exit code.
pub fn run(name: &str, arguments: &ExecArguments) -> u8 {
    let gone = |error: io::Error| {
        Failure::host(match error.kind() {
            io::ErrorKind::UnexpectedEof => "the machine has ended before the command did".into(),
            _ => format!("the machine does not answer: {error}"),
        })
    };
    let code = try_run(name, arguments).unwrap_or_else(|error| Err(gone(error)));
    code.unwrap_or_else(|failure| {
        failure.report();
        code::FAILED
    })
}

/// The records of the task, which change what the machine was started with.
fn records(arguments: &ExecArguments) -> Vec<u8> {
    let mut records = Vec::new();
    for word in &arguments.command {
        records.extend(record("argument", word));
    }
    for variable in &arguments.env {
        let bytes = variable.as_bytes();
        if bytes.contains(&b'=') {
            records.extend(record("variable", variable));
        } else if let Some(value) = std::env::var_os(variable) {
            let mut whole = variable.clone();
            whole.push("=");
            whole.push(value);
            records.extend(record("variable", &whole));
        }
    }
    if let Some(directory) = &arguments.workdir {
        records.extend(record("directory", directory.as_os_str()));
    }
    if let Some(user) = &arguments.user {
        records.extend(record("user", user.as_ref()));
    }
    records
}

fn try_run(name: &str, arguments: &ExecArguments) -> io::Result<Result<u8, Failure>> {
    if !arguments.no_input
        && let Err(failure) = streams::check_input()
    {
        return Ok(Err(failure));
    }
    let signals = Signals::block_these(&session::SIGNALS)?;
    let mut connection = match Connection::open(name) {
        Ok(connection) => connection,
        Err(failure) => return Ok(Err(failure)),
    };
    let terminal = own_terminal().filter(|_| !arguments.no_input);
    let mut records = records(arguments);
    if let Some(terminal) = terminal {
        records.extend(record("terminal", terminal.record().as_ref()));
    }
    connection.run(&records)?;
    let mut sender = connection.sender()?;
    let mut raw = None;
    let credit = Arc::new(Credit::default());
    let mut deadline = arguments
        .timeout
        .and_then(|it| Instant::now().checked_add(it));
    let mut is_last_call = false;
    let mut insisted = 0;
    loop {
        let mut fds = [host::interest(connection.stream.as_raw_fd(), libc::POLLIN)];
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        signals.poll(&mut fds, left)?;
        while let Some(asked) = signals.next() {
            match asked {
                Asked::Signal(libc::SIGWINCH) => {
                    let size = ToGuest::WindowSize(window_size());
                    sender.write_all(&size.encode())?;
                }
                Asked::Signal(signal) => {
                    insisted += u32::from(signals::ENDING.contains(&signal));
                    if insisted >= INSISTENT {
                        return Ok(Ok(exit_code::for_signal(signal)));
                    }
                    sender.write_all(&ToGuest::Signal(signal).encode())?;
                }
                Asked::Continued => {}
            }
        }
        if deadline.is_some_and(|at| at <= Instant::now()) {
            if is_last_call {
                // The machine ends the command when this connection closes.
                return Ok(Ok(code::TIMED_OUT));
            }
            is_last_call = true;
            deadline = Instant::now().checked_add(GRACE);
            sender.write_all(&ToGuest::Signal(libc::SIGTERM).encode())?;
        }
        if fds[0].revents == 0 {
            continue;
        }
        connection.receive()?;
        while let Some(heard) = connection.taken()? {
            match heard {
                Heard::Output(bytes) => write(&mut io::stdout(), &bytes)?,
                Heard::Errors(bytes) => write(&mut io::stderr(), &bytes)?,
                Heard::Message(ToHost::Started) => {
                    if terminal.is_some() && terminal::is_in_foreground() {
                        raw = RawTerminal::enter_as(session::transparent).ok();
                    }
                    match arguments.no_input {
                        true => sender.write_all(&frame(INPUT, &[]))?,
                        false => {
                            let stdin = io::stdin().as_fd().try_clone_to_owned()?;
                            feed(sender.try_clone()?, File::from(stdin), Arc::clone(&credit))?;
                        }
                    }
                }
                Heard::Message(ToHost::Exited {
                    code,
                    killed_for_memory,
                    limits_reached,
                    ..
                }) => {
                    drop(raw.take());
                    return Ok(Ok(match is_last_call {
                        true => code::TIMED_OUT,
                        false => report_end(&session::End::Exited {
                            code,
                            killed_for_memory,
                            limits_reached,
                        }),
                    }));
                }
                Heard::Message(ToHost::Failed { code, why }) => {
                    crate::failure::say(&one_line(&why));
                    return Ok(Ok(code));
                }
                Heard::Taken(count) => credit.add(count),
                Heard::Message(ToHost::Ready) => {}
            }
        }
    }
}

/// Writes output of the command. A reader that has gone ends this process, and so the command.
fn write(output: &mut (impl Write + AsFd), bytes: &[u8]) -> io::Result<()> {
    output.write_all(bytes)?;
    output.flush()
}

/// Sends a file to the command as its input, on a thread that ends with this process.
///
/// # Errors
/// The host starts no thread.
pub fn feed(mut sender: UnixStream, mut file: File, credit: Arc<Credit>) -> io::Result<()> {
    let send = move || {
        let mut buffer = vec![0; MOST];
        loop {
            // What cannot be read ends the command's input.
            let count = file.read(&mut buffer).unwrap_or(0);
            let mut rest = &buffer[..count];
            while !rest.is_empty() {
                let Some(allowed) = credit.take(rest.len()) else {
                    return;
                };
                let (piece, others) = rest.split_at(allowed);
                if sender.write_all(&frame(INPUT, piece)).is_err() {
                    return;
                }
                rest = others;
            }
            if count == 0 {
                let _ = sender.write_all(&frame(INPUT, &[]));
                return;
            }
        }
    };
    thread::Builder::new().name("stdin".into()).spawn(send)?;
    Ok(())
}
