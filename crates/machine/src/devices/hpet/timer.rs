//! A comparator of the high-precision event timer.

use crate::board::IrqLine;
use serde::{Deserialize, Serialize};

/// The registers of a comparator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Register {
    /// Configuration and capabilities.
    Configuration,
    /// The value that is compared, and in periodic mode the next value.
    Comparator,
}

/// Bits of the configuration and capabilities register.
mod bit {
    /// The interrupt is level-triggered.
    pub const LEVEL: u64 = 1 << 1;
    /// The comparator may interrupt.
    pub const INTERRUPTS: u64 = 1 << 2;
    /// The comparator is in periodic mode.
    pub const PERIODIC: u64 = 1 << 3;
    /// The comparator supports periodic mode.
    pub const HAS_PERIODIC: u64 = 1 << 4;
    /// The comparator has 64 bits.
    pub const HAS_64_BITS: u64 = 1 << 5;
    /// The next write also sets the comparator in periodic mode.
    pub const SETS_VALUE: u64 = 1 << 6;
    /// The comparator is used as a 32-bit one.
    pub const USES_32_BITS: u64 = 1 << 8;
    /// The number of the line, five bits.
    pub const ROUTE: u64 = 31 << ROUTE_SHIFT;
    pub const ROUTE_SHIFT: u32 = 9;
    /// The bits that keep written values, in addition to the line's.
    pub const WRITABLE: u64 = LEVEL | INTERRUPTS | PERIODIC | SETS_VALUE | USES_32_BITS;
}

/// The I/O APIC's lines that a comparator can drive: pin 2, which is the timer's, 8, and 16 to 23.
const ROUTES: u64 = 0x00ff_0104;

/// The bits that no write changes.
const CAPABILITIES: u64 = ROUTES << 32 | bit::HAS_PERIODIC | bit::HAS_64_BITS;

/// If the counter passed the comparator's value less than this number of counts ago, the value has
/// just passed. The time is 21 seconds.
const JUST_PASSED: u64 = (1 << 31) - 1;

/// A comparator with its configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Timer {
    /// The configuration without the capabilities.
    configuration: u64,
    comparator: u64,
    /// In periodic mode: the number that is added to the comparator each time.
    period: u64,
    /// The value of the main counter at which the comparator fires next.
    fires_at: Option<u64>,
    pub(super) line: IrqLine,
}

impl Default for Timer {
    fn default() -> Self {
        Self {
            configuration: 0,
            // The reset value (specification, 2.3.9).
            comparator: u64::MAX,
            period: 0,
            fires_at: None,
            line: IrqLine::low(),
        }
    }
}

impl Timer {
    fn has(&self, bits: u64) -> bool {
        self.configuration & bits != 0
    }

    pub(super) fn is_level(&self) -> bool {
        self.has(bit::LEVEL)
    }

    pub(super) fn interrupts(&self) -> bool {
        self.has(bit::INTERRUPTS)
    }

    /// Returns the I/O APIC's line, once one was chosen. The reset value, line 0, cannot be driven.
    pub(super) fn route(&self) -> Option<u8> {
        let route = (self.configuration & bit::ROUTE) >> bit::ROUTE_SHIFT;
        (ROUTES >> route & 1 != 0).then_some(route as u8)
    }

    pub(super) fn fires_at(&self) -> Option<u64> {
        self.fires_at
    }

    /// Returns a mask of the bits of counter and comparator that are compared.
    fn width(&self) -> u64 {
        match self.has(bit::USES_32_BITS) {
            true => 0xffff_ffff,
            false => u64::MAX,
        }
    }

    pub(super) fn read(&self, register: Register) -> u64 {
        match register {
            Register::Configuration => CAPABILITIES | self.configuration,
            Register::Comparator => self.comparator & self.width(),
        }
    }

    /// Writes the bits of a register that are set in `mask`.
    pub(super) fn write(&mut self, register: Register, value: u64, mask: u64) {
        match register {
            Register::Configuration => {
                let route = (value & bit::ROUTE) >> bit::ROUTE_SHIFT;
                let mut writable = bit::WRITABLE;
                // The number of a line that cannot be driven is ignored: software reads the old
                // one.
                if ROUTES >> route & 1 != 0 {
                    writable |= bit::ROUTE;
                }
                let mask = mask & writable;
                self.configuration = self.configuration & !mask | value & mask;
                if self.has(bit::USES_32_BITS) {
                    self.comparator &= 0xffff_ffff;
                    self.period &= 0xffff_ffff;
                }
            }
            Register::Comparator => {
                let mask = mask & self.width();
                if !self.has(bit::PERIODIC) || self.has(bit::SETS_VALUE) {
                    self.comparator = self.comparator & !mask | value & mask;
                }
                if self.has(bit::PERIODIC) {
                    self.period = self.period & !mask | value & mask;
                }
                self.configuration &= !bit::SETS_VALUE;
            }
        }
    }

    /// Computes when the comparator fires next. `counter` is `None` while the main counter stands
    /// still.
    pub(super) fn arm(&mut self, counter: Option<u64>) {
        self.fires_at = None;
        let Some(counter) = counter.filter(|_| self.interrupts()) else {
            return;
        };
        let ahead = match self.has(bit::USES_32_BITS) {
            true => self.comparator.wrapping_sub(counter) & 0xffff_ffff,
            false => self.comparator.wrapping_sub(counter),
        };
        let behind = match self.has(bit::USES_32_BITS) {
            true => ahead.wrapping_neg() & 0xffff_ffff,
            // A 64-bit counter does not wrap around, so a larger value has not been reached yet.
            false => counter.checked_sub(self.comparator).unwrap_or(u64::MAX),
        };
        let wait = if behind <= JUST_PASSED { 1 } else { ahead };
        self.fires_at = counter.checked_add(wait);
    }

    /// Returns how often the comparator fires until the main counter has this value.
    pub(super) fn fire(&mut self, counter: u64) -> u64 {
        let Some(at) = self.fires_at.filter(|&at| at <= counter) else {
            return 0;
        };
        let width = self.width();
        if !self.has(bit::PERIODIC) {
            // A 32-bit comparator matches again after the counter has wrapped around.
            let again = (counter - at) / (1 << 32) + 1;
            self.fires_at = match self.has(bit::USES_32_BITS) {
                true => at.checked_add(again << 32),
                false => None,
            };
            return 1;
        }
        if self.period == 0 {
            self.fires_at = None;
            return 1;
        }
        let times = (counter - at) / self.period + 1;
        let further = times.wrapping_mul(self.period);
        self.comparator = self.comparator.wrapping_add(further) & width;
        self.fires_at = at.checked_add(further);
        times
    }
}
