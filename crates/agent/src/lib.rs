//! The agent: the first process of the guest in which `tollgate exec` runs a command, and its
//! protocol with the command on the host.
//!
//! ```text
//!   host: tollgate exec                      guest: /init, which is this program
//!   initramfs: /modules/* -----------------> loads modules
//!                                            mounts the root, starts its threads
//!   port 1, frames:               ready <---   (a snapshot may be taken here)
//!                   time, random bytes ----> sets the clock, feeds the random number generator
//!                   the task --------------> mounts what is missing, runs the command
//!                   signals, window size --> kill, TIOCSWINSZ
//!                   started, failed, exited <--
//!   port 2, frames: standard input --------> pipe or terminal of the command
//!   port 3: standard output <-------------- pipe or terminal
//!   port 4: standard error <--------------- pipe
//! ```
//!
//! A guest that is kept runs any number of commands. Their streams, orders and ends pass in frames
//! with the number of a channel over port 2 (to the guest) and port 3 (to the host):
//! [`protocol::kept`].
//!
//! It is linked statically and has no dependencies. Tollgate's build script compiles it for the
//! guest and includes it in the command. All code that needs unsafe is in `sys`.

pub mod protocol;

mod command;
pub mod credit;
mod disk;
mod files;
mod kept;
mod limits;
mod memory_kills;
mod network;
mod ports;
mod refusal;
mod root;
mod streams;
mod sys;
mod users;
mod workers;

use limits::Enforced;
use protocol::{ENTROPY, MODULES_FOLDER, Start, TASK, TIME, ToHost};
use refusal::Refusal;
use std::fs;
use std::time::Duration;
use workers::Workers;

/// Runs the guest's whole life. It does not return: the host ends the machine after it was told how
/// the command ended.
pub fn main() {
    if std::process::id() != 1 {
        return files::main();
    }
    match begin() {
        Ok(begun) => {
            let control = begun.control;
            let result = match begun.start.is_kept {
                true => keep(begun.start, &control, begun.streams, begun.mounts),
                false => run(&begun.start, &control, begun.workers, begun.mounts),
            };
            let end = match result {
                Ok(end) => end,
                Err(refusal) => ToHost::Failed {
                    code: refusal.code,
                    why: refusal.why,
                },
            };
            control.tell(&end);
            loop {
                std::thread::sleep(Duration::from_secs(3600));
            }
        }
        Err(refusal) => {
            // The host shows the end of the console's output.
            eprintln!("tollgate-agent: {}", refusal.why);
            sys::power_off();
        }
    }
}

/// A guest that has its task.
struct Begun {
    start: Start,
    control: ports::Control,
    workers: Workers,
    /// The same ports as those of the workers.
    streams: ports::Streams,
    mounts: root::Prepared,
}

/// Starts the guest until it has its task. Whatever does not depend on the task is done before the
/// host is told that the agent is ready: a guest that continues from a snapshot, which is taken at
/// that moment, need not do it again.
fn begin() -> Result<Begun, Refusal> {
    root::mount_kernel_file_systems()?;
    load_modules();
    let control = ports::Control::open()?;
    let mounts = root::prepare()?;
    network::switch_loopback_on();
    calm_the_kernel();
    let streams = ports::Streams::open()?;
    let own = |error| Refusal::own(format!("cannot serve commands: {error}"));
    let workers = Workers::start(&control, streams.others().map_err(own)?)?;
    control.tell(&ToHost::Ready);
    let start = receive_task(&control)?;
    Ok(Begun {
        start,
        control,
        workers,
        streams,
        mounts,
    })
}

/// Receives the task, and what comes before it.
fn receive_task(control: &ports::Control) -> Result<Start, Refusal> {
    let report = |what: &str, result: std::io::Result<()>| {
        if let Err(error) = result {
            eprintln!("tollgate-agent: {what}: {error}");
        }
    };
    let mut task = Vec::new();
    loop {
        let (kind, rest) = control
            .receive()
            .map_err(|error| Refusal::own(format!("no task from the host: {error}")))?;
        match (kind, &rest[..]) {
            (TIME, &[_, _, _, _, _, _, _, _]) => {
                let time_ns = rest
                    .iter()
                    .rev()
                    .fold(0, |sum, &byte| sum << 8 | u64::from(byte));
                report("the clock", sys::set_time(time_ns));
            }
            (ENTROPY, bytes) => report("random numbers", sys::add_entropy(bytes)),
            (TASK, []) => break,
            (TASK, piece) => task.extend(piece),
            _ => return Err(Refusal::own("the host does not keep to the protocol")),
        }
    }
    Start::decode(&task).ok_or_else(|| Refusal::own("the task is not understood"))
}

fn run(
    start: &Start,
    control: &ports::Control,
    workers: Workers,
    mounts: root::Prepared,
) -> Result<ToHost, Refusal> {
    let limits = Enforced::new(start.limits)?;
    root::enter(start, mounts)?;
    network::set_up(start);
    let end = command::run(start, control, workers, &limits);
    root::leave(start)?;
    end
}

/// Stays, and runs the commands that the host asks for.
fn keep(
    start: Start,
    control: &ports::Control,
    streams: ports::Streams,
    mounts: root::Prepared,
) -> Result<ToHost, Refusal> {
    let limits = Enforced::new(start.limits)?;
    root::enter(&start, mounts)?;
    network::set_up(&start);
    kept::serve(start, control, streams, limits)
}

/// Stops what the kernel does in the background whether there is something to do or not: looking twice a
/// second whether memory should be compacted, and once a second summing up counters, which on one
/// processor are right without that. A guest that waits for a command then wakes only for its timers.
fn calm_the_kernel() {
    for (setting, value) in [
        ("/proc/sys/vm/compaction_proactiveness", "0"),
        ("/proc/sys/vm/stat_interval", "3600"),
    ] {
        // Kernels may be built without them.
        let _ = fs::write(setting, value);
    }
}

/// Loads the modules in the folder, in the order of their names. Failures are reported only on the
/// console, because a later step that needs the module fails with a better message.
fn load_modules() {
    let Ok(entries) = fs::read_dir(MODULES_FOLDER) else {
        return;
    };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if let Err(error) = fs::File::open(&path).and_then(|file| sys::load_module(&file)) {
            eprintln!("tollgate-agent: {}: {error}", path.display());
        }
        // Removing the file frees the guest's memory.
        let _ = fs::remove_file(&path);
    }
}
