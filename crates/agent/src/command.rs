//! Runs the guest's command: its streams, its user, its signals and its end.

use crate::limits::{self, Enforced};
use crate::memory_kills::MemoryKills;
use crate::ports::Control;
use crate::protocol::{Start, Terminal, ToHost, WindowSize, code, kept};
use crate::refusal::Refusal;
use crate::sys;
use crate::users::{self, Identity};
use crate::workers::{Input, Workers};
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

const ENOEXEC: i32 = 8;
/// Where programs are looked for if the environment has no PATH.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A command that runs.
pub struct Running {
    /// The number of its process, which is also that of its process group.
    pub process: i32,
    /// The agent's ends of its streams.
    pub ends: Ends,
}

/// The agent's ends of the command's streams.
pub struct Ends {
    /// The end of standard input.
    pub input: File,
    /// The sources of standard output and standard error. A stream without one shares the terminal
    /// of another stream.
    pub outputs: [Option<OwnedFd>; 2],
    /// The terminal of the command, if it has one.
    pub terminal: Option<File>,
}

/// Starts the command.
pub fn start(start: &Start, limits: &Enforced) -> Result<Running, Refusal> {
    let own = |error: io::Error| Refusal::own(format!("cannot run the command: {error}"));
    let identity = users::find(&start.user)?;
    let directory = &start.directory;
    if !directory.is_dir() {
        let why = format!("no such directory in the guest: '{}'", directory.display());
        return Err(Refusal::own(why));
    }
    let (mut command, name) = command(start, &identity)?;
    let ends = connect(&mut command, start.terminal, &identity).map_err(own)?;
    let has_terminal = ends.terminal.is_some();
    let members = limits.members().map_err(own)?;
    let (umask, work) = (start.umask, directory.clone());
    let (user, group, others) = (identity.user, identity.group, identity.others);
    // SAFETY: between fork and exec only system calls are made, and no memory is allocated:
    // set_current_dir copies short paths to the stack, and the workers wait without a lock.
    unsafe {
        command.pre_exec(move || {
            members.as_ref().map_or(Ok(()), limits::enter)?;
            sys::begin_session(has_terminal)?;
            sys::set_umask(umask);
            sys::become_user(user, group, &others)?;
            std::env::set_current_dir(&work)
        });
    }
    let child = command.spawn().map_err(|error| not_started(&name, &error));
    // The agent closes its copies of the command's ends, so that it notices when the command closes
    // them.
    drop(command);
    let process = child?.id() as i32;
    Ok(Running { process, ends })
}

/// Runs the command until it ends.
pub fn run(
    start: &Start,
    control: &Control,
    workers: Workers,
    limits: &Enforced,
) -> Result<ToHost, Refusal> {
    let memory_kills = MemoryKills::watch();
    let refused = limits.refused_processes();
    let Running { process, ends } = self::start(start, limits)?;
    control.tell(&ToHost::Started);

    let input = Input {
        file: ends.input,
        is_terminal: ends.terminal.is_some(),
    };
    let pumps = workers.serve(process, input, ends.terminal, ends.outputs);

    let code = loop {
        match sys::wait_for_child() {
            Some((number, code)) if number == process => break code,
            // This was an orphan that the first process has adopted.
            Some(_) => {}
            None => break code::FAILED,
        }
    };
    let mut written = [0; 2];
    for (count, pump) in written.iter_mut().zip(pumps) {
        *count = pump.finish();
    }
    sys::write_out();
    Ok(ToHost::Exited {
        code,
        written,
        killed_for_memory: memory_kills.count(),
        limits_reached: limits.reached_since(refused),
    })
}

