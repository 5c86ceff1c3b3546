//! `tollgate run`: one virtual machine, from the command line to the exit code.
//!
//! The vCPU runs on the main thread; everything outside the guest is the event loop's.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tollgate_machine::boot::firmware;
use tollgate_machine::boot::guest_hooks::GuestHooks;
use tollgate_machine::config::{
    BootDevice, DriveOptions, IdeDrive, IdePlaces, Paravirtual, Realtime, RegisterMapChoice,
    TripleFaultAction, VmConfig,
};
use tollgate_machine::devices::fw_cfg::FwCfgFile;
use tollgate_machine::file_words::reading;
use tollgate_machine::vm::{Consoles, PanicReport, RunOutcome, Vm};
use tollgate_machine::vm_handle::{State, Status, VmHandle};

use crate::cli::{
    Display, GuestHooksFor, Paravirt, RealtimeChoice, RegisterMapName, RunArguments, SerialTarget,
    Switch, TripleFault,
};
use crate::console::Console;
use crate::control::identity::Identity;
use crate::control::run_time;
use crate::event_loop::{EventLoop, Sources};
use crate::exit_on::{ExitCodes, ExitOn};
use crate::failure::{Failure, say};
use crate::keyboard::Keyboard;
use crate::png_display::PngDisplay;
use crate::signals::Signals;
use crate::silence::Silence;
use crate::statistics::{FinalReport, Reporter};
use crate::text_display::TextDisplay;
use crate::trace_file::TraceFile;
use crate::vnc::Vnc;
use crate::{build_error, doctor, exit_code, fw_cfg, perf_map, port, share};

/// Runs `tollgate run` and returns its exit code.
pub fn run(arguments: &RunArguments) -> u8 {
    start_and_run(arguments).unwrap_or_else(|failure| failure.report())
}

fn start_and_run(arguments: &RunArguments) -> Result<u8, Failure> {
    let started = Instant::now();
    let mut config = configuration(arguments)?;
    let mut codes = ExitCodes::of(&arguments.exit_on);
    if arguments.reboot
        && arguments
            .exit_on
            .iter()
            .any(|on| matches!(on, ExitOn::Reset(_)))
    {
        return Err(Failure::usage(
            "--exit-on reset cannot be used with --reboot, with which a reset is no end",
        ));
    }
    let lost_by_ports = port::watch(&mut config.ports);
    doctor::required_floor().map_err(Failure::host)?;
    doctor::warn();

    // Before any thread exists: threads inherit the blocked signals.
    let signals = Signals::block()
        .map_err(|error| Failure::host(format!("cannot receive signals: {error}")))?;
    let handle = VmHandle::new();
    let outputs = Outputs::open(arguments)?;
    let statistics = &arguments.statistics;
    let reporter = Arc::new(Reporter::open(statistics)?);
    let report = FinalReport::open(statistics, &reporter)?;
    let path = arguments.control.as_deref();
    let (control, _link) = run_time::open(path, &reporter, &identity(&config))?;
    // Built before the terminal is touched, so that an error finds it as it was.
    let mut vm = build(&config, &outputs, &handle)?;
    let trace = TraceFile::begin(&arguments.statistics, &reporter, &mut vm)?;
    let is_display = arguments.display == Display::Text;
    if is_display && !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return Err(Failure::usage("--display text needs a terminal"));
    }
    let pictures = match &arguments.display {
        Display::Png(folder) => Some(PngDisplay::begin(folder)?),
        Display::None | Display::Text | Display::Vnc(_) => None,
    };
    let lost_pictures = pictures.as_ref().map(PngDisplay::losses);
    let vnc = match &arguments.display {
        Display::Vnc(options) => {
            let server = Vnc::bind(options, "Tollgate".into())?;
            let started = server.start(handle.clone());
            let refuse = |error| Failure::host(format!("--display vnc: no thread: {error}"));
            Some(started.map_err(refuse)?)
        }
        _ => None,
    };
    let keyboard = match arguments.serial() {
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
        silence: match (&config.firmware, &*arguments.hvc) {
            (None, []) => Silence::of(outputs.serial.is_used(), &config.append),
            _ => None,
        },
    };
    let event_loop = EventLoop::start(sources, handle.clone())
        .map_err(|error| Failure::host(format!("cannot start the event loop: {error}")))?;

    // The first instruction runs next.
    let start_up = started.elapsed();
    let mut panicked = false;
    let ending = loop {
        let outcome = run_once(&mut vm);
        if let Ok(RunOutcome::Panicked(report)) = outcome {
            panicked = true;
            say_panic(report);
            if codes.ends_at_panic {
                break outcome;
            }
            continue;
        }
        if !(arguments.reboot && matches!(outcome, Ok(RunOutcome::Reset(_)))) {
            break outcome;
        }
        panicked = false;
        // A guest that resets itself all the time may leave no time for the command.
        if event_loop.end_wanted() {
            break Ok(RunOutcome::Quit);
        }
        // The old machine's memory goes before the new one's comes; the books go on, and
        // knobs stay as they stand.
        for assignment in vm.settings().assignments() {
            assignment.apply(&mut config);
        }
        config.floppies.clone_from(&vm.config().floppies);
        config.ide_drives.clone_from(&vm.config().ide_drives);
        let past = vm.into_past();
        vm = build(&config, &outputs, &handle)?;
        vm.continue_past(past);
    };

    handle.commands().publish(Status {
        state: State::Stopped,
        ..handle.status()
    });
    let signal = event_loop.signal();
    // Restores the terminal, which the messages below need.
    drop(event_loop);
    if panicked {
        codes.good = codes.panic;
        codes.reset = codes.panic;
    }
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
    // The last of what the guest wrote into ports is written when the machine goes.
    drop(vm);
    let mut losses = lost_by_ports.iter().chain(&lost_pictures);
    is_written &= !losses.any(|lost| lost.is_lost());
    Ok(match code {
        exit_code::SUCCESS if !is_written => exit_code::OUTPUT_LOST,
        code => code,
    })
}

