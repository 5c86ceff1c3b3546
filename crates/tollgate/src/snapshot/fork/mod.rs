//! `tollgate snapshot fork`: machines that continue where a running one is, each in a process of
//! its own.
//!
//! ```text
//! this command                    the machine                  the forks
//! reserves files for the forks
//! asks for a snapshot ----------> writes it
//! checks that it can be forked
//! ends it (--then quit) --------> ends, unlocks its disks
//! starts the forks -------------------------------------------> map the snapshot, run
//! asks each for its status <----------------------------------- answers once it runs
//! removes the snapshot's name                                   the mapped file remains
//! ```
//!
//! Until the forks run, nothing is lost: what fails leaves the machine running, or if it has ended
//! already, leaves the snapshot.

mod places;
mod process;

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use tollgate_machine::config::VmConfig;

use super::arguments::ForkArguments;
use super::separate::{forwarded_ports, separate, with_suffix};
use crate::control::client::{accepted, ask, talk, talk_patiently};
use crate::control::command::{Name, ThenName};
use crate::exit_code;
use crate::failure::{Failure, say};
use crate::host;
use crate::standard_output::print_and_end;
use process::{Fork, Origin};

/// How long the machine's process may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `tollgate snapshot fork` and returns its exit code.
pub fn run(arguments: &ForkArguments) -> u8 {
    match fork(arguments) {
        Ok(text) => print_and_end(&text, exit_code::SUCCESS),
        Err(failure) => failure.report(),
    }
}

fn fork(arguments: &ForkArguments) -> Result<String, Failure> {
    let machine = Machine::find(&arguments.socket)?;
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let prefix = absolute(&match &arguments.prefix {
        Some(prefix) => prefix.clone(),
        None => default_prefix(&arguments.socket),
    });
    if prefix.to_str().is_none() {
        return Err(Failure::usage(
            "the names of the forks' files would not be UTF-8; give another --prefix",
        ));
    }
    let places = places::reserve(&prefix, arguments.count)?;
    let mut file = Intermediate {
        path: match &arguments.keep {
            Some(path) => absolute(path),
            None => with_suffix(&prefix, &format!(".{}.fork", std::process::id())),
        },
        is_kept: arguments.keep.is_some(),
    };
    let base = arguments.base.as_deref().map(absolute);
    let config = machine.write(&file.path, base.as_deref(), arguments.then)?;
    let forwarded = forwarded_ports(&config);
    let origin = Origin {
        snapshot: &file.path,
        config: &config,
        folder: &machine.folder,
        serial: arguments.serial,
    };
    let start = || -> Result<Vec<Fork>, Failure> {
        if arguments.then == ThenName::Quit {
            machine.end()?;
        }
        let forks = places.into_iter().map(|place| Fork::start(place, &origin));
        let mut forks = forks.collect::<Result<Vec<_>, _>>()?;
        forks.iter_mut().try_for_each(Fork::wait)?;
        Ok(forks)
    };
    let mut forks = start().map_err(|failure| match arguments.then {
        ThenName::Resume => failure,
        ThenName::Quit => {
            file.is_kept = true;
            let (why, file) = (&failure.message, file.path.display());
            let message = format!(
                "{why}; the machine's state is in '{file}' (tollgate run --restore '{file}')"
            );
            Failure { message, ..failure }
        }
    })?;
    forks.iter_mut().for_each(Fork::release);
    if forwarded != 0 {
        say("the ports of this host that are forwarded to the machine are not forwarded to forks");
    }
    Ok(match arguments.json {
        true => format!("{}\n", described(&forks, arguments.keep.as_deref())),
        false => forks.iter().map(line).collect(),
    })
}

/// Forks are called after the machine's control socket.
fn default_prefix(socket: &Path) -> PathBuf {
    match socket.extension() {
        Some(extension) if extension == "sock" => socket.with_extension(""),
        _ => socket.to_owned(),
    }
}

/// The snapshot that the forks continue from. It is removed when this is dropped, unless it is kept.
struct Intermediate {
    path: PathBuf,
    is_kept: bool,
}

