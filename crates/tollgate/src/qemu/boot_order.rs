//! The drives that firmware boots from, in the order of `bootindex`, as SeaBIOS reads it.

use tollgate_machine::config::{BootDevice, ScsiAddress, ScsiDrive};
use tollgate_machine::devices::fw_cfg::FwCfgFile;
use tollgate_qemu_words::{Configuration, Drive, Interface};

/// The number of the first PCI device that is free for virtio devices in a machine with firmware.
const FIRST_VIRTIO: usize = 3;

/// The kinds of drives in the order of the words, for firmware that reads the clock's memory.
pub fn kinds(config: &Configuration) -> Vec<BootDevice> {
    use tollgate_qemu_words::BootDevice as Word;
    let kind = |word: &Word| match word {
        Word::Floppy => Some(BootDevice::Floppy),
        Word::Disk => Some(BootDevice::Disk),
        Word::CdRom => Some(BootDevice::CdRom),
        Word::Network => None,
    };
    let mut kinds: Vec<BootDevice> = config.boot_order.iter().filter_map(kind).collect();
    // QEMU's order is disk, CD-ROM, floppy; what -boot does not name comes last.
    for kind in [BootDevice::Disk, BootDevice::CdRom, BootDevice::Floppy] {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

/// The file with the paths of drives that have a `bootindex`, if any has.
///
/// `ide` has the names of the drives at the places of the IDE function, and `scsi` the targets and
/// units of the SCSI drives in their order.
pub fn file(
    config: &Configuration,
    ide: &[Option<String>],
    scsi: &[ScsiDrive],
) -> Option<FwCfgFile> {
    let mut paths = Vec::new();
    let mut virtio = FIRST_VIRTIO..;
    let mut scsi = scsi.iter().map(|drive| drive.address);
    for drive in &config.drives {
        let number = match drive.interface {
            Interface::Virtio => virtio.next().unwrap_or_default(),
            Interface::ScsiDisk | Interface::ScsiCdRom => scsi_number(config),
            _ => 0,
        };
        let address = match drive.interface.is_scsi() {
            true => scsi.next(),
            false => None,
        };
        if let Some(index) = drive.boot_index {
            let path = match address {
                Some(ScsiAddress { target, lun }) => {
                    format!("/pci@i0cf8/scsi@{number:x}/channel@0/disk@{target:x},{lun:x}")
                }
                None => path(drive, number, ide),
            };
            paths.push((index, path));
        }
    }
    if paths.is_empty() {
        return None;
    }
    paths.sort();
    let lines: Vec<String> = paths.into_iter().map(|(_, path)| path).collect();
    let mut content = lines.join("\n").into_bytes();
    content.push(0);
    Some(FwCfgFile {
        name: "bootorder".into(),
        content,
    })
}

/// The number of the SCSI controller on the PCI bus: it follows these virtio devices.
fn scsi_number(config: &Configuration) -> usize {
    let is_virtio = |drive: &&Drive| drive.interface == Interface::Virtio;
    let drives = config.drives.iter().filter(is_virtio).count();
    let others = usize::from(config.rng) + usize::from(config.balloon);
    let networks = config.networks.iter();
    let networks = networks.filter(|network| network.is_virtio());
    FIRST_VIRTIO + drives + networks.count() + others + config.shares.len()
}

/// The path of a drive in Open Firmware's form.
fn path(drive: &Drive, number: usize, ide: &[Option<String>]) -> String {
    match drive.interface {
        Interface::Virtio | Interface::ScsiDisk | Interface::ScsiCdRom => {
            format!("/pci@i0cf8/scsi@{number:x}/disk@0,0")
        }
        Interface::Floppy => {
            format!(
                "/pci@i0cf8/isa@1/fdc@03f0/floppy@{}",
                drive.place.unwrap_or(0)
            )
        }
        // Nothing boots from flash memory by its place.
        Interface::Flash => String::new(),
        Interface::IdeDisk | Interface::IdeCdRom => {
            let is_it = |id: &Option<String>| id.as_ref() == Some(&drive.id);
            let place = ide.iter().position(is_it).unwrap_or(0);
            format!("/pci@i0cf8/ide@1,1/drive@{}/disk@{}", place / 2, place % 2)
        }
    }
}
