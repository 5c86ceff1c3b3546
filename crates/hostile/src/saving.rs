//! Saves machines that a hostile guest has used.

use tollgate_machine::pc::{Pc, PcState, StateError};

/// Saves a machine. `None` means that the guest uses something of the host that no saved state can
/// contain, such as a file of a share.
///
/// # Panics
/// The machine cannot be saved for another reason: the threads of a device do not finish.
pub fn saved(pc: &mut Pc) -> Option<PcState> {
    match pc.save() {
        Err(StateError::InUse { .. }) => None,
        state => Some(state.expect("the machine is idle")),
    }
}
