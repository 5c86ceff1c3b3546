//! A machine's life in QEMU's words: from the configuration to the exit code.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tollgate_machine::config::VmConfig;
use tollgate_machine::debugger::Width;
use tollgate_machine::snapshot::SnapshotFile;
use tollgate_machine::vm::{RunOutcome, Vm};
use tollgate_machine::vm_handle::{State, Status, VmHandle};
use tollgate_qemu_words::monitor::Event;
use tollgate_qemu_words::{self as words, Configuration};

use super::characters::{self, GuestEnds, Running};
use super::configuration::{configuration, slots};
use super::daemon;
use super::exit_code::{self, failed};
use super::orders::{Orders, TagToLoad, Talk};
use super::snapshots::Store;
use crate::confinement::{self, Confinement};
use crate::control::identity::Identity;
use crate::control::run_time;
use crate::doctor;
use crate::event_loop::{EventLoop, Sources};
use crate::failure::{self, Failure, say};
use crate::gdb::{self, Gdb};
use crate::keyboard::Keyboard;
use crate::limits::{self, HostLimits};
use crate::signals::Signals;
use crate::statistics::Reporter;
use crate::text_display::TextDisplay;
use crate::vnc::options::VncOptions;
use crate::vnc::{Vnc, VncServer};

/// Runs the machine and returns the exit code.
///
/// # Errors
/// One line that says why there is no machine.
pub fn run(config: &Configuration) -> Result<u8, Failure> {
    if config.daemonize && !daemon::is_in_background() {
        return daemon::start();
    }
    if config.daemonize {
        daemon::leave_terminal();
    }
    let _pid_file = PidFile::write(config)?;
    let mut machine = configuration(config)?;
    doctor::required_floor().map_err(failed)?;
    let limits = limits_of(config, &machine)?;
    // What confinement starts belongs to the group, too.
    let group = limits.enter_group();
    limits.adapt(group.as_ref(), &mut machine);
    confinement::begin(Confinement::Auto, &machine, exit_code::FAILED)?;
    let handle = VmHandle::new();
    limits.watch(group.as_ref(), &handle)?;
    let talk = Arc::new(Talk::default());
    let orders = Orders::new(config, &handle, &talk, slots(&machine));
    let (characters, ends) = characters::open(config, &handle, orders)?;
    // Signals are blocked before any thread exists, because threads inherit that, but after the wait
    // for a client, which they may end.
    let signals =
        Signals::block().map_err(|error| failed(format!("cannot receive signals: {error}")))?;
    machine.ports = ends.ports(config)?;
    machine
        .validate()
        .map_err(|error| failed(error.to_string()))?;
    let mut gdb = debugger(config)?;
    let mut vm = match &config.restore {
        None => build(&machine, &ends, &handle)?,
        Some(words::Restore::File(path)) => restored(path, &mut machine, &ends, &handle)?,
        Some(words::Restore::Tag(name)) => {
            let store = Store::of(config).map_err(|why| failed(format!("-loadvm: {why}")))?;
            load(&store, name, &mut machine, &ends, &handle)?
        }
    };
    if config.paused {
        // The processor's thread obeys before it runs guest code.
        handle.pause();
    }
    let reporter = Arc::new(Reporter::PLAIN);
    let identity = Identity::new(
        machine.memory_bytes,
        config.kernel.as_deref(),
        machine.firmware.as_deref(),
        &machine.append,
    );
    let (control, _link) = run_time::open(None, &reporter, &identity)?;
    let has_text = config.display == words::Display::Curses;
    let vnc = vnc(config, &handle)?;
    confinement::enter();
    if let Some(gdb) = &mut gdb {
        gdb.start(&mut vm, &handle, false)?;
    }
    let sources = Sources {
        signals,
        keyboard: has_text.then(Keyboard::open).transpose()?,
        pty: None,
        control,
        display: has_text.then(TextDisplay::begin),
        pictures: None,
        vnc,
        silence: None,
    };
    let refused = |error: io::Error| failed(format!("no thread: {error}"));
    let event_loop = EventLoop::start(sources, handle.clone()).map_err(refused)?;
    let running = characters.start().map_err(refused)?;
    if config.daemonize {
        daemon::report_ready();
    }
    let life = Life {
        config,
        ends: &ends,
        handle: &handle,
        event_loop: &event_loop,
        running: &running,
        talk: &talk,
    };
    let (vm, ending) = life.run_until_end(vm, &mut machine)?;
    handle.commands().publish(Status {
        state: State::Stopped,
        ..handle.status()
    });
    let signal = event_loop.signal();
    // Dropping the loop restores the terminal, which the messages below need.
    drop(event_loop);
    // Dropping the machine writes the last bytes that the guest has sent.
    drop(vm);
    drop(ends);
    drop(running);
    if let Some(signal) = signal {
        say(&format!("terminating on signal {signal}"));
    }
    Ok(code_of(&ending))
}

