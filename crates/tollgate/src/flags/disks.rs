//! Flags about disks, discs and directories of the host that the guest uses.

use clap::Args;
use tollgate_machine::config::{
    ConfigError, DriveOptions, IdeDrive, IdePlaces, ScsiDrive, ScsiKind, ShareOptions, VmConfig,
};

use crate::drive::{self, DriveArgument, Interface};
use crate::floppy::{self, FloppyArgument};
use crate::share::{self, ShareArgument};

/// Flags about the disks and directories of `tollgate run`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Disks and directories")]
pub struct DiskArguments {
    /// A disk: file=PATH and, separated by commas, how it is used. May be repeated
    ///
    /// format=raw|qcow2      default: qcow2 if the file's name ends with .qcow2, otherwise raw
    /// readonly=on|off       on: the guest cannot write, and others may read the image at the
    ///                       same time
    /// snapshot=on|off       on: what the guest writes goes to a temporary file and is discarded
    /// cache=writeback       writes are safe once the guest has flushed them (default)
    /// cache=none            as writeback, without the host's page cache (O_DIRECT)
    /// cache=unsafe          flushes do nothing: fast, for images that may be lost
    /// discard=unmap|ignore  whether the host gets back the space that the guest discards
    /// backing=any           an image may name any file as its backing file or data file (default)
    /// backing=same-dir|none only files in its own folder, or none: for images of strangers
    /// serial=TEXT           the serial number that the guest reads, at most 20 characters
    /// if=virtio|ide|scsi    a virtio device (default), an ATA disk of a PIIX3, or a target of a
    ///                       virtio SCSI controller
    /// media=disk|cdrom      with if=ide or scsi: a disk (default), or a CD-ROM in its own drive
    /// cyls=N,heads=N,secs=N with if=ide: the disk's geometry; default: from its partitions
    ///
    /// The guest finds virtio disks as /dev/vda, /dev/vdb ..., with the drivers virtio_pci and
    /// virtio_blk, and SCSI disks as /dev/sda ... with virtio_scsi and sd_mod. Only one machine at
    /// a time may write to an image.
    #[arg(
        long,
        value_name = "DRIVE",
        value_parser = drive::parse,
        verbatim_doc_comment
    )]
    drive: Vec<DriveArgument>,

    /// A disk in a floppy drive: FILE[,readonly=on][,snapshot=on], or none for an empty drive
    ///
    /// The image's size determines the kind of disk: 160, 180, 320, 360, 720, 1200, 1440 or 2880
    /// KiB, or a size for disks with extra tracks or sectors, such as 1680. Write a comma that
    /// belongs to the name twice. 'tollgate medium' changes the disk of a running machine. May be
    /// given twice.
    #[arg(
        long,
        value_name = "DISK",
        value_parser = floppy::parse,
        verbatim_doc_comment
    )]
    floppy: Vec<FloppyArgument>,

    /// A CD-ROM: an image, usually of ISO 9660, or none for an empty drive
    ///
    /// The drive is the master of the second IDE channel. --drive if=ide,media=cdrom,file=PATH adds
    /// more drives. 'tollgate medium' changes the disc of a running machine.
    #[arg(
        long,
        value_name = "FILE",
        value_parser = floppy::parse_cd_rom,
        verbatim_doc_comment
    )]
    cdrom: Option<FloppyArgument>,

    /// Do not change any image of a disk, floppy disk or flash chip, as snapshot=on does for one
    ///
    /// What the guest writes goes to temporary files, which are removed at the end. The flag does
    /// not apply to disks that 'tollgate medium' inserts later.
    #[arg(long, verbatim_doc_comment)]
    snapshot: bool,

    /// A directory of the host that the guest can mount: DIR[:TAG][,ro][,type=9p][,cache=SECONDS]
    ///
    /// TAG            the name to mount it by, default share0 for the first, share1 ...;
    ///                tag=TAG says the same, and also takes slashes
    /// ro             the guest cannot change anything; rw is the default
    /// cache=SECONDS  how long the guest may rely on the names and attributes that it has read,
    ///                default 1; 0: it always asks
    /// owners=host    files of your user have your user's number, not root's
    /// type=9p        the guest mounts it by 9P2000.L instead of virtio-fs
    /// security=mapped|none|passthrough
    ///                where owners that the guest sets are kept: in an attribute of the file
    ///                (default), or in the file itself, with the host's refusals ignored or not
    /// The guest needs the drivers virtio_pci, fuse and virtiofs, or 9p and 9pnet_virtio:
    ///     mount -t virtiofs share0 /mnt
    ///     mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 share0 /mnt
    /// Write a comma that belongs to the name twice. Files of your user, and those that the
    /// guest creates, belong to root in the guest. May be repeated.
    #[arg(
        long,
        value_name = "SHARE",
        value_parser = share::parse,
        verbatim_doc_comment
    )]
    share: Vec<ShareArgument>,
}

impl DiskArguments {
    /// Writes what these flags say into `config`.
    ///
    /// # Errors
    /// Too many drives for the places of the IDE function.
    pub fn apply(&self, config: &mut VmConfig) -> Result<(), ConfigError> {
        let virtio = self.drives_at(Interface::Virtio);
        config.drives = virtio.map(|drive| self.kept(&drive.options)).collect();
        // Each is the only unit of its target.
        let scsi = self.drives_at(Interface::Scsi);
        let scsi = scsi.map(|drive| match drive.is_cd_rom {
            true => ScsiKind::CdRom(Some(drive.options.clone())),
            false => ScsiKind::Disk(self.kept(&drive.options)),
        });
        let scsi = (0..=u8::MAX).zip(scsi);
        config.scsi_drives = scsi
            .map(|(target, kind)| ScsiDrive::target(target, kind))
            .collect();
        config.ide_drives = self.ide_drives()?;
        let floppies = self.floppy.iter();
        config.floppies = floppies
            .map(|floppy| floppy.as_deref().map(|disk| self.kept(disk)))
            .collect();
        config.shares = self.shares();
        Ok(())
    }

    fn drives_at(&self, interface: Interface) -> impl Iterator<Item = &DriveArgument> {
        let drives = self.drive.iter();
        drives.filter(move |drive| drive.interface == interface)
    }

    fn shares(&self) -> Vec<ShareOptions> {
        share::with_tags(&self.share)
    }

    /// The drives at the IDE function, each at its place.
    fn ide_drives(&self) -> Result<IdePlaces, ConfigError> {
        let drives = self.drives_at(Interface::Ide);
        let drives = drives.map(|drive| match drive.is_cd_rom {
            true => IdeDrive::CdRom(Some(drive.options.clone())),
            false => IdeDrive::Disk(self.kept(&drive.options), drive.geometry),
        });
        let cd_rom = self.cdrom.as_ref();
        let cd_rom = cd_rom.map(|disc| IdeDrive::CdRom(disc.as_deref().cloned()));
        IdeDrive::place(drives.collect(), cd_rom)
    }

    /// The chips of flash memory as the machine uses them.
    pub fn flash(&self, chips: &[DriveOptions]) -> Vec<DriveOptions> {
        chips.iter().map(|chip| self.kept(chip)).collect()
    }

    /// A disk as the machine uses it. With `--snapshot` its image stays as it is.
    fn kept(&self, disk: &DriveOptions) -> DriveOptions {
        DriveOptions {
            snapshot: disk.snapshot || self.snapshot && !disk.readonly,
            ..disk.clone()
        }
    }
}
