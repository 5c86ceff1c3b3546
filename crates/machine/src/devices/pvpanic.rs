//! pvpanic: a port to which the guest's kernel writes when it panics. It is QEMU's ISA device,
//! which Linux finds in ACPI as QEMU0001 (module `pvpanic-mmio`, before Linux 5.13 `pvpanic`).

use crate::bus::{Claims, Device, DeviceContext, SavedState, StateError};
use tollgate_platform::{PanicReport, StopRequest};

/// The device, which has no state.
#[derive(Clone, Copy, Debug, Default)]
pub struct PvPanic;

impl PvPanic {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;

    /// The port, which is the one that QEMU uses.
    pub const PORT: u16 = 0x505;

    /// Bit 0: the kernel panicked.
    const PANICKED: u8 = 1 << 0;
    /// Bit 1: it panicked, and another kernel takes over.
    const CRASH_LOADED: u8 = 1 << 1;

    /// Returns what a written value reports.
    const fn report(value: u8) -> Option<PanicReport> {
        if value & Self::PANICKED != 0 {
            Some(PanicReport::Fatal)
        } else if value & Self::CRASH_LOADED != 0 {
            Some(PanicReport::HandledByGuest)
        } else {
            None
        }
    }
}

impl Device for PvPanic {
    fn name(&self) -> &str {
        "pvpanic"
    }

    fn claims(&self) -> Claims {
        Claims::none().with_byte_ports(Self::PORT..=Self::PORT)
    }

    /// Reads return the bits that a guest may write.
    fn port_read(&mut self, _port: u16, _size: u8, _context: &mut DeviceContext<'_>) -> u32 {
        (Self::PANICKED | Self::CRASH_LOADED).into()
    }

    fn port_write(&mut self, _port: u16, _size: u8, value: u32, context: &mut DeviceContext<'_>) {
        if let Some(report) = Self::report(value as u8) {
            context.request_stop(StopRequest::Panic(report));
        }
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {}

    fn save(&self) -> SavedState {
        SavedState::of(Self::STATE_VERSION, &())
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        saved.read(Self::STATE_VERSION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::testing::Bench;

    #[test]
    fn the_port_tells_which_bits_it_knows_and_takes_no_others() {
        let mut bench = Bench::new();
        let mut device = PvPanic;
        let port = PvPanic::PORT;
        assert_eq!(device.port_read(port, 1, &mut bench.context(0)), 3);
        device.port_write(port, 1, 0xfc, &mut bench.context(0));
        assert_eq!(bench.board.stop, None);
        device.port_write(port, 1, 3, &mut bench.context(0));
        let fatal = StopRequest::Panic(PanicReport::Fatal);
        assert_eq!(bench.board.stop, Some(fatal));
    }
}
