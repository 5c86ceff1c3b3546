//! The devices that can be asked for, and properties that make no difference.

/// A device that can be asked for: its name, its bus, and a description.
pub struct KnownDevice {
    /// The names, the first of which is listed.
    pub names: &'static [&'static str],
    /// The bus that it is plugged into.
    pub bus: &'static str,
    /// What it is, for people.
    pub what: &'static str,
    /// The heading of `-device help`.
    pub group: &'static str,
    /// Properties that are accepted and make no difference.
    pub indifferent: &'static [&'static str],
}

const fn known(
    group: &'static str,
    names: &'static [&'static str],
    bus: &'static str,
    what: &'static str,
    indifferent: &'static [&'static str],
) -> KnownDevice {
    KnownDevice {
        names,
        bus,
        what,
        group,
        indifferent,
    }
}

const BLOCK: &[&str] = &[
    "num-queues",
    "queue-size",
    "write-cache",
    "config-wce",
    "scsi",
    "discard",
    "write-zeroes",
    "iothread",
    "iothread-vq-mapping",
    "share-rw",
    "werror",
    "rerror",
    "request-merging",
    "seg-max-adjust",
    "max-discard-sectors",
    "max-write-zeroes-sectors",
    "report-discard-granularity",
    "discard_granularity",
    "physical_block_size",
    "min_io_size",
    "opt_io_size",
    "backend_defaults",
    "account-invalid",
    "account-failed",
];

const SCSI: &[&str] = &[
    "removable",
    "vendor",
    "product",
    "ver",
    "device_id",
    "wwn",
    "port_wwn",
    "port_index",
    "dpofua",
    "rotation_rate",
    "physical_block_size",
    "min_io_size",
    "opt_io_size",
    "discard_granularity",
    "max_unmap_size",
    "max_io_size",
    "scsi_version",
    "quirk_mode_page_apple_vendor",
    "quirk_mode_sense_rom_use_dbd",
    "share-rw",
    "write-cache",
    "werror",
    "rerror",
    "backend_defaults",
    "account-invalid",
    "account-failed",
];

const NET: &[&str] = &[
    "mq",
    "csum",
    "gso",
    "mrg_rxbuf",
    "status",
    "ctrl_vq",
    "ctrl_rx",
    "ctrl_vlan",
    "rx_queue_size",
    "tx_queue_size",
    "host_mtu",
    "speed",
    "duplex",
    "rss",
    "hash",
    "tx",
    "x-txtimer",
    "x-txburst",
    "guest_csum",
    "guest_tso4",
    "guest_tso6",
    "guest_ecn",
    "guest_ufo",
    "guest_announce",
    "guest_uso4",
    "guest_uso6",
    "host_tso4",
    "host_tso6",
    "host_ecn",
    "host_ufo",
    "host_uso",
    "ctrl_mac_addr",
    "ctrl_guest_offloads",
    "ctrl_rx_extra",
    "guest_rsc_ext",
    "failover",
    "bootindex",
];

