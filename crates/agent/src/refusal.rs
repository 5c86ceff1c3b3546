//! Why a command cannot be run in the guest.

use crate::protocol::code;

/// Why the command cannot be run: an exit code and a line of text.
pub(crate) struct Refusal {
    pub(crate) code: u8,
    pub(crate) why: String,
}

impl Refusal {
    /// Makes a refusal because of the machine itself.
    pub(crate) fn own(why: impl Into<String>) -> Self {
        Self {
            code: code::FAILED,
            why: why.into(),
        }
    }
}
