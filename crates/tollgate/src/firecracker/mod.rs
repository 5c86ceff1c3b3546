//! `tollgate-firecracker`: a machine that is controlled by Firecracker's REST interface.
//!
//! ```text
//!   client -- server -- tollgate_firecracker::Api -- host -- Vm, VmHandle
//!                          what may follow what      carries out
//! ```
//!
//! Until a request starts a machine, the first thread serves the interface (`front`); then the
//! machine runs as with `tollgate run`, and the interface has a thread of its own.

mod arguments;
mod boot_timer;
mod configuration;
mod exit_code;
mod front;
mod host;
mod log;
mod metadata;
mod metrics;
mod saved;
mod server;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use tollgate_firecracker::{Api, ConfigFile, Logger, Machine, Metrics, VERSION};
use tollgate_host_facts::file_words::reading;
use tollgate_machine::config::VmConfig;
use tollgate_machine::vm::RunOutcome;
use tollgate_machine::vm_handle::{State, Status, VmHandle};

pub use self::arguments::id;

use self::arguments::FirecrackerArguments;
use self::front::Front;
use self::host::{Built, Host, Limits};
use self::log::Level;
use self::server::Server;
use crate::control::identity::Identity;
use crate::control::run_time;
use crate::event_loop::{EventLoop, Sources};
use crate::failure::{Failure, say};
use crate::keyboard::Keyboard;
use crate::signals::{self, Signals};
use crate::standard_output::print_and_end;
use crate::statistics::Reporter;
use crate::{confinement, doctor, limits, stack};

/// The entry of `tollgate-firecracker`.
pub fn main() -> ExitCode {
    ExitCode::from(stack::with_enough(command))
}

fn command() -> u8 {
    tollgate_machine::board::begin_frequency_measurement();
    signals::ignore_file_size_limit();
    let arguments = match FirecrackerArguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            let _ = write!(std::io::stderr(), "{error}");
            return exit_code::BAD_ARGUMENTS;
        }
        Err(help) => return print_and_end(&help.to_string(), exit_code::SUCCESS),
    };
    if let Some(text) = answer(&arguments) {
        return match text {
            Ok(text) => print_and_end(&text, exit_code::SUCCESS),
            Err(why) => end(&why, exit_code::GENERIC),
        };
    }
    match run(Arc::new(arguments)) {
        Ok(code) => code,
        Err(failure) => end(&failure.message, failure.code),
    }
}

fn end(why: &str, code: u8) -> u8 {
    say(why);
    code
}

/// What the flags ask for that need no machine.
fn answer(arguments: &FirecrackerArguments) -> Option<Result<String, String>> {
    if arguments.version {
        return Some(Ok(format!("Firecracker v{VERSION}\n")));
    }
    if arguments.snapshot_version {
        return Some(Ok(format!("v{}.0.0\n", saved::VERSION)));
    }
    let path = arguments.describe_snapshot.as_ref()?;
    let described = saved::read(path);
    Some(described.map(|it| format!("v{}.0.0\n", it.tollgate_firecracker_snapshot)))
}

/// A failure with one of Firecracker's exit codes.
fn failure(code: u8, message: String) -> Failure {
    Failure { message, code }
}

fn run(arguments: Arc<FirecrackerArguments>) -> Result<u8, Failure> {
    let generic = |failure: Failure| self::failure(exit_code::GENERIC, failure.message);
    doctor::required_floor().map_err(|why| failure(exit_code::GENERIC, why))?;
    check_filter(&arguments)?;
    let asked = arguments.limit.unwrap_or_default();
    // What confinement starts belongs to the group, too.
    let limits = Limits {
        group: asked.enter_group(),
        asked,
    };
    let confined = VmConfig::default();
    confinement::begin(arguments.confine, &confined, exit_code::BAD_SYSTEM_CALL)
        .map_err(generic)?;
    // Signals are blocked before any thread exists, because threads inherit that.
    let refused = |error| {
        let message = format!("cannot receive signals: {error}");
        failure(exit_code::GENERIC, message)
    };
    let signals = Signals::block().map_err(refused)?;
    let handle = VmHandle::new();
    (asked.watch(limits.group.as_ref(), &handle)).map_err(generic)?;
    let metadata = metadata::of(&arguments).map_err(|why| failure(exit_code::GENERIC, why))?;
    let mut host = Host::new(
        Arc::clone(&arguments),
        handle.clone(),
        metadata.clone(),
        limits,
    );
    set_outputs(&mut host, &arguments)?;
    let server = match arguments.no_api {
        true => None,
        false => {
            let most = arguments.http_api_max_payload_size;
            Some(Server::bind(&arguments.api_sock, most).map_err(generic)?)
        }
    };
    let mut front = Front {
        api: Api::new(&arguments.id, metadata),
        host,
        server,
    };
    let started = match &arguments.config_file {
        Some(path) => Ok(configure(&mut front, path)?),
        None => front.wait_for_machine(&signals).map_err(refused)?,
    };
    match started {
        Ok(built) => run_machine(&arguments, front, built, signals, &handle).map_err(generic),
        Err(signal) => Ok(crate::exit_code::for_signal(signal)),
    }
}

