//! The agent: the first process of the guest in which `tollgate exec` runs a command, and its
//! protocol with the command on the host.
//!
//! ```text
//!   host: tollgate exec                      guest: /init, which is this program
//!   initramfs: /start, /modules/* ---------> loads modules, mounts root and shares
//!   port 1, frames: signals, window size --> kill, TIOCSWINSZ
//!                   started, failed, exited <--
//!   port 2, frames: standard input --------> pipe or terminal of the command
//!   port 3: standard output <-------------- pipe or terminal
//!   port 4: standard error <--------------- pipe
//! ```
//!
//! It is linked statically and has no dependencies. Tollgate's build script compiles it for the
//! guest and includes it in the command. All code that needs unsafe is in `sys`.

pub mod protocol;

mod command;
mod disk;
mod network;
mod ports;
mod refusal;
mod root;
mod streams;
mod sys;
mod users;

use protocol::{MODULES_FOLDER, START_FILE, Start, ToHost};
use refusal::Refusal;
use std::fs;
use std::time::Duration;

/// Runs the guest's whole life. It does not return: the host ends the machine after it was told how
/// the command ended.
pub fn main() {
    match begin() {
        Ok((start, control)) => {
            let end = match run(&start, &control) {
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

/// Starts the guest until it can communicate with the host.
fn begin() -> Result<(Start, ports::Control), Refusal> {
    root::mount_kernel_file_systems()?;
    let bytes = fs::read(START_FILE)
        .map_err(|error| Refusal::own(format!("cannot read {START_FILE}: {error}")))?;
    let start = Start::decode(&bytes)
        .ok_or_else(|| Refusal::own(format!("{START_FILE} is not understood")))?;
    load_modules();
    let control = ports::Control::open()?;
    Ok((start, control))
}

fn run(start: &Start, control: &ports::Control) -> Result<ToHost, Refusal> {
    // The ports are opened before the root changes.
    let streams = ports::Streams::open()?;
    root::enter(start)?;
    network::set_up(start);
    let end = command::run(start, control, streams);
    root::leave(start)?;
    end
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
