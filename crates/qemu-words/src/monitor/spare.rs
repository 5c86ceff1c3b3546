//! What is added while the machine runs, before a device uses it: images, networks and objects.

use super::fault::Fault;
use super::machine::Machine;
use crate::build::Builder;
use crate::configuration::{Drive, NetworkKind, PluggedKind, Spare};
use crate::key_values::KeyValues;
use crate::parts::drives::DriveEntry;
use crate::refusal::Refusal;
use serde_json::Value;

/// The types of objects that can be added, all of which are sources of random bytes.
const OBJECTS: [&str; 2] = ["rng-random", "rng-builtin"];

impl From<Refusal> for Fault {
    fn from(why: Refusal) -> Self {
        Self::generic(why.0)
    }
}

/// What options add to, with everything that no device uses.
pub fn builder(machine: &mut dyn Machine) -> Builder {
    let Spare {
        drives,
        networks,
        objects,
    } = machine.spare().clone();
    let drives = drives.into_iter().map(|drive| DriveEntry {
        drive,
        is_waiting: true,
    });
    Builder {
        drives: drives.collect(),
        netdevs: networks,
        objects,
        ..Builder::default()
    }
}

/// Keeps what no device uses now.
pub fn keep(builder: Builder, machine: &mut dyn Machine) {
    let drives = builder.drives.into_iter();
    *machine.spare() = Spare {
        drives: drives.map(|entry| entry.drive).collect(),
        networks: builder.netdevs,
        objects: builder.objects,
    };
}

/// Whether an image or a drive has this name.
fn is_known(name: &str, machine: &mut dyn Machine) -> bool {
    let is_it = |drive: &Drive| drive.id == name;
    machine.spare().drives.iter().any(is_it) || machine.configuration().drives.iter().any(is_it)
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
    let drives = &mut machine.spare().drives;
    if let Some(place) = drives.iter().position(|drive| drive.id == name) {
        drives.remove(place);
        return Ok(());
    }
    Err(Fault::generic(match is_known(name, machine) {
        true => format!("Node {name} is in use"),
        false => format!("Failed to find node with node-name='{name}'"),
    }))
}

/// Whether a device that was plugged in, or one of the machine's start, uses a network.
fn is_network_used(name: &str, machine: &dyn Machine) -> bool {
    let config = machine.configuration();
    let plugged = config.plugged.iter().filter_map(|it| match &it.kind {
        PluggedKind::Network(network) => Some(network),
        PluggedKind::Disk(_) | PluggedKind::Random => None,
    });
    let mut all = config.networks.iter().chain(plugged);
    all.any(|network| network.netdev.as_deref() == Some(name))
}

/// Adds a network that an adapter can use: `netdev_add`.
///
/// # Errors
/// The words are wrong, the name is not free, or the network needs files that must be known at the
/// start.
pub fn add_network(list: KeyValues, machine: &mut dyn Machine) -> Result<(), Fault> {
    if let Some(id) = list.peek("id")
        && is_network_used(id, machine)
    {
        return Err(Fault::generic(format!("Duplicate ID '{id}' for netdev")));
    }
    let mut builder = builder(machine);
    builder.netdev(list)?;
    if let Some((_, kind)) = builder.netdevs.last() {
        refuse_folder(kind)?;
    }
    keep(builder, machine);
    Ok(())
}

/// Refuses a network with a folder, which would have to be opened while the machine runs.
///
/// # Errors
/// The network has one.
pub fn refuse_folder(kind: &NetworkKind) -> Result<(), Fault> {
    match kind {
        NetworkKind::User { boot, .. } if boot.tftp.is_some() => Err(Fault::generic(
            "tftp: a folder is served only to adapters that are there from the start",
        )),
        _ => Ok(()),
    }
}

/// Forgets a network that no device uses: `netdev_del`.
///
/// # Errors
/// There is no such network, or a device uses it.
pub fn delete_network(name: &str, machine: &mut dyn Machine) -> Result<(), Fault> {
    let networks = &mut machine.spare().networks;
    if let Some(place) = networks.iter().position(|(id, _)| id == name) {
        networks.remove(place);
        return Ok(());
    }
    match is_network_used(name, machine) {
        true => Err(Fault::generic(format!("Device '{name}' is in use"))),
        false => Err(Fault::no_device(name)),
    }
}

/// Adds an object: `object-add`.
///
/// # Errors
/// It is no source of random bytes, its words are wrong, or its name is not free.
pub fn add_object(list: KeyValues, machine: &mut dyn Machine) -> Result<(), Fault> {
    let kind = list.peek("qom-type").unwrap_or_default();
    if !OBJECTS.contains(&kind) {
        let why = format!("objects that are added are {}", OBJECTS.join(" and "));
        return Err(Fault::generic(why));
    }
    let id = list.peek("id");
    let id = id.ok_or_else(|| Fault::generic("Parameter 'id' is missing"))?;
    if machine.spare().objects.iter().any(|known| known == id) {
        let why = format!("attempt to add duplicate property '{id}' to object (type 'container')");
        return Err(Fault::generic(why));
    }
    let mut builder = builder(machine);
    builder.object(list)?;
    keep(builder, machine);
    Ok(())
}

/// Forgets an object: `object-del`. A device that used it keeps its random bytes.
///
/// # Errors
/// There is no such object.
pub fn delete_object(name: &str, machine: &mut dyn Machine) -> Result<(), Fault> {
    let objects = &mut machine.spare().objects;
    let place = objects.iter().position(|known| known == name);
    let place =
        place.ok_or_else(|| Fault::generic(format!("object '{name}' not found, cannot delete")))?;
    objects.remove(place);
    Ok(())
}
