//! A logical unit of the controller: a disk, or a CD-ROM drive, and the commands that both have.

use super::disk_answers::{self as answers, Identity, TYPE_CD_ROM, TYPE_DISK};
use super::options::{Address, ScsiDrive, ScsiKind};
use crate::bus::completion::Completer;
use crate::devices::ide::{CdDrive, CdReply, Condition, Sense, fixed_sense};
use crate::devices::medium::{Medium, SECTOR};
use serde::{Deserialize, Serialize};
use tollgate_disk::{DiskError, DriveOptions};

/// The size of a CD-ROM's sector, in units of positions on a medium.
const SECTORS_OF_CD: u64 = 4;
/// The size in bytes of a command for a CD-ROM drive.
const PACKET_BYTES: usize = 12;

/// The operation codes of the commands that all units have, or whose form for a CD-ROM drive
/// differs here.
mod operation {
    pub const REQUEST_SENSE: u8 = 0x03;
    pub const READ_6: u8 = 0x08;
    pub const INQUIRY: u8 = 0x12;
    pub const MODE_SENSE_6: u8 = 0x1a;
    pub const MODE_SENSE_10: u8 = 0x5a;
    pub const REPORT_LUNS: u8 = 0xa0;
}

/// A command with the data that its sender has for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command<'a> {
    /// The command's bytes.
    pub(super) bytes: &'a [u8; 32],
    /// The beginning of the data, as far as a command may need it.
    pub(super) data: &'a [u8],
}

impl Command<'_> {
    pub(super) const fn code(&self) -> u8 {
        self.bytes[0]
    }

    pub(super) const fn byte(&self, at: usize) -> u8 {
        self.bytes[at]
    }

    pub(super) const fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    pub(super) const fn u32(&self, at: usize) -> u32 {
        (self.u16(at) as u32) << 16 | self.u16(at + 2) as u32
    }
}

/// What a command asks for. Places on the medium are in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// The command has ended.
    Done,
    /// These bytes go to the guest.
    Data(Vec<u8>),
    /// Bytes of the medium go to the guest.
    Read { offset: u64, bytes: u64 },
    /// Bytes of the guest go to the medium, and to stable storage if `through`.
    Write {
        offset: u64,
        bytes: u64,
        through: bool,
    },
    /// These bytes go to the medium.
    Fill { offset: u64, data: Vec<u8> },
    /// Bytes of the medium become zero; `unmap` says whether they may be discarded.
    Zero {
        offset: u64,
        bytes: u64,
        unmap: bool,
    },
    /// Bytes of the medium are discarded.
    Discard { offset: u64, bytes: u64 },
    /// Everything that was written goes to stable storage.
    Flush,
}

/// A disk: its image, and whether the host takes back what the guest discards.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) medium: Medium,
    pub(super) discards: bool,
}

/// What a unit is.
#[derive(Debug)]
enum Kind {
    Disk(Disk),
    CdDrive(CdDrive),
}

/// The saved state of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Saved {
    attention: Option<Sense>,
    condition: Option<Condition>,
}

/// A logical unit.
#[derive(Debug)]
pub struct Unit {
    pub(super) address: Address,
    serial: String,
    kind: Kind,
    /// What the next command reports instead of being executed.
    attention: Option<Sense>,
}

impl Unit {
    /// Opens a drive.
    ///
    /// # Errors
    /// The image cannot be used.
    pub fn open(drive: &ScsiDrive) -> Result<Self, DiskError> {
        let name = name(drive.address, drive.image());
        match &drive.kind {
            ScsiKind::Disk(options) => Self::disk(drive.address, name, options),
            ScsiKind::CdRom(disc) => Self::cd_drive(drive.address, name, disc.as_ref()),
        }
    }

    /// Opens a disk. `name` appears in lines on standard error about failures of the host.
    ///
    /// # Errors
    /// The image cannot be used.
    pub fn disk(address: Address, name: String, options: &DriveOptions) -> Result<Self, DiskError> {
        let mut discards = false;
        let medium = Medium::open_after(name, options, |image| discards = image.discards())?;
        Ok(Self {
            address,
            serial: options.serial.clone(),
            kind: Kind::Disk(Disk { medium, discards }),
            attention: Some(Sense::WAS_RESET),
        })
    }

