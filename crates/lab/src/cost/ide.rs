//! The IDE disk that the guest drives by registers, and what firmware would have prepared: the controller answers at its
//! ports, its bus master too, and its interrupt leads to the processor.
//!
//! The machine has no firmware and no other PCI device, so the controller gets a bus of its own.

use super::disk::Disk;
use super::{CostError, virtio};
use tollgate_machine::device_list::IdeUnits;
use tollgate_machine::devices::ide::pci::IdeFunction;
use tollgate_machine::devices::ide::{self, Unit};
use tollgate_machine::devices::pci::Place;
use tollgate_machine::devices::pci::config_space::Command;
use tollgate_machine::devices::pci::function::PciFunction;
use tollgate_machine::devices::pci::host::PciHost;
use tollgate_machine::pc::Pc;
use tollgate_memory::GuestMemory;
use tollgate_x86::PhysicalAddress;

/// The line of the first channel's interrupt.
const LINE: u8 = 14;
/// Offsets in the configuration space: the command register, and the address of the bus master's ports.
const COMMAND: usize = 4;
const MASTER_ADDRESS: usize = 0x20;

// These constants must agree with `guests/cost.inc`.
const IDE_MASTER: u32 = 0xc000;
const IDE_DATA: u32 = 0x14_0000;
const IDE_TABLE: u64 = 0x14_2000;
const REQUEST_BYTES: u32 = 4096;

/// In the length of an entry of the bus master's table: it is the last.
const LAST: u32 = 1 << 31;

/// Adds the controller with its disk to the machine.
///
/// # Errors
///
/// The host refuses a file or a thread.
pub fn add(pc: &mut Pc, memory: &mut GuestMemory) -> Result<(), CostError> {
    let refused = |error: &dyn std::fmt::Display| CostError::Host(error.to_string());
    let disk = Disk::new()?;
    let disk = ide::Disk::open("the IDE disk".into(), &disk.options, None);
    let mut units = IdeUnits::default();
    units[0] = Some(Unit::Disk(disk.map_err(|error| refused(&error))?));
    let mut controller = IdeFunction::new(units);
    let config = controller.config_mut();
    config.write(MASTER_ADDRESS, &IDE_MASTER.to_le_bytes());
    let enabled = Command::IO | Command::BUS_MASTER;
    config.write(COMMAND, &enabled.bits().to_le_bytes());
    let placed: (Place, Box<dyn PciFunction>) = (Place::device(0), Box::new(controller));
    let bus = PciHost::with_chipset(vec![placed], Vec::new());
    pc.add_device(Box::new(bus))
        .map_err(|error| refused(&error))?;
    memory.write_u32(PhysicalAddress(IDE_TABLE), IDE_DATA);
    memory.write_u32(PhysicalAddress(IDE_TABLE + 4), REQUEST_BYTES | LAST);
    virtio::route_interrupt(pc, LINE);
    Ok(())
}
