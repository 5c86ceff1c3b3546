//! Where the DMA controllers answer on the bus. They themselves belong to the board; so do their
//! states.

use super::DmaControllers;
use crate::bus::{Claims, Device, DeviceContext, SavedState, StateError};

/// The ports of both controllers and the page registers.
#[derive(Clone, Copy, Debug)]
pub struct DmaPorts {
    /// No firmware programs the controllers: after a reset they are as firmware leaves them.
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
