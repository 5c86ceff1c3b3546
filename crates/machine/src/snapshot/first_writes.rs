//! Which pages a restored machine writes first, so that they can be
//! [copied ahead](super::SnapshotFile::copy_ahead) for the next one.

use crate::vm::Vm;
use tollgate_memory::PageSpan;

impl Vm {
    /// Starts to record which pages of the snapshot the guest writes.
    pub fn record_copies(&mut self) {
        self.memory().record_copies();
    }

    /// The pages that the guest has written first since [`Vm::record_copies`], with neighbours that
    /// were copied with them.
    pub fn take_record_of_copies(&mut self) -> Vec<PageSpan> {
        self.memory().take_record_of_copies()
    }
}
