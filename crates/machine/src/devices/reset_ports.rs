//! The reset control register at CF9h, and system control port A at 92h, which resets the processor
//! and gates address line 20 faster than the keyboard controller.

use crate::bus::{Claims, Device, DeviceContext, PortWidth, SavedState, StateError};
use serde::{Deserialize, Serialize};
use tollgate_platform::{ResetCause, StopRequest};

/// The reset control register of the chip set.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ResetControl {
    value: u8,
    request: bool,
}

impl ResetControl {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;

    /// The port. It lies inside the PCI address register (CF8h to CFBh), which answers only to
    /// accesses of four bytes.
    pub const PORT: u16 = 0xCF9;

    const SYSTEM_RESET: u8 = 1 << 1;
    const RESET_PROCESSOR: u8 = 1 << 2;
    const FULL_RESET: u8 = 1 << 3;

    /// Reads the register.
    pub const fn read(&self) -> u8 {
        self.value
    }

    /// Writes the register. A change of the processor's reset bit from 0 to 1 causes a reset.
    pub const fn write(&mut self, value: u8) {
        let rises = value & !self.value;
        if rises & Self::RESET_PROCESSOR != 0 {
            self.request = true;
        }
        self.value = value & (Self::SYSTEM_RESET | Self::RESET_PROCESSOR | Self::FULL_RESET);
    }

    /// Returns whether a reset was requested since the last call.
    pub const fn take_reset_request(&mut self) -> bool {
        std::mem::replace(&mut self.request, false)
    }

    /// Whether the reset is that of the whole machine, and not only INIT of the processor (ICH data
    /// sheet, "RST_CNT", SYS_RST).
    pub const fn resets_machine(&self) -> bool {
        self.value & Self::SYSTEM_RESET != 0
    }
}

/// System control port A.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SystemControlPort {
    value: u8,
    reset_request: bool,
    a20_request: Option<bool>,
}

impl Default for SystemControlPort {
    fn default() -> Self {
        Self::new()
    }
}

impl SystemControlPort {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;

    /// The port, which is that of the PS/2.
    pub const PORT: u16 = 0x92;

    const FAST_RESET: u8 = 1 << 0;
    const A20: u8 = 1 << 1;

    /// Makes the port as firmware leaves it: A20 is enabled.
    pub const fn new() -> Self {
        Self {
            value: Self::A20,
            reset_request: false,
            a20_request: None,
        }
    }

    /// Reads the port.
    pub const fn read(&self) -> u8 {
        self.value
    }

    /// Writes the port. A change of bit 0 from 0 to 1 resets the processor; bit 1 is A20.
    pub const fn write(&mut self, value: u8) {
        if value & !self.value & Self::FAST_RESET != 0 {
            self.reset_request = true;
        }
        if (value ^ self.value) & Self::A20 != 0 {
            self.a20_request = Some(value & Self::A20 != 0);
        }
        self.value = value & (Self::FAST_RESET | Self::A20);
    }

    /// Returns whether a reset was requested since the last call.
    pub const fn take_reset_request(&mut self) -> bool {
        std::mem::replace(&mut self.reset_request, false)
    }

    /// Returns the level of A20 if the guest has changed it since the last call.
    pub const fn take_a20_request(&mut self) -> Option<bool> {
        self.a20_request.take()
    }

    /// Sets the level of the A20 gate that the port shows, because the keyboard controller drives
    /// it as well.
    pub const fn set_a20(&mut self, enabled: bool) {
        self.value = self.value & Self::FAST_RESET | if enabled { Self::A20 } else { 0 };
    }
}

/// Both ports as one device on the bus.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ResetPorts {
    reset_control: ResetControl,
    system_control: SystemControlPort,
}

impl ResetPorts {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;

    /// The PCI address register, which takes four bytes. If there is no PCI bus, writes to it still
    /// must not reach the reset control register inside it.
    const PCI_ADDRESS_PORT: u16 = 0xcf8;
}

impl Device for ResetPorts {
    fn name(&self) -> &str {
        "reset-ports"
    }

    fn claims(&self) -> Claims {
        let pci = Self::PCI_ADDRESS_PORT;
        Claims::none()
            .with_byte_ports(ResetControl::PORT..=ResetControl::PORT)
            .with_byte_ports(SystemControlPort::PORT..=SystemControlPort::PORT)
            .with_ports(pci..=pci, PortWidth::Exactly(4))
    }

    fn port_read(&mut self, port: u16, _size: u8, context: &mut DeviceContext<'_>) -> u32 {
        match port {
            SystemControlPort::PORT => {
                self.system_control.set_a20(context.a20());
                self.system_control.read().into()
            }
            ResetControl::PORT => self.reset_control.read().into(),
            _ => u32::MAX,
        }
    }

    fn port_write(&mut self, port: u16, _size: u8, value: u32, context: &mut DeviceContext<'_>) {
        match port {
            SystemControlPort::PORT => {
                self.system_control.set_a20(context.a20());
                self.system_control.write(value as u8);
                if let Some(enabled) = self.system_control.take_a20_request() {
                    context.set_a20(enabled);
                }
            }
            ResetControl::PORT => self.reset_control.write(value as u8),
            _ => {}
        }
        if self.system_control.take_reset_request() {
            context.request_stop(StopRequest::ProcessorReset(ResetCause::SystemControlPort));
        }
        if self.reset_control.take_reset_request() {
            context.request_stop(if self.reset_control.resets_machine() {
                StopRequest::Reset(ResetCause::ResetRegister)
            } else {
                StopRequest::ProcessorReset(ResetCause::ResetRegister)
            });
        }
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {
        *self = Self::default();
    }

    fn save(&self) -> SavedState {
        SavedState::of(Self::STATE_VERSION, self)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        *self = saved.read(Self::STATE_VERSION)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cf9h_resets_when_the_processor_bit_rises() {
        let mut control = ResetControl::default();
        control.write(0x02);
        assert!(!control.take_reset_request());
        control.write(0x06);
        assert!(control.take_reset_request());
        assert_eq!(control.read(), 0x06);
        control.write(0x0E);
        assert!(!control.take_reset_request());
        control.write(0xF0);
        assert_eq!(control.read(), 0);
    }

    #[test]
    fn port_92h_gates_a20() {
        let mut port = SystemControlPort::new();
        assert_eq!(port.read(), 0x02);
        port.write(0x02);
        assert_eq!(port.take_a20_request(), None);
        port.write(0x00);
        assert_eq!(port.take_a20_request(), Some(false));
        port.set_a20(true);
        assert_eq!(port.read(), 0x02);
    }

    #[test]
    fn port_92h_resets_when_bit_0_rises() {
        let mut port = SystemControlPort::new();
        port.write(0x03);
        assert!(port.take_reset_request());
        port.write(0x03);
        assert!(!port.take_reset_request());
        assert_eq!(port.read(), 0x03);
    }
}
