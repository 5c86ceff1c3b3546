//! KVM's paravirtual clock: guest time as a function of the time-stamp counter, whose frequency a
//! guest need not measure (Linux, Documentation/virt/kvm/x86/msr.rst).
//!
//! A guest that measures its counter while the host runs other programs gets a wrong frequency for
//! its whole life. With this clock it sets an address in its memory by an MSR and finds there
//!
//! ```text
//! time = system_time + ((counter - tsc_timestamp) << tsc_shift) * tsc_to_system_mul / 2^32
//! ```
//!
//! in nanoseconds of guest time. A second MSR requests the wall-clock time of the machine's start.
//! The written parameters are valid until the guest sets its counter or the machine's state is
//! restored, because both clocks stand still at the same times. If the clocks catch up with a
//! pause, the parameters are written again, with a flag that reports the pause to the guest. Linux
//! then does not mistake the jump for a stuck processor.

use crate::board::local_apic::Clock;
use crate::bus::{Claims, Device, DeviceContext, SavedState, StateError};
use crate::config::Realtime;
use crate::devices::time_of_day::universal;
use serde::{Deserialize, Serialize};
use std::time::SystemTime;
use tollgate_platform::GuestTime;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::paravirtual::kvm;
use tollgate_x86::time_stamp_msrs::TIME_STAMP_ADJUST;

const NANOSECONDS: u64 = 1_000_000_000;
/// A flag of the parameters: the guest was paused. The guest clears this bit (Linux,
/// arch/x86/include/asm/pvclock-abi.h, PVCLOCK_GUEST_STOPPED).
const GUEST_STOPPED: u8 = 1 << 1;

/// The requests of the guest, and the time of day that it is given.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KvmClock {
    /// Which wall-clock time the guest is given. It belongs to this run, not to the state.
    #[serde(skip)]
    realtime: Realtime,
    /// The wall-clock time at guest time zero, in nanoseconds since 1970.
    start: i64,
    system_time: u64,
    wall_clock: u64,
    /// The value that the guest has added to its time-stamp counter.
    adjustment: u64,
    /// The version number that was written last. It is even.
    version: u32,
}

/// The shift and the multiplier that convert a difference of the counter to nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Scale {
    /// The shift, which is to the left if positive.
    shift: i8,
    /// The multiplier in units of 2^-32.
    multiplier: u32,
}

impl Scale {
    /// Computes the scale for a counter of this many kHz, at least 1. The multiplier uses all of
    /// its 32 bits as far as the shift permits.
    fn of(khz: u64) -> Self {
        let mut frequency = u128::from(khz.max(1)) * 1000;
        let mut shift = 0;
        while frequency > 2 * u128::from(NANOSECONDS) {
            frequency /= 2;
            shift -= 1;
        }
        while frequency <= u128::from(NANOSECONDS) {
            frequency *= 2;
            shift += 1;
        }
        let multiplier = (u128::from(NANOSECONDS) << 32) / frequency;
        Self {
            shift,
            multiplier: u32::try_from(multiplier).unwrap_or(u32::MAX),
        }
    }
}

impl KvmClock {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 2;

    /// Makes a clock that was not requested yet, whose guest time begins now.
    pub fn new(realtime: Realtime) -> Self {
        Self {
            realtime,
            start: universal(SystemTime::now()),
            system_time: 0,
            wall_clock: 0,
            adjustment: 0,
            version: 0,
        }
    }

    /// Lets the guest's wall-clock time be `host` at guest time `now`. The guest learns it when it
    /// requests the wall clock again: the memory that it named for an earlier request may have
    /// another use.
    pub fn follow_host(&mut self, host: SystemTime, now: GuestTime) {
        let passed = i64::try_from(now.0).unwrap_or(i64::MAX);
        self.start = universal(host).saturating_sub(passed);
    }

    /// Reads an MSR. Returns `None` if the MSR does not belong to the clock.
    pub fn msr_read(&self, index: u32) -> Option<u64> {
        match index {
            kvm::SYSTEM_TIME => Some(self.system_time),
            kvm::WALL_CLOCK => Some(self.wall_clock),
            _ => None,
        }
    }

    /// Writes an MSR. Returns false if the MSR does not belong to the clock. An address without RAM
    /// is ignored.
    pub fn msr_write(&mut self, index: u32, value: u64, context: &mut DeviceContext<'_>) -> bool {
        match index {
            kvm::SYSTEM_TIME => {
                self.system_time = value;
                self.publish(context);
            }
            kvm::WALL_CLOCK => {
                self.wall_clock = value;
                self.publish_wall_clock(context);
            }
            TIME_STAMP_ADJUST => {
                self.adjustment = value;
                self.publish(context);
            }
            _ => return false,
        }
        true
    }

    fn next_version(&mut self) -> u32 {
        self.version = self.version.wrapping_add(2);
        self.version
    }

    /// Writes the clock's parameters if the guest has requested them. The guest does not run during
    /// the write, so it sees either the old parameters or the new ones.
    pub fn publish(&mut self, context: &mut DeviceContext<'_>) {
        self.publish_with(kvm::TSC_IS_STABLE, context);
    }