    /// Opens a CD-ROM drive with a disc, or an empty one.
    ///
    /// # Errors
    /// The image cannot be used.
    pub fn cd_drive(
        address: Address,
        name: String,
        disc: Option<&DriveOptions>,
    ) -> Result<Self, DiskError> {
        Ok(Self {
            address,
            serial: disc.map_or_else(String::new, |disc| disc.serial.clone()),
            kind: Kind::CdDrive(CdDrive::open(name, disc)?),
            // The drive has its own.
            attention: None,
        })
    }

    /// Returns the medium. A CD-ROM drive may be empty.
    pub(super) const fn medium(&self) -> Option<&Medium> {
        match &self.kind {
            Kind::Disk(disk) => Some(&disk.medium),
            Kind::CdDrive(drive) => drive.medium(),
        }
    }

    /// Returns the medium for changes.
    pub(super) const fn medium_mut(&mut self) -> Option<&mut Medium> {
        match &mut self.kind {
            Kind::Disk(disk) => Some(&mut disk.medium),
            Kind::CdDrive(drive) => drive.medium_mut(),
        }
    }

    pub(super) fn connect(&mut self, completer: Completer) {
        match &mut self.kind {
            Kind::Disk(disk) => disk.medium.connect(completer),
            Kind::CdDrive(drive) => drive.connect(completer),
        }
    }

    /// Gives a disk another size in bytes, which the next command reports. No request may be
    /// unfinished.
    ///
    /// # Errors
    /// One line: the unit is no disk, or the image cannot have this size.
    pub(super) fn resize(&mut self, bytes: u64) -> Result<(), String> {
        let Kind::Disk(disk) = &mut self.kind else {
            return Err("a CD-ROM has the size that it has".into());
        };
        disk.medium.resize(bytes)?;
        self.attention = Some(Sense::OTHER_SIZE);
        Ok(())
    }

    /// Replaces the disc of a CD-ROM drive, or removes it. No request may be unfinished.
    ///
    /// # Errors
    /// One line: the unit is no CD-ROM drive, the guest has locked it, or the image cannot be used.
    pub(super) fn change_disc(
        &mut self,
        image: Option<&DriveOptions>,
        force: bool,
    ) -> Result<(), String> {
        match &mut self.kind {
            Kind::Disk(_) => Err("a disk is not removable".into()),
            Kind::CdDrive(drive) => drive.change(name(self.address, image), image, force),
        }
    }

    /// Resets the unit, which the next command reports.
    pub(super) fn reset(&mut self) {
        match &mut self.kind {
            Kind::Disk(_) => self.attention = Some(Sense::WAS_RESET),
            Kind::CdDrive(drive) => drive.reset(),
        }
    }

    pub(super) const fn save(&self) -> Saved {
        Saved {
            attention: self.attention,
            condition: match &self.kind {
                Kind::Disk(_) => None,
                Kind::CdDrive(drive) => Some(drive.condition),
            },
        }
    }

    /// Restores a saved state. Returns false if it is that of another kind of unit.
    pub(super) const fn restore(&mut self, saved: Saved) -> bool {
        self.attention = saved.attention;
        match (&mut self.kind, saved.condition) {
            (Kind::Disk(_), None) => true,
            (Kind::CdDrive(drive), Some(condition)) => {
                drive.condition = condition;
                true
            }
            _ => false,
        }
    }

    fn identity(&self) -> Identity<'_> {
        let (kind, product) = match &self.kind {
            Kind::Disk(_) => (TYPE_DISK, "DISK"),
            Kind::CdDrive(_) => (TYPE_CD_ROM, "CD-ROM"),
        };
        Identity {
            kind,
            is_removable: kind == TYPE_CD_ROM,
            product,
            serial: &self.serial,
        }
    }

    /// Executes a command. `luns` are the numbers of all units of the target.
    pub(super) fn execute(&mut self, command: &Command<'_>, luns: &[u16]) -> Result<Action, Sense> {
        use operation as op;
        match command.code() {
            op::INQUIRY => return self.inquiry(command),
            op::REPORT_LUNS => return report_luns(command, luns),
            // A reason for a failure was sent with the failure.
            op::REQUEST_SENSE => {
                let sense = match &mut self.kind {
                    Kind::Disk(_) => self.attention.take(),
                    Kind::CdDrive(drive) => drive.take_attention(),
                };
                let sense = fixed_sense(sense.unwrap_or(Sense::NONE));
                return Ok(Self::cut(sense, command.byte(4).into()));
            }
            _ => {}
        }
        if let Some(attention) = self.attention.take() {
            return Err(attention);
        }
        match &mut self.kind {
            Kind::Disk(disk) => disk.execute(command),
            Kind::CdDrive(drive) => execute_on_cd(drive, command),
        }
    }

    fn inquiry(&self, command: &Command<'_>) -> Result<Action, Sense> {
        let (wants_page, page) = (command.byte(1) & 1 != 0, command.byte(2));
        let data = match wants_page {
            true => {
                let disk = match &self.kind {
                    Kind::Disk(disk) => Some(disk),
                    Kind::CdDrive(_) => None,
                };
                answers::product_data(self.identity(), disk, page).ok_or(Sense::BAD_FIELD)?
            }
            false if page != 0 => return Err(Sense::BAD_FIELD),
            false => answers::inquiry(self.identity()),
        };
        Ok(Self::cut(data, command.u16(3).into()))
    }

    /// Truncates an answer to the sender's room for it.
    pub(super) fn cut(mut data: Vec<u8>, room: usize) -> Action {
        data.truncate(room);
        match data.is_empty() {
            true => Action::Done,
            false => Action::Data(data),
        }
    }
}

