//! The high-precision event timer (IA-PC HPET Specification 1.0a): a 64-bit counter that counts
//! every 10 ns, and three comparators.
//!
//! ```text
//!   main counter --+-- comparator 0 --\   replacement routing: lines 0 and 8, from which the
//!                  +-- comparator 1 ---+  8254 and the real-time clock are cut off then;
//!                  '-- comparator 2 --/   else each the I/O APIC's line that it names
//! ```
//!
//! Where the specification leaves a choice, the timer behaves like QEMU's. If a comparator is set
//! to a value that has just passed, it fires immediately and not after the counter has wrapped
//! around. In periodic mode each written value is also the period. Messages (FSB) are not
//! implemented.

mod bus;
mod timer;

use serde::{Deserialize, Serialize};
use timer::{Register, Timer};
use tollgate_platform::GuestTime;

use super::lost_ticks::LostTicks;

/// The physical address of the registers.
pub const BASE_ADDRESS: u64 = 0xfed0_0000;
/// The size of the registers' address range in bytes.
pub const REGISTER_BYTES: u64 = 0x400;
/// The lower half of the identification, which the ACPI table repeats: Intel's number, lines 0 and
/// 8 can be replaced (bit 15), 64 bits (bit 13), the number of comparators minus one (bits 12 to
/// 8), revision 1.
pub const IDENTIFICATION: u32 = 0x8086 << 16 | 1 << 15 | 1 << 13 | (TIMERS as u32 - 1) << 8 | 1;

/// The number of comparators.
const TIMERS: usize = 3;
/// The time between two counts in nanoseconds.
const PERIOD: u64 = 10;
/// The time between two counts in femtoseconds, for the identification.
const PERIOD_FEMTOSECONDS: u64 = PERIOD * 1_000_000;
/// The minimum time between two calls for comparators that fire more often, in nanoseconds.
const LEAST_WAIT: u64 = 10_000;

/// Offsets of the registers. From [`offset::TIMERS`] on, each comparator has 20h bytes.
mod offset {
    pub const IDENTIFICATION: u64 = 0x000;
    pub const CONFIGURATION: u64 = 0x010;
    pub const STATUS: u64 = 0x020;
    pub const COUNTER: u64 = 0x0f0;
    pub const TIMERS: u64 = 0x100;
    pub const TIMER_BYTES: u64 = 0x20;
}

/// Bits of the general configuration register.
mod configuration {
    /// The counter counts, and comparators may interrupt.
    pub const ENABLED: u64 = 1 << 0;
    /// Comparators 0 and 1 drive lines 0 and 8 exclusively.
    pub const REPLACES_LEGACY: u64 = 1 << 1;
    pub const WRITABLE: u64 = ENABLED | REPLACES_LEGACY;
}

/// The lines of comparators 0 and 1 when they replace the 8254 and the real-time clock.
const REPLACED_LINES: [u8; 2] = [0, 8];

/// The timer block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hpet {
    configuration: u64,
    /// A bit for each level-triggered comparator that requests service.
    status: u64,
    /// The value of the main counter at `since`.
    count: u64,
    /// When the main counter had the value `count`, if it is counting.
    since: GuestTime,
    timers: [Timer; TIMERS],
    /// Interrupts of comparator 0, in its role as the 8254, that the guest could not take.
    lost_ticks: LostTicks,
}

impl Default for Hpet {
    fn default() -> Self {
        Self {
            configuration: 0,
            status: 0,
            count: 0,
            since: GuestTime(0),
            timers: Default::default(),
            lost_ticks: LostTicks::default(),
        }
    }
}

impl Hpet {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;

    fn is_enabled(&self) -> bool {
        self.configuration & configuration::ENABLED != 0
    }

    fn replaces_legacy(&self) -> bool {
        self.configuration & configuration::REPLACES_LEGACY != 0
    }

    /// Returns the value of the main counter.
    fn counter(&self, now: GuestTime) -> u64 {
        match self.is_enabled() {
            true => self.count.wrapping_add(self.ticks_since(now)),
            false => self.count,
        }
    }

    fn ticks_since(&self, now: GuestTime) -> u64 {
        now.0.saturating_sub(self.since.0) / PERIOD
    }

    /// Returns the 64-bit register at an offset that is a multiple of 8.
    fn register(&self, offset: u64, now: GuestTime) -> u64 {
        match offset {
            offset::IDENTIFICATION => PERIOD_FEMTOSECONDS << 32 | u64::from(IDENTIFICATION),
            offset::CONFIGURATION => self.configuration,
            offset::STATUS => self.status,
            offset::COUNTER => self.counter(now),
            _ => self
                .timer_register(offset)
                .map_or(0, |(timer, register)| self.timers[timer].read(register)),
        }
    }

