//! The serial ports on the bus.

use super::{Serial, Unit};
use crate::bus::{Claims, Device, DeviceContext, NearUse, SavedState, StateError};
use tollgate_platform::GuestTime;

/// Most accesses do not depend on the time, and reading the time would cost more than everything else.
const NO_TIME: GuestTime = GuestTime(0);

impl Serial {
    /// Accepts as much input from the other end as there is room for, and returns how much.
    pub fn take_input(&mut self, bytes: &[u8], context: &mut DeviceContext<'_>) -> usize {
        let taken = self.push_input(bytes);
        self.forward(context);
        taken
    }

    fn forward(&mut self, context: &mut DeviceContext<'_>) {
        context.forward(self.unit.irq(), &mut self.irq);
    }

    /// Accepts the input that was sent in the meantime, as far as there is room.
    fn refill(&mut self, context: &mut DeviceContext<'_>) {
        let room = self.input_space();
        if room == 0 {
            return;
        }
        let input = match self.unit {
            Unit::First => context.serial_input(room),
            Unit::Second => context.second_serial_input(room),
        };
        if !input.is_empty() {
            self.take_input(&input, context);
        }
    }
}

impl Device for Serial {
    fn name(&self) -> &str {
        match self.unit {
            Unit::First => "com1",
            Unit::Second => "com2",
        }
    }

    fn claims(&self) -> Claims {
        let ports = self.unit.ports();
        let port = |offset: u16| ports.start() + offset;
        Claims::none()
            .with_byte_ports(ports.clone())
            .with_near(port(1)..=port(1), NearUse::all())
            .with_near(port(2)..=port(6), NearUse::READ)
            .with_near(port(7)..=port(7), NearUse::all())
    }

    fn port_read(&mut self, port: u16, _size: u8, context: &mut DeviceContext<'_>) -> u32 {
        let now = match Self::read_needs_time(port) {
            true => context.now(),
            false => NO_TIME,
        };
        let value = self.read(port, now);
        self.forward(context);
        self.refill(context);
        value.into()
    }

    fn port_write(&mut self, port: u16, _size: u8, value: u32, context: &mut DeviceContext<'_>) {
        self.write(port, value as u8, NO_TIME);
        if !self.output().is_empty() {
            let output = self.take_output();
            match self.unit {
                Unit::First => context.serial_output(&output),
                Unit::Second => context.second_serial_output(&output),
            }
        }
        self.forward(context);
        self.refill(context);
    }

    fn deadline(&self, _context: &DeviceContext<'_>) -> Option<GuestTime> {
        self.next_deadline()
    }

    fn advance(&mut self, context: &mut DeviceContext<'_>) {
        Self::advance(self, context.now());
        self.forward(context);
        self.refill(context);
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {
        *self = match self.unit {
            Unit::First => Self::new(),
            Unit::Second => Self::second(),
        };
    }

    fn save(&self) -> SavedState {
        SavedState::of(Self::STATE_VERSION, self)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        *self = saved.read(Self::STATE_VERSION)?;
        Ok(())
    }
}
