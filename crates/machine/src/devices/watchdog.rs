//! A watchdog: Intel's 6300ESB (data sheet 300641, chapter 16), as QEMU has it, for which Linux has a
//! driver.
//!
//! ```text
//!   guest -- unlock, reload -->  stage 1  -- timer 1 over -->  stage 2  -- timer 2 over --> reset
//!                                   ^                                          |
//!                                   +------------------ reload ----------------+
//! ```
//!
//! The two timers count down one after the other. A write of 80h and 86h to the reload register unlocks
//! the next write, so that no stray store keeps a machine alive that has failed.

use super::pci::config_space::{BarKind, ConfigSpace, Identity};
use super::pci::function::PciFunction;
use crate::bus::{DeviceContext, SavedState, StateError};
use serde::{Deserialize, Serialize};
use tollgate_platform::{GuestTime, ResetCause, StopRequest};

const IDENTITY: Identity = Identity {
    vendor: 0x8086,
    device: 0x25ab,
    revision: 0,
    // A system peripheral of no particular kind.
    class: 0x08_80_00,
    subsystem_vendor: 0x1af4,
    subsystem: 0x1100,
};

/// In the configuration space: the configuration register (16.4.15), 16 bits.
const CONFIGURATION: usize = 0x60;
/// In it: no reset at the end of stage 2.
const NO_REBOOT: u16 = 1 << 5;
/// In it: the timers count in microseconds instead of milliseconds.
const FAST: u16 = 1 << 2;
/// In the configuration space: the lock register (16.4.16), 8 bits.
const LOCK: usize = 0x68;
/// In it: the register cannot be changed until a reset.
const LOCKED: u8 = 1 << 0;
/// In it: the watchdog runs.
const ENABLED: u8 = 1 << 1;

/// In the memory window: the two timers, 20 bits each, and the reload register.
const TIMER_1: u64 = 0x0;
const TIMER_2: u64 = 0x4;
const RELOAD: u64 = 0xc;
/// In the reload register: stage 1 begins again.
const BEGIN_AGAIN: u32 = 1 << 8;
/// In the reload register: the watchdog has reset the machine; written, this is cleared.
const HAS_TIMED_OUT: u32 = 1 << 9;
/// The bits of a timer.
const TIMER_BITS: u32 = 0xf_ffff;
/// The period of the bus's clock in nanoseconds (33 MHz), of which a tick takes 2^15 or 2^5.
const CLOCK: u64 = 30;

/// What the next write of a register does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
enum Unlock {
    /// The write has no effect.
    #[default]
    Shut,
    /// It may be the second word.
    HalfOpen,
    /// The register takes its value.
    Open,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    timers: [u32; 2],
    unlock: Unlock,
    /// The stage that runs and its end.
    running: Option<(usize, GuestTime)>,
    has_timed_out: bool,
}

/// The watchdog's registers and timers.
#[derive(Debug)]
pub struct Watchdog {
    config: ConfigSpace,
    state: State,
}

impl Default for Watchdog {
    fn default() -> Self {
        let mut config = ConfigSpace::new(&IDENTITY);
        config.add_bar(0, BarKind::Memory32, 16);
        config.make_writable(CONFIGURATION..CONFIGURATION + 2);
        config.make_writable(LOCK..LOCK + 1);
        let mut watchdog = Self {
            config,
            state: State::default(),
        };
        watchdog.after_reset();
        watchdog
    }
}

impl Watchdog {
    /// Version of the saved state.
    const STATE_VERSION: u32 = 1;

    fn lock(&self) -> u8 {
        self.config.u16(LOCK) as u8
    }

    /// Begins a stage.
    fn begin(&mut self, stage: usize, now: GuestTime) {
        let shift = match self.config.u16(CONFIGURATION) & FAST {
            0 => 15,
            _ => 5,
        };
        let ticks = u64::from(self.state.timers[stage]);
        self.state.running = Some((stage, now.after((ticks << shift) * CLOCK)));
    }

    fn write(&mut self, register: u64, value: u32, now: GuestTime) {
        let unlock = std::mem::take(&mut self.state.unlock);
        match (register, unlock) {
            (RELOAD, Unlock::Shut) if value == 0x80 => self.state.unlock = Unlock::HalfOpen,
            (RELOAD, Unlock::HalfOpen) if value == 0x86 => self.state.unlock = Unlock::Open,
            (RELOAD, Unlock::Open) => {
                if value & BEGIN_AGAIN != 0 && self.lock() & ENABLED != 0 {
                    self.begin(0, now);
                }
                if value & HAS_TIMED_OUT != 0 {
                    self.state.has_timed_out = false;
                }
            }
            (TIMER_1, Unlock::Open) => self.state.timers[0] = value & TIMER_BITS,
            (TIMER_2, Unlock::Open) => self.state.timers[1] = value & TIMER_BITS,
            _ => {}
        }
    }
}

