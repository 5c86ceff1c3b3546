//! The real-time clock on the bus.

use super::{Control, Rtc};
use crate::bus::{Claims, Device, DeviceContext, SavedState, StateError};
use tollgate_platform::GuestTime;

impl Rtc {
    fn forward(&mut self, context: &mut DeviceContext<'_>) {
        context.forward(Self::IRQ, &mut self.irq);
        if self.take_alarm() {
            context.report_alarm();
        }
    }
}

impl Device for Rtc {
    fn name(&self) -> &str {
        "rtc"
    }

    fn claims(&self) -> Claims {
        Claims::none().with_byte_ports(Self::PORTS)
    }

    fn port_read(&mut self, port: u16, _size: u8, context: &mut DeviceContext<'_>) -> u32 {
        let value = self.read(port, context.now());
        self.forward(context);
        value.into()
    }

    fn port_write(&mut self, port: u16, _size: u8, value: u32, context: &mut DeviceContext<'_>) {
        self.write(port, value as u8, context.now());
        context.set_nmi_masked(self.nmi_disabled());
        self.forward(context);
    }

    fn deadline(&self, context: &DeviceContext<'_>) -> Option<GuestTime> {
        self.next_deadline(context.now())
    }

    fn advance(&mut self, context: &mut DeviceContext<'_>) {
        self.advance(context.now());
        self.forward(context);
    }

    /// Resets the clock. The battery keeps time and memory; the RESET pin disables the interrupts
    /// and the square wave (data sheet, "RESET").
    fn reset(&mut self, context: &mut DeviceContext<'_>) {
        let now = context.now();
        self.advance(now);
        let kept = Control::from_bits_retain(self.control_b.bits() & !CLEARED_BY_RESET);
        self.change_controls(self.control_a, kept, now);
        self.flags = super::Flags::empty();
        self.take_alarm();
        self.irq = crate::board::IrqLine::low();
        self.nmi_disabled = false;
    }

    fn save(&self) -> SavedState {
        SavedState::of(Self::STATE_VERSION, self)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        *self = saved.read(Self::STATE_VERSION)?;
        Ok(())
    }
}

/// PIE, AIE, UIE and SQWE in register B.
const CLEARED_BY_RESET: u8 = 0x78;
