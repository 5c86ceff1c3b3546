//! Devices that come and go while the machine runs: drives of the SCSI controller, and devices of the
//! PCI bus.
//!
//! A drive of the SCSI controller is gone when `device_del` returns. A device of the PCI bus is there
//! until the guest ejects it, or until a reset; [`gone`] is called then.

use super::fault::{Fault, NO_HOT_PLUG};
use super::machine::{Event, Machine};
use super::spare;
use crate::configuration::{Configuration, Interface, Plugged, PluggedKind};
use crate::key_values::KeyValues;
use crate::properties;

/// The devices that can be plugged into the SCSI controller.
const AT_THE_CONTROLLER: [&str; 2] = ["scsi-hd", "scsi-cd"];
/// The devices that can be plugged into the PCI bus.
const ON_THE_BUS: [&str; 3] = ["virtio-blk-pci", "virtio-net-pci", "virtio-rng-pci"];

/// Plugs a device in: `device_add`.
///
/// # Errors
/// It is no device that can come and go, its words are wrong, or it cannot be used.
pub fn add_device(list: KeyValues, machine: &mut dyn Machine) -> Result<(), Fault> {
    let driver = list.peek("driver");
    let driver = driver.ok_or_else(|| Fault::generic("Parameter 'driver' is missing"))?;
    let Some(known) = properties::find_device(driver) else {
        let why = format!("'{driver}' is not a valid device model name");
        return Err(Fault::generic(why));
    };
    if let Some(id) = list.peek("id")
        && is_device(id, machine.configuration())
    {
        return Err(Fault::generic(format!("Duplicate device ID '{id}'")));
    }
    match known.names[0] {
        name if AT_THE_CONTROLLER.contains(&name) => add_drive(list, machine),
        name if ON_THE_BUS.contains(&name) => add_to_bus(name, list, machine),
        _ => Err(Fault::generic(format!("{driver}: {NO_HOT_PLUG}"))),
    }
}

/// Whether a device has this name.
fn is_device(id: &str, config: &Configuration) -> bool {
    let mut drives = config.drives.iter();
    let mut plugged = config.plugged.iter();
    drives.any(|drive| drive.device.as_deref() == Some(id))
        || plugged.any(|it| it.id.as_deref() == Some(id))
}

fn add_drive(list: KeyValues, machine: &mut dyn Machine) -> Result<(), Fault> {
    if !machine.configuration().has_scsi() {
        let driver = list.peek("driver").unwrap_or_default();
        let why = format!("No 'SCSI' bus found for device '{driver}'");
        return Err(Fault::generic(why));
    }
    let mut builder = spare::builder(machine);
    builder.add_device(list)?;
    let drive = builder.config.drives.pop();
    let drive = drive.ok_or_else(|| Fault::generic("the device has no drive"))?;
    machine.plug_in(drive)?;
    spare::keep(builder, machine);
    Ok(())
}

fn add_to_bus(driver: &str, list: KeyValues, machine: &mut dyn Machine) -> Result<(), Fault> {
    let slot = free_slot(driver, &list, machine)?;
    let id = list.peek("id").map(str::to_owned);
    let mut builder = spare::builder(machine);
    builder.add_device(list)?;
    let made = &mut builder.config;
    let kind = match (made.drives.pop(), made.networks.pop(), made.rng) {
        (Some(mut drive), ..) => {
            if drive.file.is_none() {
                return Err(Fault::generic("Device needs media, but drive is empty"));
            }
            drive.slot = Some(slot);
            PluggedKind::Disk(drive)
        }
        (None, Some(network), _) => {
            spare::refuse_folder(&network.kind)?;
            PluggedKind::Network(network)
        }
        (None, None, true) => PluggedKind::Random,
        (None, None, false) => return Err(Fault::generic("the device has no network")),
    };
    machine.plug_into_bus(Plugged { id, slot, kind })?;
    spare::keep(builder, machine);
    Ok(())
}

/// The slot for a device: the one that it asks for if that is free, otherwise the first free one. Slots
/// of devices that were there from the start are not those that their options ask for, so a slot that
/// a client considers free may be occupied.
fn free_slot(driver: &str, list: &KeyValues, machine: &dyn Machine) -> Result<u8, Fault> {
    let config = machine.configuration();
    let slots = machine.slots();
    if slots.is_empty() {
        return Err(Fault::generic("Bus 'pci.0' does not support hotplugging"));
    }
    let is_free = |slot: &u8| config.plugged.iter().all(|it| it.slot != *slot);
    let wanted = list.peek("addr").and_then(slot_of);
    let wanted = wanted.filter(|slot| slots.contains(slot) && is_free(slot));
    let slot = wanted.or_else(|| slots.iter().copied().find(is_free));
    slot.ok_or_else(|| {
        Fault::generic(format!(
            "PCI: no slot/function available for {driver}, all in use or reserved"
        ))
    })
}

/// The slot in an address: `5`, `0x5` or `05.0`, in hexadecimal digits.
fn slot_of(address: &str) -> Option<u8> {
    let slot = address.split('.').next()?.trim_start_matches("0x");
    u8::from_str_radix(slot, 16).ok()
}

/// Removes a device that can be plugged in: `device_del`.
///
/// # Errors
/// There is no such device, or it stays as long as the machine.
pub fn delete_device(id: &str, machine: &mut dyn Machine) -> Result<(), Fault> {
    let config = machine.configuration();
    let mut plugged = config.plugged.iter();
    if let Some(plugged) = plugged.find(|it| it.id.as_deref() == Some(id)) {
        let slot = plugged.slot;
        return Ok(machine.ask_for_ejection(slot)?);
    }
    let drives = config.drives.iter();
    let mut drives = drives.enumerate();
    let found = drives.find(|(_, drive)| drive.device.as_deref() == Some(id));
    let (place, drive) = found.ok_or_else(|| Fault::no_device(id))?;
    if !drive.interface.is_scsi() {
        let what = match drive.interface {
            Interface::Virtio => "it was there from the machine's start, and stays",
            _ => NO_HOT_PLUG,
        };
        return Err(Fault::generic(format!("Device '{id}': {what}")));
    }
    let drive = drive.clone();
    machine.unplug(place)?;
    // What -drive or drive_add has made goes with its device.
    if drive.is_node {
        machine.spare().drives.push(drive);
    }
    machine.tell(Event::DeviceDeleted(Some(id.to_owned())));
    Ok(())
}

/// Notes that the device in a slot of the PCI bus is gone, and reports that.
pub fn gone(slot: u8, machine: &mut dyn Machine) {
    let Some(Plugged { id, kind, .. }) = machine.forget(slot) else {
        return;
    };
    match kind {
        // What -drive or drive_add has made goes with its device.
        PluggedKind::Disk(drive) if drive.is_node => {
            let drive = crate::Drive {
                slot: None,
                device: None,
                ..drive
            };
            machine.spare().drives.push(drive);
        }
        PluggedKind::Network(network) => {
            let name = network.netdev.map(|name| (name, network.kind));
            machine.spare().networks.extend(name);
        }
        PluggedKind::Disk(_) | PluggedKind::Random => {}
    }
    machine.tell(Event::DeviceDeleted(id));
}