/// What surrounds a machine while it runs.
struct Life<'a> {
    config: &'a Configuration,
    ends: &'a GuestEnds,
    handle: &'a VmHandle,
    event_loop: &'a EventLoop,
    running: &'a Running,
    talk: &'a Talk,
}

impl Life<'_> {
    /// Runs the machine, and starts it again after a reset.
    fn run_until_end(
        &self,
        mut vm: Vm,
        machine: &mut VmConfig,
    ) -> Result<(Vm, Option<RunOutcome>), Failure> {
        loop {
            let ending = confinement::run(&mut vm)?;
            if let Some(RunOutcome::Panicked(_)) = ending {
                if self.config.panic_device {
                    self.running.tell(Event::Panicked);
                    if self.config.panic_fails {
                        return Ok((vm, ending));
                    }
                }
                // The guest goes on to its last messages and its reset.
                continue;
            }
            if let Some(tag) = self.talk.take_load() {
                vm = self.continue_from(&tag, vm, machine)?;
                continue;
            }
            if !self.starts_again(&ending) {
                return Ok((vm, ending));
            }
            if let Some(tag) = self.talk.take_load() {
                vm = self.continue_from(&tag, vm, machine)?;
                continue;
            }
            // The old machine's memory is freed before the new one's is allocated.
            machine.floppies.clone_from(&vm.config().floppies);
            machine.ide_drives.clone_from(&vm.config().ide_drives);
            machine.scsi_drives.clone_from(&vm.config().scsi_drives);
            machine.scsi_controller = vm.config().scsi_controller;
            // A reset also ends the wait for a guest that was asked to eject a device.
            vm.eject_leaving();
            machine.hot_plug.clone_from(&vm.config().hot_plug);
            let past = vm.into_past();
            vm = build(machine, self.ends, self.handle)?;
            vm.continue_past(past);
        }
    }

    /// Replaces the machine by a snapshot.
    fn continue_from(
        &self,
        TagToLoad { store, name }: &TagToLoad,
        vm: Vm,
        machine: &mut VmConfig,
    ) -> Result<Vm, Failure> {
        machine.hot_plug.clone_from(&vm.config().hot_plug);
        // The old machine has its images open until now.
        drop(vm);
        drop(self.handle.commands().take());
        let loaded = load(store, name, machine, self.ends, self.handle);
        let told = loaded.as_ref().map(|_| ());
        self.talk
            .loaded(told.map_err(|failure| failure.message.clone()));
        loaded
    }

    /// Reports how the machine ended. Returns whether it starts again.
    fn starts_again(&self, ending: &Option<RunOutcome>) -> bool {
        let is_off = match ending {
            Some(RunOutcome::Reset(_)) if self.event_loop.end_wanted() => return false,
            Some(RunOutcome::Reset(_)) if self.config.no_reboot => {
                self.running.tell(Event::Shutdown(true, "guest-reset"));
                true
            }
            Some(RunOutcome::Reset(_)) => {
                self.running.tell(Event::Reset(true));
                return true;
            }
            Some(RunOutcome::PowerOff) => {
                self.running.tell(Event::Shutdown(true, "guest-shutdown"));
                true
            }
            Some(RunOutcome::Quit) if self.talk.take_reset() => {
                let ends = self.config.no_reboot;
                self.running.tell(match ends {
                    true => Event::Shutdown(false, "host-qmp-system-reset"),
                    false => Event::Reset(false),
                });
                if !ends {
                    return true;
                }
                true
            }
            Some(RunOutcome::Quit) => {
                let reason = match self.talk.wants_quit() {
                    true => "host-qmp-quit",
                    false => "host-signal",
                };
                self.running.tell(Event::Shutdown(false, reason));
                false
            }
            _ => false,
        };
        if !(is_off && self.config.no_shutdown) {
            return false;
        }
        self.running.tell(Event::Stop);
        let ends = || self.event_loop.end_wanted();
        if !self.talk.wait_while_off(ends) {
            return false;
        }
        // A monitor may have ended the machine when it had ended already.
        drop(self.handle.commands().take());
        self.running.tell(Event::Reset(false));
        true
    }
}

/// Makes the machine of a snapshot with this name, after its disks were put back.
fn load(
    store: &Store,
    name: &str,
    machine: &mut VmConfig,
    ends: &GuestEnds,
    handle: &VmHandle,
) -> Result<Vm, Failure> {
    let path = store.machine(name).map_err(failed)?;
    store.put_images_back(name).map_err(failed)?;
    restored(&path, machine, ends, handle)
}

