//! `tollgate run`: runs one virtual machine, from the command line to the exit code.
//!
//! The vCPU runs on a thread of its own, for which the main thread opens files; the event loop handles
//! everything outside the guest.

mod arguments;
mod build_error;
mod configuration;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tollgate_machine::config::VmConfig;
use tollgate_machine::vm::{Consoles, PanicReport, RunOutcome, Vm};
use tollgate_machine::vm_handle::{State, Status, VmHandle};

pub use arguments::RunArguments;
use configuration::configuration;

use crate::cache::folders;
use crate::cache::translations::{self, Begin, Translations};
use crate::confinement::{self, Confinement};
use crate::console::Console;
use crate::control::identity::Identity;
use crate::control::run_time;
use crate::display::Display;
use crate::event_loop::{EventLoop, Sources};
use crate::exit_on::ExitCodes;
use crate::failure::{Failure, say};
use crate::flags::ConsoleArguments;
use crate::gdb::Gdb;
use crate::keyboard::Keyboard;
use crate::machines::{self, Facts, detach};
use crate::png_display::PngDisplay;
use crate::serial_target::SerialTarget;
use crate::signals::Signals;
use crate::silence::Silence;
use crate::statistics::{FinalReport, Reporter};
use crate::text_display::TextDisplay;
use crate::trace_file::TraceFile;
use crate::vnc::Vnc;
use crate::{doctor, exit_code, limits, perf_map, port, snapshot};

/// Runs `tollgate run` and returns its exit code.
pub fn run(arguments: &RunArguments) -> u8 {
    let run = |detached| match detached {
        Some(code) => Ok(code),
        None => start_and_run(arguments),
    };
    detach::begin(&arguments.machine.presence)
        .and_then(run)
        .unwrap_or_else(|failure| failure.report())
}

