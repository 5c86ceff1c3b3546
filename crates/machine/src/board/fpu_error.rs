//! The PC's way of reporting x87 errors to guests with CR0.NE clear: FERR# raises interrupt line
//! 13. A write to port F0h lowers it and asserts IGNNE#, so that the handler may use the x87
//! although its error is still pending, until the error is cleared (SDM volume 1, appendix D.2.1).

use serde::{Deserialize, Serialize};

/// The flip-flops between FERR#, line 13 and IGNNE#.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FpuError {
    line: bool,
    ignored: bool,
}

impl FpuError {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;

    /// The interrupt line.
    pub const IRQ: u8 = 13;
    /// A write to this port clears the interrupt.
    pub const CLEAR_PORT: u16 = 0xf0;
    /// A write to this port resets a coprocessor that is a separate chip. Here it clears the
    /// interrupt too.
    pub const RESET_PORT: u16 = 0xf1;

    /// Asserts FERR#: an error is pending that the processor will not ignore.
    pub const fn signal(&mut self) {
        self.line = true;
    }

    /// Handles a write to one of the ports, with any value.
    pub const fn write(&mut self) {
        self.ignored |= self.line;
        self.line = false;
    }

    /// Deasserts FERR#: the guest has cleared the error.
    pub const fn error_cleared(&mut self) {
        self.ignored = false;
    }

    /// Returns IGNNE#: whether the processor ignores the pending error.
    pub const fn is_ignored(&self) -> bool {
        self.ignored
    }

    /// Returns the level of the interrupt line.
    pub const fn line(&self) -> bool {
        self.line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_ignored_from_the_write_to_its_port_until_it_is_cleared() {
        let mut error = FpuError::default();
        error.signal();
        assert_eq!((error.line(), error.is_ignored()), (true, false));
        error.write();
        assert_eq!((error.line(), error.is_ignored()), (false, true));
        error.error_cleared();
        assert!(!error.is_ignored());
        error.signal();
        assert_eq!((error.line(), error.is_ignored()), (true, false));
    }

    #[test]
    fn a_write_without_an_error_ignores_nothing() {
        let mut error = FpuError::default();
        error.write();
        assert_eq!((error.line(), error.is_ignored()), (false, false));
    }
}