/// What others are told of the machine.
fn identity(config: &VmConfig) -> Identity {
    let kernel = config.firmware.is_none().then_some(&*config.kernel);
    let firmware = config.firmware.as_deref();
    Identity::new(config.memory_bytes, kernel, firmware, &config.append)
}

/// The machine's configuration as the command line has it, checked as far as possible.
fn configuration(arguments: &RunArguments) -> Result<VmConfig, Failure> {
    let mut config = VmConfig {
        memory_bytes: arguments.memory,
        kernel: arguments.kernel.clone().unwrap_or_default(),
        firmware: firmware(arguments)?,
        initrd: match arguments.initrd.as_slice() {
            [] => None,
            modules => Some(modules.join(",")),
        },
        append: arguments.append.clone(),
        cpu: arguments.cpu,
        paravirtual: match arguments.paravirt {
            Paravirt::Kvm => Paravirtual::Kvm,
            Paravirt::None => Paravirtual::None,
        },
        realtime: match arguments.realtime {
            RealtimeChoice::Step => Realtime::Step,
            RealtimeChoice::Keep => Realtime::Keep,
        },
        reboot: arguments.reboot,
        pci: arguments.pci == Switch::On,
        drives: (arguments.drive.iter())
            .filter(|drive| !drive.is_ide)
            .map(|drive| kept(arguments, &drive.options))
            .collect(),
        ide_drives: ide_drives(arguments)?,
        floppies: (arguments.floppy.iter())
            .map(|floppy| floppy.as_deref().map(|disk| kept(arguments, disk)))
            .collect(),
        boot_order: (arguments.boot.clone())
            .map_or_else(|| BootDevice::ALL.to_vec(), |boot| boot.0),
        shares: share::with_tags(&arguments.share),
        ports: port::checked(&arguments.port, &arguments.hvc, arguments.serial())?,
        networks: arguments.net.iter().flat_map(|net| net.0.clone()).collect(),
        vsock: arguments.vsock.clone(),
        devices: arguments.device.clone(),
        fw_cfg_files: fw_cfg::read(&arguments.fw_cfg)?,
        triple_fault: match arguments.triple_fault {
            Some(TripleFault::Reset) => TripleFaultAction::Reset,
            Some(TripleFault::Stop) => TripleFaultAction::Stop,
            // Programs of the 286 return to real mode by it, with firmware's help.
            None if arguments.kernel.is_none() => TripleFaultAction::Reset,
            None => TripleFaultAction::Stop,
        },
        count_instructions: arguments.statistics.count_instructions,
        register_map: match arguments.register_map {
            RegisterMapName::Legacy => RegisterMapChoice::Legacy,
            RegisterMapName::Spilled => RegisterMapChoice::Spilled,
        },
        ..VmConfig::default()
    };
    if config.firmware.is_some() {
        let is_named = |file: &FwCfgFile| config.fw_cfg_files.iter().any(|f| f.name == file.name);
        let video = firmware::find_video().filter(|file| !is_named(file));
        config.fw_cfg_files.extend(video);
    }
    if let Some(GuestHooksFor::Dos) = arguments.guest_hooks {
        config.fw_cfg_files.push(GuestHooks::Dos.file());
    }
    arguments.machine.apply(&mut config);
    match &config.firmware {
        Some(path) => check_readable(path, "--bios")?,
        None => check_readable(&config.kernel, "--kernel")?,
    }
    config
        .validate()
        .map_err(|error| Failure::usage(error.to_string()))?;
    Ok(config)
}

