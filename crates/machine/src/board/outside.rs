//! Input to the board from other threads: typed text, keys and requests.

use crate::board::input::{Key, MouseEvent};

/// The other threads, as the board sees them. The vCPU's thread calls these methods.
pub trait Outside {
    /// Takes at most `room` bytes that were sent to the first serial port, oldest first. This is
    /// called after each access to that port, so it must return fast if nothing waits.
    fn serial_input(&mut self, room: usize) -> Vec<u8>;

    /// Takes at most `room` bytes that were sent to the second serial port. The default has none.
    fn second_serial_input(&mut self, _room: usize) -> Vec<u8> {
        Vec::new()
    }

    /// Takes the oldest key event: a key, and whether it was pressed. This is called after each
    /// access to the keyboard's ports, so it must return fast if there is none.
    fn key(&mut self) -> Option<(Key, bool)>;

    /// Takes the oldest mouse event. This is called as often as [`Outside::key`]. The default has
    /// no mouse.
    fn mouse(&mut self) -> Option<MouseEvent> {
        None
    }

    /// Whether a thread wants the processor to stop for
    /// [`tollgate_platform::StopRequest::Attention`]. This is called after each kick.
    fn wants_attention(&mut self) -> bool;
}

/// The outside of a board that no other thread is connected to.
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
