//! `tollgate control`: sends a request to a running machine and shows the answer.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use tollgate_exits::snapshot::Snapshot;

use super::command::{LATE, Name, SNAPSHOT_PATIENCE};
use crate::exit_code;
use crate::failure::{Failure, one_line};
use crate::refusals;
use crate::standard_output::print_and_end;
use crate::statistics::{Format, View, written};

/// How long to wait for an answer, and for the end of the machine after `quit`.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a request is sent again when the vCPU answered too late.
const TRIES: u32 = 12;

/// The arguments of `tollgate control`.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 the machine refused or did not answer, 2 no machine listens at PATH.
Examples:
  tollgate control vm.sock status
  tollgate control vm.sock power-button --wait=60")]
pub struct ControlArguments {
    /// The path given to tollgate run --control
    #[arg(value_name = "PATH")]
    pub socket: PathBuf,

    /// What to do
    #[arg(value_name = "COMMAND", value_enum)]
    pub command: Name,

    /// Print the machine's answer as JSON
    #[arg(long)]
    pub json: bool,

    /// With power-button: wait until the machine has ended, at most SECONDS (default 120)
    ///
    /// If the machine has not ended by then, the guest has ignored the button, or is still shutting
    /// down: one line says so, and the exit code is 1. The machine continues to run.
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "120",
        value_parser = clap::value_parser!(u64).range(1..=86_400),
        verbatim_doc_comment
    )]
    pub wait: Option<u64>,
}

/// Runs `tollgate control` and returns its exit code.
pub fn run(arguments: &ControlArguments) -> u8 {
    if let Some(seconds) = arguments.wait {
        if arguments.command != Name::PowerButton {
            return Failure::usage("--wait is for power-button alone").report();
        }
        return match press_and_wait(&arguments.socket, Duration::from_secs(seconds)) {
            Ok(waited) => {
                let shown = describe_end(waited, arguments.json);
                print_and_end(&format!("{shown}\n"), exit_code::SUCCESS)
            }
            Err(failure) => failure.report(),
        };
    }
    let answer = match ask(&arguments.socket, arguments.command) {
        Ok(answer) => answer,
        Err(failure) => return failure.report(),
    };
    let shown = if arguments.json {
        answer.to_string()
    } else {
        describe(&answer)
    };
    let code = exit_code_of(&answer);
    match shown.is_empty() {
        true => code,
        false => print_and_end(&format!("{shown}\n"), code),
    }
}

/// Sends a command without arguments and returns the answer.
///
/// # Errors
///
/// The errors of [`talk`].
pub fn ask(path: &Path, command: Name) -> Result<Value, Failure> {
    talk(path, &json!({"command": command}))
}

/// Presses the power button and waits until the machine has ended: its socket closes then.
/// Returns how long that took.
///
/// # Errors
///
/// The errors of [`talk`]; or the machine has not ended within `patience`.
fn press_and_wait(path: &Path, patience: Duration) -> Result<Duration, Failure> {
    // This connection stays open until the machine ends.
    let mut end = connect(path)?;
    let pressed = Instant::now();
    let answer = ask(path, Name::PowerButton)?;
    accepted(&answer)?;
    loop {
        let left = patience.saturating_sub(pressed.elapsed());
        if left.is_zero() {
            return Err(Failure::host(format!(
                "the guest has not switched off within {} s: it ignores the power button \
                 (Linux needs the modules button and evdev, and systemd-logind or acpid), or \
                 is still shutting down",
                patience.as_secs()
            )));
        }
        let limited = end.set_read_timeout(Some(left));
        match limited.and_then(|()| end.read(&mut [0; 64])) {
            Ok(0) => return Ok(pressed.elapsed()),
            // Nothing was requested on this connection, so data means nothing here.
            Ok(_) => {}
            Err(error) if is_interruption(&error) => {}
            // The process has ended, whatever the reason.
            Err(_) => return Ok(pressed.elapsed()),
        }
    }
}