fn start_and_run(arguments: &RunArguments) -> Result<u8, Failure> {
    let started = Instant::now();
    let snapshot = match &arguments.boot.restore {
        Some(path) => Some(snapshot::open(path)?),
        None => None,
    };
    let mut config = match &snapshot {
        Some(snapshot) => configuration::restored(arguments, &snapshot.description().config)?,
        None => configuration(arguments)?,
    };
    let mut codes = arguments.events.exit_codes()?;
    let lost_by_ports = port::watch(&mut config.ports);
    doctor::required_floor().map_err(Failure::host)?;
    doctor::warn();
    let limits = arguments.machine.limit.unwrap_or_default();
    // What confinement starts belongs to the group, too.
    let group = limits.enter(&mut config)?;
    let confine = arguments.machine.confine.unwrap_or(Confinement::Auto);
    confinement::begin(confine, &config, exit_code::STOPPED)?;

    // Signals are blocked before any thread exists, because threads inherit that.
    let signals = Signals::block()
        .map_err(|error| Failure::host(format!("cannot receive signals: {error}")))?;
    let handle = VmHandle::new();
    limits.watch(group.as_ref(), &handle)?;
    let outputs = Outputs::open(&arguments.consoles)?;
    let statistics = &arguments.statistics;
    let reporter = Arc::new(Reporter::open(statistics)?);
    let report = FinalReport::open(statistics, &reporter)?;
    let path = arguments.machine.control.as_deref();
    let presence = &arguments.machine.presence;
    let facts = Facts::new(what(&config), config.memory_bytes, presence);
    let name = facts.name.clone();
    let _entry = machines::register(presence, facts)?;
    let (control, _link) = run_time::open(path, &reporter, &identity(&config))?;
    // The machine is built before the terminal is changed, so that an error message finds the
    // terminal unchanged.
    let mut vm = match snapshot {
        Some(snapshot) => {
            let consoles = outputs.consoles_for_machine()?;
            Vm::restored(snapshot, &config, consoles, &handle)
                .map_err(|error| build_error::failure_of(&error, &config))?
        }
        None => build(&config, &outputs, &handle)?,
    };
    let translations = match (
        &arguments.machine.translation_cache,
        &arguments.boot.restore,
    ) {
        (Some(flag), _) => translations::folder(flag)?
            .and_then(|folder| translations_of(arguments, &config, &folder)),
        (None, Some(snapshot)) => Translations::next_to(snapshot, &config),
        (None, None) => None,
    };
    if let Some(translations) = &translations {
        translations.lend(&mut vm);
    }
    let debugger = &arguments.debugger;
    let mut gdb = debugger.gdb.as_ref().map(Gdb::bind).transpose()?;
    confinement::enter();
    if let Some(gdb) = &mut gdb {
        gdb.start(&mut vm, &handle, debugger.gdb_wait)?;
    }
    let trace = TraceFile::begin(&arguments.statistics, &reporter, &mut vm)?;
    let is_display = arguments.consoles.display == Display::Text;
    if is_display && !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return Err(Failure::usage("--display text needs a terminal"));
    }
    let pictures = match &arguments.consoles.display {
        Display::Png(folder) => Some(PngDisplay::begin(folder)?),
        Display::None | Display::Text | Display::Vnc(_) => None,
    };
    let lost_pictures = pictures.as_ref().map(PngDisplay::losses);
    let vnc = match &arguments.consoles.display {
        Display::Vnc(options) => {
            let server = Vnc::bind(options, "Tollgate".into())?;
            let started = server.start(handle.clone());
            let refuse = |error| Failure::host(format!("--display vnc: no thread: {error}"));
            Some(started.map_err(refuse)?)
        }
        _ => None,
    };
    let keyboard = match arguments.consoles.serial() {
        _ if is_display => Some(Keyboard::open()?),
        SerialTarget::Stdio => Some(Keyboard::open()?),
        _ => None,
    };
    if keyboard.as_ref().is_some_and(Keyboard::is_interactive) {
        say("Ctrl-A x quits, Ctrl-A h shows all keys");
    }
    let sources = Sources {
        signals,
        keyboard,
        pty: outputs.pty_input()?,
        control,
        display: is_display.then(TextDisplay::begin),
        pictures,
        vnc,
        silence: match config.firmware.is_some() || arguments.consoles.has_virtio_console() {
            false => Silence::of(outputs.serial.is_used(), &config.append),
            true => None,
        },
    };
    let event_loop = EventLoop::start(sources, handle.clone())
        .map_err(|error| Failure::host(format!("cannot start the event loop: {error}")))?;

    detach::report_ready(&name);
    // The next step is the guest's first instruction.
    let start_up = started.elapsed();
    let mut panicked = false;
    let ending = loop {
        let outcome = confinement::run(&mut vm)?.ok_or(Panicked);
        if let Ok(RunOutcome::Panicked(report)) = outcome {
            panicked = true;
            say_panic(report);
            if codes.ends_at_panic {
                break outcome;
            }
            continue;
        }
        if !(arguments.events.reboot && matches!(outcome, Ok(RunOutcome::Reset(_)))) {
            break outcome;
        }
        panicked = false;
        // A guest that resets itself all the time may never read the request for its end.
        if event_loop.end_wanted() {
            break Ok(RunOutcome::Quit);
        }
        // The old machine's memory is freed before the new one's is allocated. The ledger
        // continues, and the knobs keep their values.
        for assignment in vm.settings().assignments() {
            assignment.apply(&mut config);
        }
        config.floppies.clone_from(&vm.config().floppies);
        config.ide_drives.clone_from(&vm.config().ide_drives);
        if let Some(translations) = &translations {
            translations.keep(&vm);
        }
        let past = vm.into_past();
        vm = build(&config, &outputs, &handle)?;
        if let Some(translations) = &translations {
            translations.lend(&mut vm);
        }
        vm.continue_past(past);
    };

    handle.commands().publish(Status {
        state: State::Stopped,
        ..handle.status()
    });
    let signal = event_loop.signal();
    // Dropping the loop restores the terminal, which the messages below need.
    drop(event_loop);
    if panicked {
        codes.good = codes.panic;
        codes.reset = codes.panic;
    }
    let has_ended = ending.is_ok();
    let code = explain(ending, signal, codes);
    let mut is_written = !outputs.have_lost_output();
    if let Some(trace) = trace {
        vm.end_trace();
        is_written &= trace.finish();
    }
    if statistics.perf_map {
        is_written &= perf_map::write(&vm, &reporter);
    }
    if let Some(report) = report {
        is_written &= report.write(&vm, start_up);
    }
    if let Some(translations) = translations.filter(|_| has_ended) {
        translations.keep(&vm);
    }
    // Dropping the machine writes the last bytes that the guest has sent to its ports.
    drop(vm);
    let mut losses = lost_by_ports.iter().chain(&lost_pictures);
    is_written &= !losses.any(|lost| lost.is_lost());
    Ok(match code {
        exit_code::SUCCESS if !is_written => exit_code::OUTPUT_LOST,
        code => code,
    })
}

