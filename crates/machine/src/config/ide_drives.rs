//! What is behind the IDE function, and at which of its places.

use super::{ConfigError, DriveOptions};
use crate::devices::ide::pci::IdeFunction;
use serde::{Deserialize, Serialize};

/// A disk's cylinders, heads, and sectors of a track, as the user gives them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiskGeometry {
    /// 1 to [`DiskGeometry::MOST_CYLINDERS`].
    pub cylinders: u16,
    /// 1 to [`DiskGeometry::MOST_HEADS`].
    pub heads: u8,
    /// 1 to [`DiskGeometry::MOST_SECTORS`].
    pub sectors: u8,
}

impl DiskGeometry {
    /// The most cylinders that an ATA disk tells.
    pub const MOST_CYLINDERS: u16 = 16_383;
    /// The most heads.
    pub const MOST_HEADS: u8 = 16;
    /// The most sectors of a track that INT 13h can name.
    pub const MOST_SECTORS: u8 = 63;
}

/// A disk, or a drive for CD-ROMs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdeDrive {
    /// A disk, with its geometry; `None`: that is guessed from what is on it.
    Disk(DriveOptions, Option<DiskGeometry>),
    /// A drive for CD-ROMs, with its disc; `None`: it is empty.
    CdRom(Option<DriveOptions>),
}

/// The places: master and slave of the first channel, then those of the second.
pub type IdePlaces = [Option<IdeDrive>; IdeFunction::PLACES];

/// The place of a drive that has a right to it: the second channel's master, where it neither waits
/// for a disk nor keeps one waiting.
const CD_ROM_PLACE: usize = 2;

impl IdeDrive {
    /// Gives each drive a place: `cd_rom` its own, the others the first that are free.
    ///
    /// # Errors
    /// [`ConfigError::TooManyIdeDrives`].
    pub fn place(drives: Vec<Self>, cd_rom: Option<Self>) -> Result<IdePlaces, ConfigError> {
        let count = drives.len() + usize::from(cd_rom.is_some());
        let mut places = IdePlaces::default();
        places[CD_ROM_PLACE] = cd_rom;
        for drive in drives {
            let Some(free) = places.iter_mut().find(|place| place.is_none()) else {
                return Err(ConfigError::TooManyIdeDrives(count));
            };
            *free = Some(drive);
        }
        Ok(places)
    }

    /// The place of the drive for CD-ROMs with a number, from 0 on.
    pub fn cd_rom_place(places: &IdePlaces, number: usize) -> Option<usize> {
        let drives = places.iter().enumerate();
        let mut drives = drives.filter(|(_, drive)| matches!(drive, Some(Self::CdRom(_))));
        drives.nth(number).map(|(place, _)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cd_rom_has_a_channel_of_its_own_as_long_as_there_is_room() {
        let disk = |name: &str| IdeDrive::Disk(DriveOptions::new(name), None);
        let cd_rom = || Some(IdeDrive::CdRom(None));
        let disks = |names: &[&str]| names.iter().map(|name| disk(name)).collect();
        let places = IdeDrive::place(disks(&["a"]), cd_rom()).unwrap();
        assert_eq!(places, [Some(disk("a")), None, cd_rom(), None]);
        assert_eq!(IdeDrive::cd_rom_place(&places, 0), Some(2));
        assert_eq!(IdeDrive::cd_rom_place(&places, 1), None);
        let places = IdeDrive::place(disks(&["a", "b", "c"]), cd_rom()).unwrap();
        assert_eq!(places[3], Some(disk("c")));
        let places = IdeDrive::place(disks(&["a", "b", "c", "d"]), cd_rom());
        assert_eq!(places, Err(ConfigError::TooManyIdeDrives(5)));
    }
}
