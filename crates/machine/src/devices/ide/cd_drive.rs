//! A CD-ROM drive: the disc, the tray, and the conditions that the drive reports to its host
//! (MMC-3; SCSI Primary Commands, 7.20).

use super::device_registers::{Registers, Settings};
use crate::bus::completion::Completer;
use crate::devices::medium::Medium;
use serde::{Deserialize, Serialize};
use tollgate_disk::{DiskError, DriveOptions};

/// The size of a sector in bytes.
pub(super) const SECTOR_BYTES: u64 = 2048;

/// Why a command failed, as REQUEST SENSE reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sense {
    pub key: u8,
    /// The additional sense code and its qualifier.
    pub code: u8,
    pub qualifier: u8,
}

impl Sense {
    pub const NONE: Self = Self::new(0, 0, 0);
    pub const NO_DISC: Self = Self::new(2, 0x3a, 1);
    pub const TRAY_OPEN: Self = Self::new(2, 0x3a, 2);
    pub const WRITE_ERROR: Self = Self::new(3, 0x0c, 0);
    pub const READ_ERROR: Self = Self::new(3, 0x11, 0);
    pub const NO_SUCH_COMMAND: Self = Self::new(5, 0x20, 0);
    pub const OUT_OF_RANGE: Self = Self::new(5, 0x21, 0);
    pub const BAD_FIELD: Self = Self::new(5, 0x24, 0);
    /// There is no unit with this number.
    pub const NO_UNIT: Self = Self::new(5, 0x25, 0);
    /// The data that belongs to the command is wrong.
    pub const BAD_LIST: Self = Self::new(5, 0x26, 0);
    /// The drive has no saved mode pages.
    pub const NOTHING_SAVED: Self = Self::new(5, 0x39, 0);
    pub const LOCKED: Self = Self::new(5, 0x53, 2);
    pub const DISC_CHANGED: Self = Self::new(6, 0x28, 0);
    pub const WAS_RESET: Self = Self::new(6, 0x29, 0);
    /// The capacity of a disk has changed.
    pub const OTHER_SIZE: Self = Self::new(6, 0x2a, 9);
    pub const WRITE_PROTECTED: Self = Self::new(7, 0x27, 0);

    const fn new(key: u8, code: u8, qualifier: u8) -> Self {
        Self {
            key,
            code,
            qualifier,
        }
    }
}

/// An event of the medium (MMC-3, 6.7.2.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MediaEvent {
    #[default]
    None,
    /// The user wants to remove the disc.
    EjectRequest,
    /// A disc was inserted.
    New,
    /// The disc was removed.
    Removed,
}

/// The saved state of a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Condition {
    /// Why the last command failed.
    pub sense: Sense,
    /// Whether the next command fails in order to report a reset.
    pub was_reset: bool,
    /// Whether the next command fails in order to report a changed disc.
    pub was_changed: bool,
    pub event: MediaEvent,
    pub is_open: bool,
    /// Whether the guest has locked the tray.
    pub is_locked: bool,
}

/// A CD-ROM drive, possibly with a disc.
#[derive(Debug)]
pub struct CdDrive {
    medium: Option<Medium>,
    completer: Option<Completer>,
    pub(super) serial: String,
    pub(super) registers: Registers,
    pub(super) settings: Settings,
    /// Whether the drive has finished a command since the last reset: DRDY.
    pub(super) is_ready: bool,
    pub(crate) condition: Condition,
}

impl CdDrive {
    /// The cylinder registers after a reset, which identify a packet device (9.12).
    pub(super) const SIGNATURE: (u8, u8) = (0x14, 0xeb);

    /// Makes a drive with the disc in `image`, or an empty one. `name` appears in lines on standard
    /// error about failures of the host.
    ///
    /// # Errors
    /// The image cannot be used.
    pub fn open(name: String, image: Option<&DriveOptions>) -> Result<Self, DiskError> {
        let mut drive = Self {
            medium: image.map(|image| open(name, image)).transpose()?,
            completer: None,
            serial: image.map_or_else(String::new, |image| image.serial.clone()),
            registers: Registers::default(),
            settings: Settings::default(),
            is_ready: false,
            condition: Condition::default(),
        };
        drive.reset();
        Ok(drive)
    }

