//! A drive for CD-ROMs: the disc, the tray, and what the drive has to tell its host (MMC-3;
//! SCSI Primary Commands, 7.20).

use super::unit::{Registers, Settings};
use crate::bus::completion::Completer;
use crate::devices::medium::Medium;
use serde::{Deserialize, Serialize};
use tollgate_disk::{DiskError, DriveOptions};

/// Bytes of a sector.
pub(super) const SECTOR_BYTES: u64 = 2048;

/// Why a command failed, as REQUEST SENSE tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sense {
    pub key: u8,
    /// The additional sense code and its qualifier.
    pub code: u8,
    pub qualifier: u8,
}

impl Sense {
    pub const NONE: Self = Self::new(0, 0, 0);
    pub const NO_DISC: Self = Self::new(2, 0x3a, 1);
    pub const TRAY_OPEN: Self = Self::new(2, 0x3a, 2);
    pub const READ_ERROR: Self = Self::new(3, 0x11, 0);
    pub const NO_SUCH_COMMAND: Self = Self::new(5, 0x20, 0);
    pub const OUT_OF_RANGE: Self = Self::new(5, 0x21, 0);
    pub const BAD_FIELD: Self = Self::new(5, 0x24, 0);
    /// There are no saved mode pages.
    pub const NOTHING_SAVED: Self = Self::new(5, 0x39, 0);
    pub const LOCKED: Self = Self::new(5, 0x53, 2);
    pub const DISC_CHANGED: Self = Self::new(6, 0x28, 0);
    pub const WAS_RESET: Self = Self::new(6, 0x29, 0);

    const fn new(key: u8, code: u8, qualifier: u8) -> Self {
        Self {
            key,
            code,
            qualifier,
        }
    }
}

/// What has happened to the medium (MMC-3, 6.7.2.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum MediaEvent {
    #[default]
    None,
    /// Someone wants the disc out.
    EjectRequest,
    /// A disc was put in.
    New,
    /// The disc was taken out.
    Removed,
}

/// What of a drive is saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Condition {
    /// Why the last command failed.
    pub sense: Sense,
    /// The next command fails to tell of a reset.
    pub was_reset: bool,
    /// The next command fails to tell of another disc.
    pub was_changed: bool,
    pub event: MediaEvent,
    pub is_open: bool,
    /// The guest keeps the tray from being opened.
    pub is_locked: bool,
}

/// A drive.
#[derive(Debug)]
pub struct CdDrive {
    medium: Option<Medium>,
    completer: Option<Completer>,
    pub(super) serial: String,
    pub(super) registers: Registers,
    pub(super) settings: Settings,
    /// It has ended a command since the last reset: DRDY.
    pub(super) is_ready: bool,
    pub(super) condition: Condition,
}

impl CdDrive {
    /// The cylinder registers after a reset, by which a packet device is known (9.12).
    pub(super) const SIGNATURE: (u8, u8) = (0x14, 0xeb);

    /// A drive with the disc that `image` holds, or an empty one. `name`: as in lines on standard
    /// error about a host that fails.
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

    /// The hardware's reset.
    pub(super) fn reset(&mut self) {
        self.condition = Condition {
            was_reset: true,
            is_open: self.condition.is_open,
            ..Condition::default()
        };
    }

    pub(super) const fn medium(&self) -> Option<&Medium> {
        self.medium.as_ref()
    }

    pub(super) const fn medium_mut(&mut self) -> Option<&mut Medium> {
        self.medium.as_mut()
    }

    pub(super) fn connect(&mut self, completer: Completer) {
        if let Some(medium) = &mut self.medium {
            medium.connect(completer.clone());
        }
        self.completer = Some(completer);
    }

    /// Sectors of 2048 bytes of the disc; 0: there is none.
    pub(super) fn sectors(&self) -> u32 {
        let bytes = self.medium.as_ref().map_or(0, Medium::bytes);
        u32::try_from(bytes / SECTOR_BYTES).unwrap_or(u32::MAX)
    }

    /// A disc of more than 80 minutes is a DVD.
    pub(super) fn is_dvd(&self) -> bool {
        self.sectors() > 80 * 60 * 75
    }

    /// Why the disc cannot be read, if it cannot.
    pub(super) const fn not_ready(&self) -> Option<Sense> {
        match (self.condition.is_open, &self.medium) {
            (true, _) => Some(Sense::TRAY_OPEN),
            (false, None) => Some(Sense::NO_DISC),
            (false, Some(_)) => None,
        }
    }

    /// Whether the guest keeps someone from taking the disc out.
    pub(super) const fn is_held(&self, force: bool) -> bool {
        self.condition.is_locked && !self.condition.is_open && !force
    }

    /// Someone takes the disc out and leaves the tray open, or puts another one in and closes it.
    /// `force`: also if the guest has locked the tray.
    ///
    /// # Errors
    /// The tray is locked, and the guest is asked to open it; or the image cannot be used. One
    /// line; the disc is the one that it was.
    pub(super) fn change(
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

    /// The guest opens or closes the tray; the disc stays on it.
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
            why: format!("its {} bytes are no CD-ROM's", medium.bytes()),
        });
    }
    Ok(medium)
}
