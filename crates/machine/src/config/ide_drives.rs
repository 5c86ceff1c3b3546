//! The drives of the IDE function, and the place of each.

use super::{ConfigError, DriveOptions};
pub use crate::devices::ide::DiskGeometry;
use crate::devices::ide::pci::IdeFunction;
use serde::{Deserialize, Serialize};

/// A disk, or a drive for CD-ROMs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdeDrive {
    /// A disk with its geometry. `None` means that the geometry is guessed from the disk's
    /// contents.
    Disk(DriveOptions, Option<DiskGeometry>),
    /// A CD-ROM drive with its disc. `None` is an empty drive.
    CdRom(Option<DriveOptions>),
}

/// The places in order: master and slave of the first channel, then those of the second.
pub type IdePlaces = [Option<IdeDrive>; IdeFunction::PLACES];

/// The place reserved for a CD-ROM drive: master of the second channel, where it neither waits for
/// a disk nor makes a disk wait.
const CD_ROM_PLACE: usize = 2;

impl IdeDrive {
    /// Assigns a place to each drive: the reserved place to `cd_rom`, the first free ones to the
    /// others.
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

    /// Returns the place of the CD-ROM drive with this number, counted from 0.
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
