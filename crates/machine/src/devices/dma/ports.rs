//! The ports of the DMA controllers. The controllers themselves and their saved state belong to the
//! board.

use super::DmaControllers;
use crate::bus::{Claims, Device, DeviceContext, SavedState, StateError};

/// The ports of both controllers and the page registers.
#[derive(Clone, Copy, Debug)]
pub struct DmaPorts {
    /// Whether the controllers are set up after a reset as firmware leaves them, because the
    /// machine has no firmware.
    pub is_prepared: bool,
}

impl Device for DmaPorts {
    fn name(&self) -> &str {
        "dma"
    }

    fn claims(&self) -> Claims {
        Claims::none()
            .with_byte_ports(DmaControllers::FIRST_PORTS)
            .with_byte_ports(DmaControllers::SECOND_PORTS)
            .with_byte_ports(DmaControllers::PAGE_PORTS)
    }

    fn port_read(&mut self, port: u16, _size: u8, context: &mut DeviceContext<'_>) -> u32 {
        context.dma().read(port).into()
    }

    fn port_write(&mut self, port: u16, _size: u8, value: u32, context: &mut DeviceContext<'_>) {
        context.dma().write(port, value as u8);
    }

    fn reset(&mut self, context: &mut DeviceContext<'_>) {
        if self.is_prepared {
            *context.dma() = DmaControllers::cascaded();
        }
    }

    fn save(&self) -> SavedState {
        SavedState::empty()
    }

    fn restore(&mut self, _saved: &SavedState) -> Result<(), StateError> {
        Ok(())
    }
}
