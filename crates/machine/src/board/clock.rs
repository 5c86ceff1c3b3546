//! The guest's two clocks: guest time, which follows the host's monotonic clock, and the time-stamp
//! counter, which follows the host's. Both stand still while the machine is paused. After the pause
//! they either continue from there, or jump to where they would be without the pause.

use std::arch::x86_64::_rdtsc;
use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tollgate_platform::GuestTime;

use crate::board::local_apic::{Clock, ClockSource};

/// How long the time-stamp counter is measured if the processor does not report its frequency. The
/// error is some tens of nanoseconds in 5 ms: less than 20 ppm.
const MEASUREMENT: Duration = Duration::from_millis(5);
/// How long the first reading of a measurement can be used. The counter may run on while the host
/// is suspended, which the host's clock does not count.
const LONGEST_MEASUREMENT: Duration = Duration::from_secs(1);
/// The number of readings from which the least disturbed one is taken.
const READINGS: u32 = 16;
/// The number of pairs of readings from which the least disturbed one is taken.
const PAIRED_READINGS: u32 = 4;

/// After a reading of the host's monotonic clock, guest time is computed from the time-stamp
/// counter for 1/`READING_HOLDS` of a millisecond. The two clocks drift apart by some 5 ns in this
/// time.
const READING_HOLDS: u64 = 4;
/// If the counter advances by this many cycles or more during a reading, the reading was
/// interrupted.
const LONGEST_READING: u64 = 4000;

/// The maximum number of counts for which a reading is valid. Multiplied by the scale, which is
/// less than 2^42 for counters above 1 MHz, they fit in 64 bits.
const MOST_COUNTS: u64 = 1 << 22;

/// A reading of the host's monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    /// The host's counter just after the reading.
    tsc: u64,
    /// The guest time of the reading.
    time: u64,
    /// For how many counts of the counter the reading is valid; zero if it is invalid.
    holds: u64,
}

/// The guest's clocks.
#[derive(Debug)]
pub struct GuestClock {
    /// The guest time when the clock was last started or stopped.
    time_base: GuestTime,
    /// The time-stamp counter at that moment.
    tsc_base: u64,
    /// The host instant and the host counter when the clock was last started; `None` while it is
    /// paused.
    running_since: Option<(Instant, u64)>,
    /// The host instant and the host counter when the clock was last paused.
    paused_since: Option<(Instant, u64)>,
    tsc_khz: u64,
    /// The length of a count of the counter in nanoseconds, times 2^32.
    scale: u64,
    /// The latest reading since the clock was started.
    reading: Cell<Reading>,
    /// The latest guest time that was returned since the clock was started.
    told: Cell<u64>,
}

impl GuestClock {
    /// Makes running clocks that start at zero.
    pub fn start() -> Self {
        Self::start_from(GuestTime(0), 0)
    }

    /// Makes running clocks that start at these values.
    pub fn start_from(time: GuestTime, tsc: u64) -> Self {
        let mut clock = Self::paused_at(time, tsc);
        clock.resume();
        clock
    }

    /// Makes paused clocks with these values.
    pub fn paused_at(time: GuestTime, tsc: u64) -> Self {
        let tsc_khz = host_tsc_khz();
        Self {
            time_base: time,
            tsc_base: tsc,
            running_since: None,
            paused_since: None,
            tsc_khz,
            scale: (1_000_000 << 32) / tsc_khz.max(1),
            reading: Cell::default(),
            told: Cell::default(),
        }
    }

    /// Returns the present guest time. It never goes backwards.
    #[inline]
    pub fn now(&self) -> GuestTime {
        let Some((instant, _)) = self.running_since else {
            return self.time_base;
        };
        let Reading { tsc, time, holds } = self.reading.get();
        let since = host_tsc().wrapping_sub(tsc);
        let time = match since < holds {
            true => time.saturating_add((since * self.scale) >> 32),
            false => self.read_host(instant),
        };
        let told = self.told.get().max(time);
        self.told.set(told);
        GuestTime(told)
    }

    /// Reads guest time from the host's monotonic clock.
    #[cold]
    fn read_host(&self, started: Instant) -> u64 {
        let before = host_tsc();
        let time = self.time_base.after(nanoseconds(started.elapsed())).0;
        let tsc = host_tsc();
        let holds = match tsc.wrapping_sub(before) < LONGEST_READING {
            true => self.tsc_khz / READING_HOLDS,
            false => 0,
        };
        let holds = holds.min(MOST_COUNTS);
        self.reading.set(Reading { tsc, time, holds });
        time
    }

