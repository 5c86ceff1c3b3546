//! The geometry of IDE disks: how sectors are addressed by cylinder, head and sector.
//!
//! A disk does not record its geometry, but the program that partitioned it used one, and firmware
//! that uses another geometry reads the wrong sectors. So the geometry is guessed from the ends of
//! the partitions, in the same way as in QEMU, whose images come without any other hint.

use serde::{Deserialize, Serialize};

/// A disk's geometry, as the user gives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiskGeometry {
    /// The number of cylinders, 1 to [`DiskGeometry::MOST_CYLINDERS`].
    pub cylinders: u16,
    /// The number of heads, 1 to [`DiskGeometry::MOST_HEADS`].
    pub heads: u8,
    /// The number of sectors of a track, 1 to [`DiskGeometry::MOST_SECTORS`].
    pub sectors: u8,
}

impl DiskGeometry {
    /// The maximum number of cylinders that an ATA disk reports.
    pub const MOST_CYLINDERS: u16 = 16_383;
    /// The maximum number of heads.
    pub const MOST_HEADS: u8 = 16;
    /// The maximum number of sectors of a track that INT 13h can address.
    pub const MOST_SECTORS: u8 = 63;
}

/// How the cylinders and heads of INT 13h are computed from the disk's, with the numbers that
/// SeaBIOS expects in CMOS memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Translation {
    /// They are the same.
    None = 0,
    /// From the number of sectors: up to 255 heads of 63 sectors.
    BySectors = 1,
    /// Cylinders are halved and heads doubled until there are at most 1024 cylinders.
    ByHalves = 2,
}

/// The geometry of a disk when it is switched on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The number of cylinders, at most 16383.
    pub cylinders: u16,
    /// The number of heads, at most 16.
    pub heads: u8,
    /// The number of sectors of a track, at most 63.
    pub sectors: u8,
    /// How firmware translates the geometry.
    pub translation: Translation,
}

/// The numbers of heads and of sectors in a track of a disk whose geometry is not known otherwise.
const USUAL_HEADS: u8 = 16;
const USUAL_SECTORS: u8 = 63;
/// The maximum number of cylinders that IDENTIFY DEVICE reports.
const MOST_CYLINDERS: u64 = 16_383;
/// The maximum number of cylinders that INT 13h can address.
const MOST_BIOS_CYLINDERS: u16 = 1024;
/// The maximum product of cylinders and heads that halving reduces to that number.
const MOST_BY_HALVES: u32 = 131_072;

impl Geometry {
    /// Returns the geometry that the user requested.
    pub fn given(geometry: DiskGeometry) -> Self {
        Self {
            cylinders: geometry.cylinders,
            heads: geometry.heads,
            sectors: geometry.sectors,
            translation: Translation::usual(geometry.cylinders),
        }
    }

    /// Guesses the geometry of a disk of `size` sectors from its first sector.
    pub fn guess(first_sector: &[u8; 512], size: u64) -> Self {
        let usual = Self::usual(size);
        match from_partitions(first_sector, size) {
            None => usual,
            Some((cylinders, heads, sectors)) if heads <= u16::from(USUAL_HEADS) => Self {
                cylinders,
                heads: heads as u8,
                sectors,
                translation: Translation::None,
            },
            // Firmware translated the geometry when the disk was partitioned.
            Some(_) => Self {
                translation: match u32::from(usual.cylinders) * u32::from(usual.heads) {
                    ..=MOST_BY_HALVES => Translation::ByHalves,
                    _ => Translation::BySectors,
                },
                ..usual
            },
        }
    }

    /// Returns the geometry of a disk of `size` sectors about which nothing else is known.
    pub fn usual(size: u64) -> Self {
        let cylinders = cylinders(size, USUAL_HEADS, USUAL_SECTORS);
        Self {
            cylinders,
            heads: USUAL_HEADS,
            sectors: USUAL_SECTORS,
            translation: Translation::usual(cylinders),
        }
    }
}

impl Translation {
    fn usual(cylinders: u16) -> Self {
        match cylinders {
            ..=MOST_BIOS_CYLINDERS => Self::None,
            _ => Self::BySectors,
        }
    }
}

