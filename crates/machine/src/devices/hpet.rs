//! The high-precision event timer (IA-PC HPET Specification 1.0a): a counter of 64 bits that
//! counts every 10 ns, and three comparators.
//!
//! ```text
//!   main counter --+-- comparator 0 --\   replacement routing: lines 0 and 8, from which the
//!                  +-- comparator 1 ---+  8254 and the real-time clock are cut off then;
//!                  '-- comparator 2 --/   else each the I/O APIC's line that it names
//! ```
//!
//! Where the specification leaves room this is QEMU's: a comparator that is set to a value
//! which has just passed fires immediately instead of when the counter has wrapped around, and
//! in periodic mode each value that is written is the period as well. There are no messages (FSB).

mod bus;
mod timer;

use serde::{Deserialize, Serialize};
use timer::{Register, Timer};
use tollgate_platform::GuestTime;

use super::lost_ticks::LostTicks;

/// Where the registers lie in memory.
pub const BASE_ADDRESS: u64 = 0xfed0_0000;
/// Bytes of address space that the registers take.
pub const REGISTER_BYTES: u64 = 0x400;
/// The lower half of the identification, which the ACPI table repeats: Intel's number, lines 0
/// and 8 can be replaced (bit 15), 64 bits (bit 13), the number of comparators minus one (bits
/// 12 to 8), revision 1.
pub const IDENTIFICATION: u32 = 0x8086 << 16 | 1 << 15 | 1 << 13 | (TIMERS as u32 - 1) << 8 | 1;

/// How many comparators there are.
const TIMERS: usize = 3;
/// Nanoseconds from one count to the next.
const PERIOD: u64 = 10;
/// The same in femtoseconds, for the identification.
const PERIOD_FEMTOSECONDS: u64 = PERIOD * 1_000_000;
/// Nanoseconds between two looks at comparators that fire more often than that.
const LEAST_WAIT: u64 = 10_000;

/// Offsets of the registers. From [`offset::TIMERS`] on each comparator has 20h bytes.
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
    /// The counter counts, and comparators interrupt.
    pub const ENABLED: u64 = 1 << 0;
    /// Comparators 0 and 1 have lines 0 and 8 for themselves.
    pub const REPLACES_LEGACY: u64 = 1 << 1;
    pub const WRITABLE: u64 = ENABLED | REPLACES_LEGACY;
}

/// Lines of comparators 0 and 1 that replace the 8254 and the real-time clock.
const REPLACED_LINES: [u8; 2] = [0, 8];

/// The timer block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hpet {
    configuration: u64,
    /// A bit for each level-triggered comparator that asks for service.
    status: u64,
    /// The main counter at `since`.
    count: u64,
    /// When `count` was the main counter, if that counts.
    since: GuestTime,
    timers: [Timer; TIMERS],
    /// Interrupts of comparator 0 in the place of the 8254's that the guest could not take.
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

    /// The main counter.
    fn counter(&self, now: GuestTime) -> u64 {
        match self.is_enabled() {
            true => self.count.wrapping_add(self.ticks_since(now)),
            false => self.count,
        }
    }

    fn ticks_since(&self, now: GuestTime) -> u64 {
        now.0.saturating_sub(self.since.0) / PERIOD
    }

    /// The register of 64 bits at an offset that is a multiple of 8.
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

    /// The comparator and its register at an offset, if there is one.
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

    /// Reads bytes; between the registers there are zeros.
    pub fn read(&mut self, offset: u64, data: &mut [u8], now: GuestTime) {
        self.advance(now);
        for (at, byte) in (offset..).zip(data) {
            let register = self.register(at & !7, now).to_le_bytes();
            *byte = register[(at % 8) as usize];
        }
    }

    /// Writes 4 or 8 bytes that lie in one register; what others would do is undefined
    /// (specification, 2.3.1), and here they do nothing.
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

    /// Writes those bits of a register that `mask` has.
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
            // Writing a one ends the request.
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

    /// Has the levels of all lines be what status and configuration say.
    fn follow_lines(&mut self) {
        let enabled = self.is_enabled();
        for (index, timer) in self.timers.iter_mut().enumerate() {
            let requests = self.status >> index & 1 != 0;
            let asserts = enabled && requests && timer.is_level() && timer.interrupts();
            timer.line.set(asserts);
        }
    }

    /// Lets comparators fire whose time has come.
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

    /// When a comparator fires next, if one does.
    pub fn next_deadline(&self, now: GuestTime) -> Option<GuestTime> {
        let of_timers = self.timers.iter().filter_map(|timer| {
            let ticks = timer.fires_at()?.saturating_sub(self.count);
            let at = self.since.0.saturating_add(ticks.saturating_mul(PERIOD));
            Some(GuestTime(at.max(now.0.saturating_add(LEAST_WAIT))))
        });
        let of_timers = of_timers.filter(|_| self.is_enabled());
        of_timers.chain(self.lost_ticks.next_deadline()).min()
    }

    /// The line that a comparator drives, if it drives one.
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
