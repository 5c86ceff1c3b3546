//! Runs the command on a stack that is large enough, whatever `ulimit -s` says.

use std::io;

use rustix::process::{Resource, getrlimit};

use crate::signal_set::SignalSet;

/// The size that the deepest calls need, with a margin.
const ENOUGH: u64 = 1 << 20;
/// The size of the stack of the thread that is made if the first one is too small.
const OWN: usize = 8 << 20;

/// Calls `work`, in a thread of its own if the process's first thread has too small a stack. The
/// first thread then takes no signals and waits.
pub fn with_enough(work: fn() -> u8) -> u8 {
    if getrlimit(Resource::Stack)
        .current
        .is_none_or(|bytes| bytes >= ENOUGH)
    {
        return work();
    }
    let old = SignalSet::all().block();
    let thread = std::thread::Builder::new().stack_size(OWN).spawn(move || {
        old.block_only();
        work()
    });
    match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        // The panic hook has reported the panic.
        Ok(Err(_)) => crate::exit_code::STOPPED,
        Err(error) => no_thread(&error),
    }
}

fn no_thread(error: &io::Error) -> u8 {
    let message = format!("the stack is too small ('ulimit -s'), and there is no thread: {error}");
    crate::failure::Failure::host(message).report()
}