/// Returns the command with its environment, and its name.
fn command(start: &Start, identity: &Identity) -> Result<(Command, OsString), Refusal> {
    let Some((name, arguments)) = start.command.split_first() else {
        return Err(Refusal::own("no command"));
    };
    let mut command = match name.to_str() {
        // This program, which is not in the guest's root.
        Some(kept::PUT | kept::GET) => Command::new("/proc/self/exe"),
        _ => Command::new(name),
    };
    command.arg0(name).args(arguments).env_clear();
    command.env("PATH", DEFAULT_PATH);
    command.env("HOME", identity.home.as_deref().unwrap_or("/"));
    if let Some(name) = &identity.name {
        command.env("USER", name).env("LOGNAME", name);
    }
    for variable in &start.environment {
        let bytes = variable.as_bytes();
        let middle = bytes.iter().position(|byte| *byte == b'=');
        let (name, value) = bytes.split_at(middle.unwrap_or(bytes.len()));
        let value = value.get(1..).unwrap_or_default();
        command.env(OsStr::from_bytes(name), OsStr::from_bytes(value));
    }
    Ok((command, name.clone()))
}

/// Returns why the command did not start, with the exit code that `env` would use.
fn not_started(name: &OsStr, error: &io::Error) -> Refusal {
    let shown = Path::new(name).display();
    let has_path = name.as_bytes().contains(&b'/');
    let (code, why) = match error.kind() {
        ErrorKind::NotFound if has_path && Path::new(name).exists() => (
            code::NOT_FOUND,
            format!("'{shown}': its interpreter was not found"),
        ),
        ErrorKind::NotFound => (code::NOT_FOUND, format!("'{shown}': no such command")),
        _ if error.raw_os_error() == Some(ENOEXEC) => (
            code::NOT_EXECUTABLE,
            format!("'{shown}' is not a program, or is for another processor than this kernel's"),
        ),
        _ => (code::NOT_EXECUTABLE, format!("'{shown}': {error}")),
    };
    Refusal { code, why }
}

/// Gives the command its streams: pipes, and a terminal if it should have one.
fn connect(
    command: &mut Command,
    terminal: Option<Terminal>,
    identity: &Identity,
) -> io::Result<Ends> {
    let give = |fd: &OwnedFd| std::os::unix::fs::fchown(fd, Some(identity.user), None);
    let mut outputs = [None, None];
    let in_terminal = match terminal {
        Some(terminal) => [terminal.has_output, terminal.has_errors],
        None => [false; 2],
    };
    let mut sides = None;
    let input = match terminal {
        Some(terminal) => {
            let master = OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/ptmx")?;
            let number = sys::other_side(&master)?;
            let WindowSize { rows, columns } = terminal.size;
            sys::set_window_size(&master, rows, columns);
            let slave = OpenOptions::new()
                .read(true)
                .write(true)
                .open(format!("/dev/pts/{number}"))?;
            give(&slave.try_clone()?.into())?;
            command.stdin(slave.try_clone()?);
            let input = master.try_clone()?;
            sides = Some((master, slave));
            input
        }
        None => {
            let (reader, writer) = io::pipe()?;
            give(&reader.as_fd().try_clone_to_owned()?)?;
            command.stdin(reader);
            File::from(OwnedFd::from(writer))
        }
    };
    let mut terminal_is_taken = false;
    for (index, output) in outputs.iter_mut().enumerate() {
        let stream: Stdio = match (&sides, in_terminal[index]) {
            (Some((master, slave)), true) => {
                // The terminal's output is read only once.
                if !terminal_is_taken {
                    *output = Some(OwnedFd::from(master.try_clone()?));
                    terminal_is_taken = true;
                }
                slave.try_clone()?.into()
            }
            _ => {
                let (reader, writer) = io::pipe()?;
                give(&writer.as_fd().try_clone_to_owned()?)?;
                *output = Some(reader.into());
                writer.into()
            }
        };
        if index == 0 {
            command.stdout(stream);
        } else {
            command.stderr(stream);
        }
    }
    // If the terminal has no output stream, only its echo is lost.
    let terminal = sides.map(|(master, _)| master);
    Ok(Ends {
        input,
        outputs,
        terminal,
    })
}