    /// Returns the present value of the guest's time-stamp counter.
    pub fn time_stamp(&self) -> u64 {
        match self.running_since {
            Some((_, tsc)) => self.tsc_base.wrapping_add(host_tsc().saturating_sub(tsc)),
            None => self.tsc_base,
        }
    }

    /// Reads both clocks at the same moment: of a few pairs of readings, the one that the host
    /// disturbed least.
    pub fn paired(&self) -> Clock {
        if self.is_paused() {
            return self.clock();
        }
        let reading = || {
            let before = self.time_stamp();
            let now = self.now();
            (self.time_stamp().wrapping_sub(before), now, before)
        };
        let readings = (0..PAIRED_READINGS).map(|_| reading());
        let best = readings.min_by_key(|&(took, ..)| took);
        let (_, now, tsc) = best.unwrap_or_else(reading);
        let tsc_khz = self.tsc_khz;
        Clock { now, tsc, tsc_khz }
    }

    /// Returns how many ticks the time-stamp counter makes in a millisecond.
    pub fn tsc_khz(&self) -> u64 {
        self.tsc_khz
    }

    /// Returns the difference between the guest's counter and the host's, for generated code that
    /// reads the latter directly. It changes with each pause, and is meaningless during one.
    pub fn host_tsc_offset(&self) -> u64 {
        let (_, tsc) = self.running_since.unwrap_or((Instant::now(), host_tsc()));
        self.tsc_base.wrapping_sub(tsc)
    }

    /// Stops both clocks.
    pub fn pause(&mut self) {
        let (time, tsc) = (self.now(), self.time_stamp());
        (self.time_base, self.tsc_base) = (time, tsc);
        if self.running_since.take().is_some() {
            self.paused_since = Some((Instant::now(), host_tsc()));
        }
        self.reading.set(Reading::default());
        self.told.set(0);
    }

    /// Lets both clocks continue from where they stopped.
    pub fn resume(&mut self) {
        if self.running_since.is_none() {
            self.running_since = Some((Instant::now(), host_tsc()));
        }
    }

    /// Lets both clocks continue as if there had been no pause.
    pub fn resume_and_catch_up(&mut self) {
        if self.running_since.is_none() {
            self.running_since = self.paused_since;
            self.resume();
        }
    }

    /// Whether the clocks stand still.
    pub fn is_paused(&self) -> bool {
        self.running_since.is_none()
    }
}