/// What is behind the IDE function.
fn ide_drives(arguments: &RunArguments) -> Result<IdePlaces, Failure> {
    let drives = arguments.drive.iter().filter(|drive| drive.is_ide);
    let drives = drives.map(|drive| match drive.is_cd_rom {
        true => IdeDrive::CdRom(Some(drive.options.clone())),
        false => IdeDrive::Disk(kept(arguments, &drive.options), drive.geometry),
    });
    let cd_rom = arguments.cdrom.as_ref();
    let cd_rom = cd_rom.map(|disc| IdeDrive::CdRom(disc.as_deref().cloned()));
    IdeDrive::place(drives.collect(), cd_rom).map_err(|error| Failure::usage(error.to_string()))
}

/// A disk as it is used: with `--snapshot` its image stays as it is.
fn kept(arguments: &RunArguments, disk: &DriveOptions) -> DriveOptions {
    DriveOptions {
        snapshot: disk.snapshot || arguments.snapshot && !disk.readonly,
        ..disk.clone()
    }
}

/// The firmware that the machine starts from: the one named, or without a kernel the host's.
fn firmware(arguments: &RunArguments) -> Result<Option<PathBuf>, Failure> {
    match (&arguments.kernel, &arguments.bios) {
        (_, Some(path)) => Ok(Some(path.clone())),
        (None, None) => firmware::find().map(Some).map_err(Failure::usage),
        (Some(_), None) => Ok(None),
    }
}

/// Finds out early, and says plainly, that a file cannot be read. Reads nothing: the file
/// may be a pipe, as a shell's `<(zcat kernel.gz)` is.
fn check_readable(path: &Path, flag: &str) -> Result<(), Failure> {
    let result = File::open(path).and_then(|file| match file.metadata()?.is_dir() {
        true => Err(ErrorKind::IsADirectory.into()),
        false => Ok(()),
    });
    let Err(error) = result else {
        return Ok(());
    };
    let why = reading(&error);
    Err(Failure::usage(format!(
        "{flag}: cannot read '{}': {why}",
        path.display()
    )))
}

/// The consoles' outputs, open for as long as the command runs.
struct Outputs {
    serial: Console,
    debug: Console,
}

impl Outputs {
    fn open(arguments: &RunArguments) -> Result<Self, Failure> {
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

    fn consoles(&self) -> std::io::Result<Consoles> {
        Ok(Consoles {
            serial: self.serial.writer()?,
            debug: self.debug.writer()?,
        })
    }

    /// Where the pseudo-terminal's input is read.
    fn pty_input(&self) -> Result<Option<std::os::fd::OwnedFd>, Failure> {
        self.serial
            .pty()
            .map(|pty| pty.master.try_clone())
            .transpose()
            .map_err(|error| Failure::host(format!("--serial: {error}")))
    }
}

fn build(config: &VmConfig, outputs: &Outputs, handle: &VmHandle) -> Result<Vm, Failure> {
    let consoles = outputs
        .consoles()
        .map_err(|error| Failure::host(format!("no descriptor for a console: {error}")))?;
    Vm::build(config, consoles, handle).map_err(|error| build_error::failure_of_run(&error, config))
}

/// Tollgate itself failed with a panic, which was reported already.
struct Panicked;

fn run_once(vm: &mut Vm) -> Result<RunOutcome, Panicked> {
    // After a panic the machine is only asked for its counts.
    catch_unwind(AssertUnwindSafe(|| vm.run())).map_err(|_| Panicked)
}

/// Says that the guest's kernel has given up.
fn say_panic(report: PanicReport) {
    say(match report {
        PanicReport::Fatal => "the guest's kernel reported a panic",
        PanicReport::HandledByGuest => {
            "the guest's kernel reported a panic; another kernel takes over to write a dump"
        }
    });
}

/// Says why the machine ended, where that needs saying, and returns the exit code.
fn explain(ending: Result<RunOutcome, Panicked>, signal: Option<i32>, codes: ExitCodes) -> u8 {
    match ending {
        Ok(RunOutcome::PowerOff) => codes.good,
        Ok(RunOutcome::Reset(cause)) => {
            say(&format!("the guest was reset by {cause}"));
            codes.reset
        }
        Ok(RunOutcome::Panicked(_)) => codes.panic,
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