/// The name of a unit in lines on standard error.
fn name(Address { target, lun }: Address, image: Option<&DriveOptions>) -> String {
    match image {
        Some(image) => format!("scsi {target}:{lun} ({})", image.path.display()),
        None => format!("scsi {target}:{lun}"),
    }
}

/// The answer to REPORT LUNS.
fn report_luns(command: &Command<'_>, luns: &[u16]) -> Result<Action, Sense> {
    /// Only the well-known units, of which there are none.
    const WELL_KNOWN: u8 = 1;
    let listed = match command.byte(2) {
        WELL_KNOWN => &[],
        0 | 2 => luns,
        _ => return Err(Sense::BAD_FIELD),
    };
    let mut data = ((listed.len() * 8) as u32).to_be_bytes().to_vec();
    data.extend([0; 4]);
    for lun in listed {
        // Numbers above 255 have the form of flat space.
        let lun = if *lun > 255 { lun | 0x4000 } else { *lun };
        data.extend(lun.to_be_bytes());
        data.extend([0; 6]);
    }
    Ok(Unit::cut(data, command.u32(6) as usize))
}

/// Executes a command for a target that has no unit with this number.
pub(super) fn execute_on_absent(command: &Command<'_>, luns: &[u16]) -> Result<Action, Sense> {
    use operation as op;
    match command.code() {
        op::INQUIRY if command.byte(1) & 1 == 0 => {
            Ok(Unit::cut(answers::absent(), command.u16(3).into()))
        }
        op::REPORT_LUNS => report_luns(command, luns),
        op::REQUEST_SENSE => {
            let sense = fixed_sense(Sense::NO_UNIT);
            Ok(Unit::cut(sense, command.byte(4).into()))
        }
        _ => Err(Sense::NO_UNIT),
    }
}

/// Executes a command of a CD-ROM drive, in the form that packet devices have for it.
fn execute_on_cd(drive: &mut CdDrive, command: &Command<'_>) -> Result<Action, Sense> {
    use operation as op;
    let mut packet = [0; PACKET_BYTES];
    packet.copy_from_slice(&command.bytes[..PACKET_BYTES]);
    let is_short_sense = command.code() == op::MODE_SENSE_6;
    match command.code() {
        op::READ_6 => {
            const READ_10: u8 = 0x28;
            let count = match command.byte(4) {
                0 => 256u16,
                count => count.into(),
            };
            packet = [0; PACKET_BYTES];
            packet[0] = READ_10;
            packet[2..6].copy_from_slice(&(command.u32(0) & 0x1f_ffff).to_be_bytes());
            packet[7..9].copy_from_slice(&count.to_be_bytes());
        }
        op::MODE_SENSE_6 => {
            (packet[0], packet[7], packet[8]) = (op::MODE_SENSE_10, 0xff, 0xff);
        }
        _ => {}
    }
    Ok(match drive.execute(&packet)? {
        CdReply::Done => Action::Done,
        CdReply::Data(data) if is_short_sense => {
            // The header has half the size.
            let (head, pages) = data.split_at(8);
            let short = [&[pages.len() as u8 + 3, head[2], 0, 0], pages].concat();
            Unit::cut(short, command.byte(4).into())
        }
        CdReply::Data(data) => Action::Data(data),
        CdReply::Sectors { first, count } => Action::Read {
            offset: u64::from(first) * SECTORS_OF_CD * SECTOR,
            bytes: u64::from(count) * SECTORS_OF_CD * SECTOR,
        },
    })
}