impl ClockSource for GuestClock {
    fn clock(&self) -> Clock {
        Clock {
            now: self.now(),
            tsc: self.time_stamp(),
            tsc_khz: self.tsc_khz,
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn host_tsc() -> u64 {
    // SAFETY: RDTSC is available to every process that has not disabled it for itself.
    unsafe { _rdtsc() }
}

/// Returns the host counter's frequency, which is determined once in a process.
fn host_tsc_khz() -> u64 {
    static FREQUENCY: OnceLock<u64> = OnceLock::new();
    *FREQUENCY.get_or_init(|| crystal_khz().unwrap_or_else(measured_khz))
}

/// Returns the frequency that CPUID leaf 15h reports, if the leaf is complete (SDM volume 2A,
/// CPUID).
fn crystal_khz() -> Option<u64> {
    use std::arch::x86_64::__cpuid;
    const TSC_LEAF: u32 = 0x15;
    if __cpuid(0).eax < TSC_LEAF {
        return None;
    }
    let fast_path = __cpuid(TSC_LEAF);
    let hertz =
        u64::from(fast_path.ecx) * u64::from(fast_path.ebx) / u64::from(fast_path.eax.max(1));
    // Some virtual hosts report nonsense; no processor with this fast path runs below 100 MHz.
    (fast_path.eax != 0 && hertz > 100_000_000).then_some(hertz / 1000)
}

/// Reads both host clocks, as close together as possible.
fn paired_reading() -> (Instant, u64) {
    (0..READINGS)
        .map(|_| {
            let before = host_tsc();
            let instant = Instant::now();
            let after = host_tsc();
            let width = after.saturating_sub(before);
            (width, instant, before.wrapping_add(width / 2))
        })
        .min_by_key(|reading| reading.0)
        .map_or_else(
            || (Instant::now(), host_tsc()),
            |reading| (reading.1, reading.2),
        )
}

/// The first reading of the measurement of the counter's frequency.
static FIRST_READING: OnceLock<(Instant, u64)> = OnceLock::new();

/// Takes the first of the two readings from which the frequency of the host's time-stamp counter is
/// computed. A process that will make a machine calls this early: then the machine need not wait
/// for the second reading.
pub fn begin_frequency_measurement() {
    FIRST_READING.get_or_init(paired_reading);
}

fn measured_khz() -> u64 {
    let early = FIRST_READING.get().copied();
    let early = early.filter(|(start, _)| start.elapsed() < LONGEST_MEASUREMENT);
    let (start, start_tsc) = early.unwrap_or_else(paired_reading);
    std::thread::sleep(MEASUREMENT.saturating_sub(start.elapsed()));
    let (end, end_tsc) = paired_reading();
    let ticks = u128::from(end_tsc.saturating_sub(start_tsc));
    let elapsed = (end - start).as_nanos().max(1);
    u64::try_from(ticks * 1_000_000 / elapsed)
        .unwrap_or(u64::MAX)
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_can_catch_up_after_a_pause() {
        let began = Instant::now();
        let mut clock = GuestClock::start();
        clock.pause();
        let (time, tsc) = (clock.now(), clock.time_stamp());
        let paused = Instant::now();
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!((clock.now(), clock.time_stamp()), (time, tsc));
        let least = nanoseconds(paused.elapsed());
        clock.resume_and_catch_up();
        let passed = clock.now().0 - time.0;
        let ticks = clock.time_stamp() - tsc;
        let most = nanoseconds(began.elapsed());
        assert!((least..=most).contains(&passed), "{least} {passed} {most}");
        assert!(ticks >= least / 1_000_000 * clock.tsc_khz() * 99 / 100);
        // The next pause is independent of this one.
        clock.pause();
        clock.resume();
        assert!(clock.now().0 - time.0 <= nanoseconds(began.elapsed()));
        // A clock that was never paused continues from its initial values.
        let mut other = GuestClock::paused_at(GuestTime(5), 7);
        let resumed = Instant::now();
        other.resume_and_catch_up();
        assert!(other.now().0 - 5 <= nanoseconds(resumed.elapsed()));
    }

    #[test]
    fn both_clocks_stand_still_while_paused() {
        let mut clock = GuestClock::start();
        clock.pause();
        let (time, tsc) = (clock.now(), clock.time_stamp());
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!((clock.now(), clock.time_stamp()), (time, tsc));
        clock.resume();
        assert!(clock.now().since(time) < 1_000_000_000);
        std::thread::sleep(Duration::from_millis(2));
        assert!(clock.now().since(time) >= 2_000_000);
        assert!(clock.time_stamp() > tsc);
    }

    #[test]
    fn time_never_goes_back_and_keeps_to_the_host_s_clock() {
        let clock = GuestClock::start();
        let mut last = clock.now();
        for _ in 0..200_000 {
            let before = Instant::now();
            let now = clock.now();
            assert!(now >= last);
            last = now;
            let Some((started, _)) = clock.running_since else {
                unreachable!("the clock was started");
            };
            // The accuracy of the counter's frequency is 0.5 %, for a quarter of a millisecond:
            // above the reading before it and below the one after it.
            const SLACK: u64 = 1250;
            assert!(now.0 + SLACK >= nanoseconds(before - started));
            assert!(now.0 <= nanoseconds(started.elapsed()) + SLACK);
        }
    }

    #[test]
    fn a_measurement_that_began_early_has_the_same_result() {
        let measured = measured_khz();
        begin_frequency_measurement();
        let again = measured_khz();
        assert!(
            measured.abs_diff(again) < measured / 200,
            "{measured} {again}"
        );
    }

    #[test]
    fn the_counter_runs_at_its_frequency() {
        let clock = GuestClock::start();
        let first = clock.clock();
        std::thread::sleep(Duration::from_millis(50));
        let second = clock.clock();
        let ticks = second.tsc - first.tsc;
        let expected = second.now.since(first.now) * clock.tsc_khz() / 1_000_000;
        // Guest time as a whole is guaranteed to 0.5 %.
        assert!(
            ticks.abs_diff(expected) < expected / 200,
            "{ticks} {expected}"
        );
    }

    #[test]
    fn clocks_go_on_from_given_values() {
        let clock = GuestClock::start_from(GuestTime(1 << 40), 1 << 50);
        assert!(clock.now().0 >= 1 << 40);
        assert!(clock.time_stamp() >= 1 << 50);
        let offset = clock.host_tsc_offset();
        assert!(host_tsc().wrapping_add(offset) >= 1 << 50);
    }
}
