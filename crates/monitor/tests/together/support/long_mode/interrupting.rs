//! A machine that interrupts its processor as often as possible.

use tollgate_platform::{BareMachine, StopRequest};

/// The most interrupts in a test; a test that makes progress needs fewer.
const MOST: u32 = 100_000;
/// The vector of the interrupt.
pub const VECTOR: u8 = 0x30;

/// A machine that interrupts whenever the monitor asks for events, and ends a run as
/// [`super::Bench`] does.
#[derive(Default)]
pub struct Interrupting {
    waits: bool,
    asked: u32,
    stop: Option<StopRequest>,
}

impl BareMachine for Interrupting {
    fn port_write(&mut self, port: u16, _size: u8, value: u32) {
        if port == 0xf4 {
            self.stop = Some(StopRequest::DebugExit(value as u8));
        }
    }

    fn advance(&mut self) {
        self.waits = true;
        self.asked += 1;
        if self.asked > MOST {
            self.stop = Some(StopRequest::Quit);
        }
    }

    fn interrupt_pending(&mut self) -> bool {
        self.waits
    }

    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        std::mem::take(&mut self.waits).then_some(VECTOR)
    }

    fn take_stop_request(&mut self) -> Option<StopRequest> {
        self.stop.take()
    }
}
