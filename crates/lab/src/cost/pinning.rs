//! The host processors that a measurement may use: one, to which it is pinned, or all that it had before.

use super::CostError;
use tollgate_host_facts::processors::{Affinity, current_processor};

/// Both sets of processors of the calling thread. When this is dropped, the thread may run where it might before.
pub(super) struct Pinning {
    free: Affinity,
    pinned: Affinity,
    /// The processor to which pinned measurements are pinned.
    pub(super) processor: usize,
}

impl Drop for Pinning {
    fn drop(&mut self) {
        // This was allowed before. If it fails now, there is no caller to report it to.
        let _ = self.free.apply();
    }
}

impl Pinning {
    /// `processor` is the one to which pinned measurements are pinned; `None` for the one where the thread runs.
    ///
    /// # Errors
    ///
    /// The host refuses to say where the thread may run, or has no such processor.
    pub(super) fn new(processor: Option<usize>) -> Result<Self, CostError> {
        let processor = processor.unwrap_or_else(current_processor);
        Ok(Self {
            free: Affinity::current().map_err(refused)?,
            pinned: Affinity::only(processor)
                .ok_or_else(|| CostError::Host(format!("there is no processor {processor}")))?,
            processor,
        })
    }

    /// Restricts the thread to the one processor, or lets it run on all.
    ///
    /// # Errors
    ///
    /// The host refuses.
    pub(super) fn apply(&self, is_pinned: bool) -> Result<(), CostError> {
        let affinity = if is_pinned { &self.pinned } else { &self.free };
        affinity.apply().map_err(refused)
    }

    /// The number of processors where the thread may run if it is not pinned.
    pub(super) fn processors(&self) -> usize {
        self.free.processors().len()
    }
}

fn refused(error: std::io::Error) -> CostError {
    CostError::Host(format!("processor affinity: {error}"))
}
