//! The machine as a tree: QOM's objects and PCI functions, as clients ask for them.

use super::fault::Fault;
use super::machine::Machine;
use crate::configuration::{Configuration, Interface, PluggedKind};
use crate::properties::{self, DEVICES};
use serde_json::{Value, json};
use std::fmt::Write;

/// A function of the PCI bus.
struct Function {
    /// QEMU's name of the device.
    driver: &'static str,
    /// The class, and its name for people.
    class: (u16, &'static str),
    /// The identifiers of vendor and device.
    id: (u16, u16),
    /// Where it is: device and function.
    slot: (u8, u8),
    /// The name that a client chose for it.
    id_of_client: String,
}

const VIRTIO: u16 = 0x1af4;
const INTEL: u16 = 0x8086;

/// A virtio device: QEMU's name, the class, and the identifier of the device.
type Virtio = (&'static str, (u16, &'static str), u16);

const DISK: Virtio = ("virtio-blk-pci", (0x100, "SCSI controller"), 0x1042);
const NETWORK: Virtio = ("virtio-net-pci", (0x200, "Ethernet controller"), 0x1041);
const RANDOM: Virtio = ("virtio-rng-pci", (0xff, "Class 255"), 0x1044);

/// The functions of the machine, in the order in which Tollgate places them.
fn functions(config: &Configuration) -> Vec<Function> {
    let function = |driver, class, id, slot| Function {
        driver,
        class,
        id,
        slot,
        id_of_client: String::new(),
    };
    let mut all = vec![function(
        "i440FX",
        (0x600, "Host bridge"),
        (INTEL, 0x1237),
        (0, 0),
    )];
    let has_firmware = config.kernel.is_none();
    if has_firmware {
        all.extend([
            function("PIIX3", (0x601, "ISA bridge"), (INTEL, 0x7000), (1, 0)),
            function(
                "piix3-ide",
                (0x101, "IDE controller"),
                (INTEL, 0x7010),
                (1, 1),
            ),
            function("VGA", (0x300, "VGA controller"), (0x1234, 0x1111), (2, 0)),
        ]);
    }
    let is_scsi = config.has_scsi();
    let disks = config.drives.iter();
    let disks = disks.filter(|drive| drive.interface == Interface::Virtio && drive.slot.is_none());
    let disks = disks.map(|_| DISK);
    let networks = config.networks.iter().filter(|network| network.is_virtio());
    let networks = networks.map(|_| NETWORK);
    let other = (0xff, "Class 255");
    let optional = [
        (config.rng, RANDOM),
        (config.balloon, ("virtio-balloon-pci", other, 0x1045)),
    ];
    let optional = optional.into_iter().filter(|(is_there, _)| *is_there);
    let shares = config
        .shares
        .iter()
        .map(|_| ("virtio-9p-pci", (2, "Class 2"), 0x1049));
    let last = [
        (
            is_scsi,
            ("virtio-scsi-pci", (0x100, "SCSI controller"), 0x1048),
        ),
        (
            !config.ports.is_empty(),
            ("virtio-serial-pci", (0x780, "Class 1920"), 0x1043),
        ),
    ];
    let last = last.into_iter().filter(|(is_there, _)| *is_there);
    let virtio = disks
        .chain(networks)
        .chain(optional.map(|(_, device)| device))
        .chain(shares)
        .chain(last.map(|(_, device)| device));
    let first = if has_firmware { 3 } else { 1 };
    for (slot, (driver, class, device)) in (first..).zip(virtio) {
        all.push(function(driver, class, (VIRTIO, device), (slot, 0)));
    }
    for _ in config
        .networks
        .iter()
        .filter(|network| !network.is_virtio())
    {
        let slot = all.last().map_or(first, |last| last.slot.0 + 1);
        let class = (0x200, "Ethernet controller");
        all.push(function("e1000", class, (INTEL, 0x100e), (slot, 0)));
    }
    if config.watchdog {
        let slot = all.last().map_or(first, |last| last.slot.0 + 1);
        let class = (0x880, "Class 2176");
        all.push(function("i6300esb", class, (INTEL, 0x25ab), (slot, 0)));
    }
    all.extend(config.plugged.iter().map(|plugged| {
        let (driver, class, device) = match plugged.kind {
            PluggedKind::Disk(_) => DISK,
            PluggedKind::Network(_) => NETWORK,
            PluggedKind::Random => RANDOM,
        };
        Function {
            id_of_client: plugged.id.clone().unwrap_or_default(),
            ..function(driver, class, (VIRTIO, device), (plugged.slot, 0))
        }
    }));
    all
}

/// The answer to `query-pci`.
pub fn pci(config: &Configuration) -> Value {
    let device = |it: &Function| {
        json!({
            "bus": 0, "slot": it.slot.0, "function": it.slot.1,
            "qdev_id": it.id_of_client,
            "class_info": {"class": it.class.0, "desc": it.class.1},
            "id": {"vendor": it.id.0, "device": it.id.1},
            "irq_pin": 1, "regions": [],
        })
    };
    let devices: Vec<Value> = functions(config).iter().map(device).collect();
    json!([{"bus": 0, "devices": devices}])
}

/// The text of `info pci`.
pub fn pci_text(config: &Configuration) -> String {
    let mut text = String::new();
    for it in functions(config) {
        let (slot, function) = it.slot;
        let (vendor, device) = it.id;
        let _ = writeln!(
            text,
            "  Bus  0, device {slot:3}, function {function}:\n    {}: PCI device {vendor:04x}:{device:04x}",
            it.class.1
        );
    }
    text
}