/// Firecracker's filter is a compiled program for another process; that its file is missing is an
/// error there too.
fn check_filter(arguments: &FirecrackerArguments) -> Result<(), Failure> {
    let Some(path) = &arguments.seccomp_filter else {
        return Ok(());
    };
    match fs::File::open(path) {
        Ok(_) => {
            say(
                "--seccomp-filter is not used: Tollgate's threads have filters of their own (see --confine)",
            );
            Ok(())
        }
        Err(error) => {
            let why = reading(&error);
            let message = format!("--seccomp-filter: cannot read '{}': {why}", path.display());
            Err(failure(exit_code::GENERIC, message))
        }
    }
}

/// Messages and measurements go where the command line says.
fn set_outputs(host: &mut Host, arguments: &FirecrackerArguments) -> Result<(), Failure> {
    let wrong = |why: String| failure(exit_code::GENERIC, why);
    if let Some(level) = &arguments.level {
        let level = level.to_ascii_lowercase();
        if !Logger::LEVELS.contains(&&*level) && level != "warn" {
            let message = "--level: expected Off, Error, Warning, Info, Debug or Trace".to_owned();
            return Err(failure(exit_code::BAD_ARGUMENTS, message));
        }
    }
    let logger = Logger {
        log_path: arguments.log_path.clone(),
        level: arguments.level.clone(),
        show_level: arguments.show_level.then_some(true),
        ..Logger::default()
    };
    host.set_logger(&logger).map_err(wrong)?;
    if let Some(path) = &arguments.metrics_path {
        let metrics = Metrics {
            metrics_path: path.clone(),
        };
        host.set_metrics(&metrics).map_err(wrong)?;
    }
    Ok(())
}

/// Starts the machine that a file describes.
fn configure(front: &mut Front, path: &Path) -> Result<Built, Failure> {
    let wrong = |why: &str| {
        let message = format!("--config-file: '{}': {why}", path.display());
        failure(exit_code::BAD_CONFIGURATION, message)
    };
    let text = fs::read(path).map_err(|error| wrong(&reading(&error).to_string()))?;
    let file = ConfigFile::parse(&text).map_err(|fault| wrong(&fault.message))?;
    let started = front.api.start_from(file, &mut front.host);
    started.map_err(|fault| wrong(&fault.message))
}

fn run_machine(
    arguments: &FirecrackerArguments,
    front: Front,
    built: Built,
    signals: Signals,
    handle: &VmHandle,
) -> Result<u8, Failure> {
    let Built {
        mut vm,
        serial,
        reads_input,
        translations,
    } = built;
    let reporter = Arc::new(Reporter::PLAIN);
    let config = vm.config();
    let identity = Identity::new(
        config.memory_bytes,
        Some(&config.kernel),
        None,
        &config.append,
    );
    let (control, _link) = run_time::open(arguments.control.as_deref(), &reporter, &identity)?;
    confinement::enter();
    let keyboard = match reads_input {
        true => Some(Keyboard::open()?),
        false => None,
    };
    let sources = Sources {
        signals,
        keyboard,
        pty: None,
        control,
        display: None,
        pictures: None,
        vnc: None,
        silence: None,
    };
    let event_loop = EventLoop::start(sources, handle.clone())
        .map_err(|error| Failure::host(format!("cannot start the event loop: {error}")))?;
    let running = (front.start())
        .map_err(|error| Failure::host(format!("cannot serve the interface: {error}")))?;
    let ending = loop {
        match confinement::run(&mut vm)? {
            // The guest goes on to its last messages and its reset.
            Some(RunOutcome::Panicked(_)) => say("the guest's kernel reported a panic"),
            ending => break ending,
        }
    };
    handle.commands().publish(Status {
        state: State::Stopped,
        ..handle.status()
    });
    let front = running.stop();
    let signal = event_loop.signal();
    // Dropping the loop restores the terminal, which the messages below need.
    drop(event_loop);
    let (code, text) = explained(&ending, signal);
    if let Some(front) = front {
        let level = match code {
            exit_code::SUCCESS => Level::Info,
            _ => Level::Error,
        };
        front.host.log.write(level, &text);
        if let Some(file) = front.host.metrics_file() {
            let line = metrics::line(front.api.counts(), Some(&vm.reading()));
            if let Err(why) = metrics::write(&file, &line) {
                front.host.log.write(Level::Error, &why);
            }
        }
    }
    if let Some(translations) = translations.filter(|_| ending.is_some()) {
        translations.keep(&vm);
    }
    // Dropping the machine writes the last bytes that the guest has sent.
    drop(vm);
    Ok(match code {
        exit_code::SUCCESS if serial.has_lost_output() => exit_code::GENERIC,
        code => code,
    })
}

/// The exit code, and what happened.
fn explained(ending: &Option<RunOutcome>, signal: Option<i32>) -> (u8, String) {
    let Some(ending) = ending else {
        let text = "tollgate failed (the message above says where); please report it";
        return (exit_code::GENERIC, text.into());
    };
    let code = match ending {
        RunOutcome::PowerOff | RunOutcome::Reset(_) | RunOutcome::Panicked(_) => exit_code::SUCCESS,
        RunOutcome::Quit if limits::are_exceeded() => exit_code::GENERIC,
        RunOutcome::Quit => signal.map_or(exit_code::SUCCESS, crate::exit_code::for_signal),
        RunOutcome::DebugExit(value) => crate::exit_code::debug_exit(*value),
        RunOutcome::TripleFault(_) | RunOutcome::Stopped(_) => exit_code::GENERIC,
    };
    (code, ending.to_string())
}