impl Drop for Intermediate {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The machine that is forked.
struct Machine<'a> {
    socket: &'a Path,
    /// Becomes ready when the machine's process has ended; `None` if the host does not say so.
    process: Option<OwnedFd>,
    /// The folder in which its process runs.
    folder: PathBuf,
    was_paused: bool,
}

impl<'a> Machine<'a> {
    fn find(socket: &'a Path) -> Result<Self, Failure> {
        let answer = talk_patiently(socket, &json!({"command": Name::Status}))?;
        accepted(&answer)?;
        let status = &answer["status"];
        let number = status["machine"]["pid"].as_i64();
        let number = number.and_then(|number| i32::try_from(number).ok());
        let process = number.and_then(Pid::from_raw);
        let folder = number.and_then(|number| fs::read_link(format!("/proc/{number}/cwd")).ok());
        Ok(Self {
            socket,
            process: process.and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok()),
            folder: folder.unwrap_or_else(|| ".".into()),
            was_paused: status["state"] == "paused",
        })
    }

    /// Has the machine write a snapshot, and returns its configuration. If the machine cannot be
    /// forked, it continues; otherwise, if it shall end, it is paused now.
    fn write(&self, file: &Path, base: Option<&Path>, then: ThenName) -> Result<VmConfig, Failure> {
        let base = base.map(Path::to_str);
        let (Some(name), None | Some(Some(_))) = (file.to_str(), base) else {
            return Err(Failure::usage("a snapshot's name is not UTF-8"));
        };
        // A machine that ends changes nothing after its snapshot.
        let pauses = then == ThenName::Quit && !self.was_paused;
        if pauses {
            let answer = ask(self.socket, Name::Pause)?;
            accepted(&answer)?;
            if answer["state"] != "paused" {
                return Err(Failure::host("the virtual machine does not pause now"));
            }
        }
        let write = || -> Result<VmConfig, Failure> {
            let request = json!({
                "command": Name::Snapshot,
                "file": name,
                "base": base.flatten(),
                "then": ThenName::Resume,
            });
            accepted(&talk(self.socket, &request)?)?;
            let config = super::open(file)?.description().config.clone();
            check(&config, then)?;
            Ok(config)
        };
        write().inspect_err(|_| {
            if pauses {
                // If the machine does not answer, the first error says more.
                let _ = ask(self.socket, Name::Resume);
            }
        })
    }

    /// Ends the machine, and waits for the end of its process, which holds the locks of its disks.
    fn end(&self) -> Result<(), Failure> {
        accepted(&ask(self.socket, Name::Quit)?)?;
        if let Some(process) = &self.process {
            let mut fds = [host::interest(process.as_raw_fd(), libc::POLLIN)];
            let _ = host::poll(&mut fds, Some(PATIENCE));
        }
        Ok(())
    }
}

/// Checks that forks can run next to each other, and next to the machine if it goes on.
fn check(config: &VmConfig, then: ThenName) -> Result<(), Failure> {
    separate(&mut config.clone(), Path::new("fork"))?;
    let written = config.written_images().next();
    match (written, then) {
        (Some(disk), ThenName::Resume) => Err(Failure::usage(format!(
            "the machine writes to its disk '{}', which forks cannot share with it: end the machine \
             (--then quit), so that each fork has an overlay of its own, or start it with disks that \
             it only reads (readonly=on)",
            disk.path.display()
        ))),
        _ => Ok(()),
    }
}

/// A fork in one line, for people.
fn line(fork: &Fork) -> String {
    let place = &fork.place;
    let serial = match fork.serial() {
        Some(path) => format!("  serial {}", path.display()),
        None => String::new(),
    };
    format!(
        "fork {}  process {}  control {}{serial}  log {}\n",
        place.number,
        fork.process(),
        place.control().display(),
        place.log().display(),
    )
}

/// The forks, for programs.
fn described(forks: &[Fork], snapshot: Option<&Path>) -> Value {
    let forks = forks.iter().map(|fork| {
        json!({
            "number": fork.place.number,
            "pid": fork.process(),
            "control": fork.place.control(),
            "serial": fork.serial(),
            "log": fork.place.log(),
        })
    });
    json!({"forks": forks.collect::<Vec<_>>(), "snapshot": snapshot})
}