/// Whether a read failed only because it was interrupted or timed out.
fn is_interruption(error: &std::io::Error) -> bool {
    use ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// The result of the power button, for people or for programs.
fn describe_end(waited: Duration, json: bool) -> String {
    let seconds = waited.as_secs_f64();
    match json {
        true => json!({"ok": true, "state": "stopped", "waited_s": seconds}).to_string(),
        false => format!("the machine has ended after {seconds:.1} s"),
    }
}

/// Connects to a machine's control socket.
fn connect(path: &Path) -> Result<UnixStream, Failure> {
    UnixStream::connect(path).map_err(|error| {
        let why = match error.kind() {
            ErrorKind::NotFound => "no such socket; is the virtual machine running?".into(),
            ErrorKind::ConnectionRefused => {
                "nobody listens there; the virtual machine has ended, or it is no socket".into()
            }
            ErrorKind::PermissionDenied => "the socket belongs to another user".into(),
            _ => tollgate_host_facts::file_words::reading(&error),
        };
        Failure::usage(format!("cannot connect to '{}': {why}", path.display()))
    })
}

/// Sends a request and returns the answer.
///
/// # Errors
///
/// One line says that no machine listens at `path`, or that the listener gives no answer.
pub fn talk(path: &Path, request: &Value) -> Result<Value, Failure> {
    let quits = request["command"] == json!(Name::Quit) || request["then"] == "quit";
    let patience = match request["command"] == json!(Name::Snapshot) {
        true => SNAPSHOT_PATIENCE,
        false => PATIENCE,
    };
    let stream = connect(path)?;

    let talk = || -> std::io::Result<String> {
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        writeln!(&stream, "{request}")?;
        let mut reader = BufReader::new(&stream);
        let mut line = String::new();
        reader.by_ref().take(1 << 20).read_line(&mut line)?;
        if quits {
            // The machine has ended when the connection closes. If that takes too long, the answer
            // is still valid.
            let _ = reader.read_to_end(&mut Vec::new());
        }
        Ok(line)
    };
    let line = talk().map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => Failure::host("the virtual machine does not answer"),
        _ => Failure::host(format!("the virtual machine did not answer: {error}")),
    })?;
    serde_json::from_str(&line)
        .map_err(|_| Failure::host("the virtual machine did not answer: it ended"))
}

/// Calls [`talk`], and calls it again if the vCPU answers too late, as on a busy host.
///
/// # Errors
///
/// The errors of [`talk`].
pub fn talk_patiently(path: &Path, request: &Value) -> Result<Value, Failure> {
    for _ in 1..TRIES {
        let answer = talk(path, request)?;
        if answer["error"] != LATE {
            return Ok(answer);
        }
    }
    talk(path, request)
}

