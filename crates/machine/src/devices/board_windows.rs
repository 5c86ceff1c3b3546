//! The ports and the page at which the chips of the board answer on the bus: interrupt controllers,
//! DMA controllers, and the x87's error logic. The chips themselves and their saved state belong to
//! [the board](crate::board).

use crate::board::dma::DmaControllers;
use crate::board::fpu_error::FpuError;
use crate::board::io_apic;
use crate::board::pic::Pic;
use crate::bus::{Claims, Device, DeviceContext, NearUse, SavedState, StateError};
use tollgate_x86::PhysicalAddress;

/// The ports of the 8259 pair.
pub struct PicPorts;

impl Device for PicPorts {
    fn name(&self) -> &str {
        "pic"
    }

    fn claims(&self) -> Claims {
        Claims::none()
            .with_byte_ports(Pic::MASTER_PORTS)
            .with_byte_ports(Pic::SLAVE_PORTS)
            .with_byte_ports(Pic::EDGE_LEVEL_PORTS)
            .with_near(Pic::MASTER_PORTS, NearUse::all())
            .with_near(Pic::SLAVE_PORTS, NearUse::all())
    }

    fn port_read(&mut self, port: u16, _size: u8, context: &mut DeviceContext<'_>) -> u32 {
        let interrupts = context.interrupts();
        let value = interrupts.pic.read(port);
        interrupts.update_intr();
        value.into()
    }

    fn port_write(&mut self, port: u16, _size: u8, value: u32, context: &mut DeviceContext<'_>) {
        let interrupts = context.interrupts();
        interrupts.pic.write(port, value as u8);
        interrupts.update_intr();
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {}

    fn save(&self) -> SavedState {
        SavedState::empty()
    }

    fn restore(&mut self, _saved: &SavedState) -> Result<(), StateError> {
        Ok(())
    }
}

/// The page of the I/O APIC.
pub struct IoApicPage;

impl Device for IoApicPage {
    fn name(&self) -> &str {
        "io-apic"
    }

    fn claims(&self) -> Claims {
        Claims::none().with_memory(io_apic::BASE_ADDRESS, io_apic::REGISTER_BYTES)
    }

    fn memory_read(
        &mut self,
        address: PhysicalAddress,
        data: &mut [u8],
        context: &mut DeviceContext<'_>,
    ) {
        let offset = address.0.wrapping_sub(io_apic::BASE_ADDRESS) as u16;
        context.interrupts().io_apic.read(offset, data);
    }

    fn memory_write(
        &mut self,
        address: PhysicalAddress,
        data: &[u8],
        context: &mut DeviceContext<'_>,
    ) {
        let offset = address.0.wrapping_sub(io_apic::BASE_ADDRESS) as u16;
        let interrupts = context.interrupts();
        let local_apic = &mut interrupts.local_apic;
        interrupts.io_apic.write(offset, data, local_apic);
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {}

    fn save(&self) -> SavedState {
        SavedState::empty()
    }

    fn restore(&mut self, _saved: &SavedState) -> Result<(), StateError> {
        Ok(())
    }
}

/// The ports of both DMA controllers and their page registers.
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

/// The ports of the flip-flops that report x87 errors.
pub struct FpuErrorPorts;

impl Device for FpuErrorPorts {
    fn name(&self) -> &str {
        "x87-error"
    }

    fn claims(&self) -> Claims {
        Claims::none().with_byte_ports(FpuError::CLEAR_PORT..=FpuError::RESET_PORT)
    }

    fn port_write(&mut self, _port: u16, _size: u8, _value: u32, context: &mut DeviceContext<'_>) {
        context.with_fpu_error(FpuError::write);
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {}

    fn save(&self) -> SavedState {
        SavedState::empty()
    }

    fn restore(&mut self, _saved: &SavedState) -> Result<(), StateError> {
        Ok(())
    }
}
