//! Work of the vCPU's thread that opens files, which that thread may not do.

/// Calls `work` with the machine on a thread that may open files, and waits for it.
pub(crate) fn elsewhere<M, R>(machine: &mut M, work: impl FnOnce(&mut M) -> R) -> R {
    // SAFETY: nothing in a machine depends on the thread that uses it while no guest code runs: its
    // timer and the target of its kicks belong to a run of the processor.
    unsafe { tollgate_confine::elsewhere(|| work(machine)) }
}
