//! What the real-time clock and its memory are given when the machine is switched on: the time, and
//! the drives that firmware boots from.

use super::Rtc;
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// The time that the guest's real-time clock shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum RtcBase {
    /// Universal time (UTC), as Linux expects.
    #[default]
    Universal,
    /// The host's local time, as DOS and Windows expect.
    Local,
}

/// A kind of drive that firmware can boot from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BootDevice {
    /// The first floppy drive.
    Floppy,
    /// A hard disk.
    Disk,
    /// A CD-ROM drive.
    CdRom,
}

impl BootDevice {
    /// All boot devices, in the default boot order.
    pub const ALL: [Self; 3] = [Self::Floppy, Self::Disk, Self::CdRom];

    /// The letter of this drive in DOS and in `--boot`.
    pub const fn letter(self) -> char {
        match self {
            Self::Floppy => 'a',
            Self::Disk => 'c',
            Self::CdRom => 'd',
        }
    }

    /// The number of this drive in the CMOS memory of QEMU's machines.
    pub const fn cmos_code(self) -> u8 {
        match self {
            Self::Floppy => 1,
            Self::Disk => 2,
            Self::CdRom => 3,
        }
    }
}

impl Rtc {
    /// Makes a clock that shows the present time.
    pub fn at_present(base: RtcBase) -> Self {
        Self::new(start(base))
    }
}

/// Returns the nanoseconds since 1970 that the clock shows first.
fn start(base: RtcBase) -> u64 {
    let universal = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    let universal = u64::try_from(universal).unwrap_or(0);
    match base {
        RtcBase::Universal => universal,
        RtcBase::Local => {
            let offset = local_offset((universal / 1_000_000_000) as i64);
            universal.saturating_add_signed(offset.saturating_mul(1_000_000_000))
        }
    }
}

/// Returns how many seconds local time is ahead of universal time, or zero if that is unknown.
fn local_offset(seconds: i64) -> i64 {
    let mut broken_down = std::mem::MaybeUninit::<libc::tm>::uninit();
    // SAFETY: both pointers are valid; a non-null result means that the structure was filled in.
    let filled = unsafe { libc::localtime_r(&seconds, broken_down.as_mut_ptr()) };
    if filled.is_null() {
        return 0;
    }
    // SAFETY: localtime_r succeeded and has filled the structure in.
    unsafe { broken_down.assume_init() }.tm_gmtoff
}
