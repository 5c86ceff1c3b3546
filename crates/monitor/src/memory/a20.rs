//! The A20 gate: while the gate is closed, bit 20 of every physical address is zero.
//!
//! The page walker applies the mask to each address that it forms
//! ([`PagingRegisters`](tollgate_x86::paging::PagingRegisters)), with and without paging.
//! Translations therefore hold masked addresses, and all of them become void when the gate opens or
//! closes.

use crate::execution::runner::Runner;
use crate::execution::running::Running;
use tollgate_platform::Platform;
use tollgate_x86::TranslationChange;

/// The bit of physical addresses that the gate masks.
const A20: u64 = 1 << 20;

impl<R: Runner, P: Platform> Running<'_, R, P> {
    /// Follows the machine's A20 gate, which may have opened or closed.
    pub(crate) fn follow_a20(&mut self) {
        let mask = if self.platform.a20_enabled() {
            u64::MAX
        } else {
            !A20
        };
        if self.runner.state().a20_mask != mask {
            self.runner.state_mut().a20_mask = mask;
            self.view
                .change_translations(self.runner, TranslationChange::Everything);
        }
    }
}