    /// Resets the drive, as the hardware reset does.
    pub(crate) fn reset(&mut self) {
        self.condition = Condition {
            was_reset: true,
            is_open: self.condition.is_open,
            ..Condition::default()
        };
    }

    pub(crate) const fn medium(&self) -> Option<&Medium> {
        self.medium.as_ref()
    }

    pub(crate) const fn medium_mut(&mut self) -> Option<&mut Medium> {
        self.medium.as_mut()
    }

    pub(crate) fn connect(&mut self, completer: Completer) {
        if let Some(medium) = &mut self.medium {
            medium.connect(completer.clone());
        }
        self.completer = Some(completer);
    }

    /// Returns the number of 2048-byte sectors of the disc, which is 0 without a disc.
    pub(super) fn sectors(&self) -> u32 {
        let bytes = self.medium.as_ref().map_or(0, Medium::bytes);
        u32::try_from(bytes / SECTOR_BYTES).unwrap_or(u32::MAX)
    }

    /// Whether the disc is a DVD, which is one of more than 80 minutes.
    pub(super) fn is_dvd(&self) -> bool {
        self.sectors() > 80 * 60 * 75
    }

    /// Returns why the disc cannot be read, or `None` if it can.
    pub(super) const fn not_ready(&self) -> Option<Sense> {
        match (self.condition.is_open, &self.medium) {
            (true, _) => Some(Sense::TRAY_OPEN),
            (false, None) => Some(Sense::NO_DISC),
            (false, Some(_)) => None,
        }
    }

    /// Whether the guest's lock prevents removing the disc.
    pub(super) const fn is_held(&self, force: bool) -> bool {
        self.condition.is_locked && !self.condition.is_open && !force
    }

    /// Removes the disc and leaves the tray open, or inserts another disc and closes the tray. With
    /// `force` it does so even if the guest has locked the tray.
    ///
    /// # Errors
    /// One line: the tray is locked and the guest is asked to open it, or the image cannot be used.
    /// The drive then keeps its disc.
    pub(crate) fn change(
        &mut self,
        name: String,
        image: Option<&DriveOptions>,
        force: bool,
    ) -> Result<(), String> {
        if self.is_held(force) {
            self.condition.event = MediaEvent::EjectRequest;
            return Err("the guest has locked the drive and was asked to open it; \
                        --force changes the disc all the same"
                .into());
        }
        let medium = image.map(|image| open(name, image)).transpose();
        let mut medium = medium.map_err(|error| error.to_string())?;
        if let (Some(medium), Some(completer)) = (&mut medium, &self.completer) {
            medium.connect(completer.clone());
        }
        let condition = &mut self.condition;
        condition.is_locked = false;
        condition.is_open = medium.is_none();
        condition.was_changed = medium.is_some();
        condition.event = match medium {
            Some(_) => MediaEvent::New,
            None => MediaEvent::Removed,
        };
        self.medium = medium;
        Ok(())
    }

    /// Opens or closes the tray for the guest. The disc stays on it.
    pub(super) fn move_tray(&mut self, open: bool) -> Result<(), Sense> {
        let condition = &mut self.condition;
        if open && !condition.is_open && condition.is_locked {
            return Err(Sense::LOCKED);
        }
        let was_open = std::mem::replace(&mut condition.is_open, open);
        if was_open && !open && self.medium.is_some() {
            condition.event = MediaEvent::New;
            condition.was_changed = true;
        }
        Ok(())
    }
}

fn open(name: String, image: &DriveOptions) -> Result<Medium, DiskError> {
    let image = DriveOptions {
        readonly: true,
        ..image.clone()
    };
    let medium = Medium::open(name, &image)?;
    if medium.bytes() < SECTOR_BYTES {
        return Err(DiskError {
            path: image.path,
            why: format!("{} bytes is not the size of a CD-ROM", medium.bytes()),
        });
    }
    Ok(medium)
}
