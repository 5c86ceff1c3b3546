//! The format of a disk by the size of its image, and the drives that support each format.

/// A kind of drive, named by its largest capacity. The first two are 5.25-inch drives, the others
/// 3.5-inch drives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DriveKind {
    /// 360 KB: 40 cylinders.
    Kb360,
    /// 1.2 MB: 80 cylinders.
    Mb1_2,
    /// 1.44 MB.
    Mb1_44,
    /// 2.88 MB.
    Mb2_88,
}

impl DriveKind {
    /// Returns the kind's number in byte 10h of the CMOS memory.
    pub const fn cmos_type(self) -> u8 {
        match self {
            Self::Kb360 => 1,
            Self::Mb1_2 => 2,
            Self::Mb1_44 => 4,
            Self::Mb2_88 => 5,
        }
    }

    /// Returns the kind's common name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kb360 => "360 KB",
            Self::Mb1_2 => "1.2 MB",
            Self::Mb1_44 => "1.44 MB",
            Self::Mb2_88 => "2.88 MB",
        }
    }

    /// Returns the last cylinder that the heads can reach.
    pub const fn last_cylinder(self) -> u8 {
        match self {
            Self::Kb360 => 41,
            _ => 83,
        }
    }

    /// Whether the drive accepts and reads disks of a format.
    pub const fn takes(self, format: &Format) -> bool {
        match self {
            Self::Kb360 => matches!(format.drive, Self::Kb360),
            Self::Mb1_2 => matches!(format.drive, Self::Kb360 | Self::Mb1_2),
            Self::Mb1_44 => matches!(format.drive, Self::Mb1_44),
            Self::Mb2_88 => matches!(format.drive, Self::Mb1_44 | Self::Mb2_88),
        }
    }
}

/// Data rates by their values in the lowest two bits of the data rate select register (2.1.7).
mod rate {
    pub const KBPS_500: u8 = 0;
    pub const KBPS_300: u8 = 1;
    pub const KBPS_250: u8 = 2;
    pub const MBPS_1: u8 = 3;
}

/// The geometry of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Format {
    /// The number of cylinders.
    pub cylinders: u8,
    /// The number of sides.
    pub heads: u8,
    /// The number of sectors of a track, which are counted from 1.
    pub sectors: u8,
    /// The smallest drive that supports the format.
    pub drive: DriveKind,
    /// A bit for each data rate at which the disk is read.
    rates: u8,
}

/// The size of a sector in bytes.
pub const SECTOR_BYTES: usize = 512;
/// The code of the sector size, "N" in a sector's address.
pub const SECTOR_SIZE_CODE: u8 = 2;

const fn format(cylinders: u8, heads: u8, sectors: u8, drive: DriveKind, rates: u8) -> Format {
    Format {
        cylinders,
        heads,
        sectors,
        drive,
        rates,
    }
}

/// All formats, the common ones of each drive first.
const FORMATS: [Format; 16] = {
    use DriveKind::{Kb360, Mb1_2, Mb1_44, Mb2_88};
    /// 250 KB/s in a drive of 300 revolutions per minute, or 300 KB/s in one of 360. Firmware uses
    /// either for the smallest drive.
    const DOUBLE_5_25: u8 = 1 << rate::KBPS_250 | 1 << rate::KBPS_300;
    const DOUBLE: u8 = 1 << rate::KBPS_250;
    const HIGH: u8 = 1 << rate::KBPS_500;
    const EXTRA: u8 = 1 << rate::MBPS_1;
    [
        format(40, 1, 8, Kb360, DOUBLE_5_25),
        format(40, 1, 9, Kb360, DOUBLE_5_25),
        format(40, 2, 8, Kb360, DOUBLE_5_25),
        format(40, 2, 9, Kb360, DOUBLE_5_25),
        format(80, 2, 15, Mb1_2, HIGH),
        format(80, 2, 8, Mb1_44, DOUBLE),
        format(80, 2, 9, Mb1_44, DOUBLE),
        format(80, 2, 10, Mb1_44, DOUBLE),
        format(82, 2, 10, Mb1_44, DOUBLE),
        format(80, 2, 18, Mb1_44, HIGH),
        format(82, 2, 18, Mb1_44, HIGH),
        format(80, 2, 20, Mb1_44, HIGH),
        format(80, 2, 21, Mb1_44, HIGH),
        format(82, 2, 21, Mb1_44, HIGH),
        format(83, 2, 21, Mb1_44, HIGH),
        format(80, 2, 36, Mb2_88, EXTRA),
    ]
};

impl Format {
    /// Returns the format of an image of this size.
    pub fn of_size(bytes: u64) -> Option<Self> {
        FORMATS.into_iter().find(|format| format.bytes() == bytes)
    }

    /// Returns the capacity of a disk in bytes.
    pub const fn bytes(&self) -> u64 {
        self.cylinders as u64 * self.heads as u64 * self.sectors as u64 * SECTOR_BYTES as u64
    }

    /// Whether the disk is read at a data rate, 0 to 3.
    pub const fn has_rate(&self, rate: u8) -> bool {
        self.rates >> (rate & 3) & 1 != 0
    }

    /// Returns the offset in the image of a sector, which must exist on the disk.
    pub const fn offset(&self, cylinder: u8, head: u8, sector: u8) -> u64 {
        let track = cylinder as u64 * self.heads as u64 + head as u64;
        (track * self.sectors as u64 + sector.saturating_sub(1) as u64) * SECTOR_BYTES as u64
    }

    /// Returns the sizes that an image may have, for messages.
    pub fn sizes() -> String {
        let sizes = FORMATS.map(|format| format.bytes());
        let kib = sizes.map(|bytes| (bytes / 1024).to_string());
        format!("{} KiB", kib.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_from_160_kib_to_2_88_mib_are_known_by_their_bytes() {
        for (kib, cylinders, heads, sectors, cmos) in [
            (160, 40, 1, 8, 1),
            (180, 40, 1, 9, 1),
            (320, 40, 2, 8, 1),
            (360, 40, 2, 9, 1),
            (720, 80, 2, 9, 4),
            (1200, 80, 2, 15, 2),
            (1440, 80, 2, 18, 4),
            (1680, 80, 2, 21, 4),
            (2880, 80, 2, 36, 5),
        ] {
            let format = Format::of_size(kib * 1024).unwrap();
            let geometry = (format.cylinders, format.heads, format.sectors);
            assert_eq!(geometry, (cylinders, heads, sectors), "{kib}");
            assert_eq!(format.drive.cmos_type(), cmos, "{kib}");
            let last = format.offset(cylinders - 1, heads - 1, sectors);
            assert_eq!(last + 512, format.bytes(), "{kib}");
        }
        assert_eq!(Format::of_size(1440 * 1024 + 512), None);
        assert_eq!(Format::of_size(0), None);
    }

    #[test]
    fn no_two_formats_have_one_size() {
        for (index, format) in FORMATS.iter().enumerate() {
            assert_eq!(Format::of_size(format.bytes()), Some(*format), "{index}");
        }
    }
}