/// The exit code for an answer. A refusal is reported on standard error.
pub fn exit_code_of(answer: &Value) -> u8 {
    match accepted(answer) {
        Ok(()) => exit_code::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Checks that the machine has done what was asked.
///
/// # Errors
///
/// The machine has refused.
pub fn accepted(answer: &Value) -> Result<(), Failure> {
    if answer["ok"] == true {
        return Ok(());
    }
    let why = answer["error"].as_str().unwrap_or("no reason given");
    Err(Failure::host(format!("the virtual machine refused: {why}")))
}

/// The answer for people: one field a line, or nothing if the exit code says everything.
fn describe(answer: &Value) -> String {
    if let Some(stats) = answer.get("stats") {
        return serde_json::from_value::<Snapshot>(stats.clone())
            .map(|snapshot| {
                written(&snapshot, Format::Table, View::default())
                    .trim_end()
                    .to_owned()
            })
            .unwrap_or_default();
    }
    if let Some(refused) = answer.get("refused") {
        let refused = serde_json::from_value(refused.clone());
        return refused
            .map(|list| refusals::list(&list))
            .unwrap_or_default();
    }
    let Some(status) = answer["status"].as_object() else {
        return answer["state"].as_str().map(one_line).unwrap_or_default();
    };
    let seconds = |field: &str| {
        let nanoseconds = status.get(field).and_then(Value::as_u64).unwrap_or(0);
        format!(
            "{}.{:03} s",
            nanoseconds / 1_000_000_000,
            nanoseconds / 1_000_000 % 1000
        )
    };
    let text = |field: &str| match status.get(field) {
        Some(Value::String(text)) => one_line(text),
        Some(other) => other.to_string(),
        None => "unknown".into(),
    };
    let cache = |field: &str| status["code_cache"][field].as_u64().unwrap_or(0);
    let machine = |field: &str| match &status.get("machine").unwrap_or(&Value::Null)[field] {
        Value::String(text) => one_line(text),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    const MIB: u64 = 1 << 20;
    let memory = machine("memory_bytes").parse().unwrap_or(0u64);
    let rows = [
        ("state", text("state")),
        ("up time", seconds("uptime_ns")),
        ("guest time", seconds("guest_time_ns")),
        ("process", machine("pid")),
        ("memory", format!("{} MiB", memory.div_ceil(MIB))),
        ("kernel", machine("kernel")),
        ("firmware", machine("firmware")),
        ("command line", machine("command_line")),
        ("panics", counted(&status["panics"])),
        ("resets", counted(&status["resets"])),
        ("exits", text("exits")),
        (
            "code cache",
            format!(
                "{} of {} MiB, {} blocks; {} translated, {} dropped to make room",
                cache("used_bytes").div_ceil(MIB),
                cache("size_bytes").div_ceil(MIB),
                cache("blocks"),
                cache("translated"),
                cache("evicted"),
            ),
        ),
    ];
    let rows = rows.iter().filter(|(_, value)| !value.is_empty());
    let lines: Vec<_> = rows
        .map(|(name, value)| format!("{name:<13} {value}"))
        .collect();
    lines.join("\n")
}

/// A number other than zero, or several of them with their names.
fn counted(value: &Value) -> String {
    match value {
        Value::Number(number) if number.as_u64() != Some(0) => number.to_string(),
        Value::Object(counts) => {
            let texts: Vec<_> = counts
                .iter()
                .map(|(name, count)| format!("{} by {}", count, one_line(name)))
                .collect();
            texts.join(", ")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_shown_with_what_is_known() {
        let mut answer = json!({"ok": true, "status": {
            "state": "running", "uptime_ns": 1_234_567_890u64, "guest_time_ns": 5_000_000, "exits": 7,
            "panics": 0, "resets": {},
            "machine": {
                "pid": 12, "memory_bytes": 512 << 20, "kernel": "/vmlinuz", "command_line": "quiet"
            },
            "code_cache": {
                "size_bytes": 64 << 20, "used_bytes": 5_000_000, "blocks": 8, "translated": 9, "evicted": 1
            }
        }});
        let shown = describe(&answer);
        assert_eq!(
            shown,
            "state         running\nup time       1.234 s\nguest time    0.005 s\n\
             process       12\nmemory        512 MiB\nkernel        /vmlinuz\n\
             command line  quiet\nexits         7\n\
             code cache    5 of 64 MiB, 8 blocks; 9 translated, 1 dropped to make room"
        );
        answer["status"]["panics"] = json!(2);
        answer["status"]["resets"] = json!({"triple-fault": 1, "reset-register": 3});
        let shown = describe(&answer);
        let happened = "panics        2\nresets        3 by reset-register, 1 by triple-fault\n";
        assert!(shown.contains(happened), "{shown}");
    }

    /// A machine that answers one request with `answer`, and ends when `end` receives a message.
    fn machine(answer: &'static str, end: std::sync::mpsc::Receiver<()>) -> std::path::PathBuf {
        use std::os::unix::net::UnixListener;
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("tollgate-client-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        let own = path.clone();
        std::thread::spawn(move || {
            let (waits, _) = listener.accept().unwrap();
            let (asks, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&asks).read_line(&mut line).unwrap();
            assert_eq!(line, "{\"command\":\"power-button\"}\n");
            writeln!(&asks, "{answer}").unwrap();
            let _ = end.recv();
            drop(waits);
            std::fs::remove_file(own).unwrap();
        });
        path
    }

    #[test]
    fn the_end_after_the_power_button_is_awaited() {
        let (tell, told) = std::sync::mpsc::channel();
        let path = machine(r#"{"ok":true}"#, told);
        let moment = Duration::from_millis(20);
        let failure = press_and_wait(&path, moment).unwrap_err();
        assert_eq!(failure.code, exit_code::HOST);
        drop(tell);

        let (tell, told) = std::sync::mpsc::channel();
        let path = machine(r#"{"ok":true}"#, told);
        let ending = std::thread::spawn(move || {
            std::thread::sleep(moment);
            drop(tell);
        });
        assert!(press_and_wait(&path, Duration::from_secs(600)).is_ok());
        ending.join().unwrap();

        let (_tell, told) = std::sync::mpsc::channel();
        let path = machine(r#"{"ok":false,"error":"no"}"#, told);
        assert!(press_and_wait(&path, Duration::from_secs(600)).is_err());
    }

    #[test]
    fn an_answer_without_content_shows_nothing() {
        assert_eq!(describe(&json!({"ok": true})), "");
        assert_eq!(describe(&json!({"ok": true, "state": "paused"})), "paused");
    }
}
