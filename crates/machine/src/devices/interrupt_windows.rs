//! The ports and the page at which the interrupt controllers answer on the bus. The controllers
//! themselves and their saved state belong to the board, because the processor accesses them
//! directly.

use super::io_apic;
use super::pic::Pic;
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