impl PciFunction for Watchdog {
    fn name(&self) -> &str {
        "i6300esb"
    }

    fn config(&self) -> &ConfigSpace {
        &self.config
    }

    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn config_write(&mut self, offset: usize, data: &[u8], context: &mut DeviceContext<'_>) {
        let before = self.lock();
        self.config.write(offset, data);
        if before & LOCKED != 0 {
            self.config.write(LOCK, &[before]);
        }
        match (before & ENABLED, self.lock() & ENABLED) {
            (0, ENABLED) => self.begin(0, context.now()),
            (ENABLED, 0) => self.state.running = None,
            _ => {}
        }
    }

    fn bar_read(
        &mut self,
        _bar: usize,
        offset: u64,
        data: &mut [u8],
        _context: &mut DeviceContext<'_>,
    ) {
        data.fill(0);
        if offset == RELOAD && self.state.has_timed_out {
            let bytes = HAS_TIMED_OUT.to_le_bytes();
            for (byte, value) in data.iter_mut().zip(bytes) {
                *byte = value;
            }
        }
    }

    fn bar_write(
        &mut self,
        _bar: usize,
        offset: u64,
        data: &[u8],
        context: &mut DeviceContext<'_>,
    ) {
        let mut bytes = [0; 4];
        for (byte, value) in bytes.iter_mut().zip(data) {
            *byte = *value;
        }
        self.write(offset, u32::from_le_bytes(bytes), context.now());
    }

    fn deadline(&self, _context: &DeviceContext<'_>) -> Option<GuestTime> {
        self.state.running.map(|(_, end)| end)
    }

    fn advance(&mut self, context: &mut DeviceContext<'_>) {
        let now = context.now();
        match self.state.running {
            Some((0, end)) if end <= now => self.begin(1, now),
            Some((_, end)) if end <= now => {
                self.state.running = None;
                if self.config.u16(CONFIGURATION) & NO_REBOOT == 0 {
                    self.state.has_timed_out = true;
                    context.request_stop(StopRequest::Reset(ResetCause::Watchdog));
                }
            }
            _ => {}
        }
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {
        self.state = State {
            has_timed_out: self.state.has_timed_out,
            ..State::default()
        };
    }

    fn after_reset(&mut self) {
        self.state.timers = [TIMER_BITS; 2];
    }

    fn save(&self) -> SavedState {
        SavedState::of(Self::STATE_VERSION, &self.state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        self.state = saved.read(Self::STATE_VERSION)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A watchdog whose timers end after 2 and 3 ticks, running from time 0.
    fn running() -> Watchdog {
        let mut watchdog = Watchdog::default();
        for (register, value) in [(TIMER_1, 2), (TIMER_2, 3)] {
            unlock(&mut watchdog);
            watchdog.write(register, value, GuestTime(0));
        }
        watchdog.config.write(LOCK, &[ENABLED]);
        watchdog.begin(0, GuestTime(0));
        watchdog
    }

    fn unlock(watchdog: &mut Watchdog) {
        watchdog.write(RELOAD, 0x80, GuestTime(0));
        watchdog.write(RELOAD, 0x86, GuestTime(0));
    }

    #[test]
    fn a_register_is_written_only_after_two_words() {
        let mut watchdog = running();
        watchdog.write(TIMER_1, 9, GuestTime(0));
        assert_eq!(watchdog.state.timers, [2, 3]);
        watchdog.write(RELOAD, 0x80, GuestTime(0));
        watchdog.write(RELOAD, 0x80, GuestTime(0));
        watchdog.write(RELOAD, 0x86, GuestTime(0));
        watchdog.write(TIMER_1, 9, GuestTime(0));
        assert_eq!(watchdog.state.timers, [2, 3]);
    }

    #[test]
    fn a_reload_begins_the_first_stage_again() {
        let tick = CLOCK << 15;
        let mut watchdog = running();
        assert_eq!(watchdog.state.running, Some((0, GuestTime(2 * tick))));
        unlock(&mut watchdog);
        watchdog.write(RELOAD, BEGIN_AGAIN, GuestTime(tick));
        assert_eq!(watchdog.state.running, Some((0, GuestTime(3 * tick))));
        watchdog.write(RELOAD, BEGIN_AGAIN, GuestTime(2 * tick));
        assert_eq!(watchdog.state.running, Some((0, GuestTime(3 * tick))));
    }
}
