//! What the real-time clock and its memory are given when the machine is switched on: the time, and
//! the drives that firmware boots from.

use super::Rtc;
use crate::devices::time_of_day::universal;
use serde::{Deserialize, Serialize};
use std::time::SystemTime;
use tollgate_platform::GuestTime;

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
    /// Makes a clock that shows the present time at guest time zero.
    pub fn at_present(base: RtcBase) -> Self {
        let start = shown(base, SystemTime::now());
        Self::new(u64::try_from(start).unwrap_or(0))
    }

    /// Lets the clock show the host's time `host` at guest time `now`, as if it had run all the time
    /// since the machine was switched on. See [`Rtc::start_at`].
    pub fn follow_host(&mut self, base: RtcBase, host: SystemTime, now: GuestTime) {
        let passed = i64::try_from(now.0).unwrap_or(i64::MAX);
        self.start_at(shown(base, host).saturating_sub(passed));
    }
}

/// Returns the nanoseconds since 1970 that the clock shows at a time of the host.
fn shown(base: RtcBase, host: SystemTime) -> i64 {
    let universal = universal(host);
    match base {
        RtcBase::Universal => universal,
        RtcBase::Local => {
            let offset = local_offset(universal / 1_000_000_000);
            universal.saturating_add(offset.saturating_mul(1_000_000_000))
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