    /// Writes the parameters after the clocks have caught up with a pause.
    pub fn was_paused(&mut self, context: &mut DeviceContext<'_>) {
        self.publish_with(kvm::TSC_IS_STABLE | GUEST_STOPPED, context);
    }

    fn publish_with(&mut self, flags: u8, context: &mut DeviceContext<'_>) {
        if self.system_time & kvm::IS_ENABLED == 0 {
            return;
        }
        let clock = context.clock();
        let version = self.next_version();
        let parameters = parameters(&clock, self.adjustment, version, flags);
        let address = PhysicalAddress(self.system_time & !kvm::IS_ENABLED);
        let _ = context.memory().write(address, &parameters);
    }

    /// Writes the wall-clock time at which guest time was zero: according to the host's present time,
    /// or with [`Realtime::Keep`] according to the guest's own.
    fn publish_wall_clock(&mut self, context: &mut DeviceContext<'_>) {
        if self.realtime == Realtime::Step {
            self.follow_host(SystemTime::now(), context.now());
        }
        let version = self.next_version();
        let address = PhysicalAddress(self.wall_clock);
        let start = u128::try_from(self.start).unwrap_or(0);
        let _ = context.memory().write(address, &wall_clock(start, version));
    }
}

/// Returns the clock's parameters in the guest's format.
fn parameters(clock: &Clock, adjustment: u64, version: u32, flags: u8) -> [u8; 32] {
    let scale = Scale::of(clock.tsc_khz);
    let mut bytes = [0; 32];
    bytes[0..4].copy_from_slice(&version.to_le_bytes());
    bytes[8..16].copy_from_slice(&clock.tsc.wrapping_add(adjustment).to_le_bytes());
    bytes[16..24].copy_from_slice(&clock.now.0.to_le_bytes());
    bytes[24..28].copy_from_slice(&scale.multiplier.to_le_bytes());
    bytes[28] = scale.shift as u8;
    bytes[29] = flags;
    bytes
}

/// Returns seconds and nanoseconds since 1970 in the guest's format.
fn wall_clock(nanoseconds: u128, version: u32) -> [u8; 12] {
    let (seconds, rest) = (
        nanoseconds / u128::from(NANOSECONDS),
        nanoseconds % u128::from(NANOSECONDS),
    );
    let mut bytes = [0; 12];
    bytes[0..4].copy_from_slice(&version.to_le_bytes());
    // 32 bits of seconds last until the year 2106.
    bytes[4..8].copy_from_slice(&(seconds as u32).to_le_bytes());
    bytes[8..12].copy_from_slice(&(rest as u32).to_le_bytes());
    bytes
}

impl Device for KvmClock {
    fn name(&self) -> &str {
        "kvm-clock"
    }

    /// The processor accesses the clock by MSRs, so it claims no addresses.
    fn claims(&self) -> Claims {
        Claims::none()
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {
        *self = Self {
            start: self.start,
            ..Self::new(self.realtime)
        };
    }

    fn save(&self) -> SavedState {
        SavedState::of(Self::STATE_VERSION, self)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        *self = Self {
            realtime: self.realtime,
            ..saved.read(Self::STATE_VERSION)?
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the time as a guest does, by the formula in KVM's documentation.
    fn time(bytes: &[u8; 32], counter: u64) -> u64 {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let shift = bytes[28] as i8;
        let difference = counter.wrapping_sub(word(8));
        let shifted = match shift {
            0.. => difference << shift,
            _ => difference >> -shift,
        };
        let multiplier = word(24) & 0xffff_ffff;
        word(16) + ((u128::from(shifted) * u128::from(multiplier)) >> 32) as u64
    }

    #[test]
    fn a_guest_computes_guest_time_from_its_counter() {
        for khz in [
            1, 1000, 999_999, 1_000_000, 2_596_134, 5_100_000, 40_000_000,
        ] {
            let clock = Clock {
                now: GuestTime(7_000),
                tsc: 123_456,
                tsc_khz: khz,
            };
            for adjustment in [0, 1 << 40, u64::MAX - 5] {
                let bytes = parameters(&clock, adjustment, 4, kvm::TSC_IS_STABLE);
                let at_once = clock.tsc.wrapping_add(adjustment);
                assert_eq!(time(&bytes, at_once), 7_000);
                // An hour later the error is below 1 in 10^8, because the multiplier has at least
                // 31 bits.
                let later = time(&bytes, at_once.wrapping_add(khz * 3_600_000));
                let hour = 3600 * NANOSECONDS;
                assert!(later.abs_diff(7_000 + hour) < hour / 100_000_000, "{khz}");
            }
            assert!(Scale::of(khz).multiplier >= 1 << 31);
        }
    }

    #[test]
    fn the_wall_clock_is_in_seconds_and_nanoseconds() {
        let bytes = wall_clock(1_700_000_000_000_000_042, 2);
        assert_eq!(bytes[0..4], 2u32.to_le_bytes());
        assert_eq!(bytes[4..8], 1_700_000_000u32.to_le_bytes());
        assert_eq!(bytes[8..12], 42u32.to_le_bytes());
    }
}
