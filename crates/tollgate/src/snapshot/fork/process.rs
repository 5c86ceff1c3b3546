//! The process of a fork: its start, its first answer, and its end if it has none.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_machine::config::{Realtime, TripleFaultAction, VmConfig};

use super::places::Place;
use crate::control::client::ask;
use crate::control::command::Name;
use crate::failure::Failure;
use crate::snapshot::arguments::SerialChoice;

/// How long a fork may take until it answers.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often it is asked.
const RETRY: Duration = Duration::from_millis(2);

/// What Tollgate writes before the name of a pseudo-terminal.
const PTY: &str = "the serial port is ";

/// What all forks have in common.
pub struct Origin<'a> {
    /// The snapshot that they continue from.
    pub snapshot: &'a Path,
    /// The machine's configuration.
    pub config: &'a VmConfig,
    /// The folder in which the machine runs, and from which the names of its files may be relative.
    pub folder: &'a Path,
    /// Where the serial port leads.
    pub serial: SerialChoice,
}

/// A fork. Its process is killed when this is dropped, unless [`Fork::release`] was called.
#[derive(Debug)]
pub struct Fork {
    /// The files with the fork's number in their names.
    pub place: Place,
    child: Child,
    serial: SerialChoice,
    is_released: bool,
}

impl Fork {
    /// Starts the process.
    ///
    /// # Errors
    /// One line says why the host starts no process.
    pub fn start(place: Place, origin: &Origin<'_>) -> Result<Self, Failure> {
        match spawn(&place, origin) {
            Ok(child) => Ok(Self {
                place,
                child,
                serial: origin.serial,
                is_released: false,
            }),
            Err(error) => Err(Failure::host(format!("cannot start a fork: {error}"))),
        }
    }

    /// Waits until the machine runs: its snapshot is mapped then.
    ///
    /// # Errors
    /// The process has ended or does not answer; the line has its last message.
    pub fn wait(&mut self) -> Result<(), Failure> {
        let control = self.place.control();
        let end = Instant::now() + PATIENCE;
        loop {
            if ask(&control, Name::Status).is_ok_and(|answer| answer["ok"] == true) {
                return Ok(());
            }
            match self.child.try_wait() {
                Ok(None) => {}
                // Its guest had little left to do.
                Ok(Some(status)) if status.success() => return Ok(()),
                _ => return Err(self.failed("has ended")),
            }
            if Instant::now() > end {
                return Err(self.failed("does not answer"));
            }
            thread::sleep(RETRY);
        }
    }

    /// Leaves the process and its files alone from now on.
    pub fn release(&mut self) {
        self.place.keep();
        self.is_released = true;
    }

    /// The process's number.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// The file or pseudo-terminal where the serial port leads.
    pub fn serial(&self) -> Option<PathBuf> {
        match self.serial {
            SerialChoice::File => Some(self.place.serial()),
            SerialChoice::Pty => {
                let log = self.messages();
                let name = log.lines().find_map(|line| line.split_once(PTY));
                name.map(|(_, path)| path.into())
            }
            SerialChoice::Null => None,
        }
    }

    /// Everything that the process has written to its log.
    fn messages(&self) -> String {
        let log = fs::read(self.place.log()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn failed(&self, what: &str) -> Failure {
        let log = self.messages();
        let last = log.lines().last().unwrap_or("it said nothing");
        let last = last.strip_prefix("tollgate: ").unwrap_or(last);
        Failure::host(format!("fork {} {what}: {last}", self.place.number))
    }
}

impl Drop for Fork {
    fn drop(&mut self) {
        if !self.is_released {
            // If it has ended already, there is nothing to kill.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn spawn(place: &Place, origin: &Origin<'_>) -> io::Result<Child> {
    let serial = match origin.serial {
        SerialChoice::File => {
            let mut target = OsString::from("file:");
            target.push(place.serial());
            target
        }
        SerialChoice::Pty => "pty".into(),
        SerialChoice::Null => "null".into(),
    };
    Command::new(std::env::current_exe()?)
        .arg("run")
        .arg("--restore")
        .arg(origin.snapshot)
        .arg("--separate")
        .arg(&place.prefix)
        .arg("--control")
        .arg(place.control())
        .arg("--serial")
        .arg(serial)
        .args(settings(origin.config))
        .current_dir(origin.folder)
        .stdin(Stdio::null())
        .stdout(place.log_file()?)
        .stderr(place.log_file()?)
        // What a terminal sends to this command, such as Ctrl-C, is not for the machine.
        .process_group(0)
        .spawn()
}

/// The flags of the machine that are not in its snapshot's part of the configuration, because
/// `run --restore` takes them from its own command line.
fn settings(config: &VmConfig) -> Vec<&'static str> {
    let mut flags = vec![match config.realtime {
        Realtime::Step => "--realtime=step",
        Realtime::Keep => "--realtime=keep",
    }];
    flags.push(match config.triple_fault {
        TripleFaultAction::Stop => "--triple-fault=stop",
        TripleFaultAction::Reset => "--triple-fault=reset",
    });
    if config.reboot {
        flags.push("--reboot");
    }
    flags
}
