//! The commands of the floppy disk controller, identified by their first bytes (data sheet, 5.1).

use serde::{Deserialize, Serialize};

/// A command of the controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Command {
    ReadData,
    ReadDeletedData,
    WriteData,
    WriteDeletedData,
    ReadTrack,
    Verify,
    FormatTrack,
    ReadId,
    Recalibrate,
    SenseInterrupt,
    Specify,
    SenseDriveStatus,
    Seek,
    RelativeSeek,
    Configure,
    DumpRegisters,
    Version,
    PerpendicularMode,
    Lock,
    Invalid,
}

/// In the first byte: the command uses both sides of a cylinder, one after the other.
pub(super) const MULTI_TRACK: u8 = 1 << 7;
/// In the first byte: double density.
pub(super) const MFM: u8 = 1 << 6;
/// In the first byte: sectors with the other kind of data are skipped.
pub(super) const SKIP: u8 = 1 << 5;
/// In the first byte of RELATIVE SEEK: seek towards higher cylinders.
pub(super) const INWARDS: u8 = 1 << 6;

impl Command {
    /// Returns the command that a first byte begins.
    pub const fn of(byte: u8) -> Self {
        match byte & 0x1f {
            0x02 if byte & 0xa0 == 0 => Self::ReadTrack,
            0x03 if byte & 0xe0 == 0 => Self::Specify,
            0x04 if byte & 0xe0 == 0 => Self::SenseDriveStatus,
            0x05 if byte & SKIP == 0 => Self::WriteData,
            0x06 => Self::ReadData,
            0x07 if byte & 0xe0 == 0 => Self::Recalibrate,
            0x08 if byte & 0xe0 == 0 => Self::SenseInterrupt,
            0x09 if byte & SKIP == 0 => Self::WriteDeletedData,
            0x0a if byte & 0xa0 == 0 => Self::ReadId,
            0x0c => Self::ReadDeletedData,
            0x0d if byte & 0xa0 == 0 => Self::FormatTrack,
            0x0e if byte & 0xe0 == 0 => Self::DumpRegisters,
            0x0f if byte & 0xe0 == 0 => Self::Seek,
            0x0f if byte & 0xa0 == 0x80 => Self::RelativeSeek,
            0x10 if byte & 0xe0 == 0 => Self::Version,
            0x12 if byte & 0xe0 == 0 => Self::PerpendicularMode,
            0x13 if byte & 0xe0 == 0 => Self::Configure,
            0x14 if byte & 0x60 == 0 => Self::Lock,
            0x16 => Self::Verify,
            _ => Self::Invalid,
        }
    }

    /// Returns the number of bytes of the command, including the first.
    pub const fn bytes(self) -> usize {
        match self {
            Self::SenseInterrupt
            | Self::DumpRegisters
            | Self::Version
            | Self::Lock
            | Self::Invalid => 1,
            Self::SenseDriveStatus | Self::Recalibrate | Self::ReadId | Self::PerpendicularMode => {
                2
            }
            Self::Specify | Self::Seek | Self::RelativeSeek => 3,
            Self::Configure => 4,
            Self::FormatTrack => 6,
            Self::ReadTrack
            | Self::WriteData
            | Self::WriteDeletedData
            | Self::ReadData
            | Self::ReadDeletedData
            | Self::Verify => 9,
        }
    }

    /// Whether the bytes that the processor supplies are written to the disk.
    pub const fn writes(self) -> bool {
        matches!(
            self,
            Self::WriteData | Self::WriteDeletedData | Self::FormatTrack
        )
    }
}
