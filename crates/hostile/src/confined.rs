//! The confinement of a real machine's process, in which the fuzz targets run: a find is judged by what it
//! reaches there, and a call that the lists lack ends the target like any other defect.

use std::panic::resume_unwind;

use tollgate_confine::{Confine, Setup, ThreadKind};

/// The exit code of a process whose thread did what it may not do: an abort's, which libFuzzer's
/// scripts take for a crash.
const FORBIDDEN: u8 = 134;

/// Confines this process as `tollgate run` confines a machine that shares no directory: the calling
/// thread as the one that sets machines up, guest code as a virtual processor's thread, and threads of
/// devices as what they are. Further calls change nothing.
///
/// # Panics
///
/// Panics if the host lacks a part of the confinement, unless `TOLLGATE_HOSTILE_CONFINE` is `auto`.
pub fn begin() {
    let is_lax = std::env::var_os("TOLLGATE_HOSTILE_CONFINE").is_some_and(|word| word == "auto");
    let setup = Setup {
        confine: if is_lax {
            Confine::Auto
        } else {
            Confine::Strict
        },
        trees: Vec::new(),
        has_program: false,
        launcher: None,
        locks_memory: false,
        exit_code: FORBIDDEN,
    };
    if tollgate_confine::report().is_none() {
        tollgate_confine::begin(setup).expect("the confinement of a machine");
        tollgate_confine::enter(ThreadKind::Main);
    }
}

/// Runs guest code on a thread that is confined as a virtual processor's, if this process is confined.
pub(crate) fn as_processor<R>(work: impl FnOnce() -> R) -> R {
    if tollgate_confine::report().is_none() {
        return work();
    }
    // SAFETY: a vCPU does not depend on the thread that uses it between two runs, and no lock is held.
    let result = unsafe { tollgate_confine::on_own_thread(ThreadKind::Vcpu, work) };
    match result.expect("a thread") {
        Ok(result) => result,
        Err(panic) => resume_unwind(panic),
    }
}
