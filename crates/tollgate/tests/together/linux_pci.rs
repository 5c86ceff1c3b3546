//! Tests that Linux finds the PCI bus in every way that it knows, or finds none.

use crate::support::linux::{self, DEBIAN_686, DEBIAN_686_PAE, DEBIAN_AMD64};

#[test]
fn every_kernel_enumerates_the_bus() {
    for kernel in [DEBIAN_AMD64, DEBIAN_686, DEBIAN_686_PAE] {
        let mut guest = linux::boot(linux::run(kernel));
        let log = guest.shell("dmesg | grep -i pci");
        for line in [
            "reserved as E820 entry",
            "Fatal",
            "not reserved",
            "BIOS bug",
        ] {
            assert!(!log.contains(line), "{kernel}: {log}");
        }
        assert!(log.contains("configuration type 1"), "{kernel}: {log}");
        assert!(log.contains("PCI host bridge to bus 0000:00"), "{log}");
        assert_eq!(guest.shell("ls /sys/bus/pci/devices"), "0000:00:00.0");
        let class = guest.shell("cat /sys/bus/pci/devices/0000:00:00.0/class");
        assert_eq!(class, "0x060000");
        let config = guest.shell("od -An -tx1 -N4 /sys/bus/pci/devices/0000:00:00.0/config");
        assert_eq!(config.trim(), "36 1b 08 00");
        linux::assert_untroubled(&mut guest);
        guest.type_line("poweroff -f");
        assert_eq!(guest.end().code, Some(0));
    }
}

#[test]
fn a_machine_without_the_bus_boots_too() {
    let mut command = linux::run(DEBIAN_AMD64);
    command.args(["--pci", "off"]);
    let mut guest = linux::boot(command);
    assert_eq!(guest.shell("ls /sys/bus/pci/devices | wc -l"), "0");
    linux::assert_untroubled(&mut guest);
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}