/// All devices that can be asked for.
pub const DEVICES: &[KnownDevice] = &[
    known(
        "Controller/Bridge/Hub",
        &[
            "pcie-root-port",
            "ioh3420",
            "pcie-pci-bridge",
            "pci-bridge",
            "i82801b11-bridge",
            "pxb-pcie",
            "pxb",
        ],
        "PCI",
        "no bridge: what is plugged into it is on the root bus",
        &[
            "port",
            "chassis",
            "chassis_nr",
            "slot",
            "hotplug",
            "io-reserve",
            "mem-reserve",
            "pref64-reserve",
            "bus-reserve",
            "msi",
            "shpc",
            "bus_nr",
            "numa_node",
        ],
    ),
    known(
        "Storage",
        &[
            "virtio-blk-pci",
            "virtio-blk-device",
            "virtio-blk",
            "virtio-blk-pci-transitional",
            "virtio-blk-pci-non-transitional",
        ],
        "virtio-bus",
        "disk",
        BLOCK,
    ),
    known(
        "Storage",
        &["ide-hd", "ide-drive"],
        "IDE",
        "virtual IDE disk",
        BLOCK,
    ),
    known("Storage", &["ide-cd"], "IDE", "virtual IDE CD-ROM", BLOCK),
    known(
        "Storage",
        &[
            "virtio-scsi-pci",
            "virtio-scsi-device",
            "virtio-scsi",
            "virtio-scsi-pci-transitional",
            "virtio-scsi-pci-non-transitional",
        ],
        "virtio-bus",
        "SCSI controller; all are one, which is there if it has a drive",
        &[
            "num_queues",
            "virtqueue_size",
            "seg_max_adjust",
            "max_sectors",
            "cmd_per_lun",
            "hotplug",
            "param_change",
            "iothread",
        ],
    ),
    known(
        "Storage",
        &["scsi-hd", "scsi-disk"],
        "SCSI",
        "virtual SCSI disk",
        SCSI,
    ),
    known("Storage", &["scsi-cd"], "SCSI", "virtual SCSI CD-ROM", SCSI),
    known(
        "Storage",
        &["ich9-ahci", "ahci", "piix3-ide", "piix4-ide"],
        "PCI",
        "the PIIX3's IDE function, whatever the name",
        &[],
    ),
    known(
        "Storage",
        &["floppy"],
        "floppy-bus",
        "virtual floppy drive",
        &["drive-type", "write-cache", "share-rw"],
    ),
    known(
        "Network",
        &[
            "virtio-net-pci",
            "virtio-net-device",
            "virtio-net",
            "virtio-net-pci-transitional",
            "virtio-net-pci-non-transitional",
        ],
        "virtio-bus",
        "network adapter",
        NET,
    ),
    known(
        "Network",
        &["e1000", "e1000-82540em"],
        "PCI",
        "Intel Gigabit Ethernet",
        NET,
    ),
    known(
        "Input",
        &[
            "virtio-serial-pci",
            "virtio-serial-device",
            "virtio-serial",
            "virtio-serial-pci-transitional",
            "virtio-serial-pci-non-transitional",
        ],
        "virtio-bus",
        "console with ports; all are one device",
        &["max_ports", "emergency-write"],
    ),
    known(
        "Input",
        &["virtconsole"],
        "virtio-serial-bus",
        "console (hvc0, hvc1 ...)",
        &["nr"],
    ),
    known(
        "Input",
        &["virtserialport"],
        "virtio-serial-bus",
        "named port",
        &["nr"],
    ),
    known(
        "Input",
        &["isa-serial"],
        "ISA",
        "serial port",
        &["index", "iobase", "irq"],
    ),
    known(
        "Display",
        &["VGA", "isa-vga", "secondary-vga"],
        "PCI",
        "display adapter, which machines with firmware have",
        &[
            "vgamem_mb",
            "mmio",
            "qemu-extended-regs",
            "edid",
            "xres",
            "yres",
            "xmax",
            "ymax",
            "refresh_rate",
            "global-vmstate",
        ],
    ),
    known(
        "Misc",
        &[
            "virtio-rng-pci",
            "virtio-rng-device",
            "virtio-rng",
            "virtio-rng-pci-transitional",
            "virtio-rng-pci-non-transitional",
        ],
        "virtio-bus",
        "random bytes",
        &["rng", "max-bytes", "period"],
    ),
    known(
        "Misc",
        &[
            "virtio-balloon-pci",
            "virtio-balloon-device",
            "virtio-balloon",
            "virtio-balloon-pci-transitional",
            "virtio-balloon-pci-non-transitional",
        ],
        "virtio-bus",
        "memory balloon",
        &[
            "free-page-reporting",
            "free-page-hint",
            "deflate-on-oom",
            "guest-stats-polling-interval",
            "qemu-4-0-config-size",
            "iothread",
            "page-poison",
        ],
    ),
    known(
        "Storage",
        &[
            "virtio-9p-pci",
            "virtio-9p-device",
            "virtio-9p",
            "virtio-9p-pci-transitional",
            "virtio-9p-pci-non-transitional",
        ],
        "virtio-bus",
        "shared directory",
        &[],
    ),
    known(
        "Misc",
        &["i6300esb"],
        "PCI",
        "watchdog; its action is a reset",
        &[],
    ),
    known(
        "Misc",
        &["isa-debug-exit"],
        "ISA",
        "a write ends the machine",
        &[],
    ),
    known(
        "Misc",
        &["isa-debugcon"],
        "ISA",
        "debug console",
        &["readback"],
    ),
    known(
        "Misc",
        &["pvpanic", "pvpanic-pci"],
        "ISA",
        "panics that the guest reports",
        &["ioport", "events"],
    ),
    known("Misc", &["vmgenid"], "System", "generation ID", &[]),
    known(
        "Misc",
        &["kvmclock", "hpet"],
        "System",
        "clocks that every machine has",
        &[],
    ),
];

/// Finds a device by any of its names.
pub fn find_device(name: &str) -> Option<&'static KnownDevice> {
    DEVICES.iter().find(|device| device.names.contains(&name))
}

/// Properties of any device that make no difference: its place on a bus, and how virtio is offered.
pub const OF_ANY_DEVICE: &[&str] = &[
    "id",
    "bus",
    "addr",
    "multifunction",
    "romfile",
    "romsize",
    "rombar",
    "disable-legacy",
    "disable-modern",
    "iommu_platform",
    "ats",
    "packed",
    "event_idx",
    "indirect_desc",
    "any_layout",
    "notify_on_empty",
    "page-per-vq",
    "vectors",
    "ioeventfd",
    "acpi-index",
    "failover_pair_id",
    "aer",
    "modern-pio-notify",
    "migrate-extra",
    "virtio-pci-bus-master-bug-migration",
    "queue_reset",
    "use-disabled-flag",
    "use-started",
    "command_serr_enable",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_has_one_row() {
        let names: Vec<_> = DEVICES.iter().flat_map(|device| device.names).collect();
        for name in &names {
            assert_eq!(
                names.iter().filter(|other| other == &name).count(),
                1,
                "{name}"
            );
        }
    }
}