/// The text of `info qtree`.
pub fn tree(config: &Configuration) -> String {
    let mut text =
        String::from("bus: main-system-bus\n  type System\n  dev: i440FX-pcihost, id \"\"\n");
    text += "    bus: pci.0\n      type PCI\n";
    for it in functions(config) {
        let (slot, function) = it.slot;
        let _ = writeln!(
            text,
            "      dev: {}, id \"{}\"\n        addr = {slot:02x}.{function}",
            it.driver, it.id_of_client
        );
    }
    text
}

/// The answer to `qom-list`.
///
/// # Errors
/// There is no such object.
pub fn list(path: &str, config: &Configuration) -> Result<Value, Fault> {
    let child = |name: &str, kind: &str| json!({"name": name, "type": format!("child<{kind}>")});
    let property = |name: &str, kind: &str| json!({"name": name, "type": kind});
    let kind = property("type", "string");
    Ok(match path.trim_end_matches('/') {
        "" => json!([
            kind,
            child("machine", "pc-machine"),
            child("chardevs", "container"),
            child("objects", "container"),
            child("backend", "container"),
        ]),
        "/machine" => json!([
            kind,
            child("unattached", "container"),
            child("peripheral", "container"),
            child("peripheral-anon", "container"),
            property("accel", "string"),
            property("acpi", "OnOffAuto"),
        ]),
        "/machine/unattached" => json!([kind, child("device[0]", "max-x86_64-cpu")]),
        "/machine/unattached/device[0]" => json!([
            kind,
            property("realized", "bool"),
            property("hotpluggable", "bool"),
            property("hotplugged", "bool"),
            property("feature-words", "X86CPUFeatureWordInfo"),
        ]),
        "/chardevs" => {
            let places = config.characters.iter();
            let places = places.map(|place| child(&place.id, "chardev"));
            [kind].into_iter().chain(places).collect()
        }
        "/machine/peripheral" | "/machine/peripheral-anon" | "/objects" | "/backend" => {
            json!([kind])
        }
        path => return Err(no_object(path)),
    })
}

fn no_object(path: &str) -> Fault {
    Fault::no_device(path)
}

/// The answer to `qom-get`.
///
/// # Errors
/// There is no such object, or it has no such property.
pub fn get(path: &str, property: &str, machine: &dyn Machine) -> Result<Value, Fault> {
    let config = machine.configuration();
    list(path, config)?;
    let path = path.trim_end_matches('/');
    let value = match (path, property) {
        ("/machine", "type") => json!("pc-machine"),
        ("/machine", "accel") => json!("tcg"),
        ("/machine", "acpi") => json!(if config.acpi { "on" } else { "off" }),
        ("/machine/unattached/device[0]", "type") => json!("max-x86_64-cpu"),
        ("/machine/unattached/device[0]", "realized") => json!(true),
        ("/machine/unattached/device[0]", "hotpluggable" | "hotplugged") => json!(false),
        ("/machine/unattached/device[0]", "feature-words" | "unavailable-features") => json!([]),
        (path, "type") if path.starts_with("/chardevs/") => json!("chardev"),
        (_, "type") => json!("container"),
        _ => {
            let why = format!("Property '{path}.{property}' not found");
            return Err(Fault::generic(why));
        }
    };
    Ok(value)
}

/// The answer to `qom-list-types`.
pub fn types() -> Value {
    let names = DEVICES.iter().flat_map(|device| device.names);
    names
        .map(|name| json!({"name": name, "parent": "device"}))
        .collect()
}

/// The answer to `device-list-properties`.
///
/// # Errors
/// There is no such device.
pub fn properties(name: &str) -> Result<Value, Fault> {
    let device = properties::find_device(name);
    let device = device.ok_or_else(|| Fault::no_device(name))?;
    let properties = crate::help::own_properties(device.names[0]).iter();
    let all = properties.chain(device.indifferent);
    Ok(all
        .map(|name| json!({"name": name, "type": "string"}))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::Drive;

    #[test]
    fn functions_are_where_the_machine_has_them() {
        let mut config = Configuration {
            rng: true,
            watchdog: true,
            drives: vec![
                Drive::empty(Interface::Virtio),
                Drive::empty(Interface::ScsiDisk),
            ],
            ..Configuration::default()
        };
        let place = |config: &Configuration, driver: &str| {
            let all = functions(config);
            let it = all.iter().find(|it| it.driver == driver).unwrap();
            it.slot.0
        };
        assert_eq!(place(&config, "virtio-blk-pci"), 3);
        assert_eq!(place(&config, "virtio-scsi-pci"), 5);
        assert_eq!(place(&config, "i6300esb"), 6);
        config.kernel = Some("k".into());
        assert_eq!(place(&config, "virtio-blk-pci"), 1);
        assert!(pci_text(&config).contains("device   2, function 0"));
        assert!(tree(&config).contains("dev: virtio-scsi-pci"));
    }

    #[test]
    fn objects_that_are_listed_have_types() {
        let config = Configuration::default();
        for path in ["/", "/machine", "/machine/unattached/device[0]", "/objects"] {
            let list = list(path, &config).unwrap();
            assert_eq!(list[0]["name"], "type", "{path}");
        }
        assert!(list("/none", &config).is_err());
        assert!(properties("rtl8139").is_err());
        let names = properties("virtio-blk-pci").unwrap();
        assert!(
            names
                .as_array()
                .unwrap()
                .iter()
                .any(|it| it["name"] == "drive")
        );
    }
}
