//! The contents of the real-time clock and its memory when the machine is switched on.

use super::Rtc;
use crate::config::{RtcBase, VmConfig};
use crate::devices::floppy::format::DriveKind;
use crate::devices::ide::Geometry;
use std::time::{SystemTime, UNIX_EPOCH};
use tollgate_memory::PhysicalLayout;

impl Rtc {
    /// Makes the clock of a machine, with the present time, the sizes of its memory, its floppy
    /// drives and IDE disks, and the boot order for firmware.
    pub fn of_machine(
        config: &VmConfig,
        floppies: &[DriveKind],
        disks: &[Option<Geometry>],
    ) -> Self {
        let mut rtc = Self::new(start(config.rtc_base));
        rtc.set_floppies(floppies);
        rtc.set_disks(disks);
        rtc.set_boot_order(&config.boot_order);
        let layout = PhysicalLayout::new(config.memory_bytes);
        rtc.set_memory_sizes(layout.low_bytes(), layout.high_bytes());
        rtc
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
