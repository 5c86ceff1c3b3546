//! What reaches the board from other threads: typed text and requests.

use super::Pc;

/// The other threads, as the board sees them. Called on the vCPU's thread.
pub trait Outside {
    /// Takes at most `room` bytes of what was sent to the first serial port, oldest first.
    /// Called after each access of that port, so it answers fast if nothing waits.
    fn serial_input(&mut self, room: usize) -> Vec<u8>;

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

    fn wants_attention(&mut self) -> bool {
        false
    }
}

impl Pc {
    /// From now on takes serial input and requests from `outside`. The processor stops for
    /// attention once at the start.
    pub fn connect(&mut self, outside: Box<dyn Outside>) {
        self.outside = outside;
        self.attention = true;
    }

    /// Takes in what came from outside since the last call.
    pub(super) fn look_outside(&mut self) {
        self.feed_serial_port();
        self.attention |= self.outside.wants_attention();
    }

    /// Hands waiting serial input to the port, as far as it has room.
    #[inline]
    pub(super) fn feed_serial_port(&mut self) {
        let room = self.serial_input_space();
        if room == 0 {
            return;
        }
        let input = self.outside.serial_input(room);
        if !input.is_empty() {
            self.serial_input(&input);
        }
    }
}
