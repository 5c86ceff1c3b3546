//! A machine whose devices all return random values, and which ends after some time.

use crate::mutate::Random;
use std::time::Instant;
use tollgate_platform::{BareMachine, GuestTime, StopRequest};
use tollgate_x86::PhysicalAddress;

/// A write to this port ends the run.
pub const STOP_PORT: u16 = 0xf4;
/// How long a guest may run, in nanoseconds.
pub const TIME_LIMIT: u64 = 1_000_000;
/// Maximum number of calls to the machine.
const MAX_ACCESSES: u32 = 4000;

/// The parameters of the random behaviour.
#[derive(Clone, Copy, Debug)]
pub struct NoiseSettings {
    /// The start of the random sequence.
    pub seed: u64,
    /// An interrupt is pending in one of this number of cases; 0 for never.
    pub interrupts: u8,
    /// Nanoseconds between two timer signals.
    pub tick: u32,
}

/// The machine with random devices.
pub struct Noise {
    start: Instant,
    random: Random,
    settings: NoiseSettings,
    accesses: u32,
    stopped: bool,
}

impl Noise {
    pub fn new(settings: NoiseSettings) -> Self {
        Self {
            start: Instant::now(),
            random: Random::new(settings.seed),
            settings,
            accesses: 0,
            stopped: false,
        }
    }

    /// Whether the guest ended the run itself.
    pub fn was_stopped(&self) -> bool {
        self.stopped
    }

    fn access(&mut self) -> u64 {
        self.accesses += 1;
        self.random.bits()
    }
}

impl BareMachine for Noise {
    fn port_read(&mut self, _port: u16, _size: u8) -> u32 {
        self.access() as u32
    }
    fn port_write(&mut self, port: u16, size: u8, _value: u32) {
        assert!(matches!(size, 1 | 2 | 4));
        self.access();
        self.stopped |= port == STOP_PORT;
    }
    fn memory_read(&mut self, _address: PhysicalAddress, data: &mut [u8]) {
        assert!((1..=64).contains(&data.len()));
        data.fill(self.access() as u8);
    }
    fn memory_write(&mut self, _address: PhysicalAddress, data: &[u8]) {
        assert!((1..=64).contains(&data.len()));
        self.access();
    }
    fn interrupt_pending(&mut self) -> bool {
        let rate = u64::from(self.settings.interrupts);
        rate != 0 && self.access().is_multiple_of(rate)
    }
    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        let answer = self.access();
        (answer & 0x700 != 0).then_some(answer as u8)
    }
    fn take_nmi(&mut self) -> bool {
        self.settings.interrupts != 0 && self.access().is_multiple_of(64)
    }
    fn now(&self) -> GuestTime {
        GuestTime(self.start.elapsed().as_nanos() as u64)
    }
    fn next_deadline(&self) -> Option<GuestTime> {
        let next = self.now().after(self.settings.tick.into());
        Some(next.min(GuestTime(TIME_LIMIT)))
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        let over = self.stopped || self.accesses > MAX_ACCESSES || self.now().0 >= TIME_LIMIT;
        over.then_some(StopRequest::Quit)
    }
}