/// Makes the machine that a file holds. It must be one of the same command line.
fn restored(
    path: &Path,
    machine: &mut VmConfig,
    ends: &GuestEnds,
    handle: &VmHandle,
) -> Result<Vm, Failure> {
    let snapshot = SnapshotFile::open(path).map_err(|error| failed(error.to_string()))?;
    let saved = &snapshot.description().config;
    let devices = |config: &VmConfig| {
        let ports: Vec<String> = config.ports.iter().map(|port| port.name.clone()).collect();
        let shares: Vec<String> = config
            .shares
            .iter()
            .map(|share| share.tag.clone())
            .collect();
        let counts = (config.networks.len(), config.virtio_devices());
        let plugged = config.plugged_functions().to_vec();
        let counts = (counts, plugged);
        (ports, shares, counts, config.memory_bytes)
    };
    if devices(saved) != devices(machine) {
        let path = path.display();
        return Err(failed(format!(
            "'{path}' is a machine with other devices or memory than this command line's"
        )));
    }
    *machine = VmConfig {
        ports: machine.ports.clone(),
        shares: machine.shares.clone(),
        networks: machine.networks.clone(),
        user_code: machine.user_code,
        ..saved.clone()
    };
    let consoles = ends.consoles();
    let consoles = consoles.map_err(|error| failed(format!("no descriptor: {error}")))?;
    let vm = Vm::restored(snapshot, machine, consoles, handle);
    connected(vm.map_err(|error| failed(error.to_string()))?, ends)
}

fn build(machine: &VmConfig, ends: &GuestEnds, handle: &VmHandle) -> Result<Vm, Failure> {
    let consoles = ends.consoles();
    let consoles = consoles.map_err(|error| failed(format!("no descriptor: {error}")))?;
    let vm = Vm::build(machine, consoles, handle);
    connected(vm.map_err(|error| failed(error.to_string()))?, ends)
}

/// A machine whose second serial port and printer are connected.
fn connected(mut vm: Vm, ends: &GuestEnds) -> Result<Vm, Failure> {
    let connected = ends.connect_others(&mut vm);
    connected.map_err(|error| failed(format!("no descriptor: {error}")))?;
    Ok(vm)
}

/// What the machine may take of this host.
fn limits_of(config: &Configuration, machine: &VmConfig) -> Result<HostLimits, Failure> {
    let Some(text) = &config.limit else {
        return Ok(HostLimits::default());
    };
    let limits = HostLimits::parse(text).map_err(|why| failed(format!("-limit {text}: {why}")))?;
    let checked = limits.check(machine.memory_bytes);
    checked.map_err(|why| failed(format!("{why}; give that, or less with -m")))?;
    Ok(limits)
}

/// The socket on which a debugger is awaited. The program's name says which registers it has.
fn debugger(config: &Configuration) -> Result<Option<Gdb>, Failure> {
    let place = match &config.debugger {
        None => return Ok(None),
        Some(words::Place::Unix(path)) => format!("unix:{}", path.display()),
        Some(words::Place::Tcp(host, port)) => format!("tcp:{host}:{port}"),
        Some(words::Place::Descriptor(_)) => return Err(failed("-gdb: give a port or a path")),
    };
    let mut options = gdb::parse(&place).map_err(|why| failed(format!("-gdb {place}: {why}")))?;
    if failure::name().ends_with("i386") {
        options.width = Width::Bits32;
    }
    let bound = Gdb::bind(&options);
    bound.map(Some).map_err(|failure| failed(failure.message))
}

/// The server for VNC viewers.
fn vnc(config: &Configuration, handle: &VmHandle) -> Result<Option<VncServer>, Failure> {
    let words::Display::Vnc(place) = &config.display else {
        return Ok(None);
    };
    let options =
        VncOptions::parse(place.as_ref()).map_err(|why| failed(format!("-vnc: {why}")))?;
    let name = config.name.clone().unwrap_or_else(|| "Tollgate".into());
    let server = Vnc::bind(&options, name).map_err(|failure| failed(failure.message))?;
    let started = server.start(handle.clone());
    started
        .map(Some)
        .map_err(|error| failed(format!("-vnc: no thread: {error}")))
}

/// The exit code. What ended the machine is explained where that is needed.
fn code_of(ending: &Option<RunOutcome>) -> u8 {
    match ending {
        Some(RunOutcome::Quit) if limits::are_exceeded() => exit_code::FAILED,
        Some(RunOutcome::PowerOff | RunOutcome::Reset(_) | RunOutcome::Quit) => exit_code::SUCCESS,
        Some(RunOutcome::DebugExit(value)) => crate::exit_code::debug_exit(*value),
        Some(RunOutcome::Panicked(_)) => exit_code::FAILED,
        Some(RunOutcome::TripleFault(_)) => {
            say("the processor has shut down");
            exit_code::FAILED
        }
        Some(RunOutcome::Stopped(why)) => {
            say(&format!("stopped: {why}"));
            exit_code::FAILED
        }
        None => {
            say("stopped: tollgate failed (the message above says where); please report it");
            exit_code::FAILED
        }
    }
}

/// The file with the process's number, which is removed at the end.
struct PidFile(PathBuf);

impl PidFile {
    fn write(config: &Configuration) -> Result<Option<Self>, Failure> {
        let Some(path) = &config.pid_file else {
            return Ok(None);
        };
        let number = format!("{}\n", std::process::id());
        let written = fs::write(path, number);
        let refused = |error| {
            failed(format!(
                "-pidfile: cannot write '{}': {error}",
                path.display()
            ))
        };
        written.map_err(refused)?;
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        Ok(Some(Self(path)))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
