//! A machine that interrupts its processor as often as that can be.

use tollgate_platform::{BareMachine, StopRequest};

/// More often no test is interrupted that gets on.
const MOST: u32 = 100_000;
/// The interrupt's vector.
pub const VECTOR: u8 = 0x30;

/// Interrupts whenever the monitor asks what is due, and ends a run as [`super::Bench`] does.
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
