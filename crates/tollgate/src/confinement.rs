//! `--confine`: what the process's threads may ask of the host while a machine runs, and the thread
//! that runs it.

use std::os::fd::RawFd;
use std::sync::OnceLock;

use clap::ValueEnum;
use tollgate_confine::{self as confine, Setup, ThreadKind, Tree, TreeAccess};
use tollgate_machine::config::{MemoryBackingChoice, NetworkKind, UserCode, VmConfig};
use tollgate_machine::knobs::Assignment;
use tollgate_machine::vm::{RunOutcome, Vm};
use tollgate_native::launcher;

use crate::failure::{Failure, say};

const NO_LAUNCHER: &str = "programs cannot run natively, since no process can be made for them";

/// Why programs of this process's machine cannot run natively, whatever its knobs say.
static NEVER_NATIVE: OnceLock<&str> = OnceLock::new();

/// How much the threads are confined.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Confinement {
    /// As far as the host can
    Auto,
    /// Entirely, or the machine does not start
    Strict,
    /// Not at all
    Off,
}

/// Sets what threads may do that are started for a machine from now on; there must be none yet but the
/// calling one. A process that is ended because a thread did something else has this exit code.
///
/// # Errors
/// One line that says what the host lacks.
pub fn begin(how: Confinement, config: &VmConfig, exit_code: u8) -> Result<(), Failure> {
    let is_secret = config.memory_backing == MemoryBackingChoice::Secret;
    if is_secret {
        let _ = NEVER_NATIVE.set("the host executes nothing from secret memory");
    }
    let confine = match how {
        Confinement::Auto => confine::Confine::Auto,
        Confinement::Strict => confine::Confine::Strict,
        Confinement::Off => return Ok(()),
    };
    let launcher = begin_launcher(confine, config)?;
    let trees = config.shares.iter().map(|share| Tree {
        path: share.path.clone(),
        access: match share.readonly {
            true => TreeAccess::Read,
            false => TreeAccess::Write,
        },
    });
    let folders = config
        .networks
        .iter()
        .filter_map(|network| match &network.kind {
            NetworkKind::User(user) => user.boot.tftp.clone(),
            _ => None,
        });
    let folders = folders.map(|path| Tree {
        path,
        access: TreeAccess::Read,
    });
    let mut networks = config.networks.iter();
    confine::begin(Setup {
        confine,
        trees: trees.chain(folders).collect(),
        has_program: networks.any(|network| matches!(network.kind, NetworkKind::Passt)),
        launcher,
        locks_memory: is_secret,
        exit_code,
    })
    .map_err(Failure::host)
}

/// Starts the process that makes others for programs that run natively, now or later, and returns its
/// socket.
///
/// # Errors
/// Programs must run natively, all must be confined, and that process cannot be started.
fn begin_launcher(confine: confine::Confine, config: &VmConfig) -> Result<Option<RawFd>, Failure> {
    let begun = launcher::begin(confine::confine_launcher);
    let begun = match (begun, config.user_code) {
        (Ok(socket), UserCode::Native | UserCode::Adaptive) => {
            launcher::answers().map(|()| Some(socket))
        }
        (begun, _) => begun.map(Some),
    };
    match begun {
        Ok(socket) => Ok(socket),
        // Adaptive machines translate programs then, as the statistics say.
        Err(_) if config.user_code != UserCode::Native => Ok(None),
        Err(error) if confine == confine::Confine::Strict => Err(Failure::host(format!(
            "--confine strict: {NO_LAUNCHER}: {error}"
        ))),
        Err(error) => {
            say(&format!("{NO_LAUNCHER}: {error}"));
            Ok(None)
        }
    }
}

/// Whether the knobs of this machine may get these values while it runs.
///
/// # Errors
/// One line that says what confinement forbids.
pub fn allows(assignments: &[Assignment]) -> Result<(), String> {
    let is_native = |it: &&Assignment| it.knob().name == "user-code" && it.value() != "translated";
    match (
        assignments.iter().any(|it| is_native(&it)),
        NEVER_NATIVE.get(),
    ) {
        (true, Some(why)) => Err(format!("programs cannot run natively: {why}")),
        (true, None) => launcher::answers().map_err(|error| format!("{NO_LAUNCHER}: {error}")),
        (false, _) => Ok(()),
    }
}

/// Confines the calling thread, which has set the machine up and will end it.
pub fn enter() {
    confine::enter(ThreadKind::Main);
}

/// Runs the machine on a thread of its own until it ends; `None` if that panicked, which was reported.
///
/// # Errors
/// The host starts no thread.
pub fn run(vm: &mut Vm) -> Result<Option<RunOutcome>, Failure> {
    // SAFETY: a machine does not depend on the thread that uses it between two runs, and this thread
    // holds no lock.
    let outcome = unsafe { confine::on_own_thread(ThreadKind::Vcpu, || vm.run()) };
    let refused = |error| Failure::host(format!("no thread for the processor: {error}"));
    Ok(outcome.map_err(refused)?.ok())
}

/// What is enforced, in one line.
pub fn line() -> String {
    let Some(report) = confine::report() else {
        return "no".into();
    };
    let threads = report.threads.iter();
    let threads = threads.map(|(kind, count)| format!("{count} {}", kind.name()));
    let lacking = match report.missing.as_slice() {
        [] => String::new(),
        missing => format!("; lacking: {}", listed(missing)),
    };
    format!(
        "{}{lacking} (threads: {})",
        listed(&report.in_force),
        listed(&threads.collect::<Vec<_>>())
    )
}

fn listed(words: &[impl ToString]) -> String {
    let words: Vec<String> = words.iter().map(ToString::to_string).collect();
    words.join(", ")
}
