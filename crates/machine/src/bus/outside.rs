//! What reaches the board from other threads: typed text, keys and requests.

use crate::devices::i8042::{Key, MouseEvent};

/// The other threads, as the board sees them. Called on the vCPU's thread.
pub trait Outside {
    /// Takes at most `room` bytes of what was sent to the first serial port, oldest first.
    /// Called after each access of that port, so it answers fast if nothing waits.
    fn serial_input(&mut self, room: usize) -> Vec<u8>;

    /// Takes the oldest key that was pressed (true) or released. Called after each access
    /// of the keyboard's ports, so it answers fast if there is none.
    fn key(&mut self) -> Option<(Key, bool)>;

    /// Takes the oldest thing that was done with the mouse. Called as [`Outside::key`] is. There is
    /// nothing unless this is implemented.
    fn mouse(&mut self) -> Option<MouseEvent> {
        None
    }

    /// Somebody wants the processor to stop for
    /// [`tollgate_platform::StopRequest::Attention`]. Asked after each kick.
    fn wants_attention(&mut self) -> bool;
}

/// A board that no other thread knows of.
pub(super) struct Nobody;

impl Outside for Nobody {
    fn serial_input(&mut self, _room: usize) -> Vec<u8> {
        Vec::new()
    }

    fn key(&mut self) -> Option<(Key, bool)> {
        None
    }

    fn wants_attention(&mut self) -> bool {
        false
    }
}