/// The place of the translations of machines like this one in a folder.
fn translations_of(
    arguments: &RunArguments,
    config: &VmConfig,
    folder: &Path,
) -> Option<Translations> {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(config).ok()?.hash(&mut hasher);
    folders::build_stamp()?.hash(&mut hasher);
    let initrd = config.initrd.as_deref().map(Path::new);
    let files = [Some(&*config.kernel), initrd, config.firmware.as_deref()];
    for file in files.into_iter().flatten() {
        folders::stamp(file).hash(&mut hasher);
    }
    let begin = match arguments.boot.restore {
        Some(_) => Begin::Warm,
        None => Begin::Cold,
    };
    Translations::of(config, hasher.finish(), begin, folder)
}

/// The description of the machine that the control socket and `tollgate top` show.
fn identity(config: &VmConfig) -> Identity {
    let kernel = Some(&*config.kernel).filter(|path| !path.as_os_str().is_empty());
    let firmware = config.firmware.as_deref();
    Identity::new(config.memory_bytes, kernel, firmware, &config.append)
}

/// What the machine starts from, for lists of machines.
fn what(config: &VmConfig) -> String {
    let file = config.firmware.as_ref().unwrap_or(&config.kernel);
    file.display().to_string()
}

/// The consoles' outputs, open for as long as the command runs.
struct Outputs {
    serial: Console,
    debug: Console,
}

impl Outputs {
    fn open(arguments: &ConsoleArguments) -> Result<Self, Failure> {
        let outputs = Self {
            serial: Console::open(arguments.serial(), "--serial")?,
            debug: Console::open(&arguments.debug_console, "--debug-console")?,
        };
        if let Some(pty) = outputs.serial.pty() {
            say(&format!("the serial port is {}", pty.path.display()));
        }
        Ok(outputs)
    }

    fn have_lost_output(&self) -> bool {
        self.serial.has_lost_output() || self.debug.has_lost_output()
    }

    fn consoles_for_machine(&self) -> Result<Consoles, Failure> {
        let failed =
            |error: io::Error| Failure::host(format!("no descriptor for a console: {error}"));
        Ok(Consoles {
            serial: self.serial.writer().map_err(failed)?,
            debug: self.debug.writer().map_err(failed)?,
        })
    }

    /// The descriptor from which the pseudo-terminal's input is read.
    fn pty_input(&self) -> Result<Option<std::os::fd::OwnedFd>, Failure> {
        self.serial
            .pty()
            .map(|pty| pty.master.try_clone())
            .transpose()
            .map_err(|error| Failure::host(format!("--serial: {error}")))
    }
}

fn build(config: &VmConfig, outputs: &Outputs, handle: &VmHandle) -> Result<Vm, Failure> {
    let consoles = outputs.consoles_for_machine()?;
    Vm::build(config, consoles, handle).map_err(|error| build_error::failure_of(&error, config))
}

/// Tollgate failed with a panic, which was reported already. The machine is only asked for its counts
/// then.
struct Panicked;

/// Reports the panic of the guest's kernel.
fn say_panic(report: PanicReport) {
    say(match report {
        PanicReport::Fatal => "the guest's kernel reported a panic",
        PanicReport::HandledByGuest => {
            "the guest's kernel reported a panic; another kernel takes over to write a dump"
        }
    });
}

/// Explains why the machine ended, where an explanation is needed, and returns the exit code.
fn explain(ending: Result<RunOutcome, Panicked>, signal: Option<i32>, codes: ExitCodes) -> u8 {
    match ending {
        Ok(RunOutcome::PowerOff) => codes.good,
        Ok(RunOutcome::Reset(cause)) => {
            say(&format!("the guest was reset by {cause}"));
            codes.reset
        }
        Ok(RunOutcome::Panicked(_)) => codes.panic,
        Ok(RunOutcome::Quit) if limits::are_exceeded() => exit_code::STOPPED,
        Ok(RunOutcome::Quit) => signal.map_or(codes.good, exit_code::for_signal),
        Ok(RunOutcome::DebugExit(value)) => exit_code::debug_exit(value),
        Ok(RunOutcome::TripleFault(state)) => {
            say("triple fault: the guest shut its processor down; its state was:");
            let _ = writeln!(std::io::stderr(), "{}", state.trim_end());
            exit_code::TRIPLE_FAULT
        }
        Ok(RunOutcome::Stopped(why)) => {
            say(&format!("stopped: {why}"));
            exit_code::STOPPED
        }
        Err(Panicked) => {
            say("stopped: tollgate failed (the message above says where); please report it");
            exit_code::STOPPED
        }
    }
}
