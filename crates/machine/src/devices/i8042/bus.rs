//! The keyboard controller on the bus.

use super::I8042;
use super::bios_buffer::LOOK_AGAIN;
use crate::board::input::{Key, MouseEvent};
use crate::bus::{Claims, Device, DeviceContext, SavedState, StateError};
use tollgate_platform::{GuestTime, ResetCause, StopRequest};

impl I8042 {
    fn forward(&mut self, context: &mut DeviceContext<'_>) {
        context.forward(Self::KEYBOARD_IRQ, &mut self.keyboard_irq);
        context.forward(Self::AUXILIARY_IRQ, &mut self.auxiliary_irq);
    }

    /// Takes keys and mouse events from outside as long as keyboard and mouse have room, and for a
    /// key the guest's BIOS too.
    fn refill(&mut self, context: &mut DeviceContext<'_>) {
        while self.mouse.has_room()
            && let Some(event) = context.mouse()
        {
            self.mouse_event(event, context);
        }
        while self.keyboard.has_room()
            && let Some((key, down)) = self.waiting_key.take().or_else(|| context.key())
        {
            let (unread, now) = (self.unread_bytes(), context.now());
            if !self.bios_buffer.has_room(context.memory(), unread, now) {
                self.waiting_key = Some((key, down));
                break;
            }
            self.press(key, down, context);
        }
    }

    /// Presses (`down`) or releases a key.
    pub fn press(&mut self, key: Key, down: bool, context: &mut DeviceContext<'_>) {
        self.key(key, down, context.now());
        self.forward(context);
    }

    /// Moves the mouse, or presses or releases its buttons.
    pub fn mouse_event(&mut self, event: MouseEvent, context: &mut DeviceContext<'_>) {
        self.move_mouse(event, context.now());
        self.forward(context);
    }
}

impl Device for I8042 {
    fn name(&self) -> &str {
        "i8042"
    }

    fn claims(&self) -> Claims {
        Claims::none()
            .with_byte_ports(Self::DATA_PORT..=Self::DATA_PORT)
            .with_byte_ports(Self::COMMAND_PORT..=Self::COMMAND_PORT)
    }

    fn port_read(&mut self, port: u16, _size: u8, context: &mut DeviceContext<'_>) -> u32 {
        let value = self.read(port, context.now());
        self.forward(context);
        self.refill(context);
        value.into()
    }

    fn port_write(&mut self, port: u16, _size: u8, value: u32, context: &mut DeviceContext<'_>) {
        self.set_a20(context.a20());
        self.write(port, value as u8, context.now());
        if let Some(enabled) = self.take_a20_request() {
            context.set_a20(enabled);
        }
        if self.take_reset_request() {
            context.request_stop(StopRequest::ProcessorReset(ResetCause::KeyboardController));
        }
        self.forward(context);
        self.refill(context);
    }

    fn deadline(&self, context: &DeviceContext<'_>) -> Option<GuestTime> {
        let now = context.now();
        let is_awaited = self.waiting_key.is_some() && self.keyboard.has_room();
        let look_again = is_awaited.then(|| now.after(LOOK_AGAIN));
        let own = self.next_deadline(now);
        own.into_iter().chain(look_again).min()
    }

    fn advance(&mut self, context: &mut DeviceContext<'_>) {
        self.advance(context.now());
        self.forward(context);
        self.refill(context);
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {
        *self = Self::new();
    }

    fn save(&self) -> SavedState {
        SavedState::of(Self::STATE_VERSION, self)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        *self = saved.read(Self::STATE_VERSION)?;
        Ok(())
    }
}
