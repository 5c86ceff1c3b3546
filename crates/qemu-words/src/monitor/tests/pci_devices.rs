//! Tests devices that come and go on the PCI bus, and what they use.

use super::*;

#[test]
fn devices_come_and_go_on_the_pci_bus() {
    let mut machine = Noted::new();
    machine.slots = vec![4, 5, 6];
    let mut client = ready(&mut machine);
    let mut order = |name: &str, arguments: Value, machine: &mut Noted| {
        refusal(&mut client, name, arguments, machine)
    };
    let node = json!({"driver": "raw", "node-name": "n",
        "file": {"driver": "file", "filename": "a.img"}});
    assert_eq!(order("blockdev-add", node, &mut machine), "");
    let disk = json!({"driver": "virtio-blk-pci", "id": "d", "drive": "n", "bus": "pci.0",
        "addr": "0x5"});
    assert_eq!(order("device_add", disk.clone(), &mut machine), "");
    assert!(order("device_add", disk, &mut machine).contains("Duplicate device ID"));
    assert!(order("blockdev-del", json!({"node-name": "n"}), &mut machine).contains("in use"));
    // The place is taken, so the adapter gets the first free one.
    let network = json!({"type": "user", "id": "u"});
    assert_eq!(order("netdev_add", network.clone(), &mut machine), "");
    assert!(order("netdev_add", network.clone(), &mut machine).contains("Duplicate ID"));
    let folder = json!({"type": "user", "id": "t", "tftp": "/"});
    assert!(order("netdev_add", folder, &mut machine).contains("from the start"));
    let adapter = json!({"driver": "virtio-net-pci", "id": "e", "netdev": "u", "addr": "05.0"});
    assert_eq!(order("device_add", adapter.clone(), &mut machine), "");
    assert!(order("netdev_del", json!({"id": "u"}), &mut machine).contains("in use"));
    assert!(order("netdev_add", network, &mut machine).contains("Duplicate ID"));
    let object = json!({"qom-type": "rng-random", "id": "r", "filename": "/dev/urandom"});
    assert_eq!(order("object-add", object, &mut machine), "");
    let random = json!({"driver": "virtio-rng-pci", "rng": "r"});
    assert_eq!(order("device_add", random.clone(), &mut machine), "");
    assert!(order("device_add", random, &mut machine).contains("no slot/function available"));
    let slots: Vec<u8> = machine.config.plugged.iter().map(|it| it.slot).collect();
    assert_eq!(slots, [5, 4, 6]);
    let functions = answers(&mut client, r#"{"execute": "query-pci"}"#, &mut machine);
    let listed = functions[0]["return"][0]["devices"].to_string();
    assert!(
        listed.contains(r#""qdev_id":"d""#) && !machine.config.rng,
        "{listed}"
    );

    // The guest is asked, and takes its time.
    let mut order = |name: &str, arguments: Value, machine: &mut Noted| {
        refusal(&mut client, name, arguments, machine)
    };
    assert_eq!(order("device_del", json!({"id": "d"}), &mut machine), "");
    assert_eq!(order("device_del", json!({"id": "d"}), &mut machine), "");
    assert!(machine.events.is_empty());
    assert!(order("blockdev-del", json!({"node-name": "n"}), &mut machine).contains("in use"));
    for slot in [5, 5, 4, 6, 31] {
        gone(slot, &mut machine);
    }
    let deleted = ["d", "e"].map(|id| Event::DeviceDeleted(Some(id.into())));
    assert_eq!(machine.events[..2], deleted);
    assert_eq!(machine.events[2..], [Event::DeviceDeleted(None)]);
    assert!(order("device_del", json!({"id": "d"}), &mut machine).contains("not found"));
    // All is free again.
    for (name, arguments) in [
        (
            "device_add",
            json!({"driver": "virtio-blk-pci", "id": "d", "drive": "n"}),
        ),
        ("netdev_del", json!({"id": "u"})),
        ("object-del", json!({"id": "r"})),
    ] {
        assert_eq!(order(name, arguments, &mut machine), "", "{name}");
    }
    let told = [
        "plug into 5",
        "plug into 4",
        "plug into 6",
        "eject 5",
        "eject 5",
        "plug into 4",
    ];
    assert_eq!(machine.told, told);
    let mut line = |text: &str| Hmp::line(text, &mut machine);
    assert_eq!(line("netdev_add user,id=v"), "");
    assert_eq!(line("device_add virtio-net-pci,netdev=v,id=x"), "");
    assert!(line("netdev_del none").contains("not found"));
    assert_eq!(line("object_add rng-builtin,id=q"), "");
    assert!(line("object_add iothread,id=i").starts_with("Error: objects that are added"));
    assert_eq!(line("object_del q"), "");
}