/// Returns the number of cylinders of a disk of `size` sectors with these heads and sectors of a
/// track.
pub fn cylinders(size: u64, heads: u8, sectors: u8) -> u16 {
    let cylinder = u64::from(heads) * u64::from(sectors);
    let cylinders = size.checked_div(cylinder).unwrap_or(0);
    cylinders.min(MOST_CYLINDERS) as u16
}

/// Returns cylinders, heads and sectors of a track from the first entry of a master boot record
/// whose end can be the end of a cylinder.
fn from_partitions(first_sector: &[u8; 512], size: u64) -> Option<(u16, u16, u8)> {
    const SIGNATURE: [u8; 2] = [0x55, 0xaa];
    const TABLE: usize = 446;
    const ENTRY_BYTES: usize = 16;
    const END_HEAD: usize = 5;
    const END_SECTOR: usize = 6;
    const SECTORS: usize = 12;
    if first_sector[510..] != SIGNATURE {
        return None;
    }
    first_sector[TABLE..510]
        .chunks_exact(ENTRY_BYTES)
        .find_map(|entry| {
            let is_used = entry[SECTORS..] != [0; 4] && entry[END_HEAD] != 0;
            let (heads, sectors) = (u16::from(entry[END_HEAD]) + 1, entry[END_SECTOR] & 63);
            let cylinder = u64::from(heads) * u64::from(sectors);
            let cylinders = size.checked_div(cylinder).filter(|_| is_used)?;
            let is_possible = (1..=MOST_CYLINDERS).contains(&cylinders);
            is_possible.then_some((cylinders as u16, heads, sectors))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a master boot record whose entry `index` ends at this head and sector.
    fn record(index: usize, end_head: u8, end_sector: u8) -> [u8; 512] {
        let mut bytes = [0; 512];
        bytes[510..].copy_from_slice(&[0x55, 0xaa]);
        let entry = &mut bytes[446 + 16 * index..][..16];
        (entry[5], entry[6], entry[12]) = (end_head, end_sector | 0xc0, 9);
        bytes
    }

    #[test]
    fn the_end_of_a_partition_tells_heads_and_sectors() {
        for (cylinders, heads, sectors) in [(615, 4, 17), (900, 15, 17), (306, 8, 26)] {
            let size = u64::from(cylinders) * u64::from(heads) * u64::from(sectors);
            for index in 0..4 {
                let guess = Geometry::guess(&record(index, heads - 1, sectors), size);
                let expected = Geometry {
                    cylinders,
                    heads,
                    sectors,
                    translation: Translation::None,
                };
                assert_eq!(guess, expected);
            }
        }
    }

    #[test]
    fn without_a_usable_entry_the_size_alone_counts() {
        let size = 1_000_000;
        let usual = Geometry::usual(size);
        assert_eq!((usual.cylinders, usual.heads, usual.sectors), (992, 16, 63));
        let mut without_signature = record(0, 3, 17);
        without_signature[511] = 0;
        let mut empty = record(0, 3, 17);
        empty[446 + 12] = 0;
        for first in [
            [0; 512],
            without_signature,
            empty,
            record(0, 0, 17),
            record(0, 3, 0),
        ] {
            assert_eq!(Geometry::guess(&first, size), usual);
        }
        // One has more cylinders than possible, the other less than one cylinder.
        assert_eq!(Geometry::guess(&record(0, 1, 1), size), usual);
        assert_eq!(
            Geometry::guess(&record(0, 15, 63), 100),
            Geometry::usual(100)
        );
    }

    #[test]
    fn many_heads_mean_that_firmware_translates() {
        let small = Geometry::guess(&record(0, 254, 63), 2_000_000);
        assert_eq!(
            (small.heads, small.translation),
            (16, Translation::ByHalves)
        );
        let large = Geometry::guess(&record(0, 254, 63), 100_000_000);
        assert_eq!(
            (large.cylinders, large.translation),
            (16_383, Translation::BySectors)
        );
        assert_eq!(
            Geometry::usual(2_000_000).translation,
            Translation::BySectors
        );
    }
}
