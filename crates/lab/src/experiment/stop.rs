//! A request from another thread that an experiment stop, which also reaches the machine that is
//! running.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tollgate_machine::vm_handle::VmHandle;

#[derive(Default)]
struct Shared {
    is_requested: AtomicBool,
    /// The machines that run now.
    machines: Mutex<Vec<VmHandle>>,
}

/// Whether the experiment should stop. Clones share one request.
#[derive(Clone, Default)]
pub struct Stop(Arc<Shared>);

impl Stop {
    /// Makes a value without a request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests the stop: running machines are ended, finished samples are kept.
    pub fn request(&self) {
        self.0.is_requested.store(true, Ordering::SeqCst);
        let machines = self.0.machines.lock();
        for machine in machines.unwrap_or_else(PoisonError::into_inner).iter() {
            machine.quit();
        }
    }

    /// Whether a stop was requested.
    pub fn is_requested(&self) -> bool {
        self.0.is_requested.load(Ordering::SeqCst)
    }

    /// Does `work` with a machine that a request ends.
    pub fn while_running<T>(&self, machine: &VmHandle, work: impl FnOnce() -> T) -> T {
        let machines = || {
            let machines = self.0.machines.lock();
            machines.unwrap_or_else(PoisonError::into_inner)
        };
        machines().push(machine.clone());
        // A request before the machine was in the list did not reach it.
        if self.is_requested() {
            machine.quit();
        }
        let result = work();
        let mut machines = machines();
        if let Some(at) = machines.iter().position(|other| other.is_same(machine)) {
            machines.remove(at);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_machine::vm_handle::Command;

    #[test]
    fn a_request_ends_the_machines_that_run_and_those_that_start_later() {
        let stop = Stop::new();
        let (running, late, done) = (VmHandle::new(), VmHandle::new(), VmHandle::new());
        stop.while_running(&done, || ());
        stop.while_running(&running, || {
            stop.request();
            assert_eq!(running.commands().take(), [Command::Quit]);
        });
        stop.while_running(&late, || {
            assert_eq!(late.commands().take(), [Command::Quit]);
        });
        assert_eq!(done.commands().take(), []);
        assert!(stop.is_requested());
    }
}
