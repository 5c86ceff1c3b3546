//! The images of a machine: disks, floppies, discs and flash memory.

use super::{DriveOptions, IdeDrive, PluggedFunction, ScsiDrive, ScsiKind, VmConfig};

impl VmConfig {
    /// Returns all images, in whatever drive they are.
    pub fn images(&self) -> impl Iterator<Item = &DriveOptions> {
        let discs = self.ide_drives.iter().flatten();
        let discs = discs.filter_map(|drive| match drive {
            IdeDrive::Disk(..) => None,
            IdeDrive::CdRom(disc) => disc.as_ref(),
        });
        let scsi = self.scsi_drives.iter();
        let scsi = scsi.filter(|drive| matches!(drive.kind, ScsiKind::CdRom(_)));
        self.disks()
            .chain(discs)
            .chain(scsi.filter_map(ScsiDrive::image))
    }

    /// Returns the images whose files the guest may write. Discs are never written.
    pub fn written_images(&self) -> impl Iterator<Item = &DriveOptions> {
        self.disks().filter(|disk| is_written(disk))
    }

    /// Returns the images of [`VmConfig::written_images`] for a change.
    pub fn written_images_mut(&mut self) -> impl Iterator<Item = &mut DriveOptions> {
        let floppies = self.floppies.iter_mut().flatten();
        let ide = self.ide_drives.iter_mut().flatten();
        let ide = ide.filter_map(|drive| match drive {
            IdeDrive::Disk(image, ..) => Some(image),
            IdeDrive::CdRom(_) => None,
        });
        let scsi = self.scsi_drives.iter_mut();
        let scsi = scsi.filter_map(|drive| match &mut drive.kind {
            ScsiKind::Disk(image) => Some(image),
            ScsiKind::CdRom(_) => None,
        });
        let plugged = (self.hot_plug.iter_mut()).flat_map(|hot_plug| &mut hot_plug.functions);
        let disks = self
            .drives
            .iter_mut()
            .chain(plugged.filter_map(PluggedFunction::image_mut))
            .chain(floppies)
            .chain(ide)
            .chain(scsi)
            .chain(&mut self.flash);
        disks.filter(|disk| is_written(disk))
    }

    fn disks(&self) -> impl Iterator<Item = &DriveOptions> {
        let floppies = self.floppies.iter().flatten();
        let ide = self.ide_drives.iter().flatten();
        let ide = ide.filter_map(|drive| match drive {
            IdeDrive::Disk(image, ..) => Some(image),
            IdeDrive::CdRom(_) => None,
        });
        let scsi = self.scsi_drives.iter();
        let scsi = scsi.filter(|drive| matches!(drive.kind, ScsiKind::Disk(_)));
        let scsi = scsi.filter_map(ScsiDrive::image);
        let plugged = self.plugged_functions().iter();
        let plugged = plugged.filter_map(PluggedFunction::image);
        let drives = self.drives.iter().chain(plugged);
        let disks = drives.chain(floppies).chain(ide).chain(scsi);
        disks.chain(&self.flash)
    }
}

fn is_written(disk: &DriveOptions) -> bool {
    !disk.readonly && !disk.snapshot
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FunctionKind, HotPlug};

    #[test]
    fn discs_and_disks_that_are_only_read_are_not_written() {
        let image = DriveOptions::new;
        let mut read = image("read");
        read.readonly = true;
        let mut discarded = image("discarded");
        discarded.snapshot = true;
        let mut config = VmConfig {
            drives: vec![image("virtio"), read, discarded],
            floppies: vec![None, Some(image("floppy"))],
            flash: vec![image("variables")],
            ide_drives: [
                Some(IdeDrive::Disk(image("ide"), None)),
                None,
                Some(IdeDrive::CdRom(Some(image("disc")))),
                Some(IdeDrive::CdRom(None)),
            ],
            scsi_drives: vec![
                ScsiDrive::target(0, ScsiKind::Disk(image("scsi"))),
                ScsiDrive::target(1, ScsiKind::CdRom(Some(image("scsi-disc")))),
                ScsiDrive::target(2, ScsiKind::CdRom(None)),
            ],
            hot_plug: Some(HotPlug {
                functions: vec![PluggedFunction {
                    slot: 9,
                    kind: FunctionKind::Disk(image("plugged")),
                }],
            }),
            ..VmConfig::default()
        };
        let names = |images: Vec<&DriveOptions>| -> Vec<String> {
            let names = images.into_iter().map(|image| image.path.display());
            names.map(|name| name.to_string()).collect()
        };
        let all = names(config.images().collect());
        let expected = [
            "virtio",
            "read",
            "discarded",
            "plugged",
            "floppy",
            "ide",
            "scsi",
            "variables",
            "disc",
            "scsi-disc",
        ];
        assert_eq!(all, expected);
        let written = names(config.written_images().collect());
        let expected = ["virtio", "plugged", "floppy", "ide", "scsi", "variables"];
        assert_eq!(written, expected);
        for image in config.written_images_mut() {
            image.snapshot = true;
        }
        assert_eq!(config.written_images().count(), 0);
    }
}
