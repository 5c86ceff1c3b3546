//! Guest code that runs in other processes. The thread sleeps in that time, so the host counts the time for
//! which that code is on a processor as the other process's, not as the thread's. It is guest code all
//! the same, and no time in which the vCPU waited.

/// A process that runs guest code, and how to learn for how long it has been on a processor.
#[derive(Clone, Copy, Debug)]
pub struct OtherProcess {
    /// The process's number on the host.
    pub number: i32,
    /// The processor time, in nanoseconds, that the process with a number has used; 0 if it is gone. It
    /// may be a system call, and is called rarely.
    pub processor_time: fn(i32) -> u64,
}

/// The processor time of all other processes that have run guest code.
#[derive(Default)]
pub(super) struct Elsewhere {
    /// What earlier processes have used while they were the last one.
    before: u64,
    /// The process that runs guest code now, and what it had used when it began to do so.
    now: Option<(OtherProcess, u64)>,
}

impl Elsewhere {
    /// The time until now.
    pub(super) fn total(&self) -> u64 {
        self.now.map_or(self.before, |(process, begun)| {
            let used = (process.processor_time)(process.number);
            self.before + used.saturating_sub(begun)
        })
    }

    /// Guest code will run in this process.
    pub(super) fn runs_in(&mut self, process: OtherProcess) {
        if self.now.map(|(now, _)| now.number) != Some(process.number) {
            self.before = self.total();
            let begun = (process.processor_time)(process.number);
            self.now = Some((process, begun));
        }
    }
}
