//! What is added while the machine runs: images, and drives at the SCSI controller that use them.

use super::fault::{Fault, NO_HOT_PLUG};
use super::machine::{Event, Machine};
use crate::build::Builder;
use crate::configuration::Drive;
use crate::key_values::KeyValues;
use crate::parts::drives::DriveEntry;
use crate::properties;
use crate::refusal::Refusal;
use serde_json::Value;

/// The devices that can be plugged in.
const PLUGGABLE: [&str; 2] = ["scsi-hd", "scsi-cd"];

impl From<Refusal> for Fault {
    fn from(why: Refusal) -> Self {
        Self::generic(why.0)
    }
}

/// What options add to, with the images that no device uses.
fn builder(machine: &mut dyn Machine) -> Builder {
    let spare = machine.spare().iter().cloned().map(|drive| DriveEntry {
        drive,
        is_waiting: true,
    });
    Builder {
        drives: spare.collect(),
        ..Builder::default()
    }
}

/// Keeps the images that no device uses now.
fn keep(builder: Builder, machine: &mut dyn Machine) {
    let drives = builder.drives.into_iter();
    *machine.spare() = drives.map(|entry| entry.drive).collect();
}

/// Whether an image or a drive has this name.
fn is_known(name: &str, machine: &mut dyn Machine) -> bool {
    let is_it = |drive: &Drive| drive.id == name;
    machine.spare().iter().any(is_it) || machine.configuration().drives.iter().any(is_it)
}

/// Adds an image that a device can use: `blockdev-add`.
///
/// # Errors
/// The words are wrong, or the name is not free.
pub fn add_node(arguments: &Value, machine: &mut dyn Machine) -> Result<(), Fault> {
    let list = KeyValues::parse(&arguments.to_string(), None)?;
    if let Some(name) = list.peek("node-name").map(str::to_owned)
        && is_known(&name, machine)
    {
        let why = format!("Duplicate nodes with node-name='{name}'");
        return Err(Fault::generic(why));
    }
    let mut builder = builder(machine);
    builder.blockdev(list)?;
    keep(builder, machine);
    Ok(())
}

/// Adds an image in the words of `-drive`: HMP's `drive_add`.
///
/// # Errors
/// The words are wrong, the name is not free, or the drive would be the machine's.
pub fn add_drive(words: &str, machine: &mut dyn Machine) -> Result<(), Fault> {
    let list = KeyValues::parse(words, None)?;
    if list.peek("if") != Some("none") {
        return Err(Fault::generic(
            "a drive is added with if=none, for device_add",
        ));
    }
    let name = list.peek("id").map(str::to_owned);
    let name = name.ok_or_else(|| Fault::generic("Parameter 'id' is missing"))?;
    if is_known(&name, machine) {
        return Err(Fault::generic(format!("Duplicate ID '{name}' for drive")));
    }
    let mut builder = builder(machine);
    builder.drive(list)?;
    keep(builder, machine);
    Ok(())
}

/// Forgets an image that no device uses: `blockdev-del`, `drive_del`.
///
/// # Errors
/// There is no such image, or a device uses it.
pub fn delete_node(name: &str, machine: &mut dyn Machine) -> Result<(), Fault> {
    let place = machine.spare().iter().position(|drive| drive.id == name);
    if let Some(place) = place {
        machine.spare().remove(place);
        return Ok(());
    }
    Err(Fault::generic(match is_known(name, machine) {
        true => format!("Node {name} is in use"),
        false => format!("Failed to find node with node-name='{name}'"),
    }))
}

/// Plugs a device in: `device_add`.
///
/// # Errors
/// It is no drive of the SCSI controller, its words are wrong, or it cannot be used.
pub fn add_device(list: KeyValues, machine: &mut dyn Machine) -> Result<(), Fault> {
    let driver = list.peek("driver");
    let driver = driver.ok_or_else(|| Fault::generic("Parameter 'driver' is missing"))?;
    let Some(known) = properties::find_device(driver) else {
        let why = format!("'{driver}' is not a valid device model name");
        return Err(Fault::generic(why));
    };
    if !known.names.iter().any(|name| PLUGGABLE.contains(name)) {
        return Err(Fault::generic(format!("{driver}: {NO_HOT_PLUG}")));
    }
    let config = machine.configuration();
    if !config.has_scsi() {
        let why = format!("No 'SCSI' bus found for device '{driver}'");
        return Err(Fault::generic(why));
    }
    let id = list.peek("id").map(str::to_owned);
    if id.is_some() && config.drives.iter().any(|drive| drive.device == id) {
        let id = id.unwrap_or_default();
        return Err(Fault::generic(format!("Duplicate device ID '{id}'")));
    }
    let mut builder = builder(machine);
    builder.add_device(list)?;
    let drive = builder.config.drives.pop();
    let drive = drive.ok_or_else(|| Fault::generic("the device has no drive"))?;
    machine.plug_in(drive)?;
    keep(builder, machine);
    Ok(())
}

/// Removes a device that can be plugged in: `device_del`.
///
/// # Errors
/// There is no such device, or it stays as long as the machine.
pub fn delete_device(id: &str, machine: &mut dyn Machine) -> Result<(), Fault> {
    let drives = machine.configuration().drives.iter();
    let mut drives = drives.enumerate();
    let found = drives.find(|(_, drive)| drive.device.as_deref() == Some(id));
    let (place, drive) = found.ok_or_else(|| Fault::no_device(id))?;
    if !drive.interface.is_scsi() {
        return Err(Fault::generic(NO_HOT_PLUG));
    }
    let drive = drive.clone();
    machine.unplug(place)?;
    // What -drive or drive_add has made goes with its device.
    if drive.is_node {
        machine.spare().push(drive);
    }
    machine.tell(Event::DeviceDeleted(id.to_owned()));
    Ok(())
}