    /// Returns the comparator and its register at an offset.
    fn timer_register(&self, offset: u64) -> Option<(usize, Register)> {
        let within = offset.checked_sub(offset::TIMERS)?;
        let timer = (within / offset::TIMER_BYTES) as usize;
        let register = match within % offset::TIMER_BYTES {
            0 => Register::Configuration,
            8 => Register::Comparator,
            _ => return None,
        };
        (timer < TIMERS).then_some((timer, register))
    }

    /// Reads bytes. There are zeros between the registers.
    pub fn read(&mut self, offset: u64, data: &mut [u8], now: GuestTime) {
        self.advance(now);
        for (at, byte) in (offset..).zip(data) {
            let register = self.register(at & !7, now).to_le_bytes();
            *byte = register[(at % 8) as usize];
        }
    }

    /// Writes 4 or 8 bytes that lie in one register. The effect of other writes is undefined
    /// (specification, 2.3.1); here they have none.
    pub fn write(&mut self, offset: u64, data: &[u8], now: GuestTime) {
        self.advance(now);
        let (shift, mask) = match (data.len(), offset % 8) {
            (8, 0) => (0, u64::MAX),
            (4, 0) => (0, 0xffff_ffff),
            (4, 4) => (32, 0xffff_ffff << 32),
            _ => return,
        };
        let mut bytes = [0; 8];
        bytes[..data.len()].copy_from_slice(data);
        let value = u64::from_le_bytes(bytes) << shift;
        self.write_register(offset & !7, value, mask, now);
        self.follow_lines();
    }

    /// Writes the bits of a register that are set in `mask`.
    fn write_register(&mut self, offset: u64, value: u64, mask: u64, now: GuestTime) {
        match offset {
            offset::CONFIGURATION => {
                let mask = mask & configuration::WRITABLE;
                let count = self.counter(now);
                let changed = (self.configuration ^ value) & mask;
                self.configuration ^= changed;
                (self.count, self.since) = (count, now);
                if changed & configuration::REPLACES_LEGACY != 0 {
                    self.lost_ticks.forget();
                }
                if changed & configuration::ENABLED != 0 {
                    self.arm_all(now);
                }
            }
            // Writing a one clears the request.
            offset::STATUS => self.status &= !(value & mask),
            offset::COUNTER => {
                let kept = self.counter(now) & !mask;
                (self.count, self.since) = (kept | value & mask, now);
                self.arm_all(now);
            }
            _ => {
                if let Some((timer, register)) = self.timer_register(offset) {
                    self.timers[timer].write(register, value, mask);
                    if timer == 0 {
                        self.lost_ticks.forget();
                    }
                    self.arm(timer, now);
                }
            }
        }
    }

    fn arm_all(&mut self, now: GuestTime) {
        self.lost_ticks.forget();
        for timer in 0..TIMERS {
            self.arm(timer, now);
        }
    }

    fn arm(&mut self, timer: usize, now: GuestTime) {
        let counter = self.is_enabled().then(|| self.counter(now));
        self.timers[timer].arm(counter);
    }

    /// Sets the levels of all lines according to status and configuration.
    fn follow_lines(&mut self) {
        let enabled = self.is_enabled();
        for (index, timer) in self.timers.iter_mut().enumerate() {
            let requests = self.status >> index & 1 != 0;
            let asserts = enabled && requests && timer.is_level() && timer.interrupts();
            timer.line.set(asserts);
        }
    }

    /// Fires the comparators whose time has come.
    pub fn advance(&mut self, now: GuestTime) {
        if !self.is_enabled() {
            return;
        }
        let counter = self.counter(now);
        for (index, timer) in self.timers.iter_mut().enumerate() {
            let fired = timer.fire(counter);
            if fired == 0 {
                continue;
            }
            if timer.is_level() {
                self.status |= 1 << index;
            } else {
                timer.line.record(fired, false);
            }
        }
        self.follow_lines();
    }

    /// Returns when a comparator fires next.
    pub fn next_deadline(&self, now: GuestTime) -> Option<GuestTime> {
        let of_timers = self.timers.iter().filter_map(|timer| {
            let ticks = timer.fires_at()?.saturating_sub(self.count);
            let at = self.since.0.saturating_add(ticks.saturating_mul(PERIOD));
            Some(GuestTime(at.max(now.0.saturating_add(LEAST_WAIT))))
        });
        let of_timers = of_timers.filter(|_| self.is_enabled());
        of_timers.chain(self.lost_ticks.next_deadline()).min()
    }

    /// Returns the line that a comparator drives.
    fn line_of(&self, timer: usize) -> Option<u8> {
        if !self.timers[timer].interrupts() {
            return None;
        }
        match REPLACED_LINES.get(timer) {
            Some(line) if self.replaces_legacy() => Some(*line),
            _ => self.timers[timer].route(),
        }
    }
}

#[cfg(test)]
mod tests;
