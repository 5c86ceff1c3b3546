//! Tests that compare every account with what really passed: the clock is simulated, and the test
//! lets time pass and keeps its own accounts.
//!
//! Where every exit is timed, the accounts must be exact, so an interval that is booked wrongly,
//! twice or not at all fails the test. Where exits are sampled, the accounts must be right to a part
//! of the whole; so there is a run for each account in which that account has much of the time.

use super::super::*;
use crate::counter::{AT_READING, LOST, TIME, pass};
use std::cell::Cell;
use std::collections::BTreeMap;

/// One nanosecond is one cycle, so that no time is lost in conversions.
pub(in crate::ledger) fn host_time() -> HostTime {
    HostTime {
        passed: TIME.get(),
        on_processor: TIME.get() - LOST.get(),
    }
}

/// The cycles of one reading of the clock, where it takes time.
const READING: u64 = 20;

fn reading_takes_time() {
    pass(READING);
}

/// What really passed, in the accounts of the ledger.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Passed {
    guest: u64,
    fast_path_calls: Vec<(ExitKind, u64)>,
    translating: u64,
    devices: u64,
    halted: u64,
    waiting: u64,
    signals: u64,
    own_cost: u64,
    exits: Vec<(ExitKind, u64)>,
}

impl Passed {
    /// What the ledger says.
    fn of(shares: &TimeShares) -> Self {
        Self {
            guest: shares.guest,
            fast_path_calls: shares.fast_path_calls.clone(),
            translating: shares.translating,
            devices: shares.devices,
            halted: shares.halted,
            waiting: shares.waiting,
            signals: shares.signals,
            own_cost: shares.own_cost,
            exits: shares.exits.clone(),
        }
    }

    fn exit(&mut self, kind: ExitKind, cycles: u64) {
        add(&mut self.exits, kind, cycles);
    }

    /// Each account, by its name.
    fn accounts(&self) -> Vec<(String, u64)> {
        let mut accounts: Vec<(String, u64)> = [
            ("guest", self.guest),
            ("translating", self.translating),
            ("devices", self.devices),
            ("halted", self.halted),
            ("waiting", self.waiting),
            ("signals", self.signals),
            ("own cost", self.own_cost),
        ]
        .map(|(name, cycles)| (name.to_owned(), cycles))
        .into();
        for kind in ExitKind::ALL {
            let of = |list: &[(ExitKind, u64)]| {
                list.iter()
                    .find(|row| row.0 == *kind)
                    .map_or(0, |row| row.1)
            };
            accounts.push((format!("{kind:?}"), of(&self.exits)));
            accounts.push((format!("{kind:?} without exit"), of(&self.fast_path_calls)));
        }
        accounts
    }
}

/// Adds to a list in the order of the kinds.
fn add(list: &mut Vec<(ExitKind, u64)>, kind: ExitKind, cycles: u64) {
    match list.binary_search_by_key(&(kind as usize), |row| row.0 as usize) {
        Ok(place) => list[place].1 += cycles,
        Err(place) => list.insert(place, (kind, cycles)),
    }
}

/// What a vCPU does between two entries of guest code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// Guest code is left for a signal: no exit is counted.
    Signal,
    /// An exit in which the monitor works alone.
    Exit,
    /// An exit that accesses a device.
    Device,
    /// An exit that needs a translation.
    Translation,
    /// An exit in which the ledger does other work.
    Aside,
    /// An exit, and a delivery that is counted as another.
    Delivery,
    /// HLT.
    Sleep,
    /// Guest code calls a function of the monitor.
    FastPath,
    /// The host runs other programs during an exit.
    WaitInExit,
    /// The host runs other programs during guest code.
    WaitInGuest,
    /// The host runs other programs during a translation.
    WaitInTranslation,
    /// The host runs other programs during a call of a function of the monitor.
    WaitInFastPath,
}

const WORK: [Work; 12] = [
    Work::Signal,
    Work::Exit,
    Work::Device,
    Work::Translation,
    Work::Aside,
    Work::Delivery,
    Work::Sleep,
    Work::FastPath,
    Work::WaitInExit,
    Work::WaitInGuest,
    Work::WaitInTranslation,
    Work::WaitInFastPath,
];

/// A ledger, and a vCPU with what really passed in it.
struct Run {
    ledger: Ledger,
    passed: Passed,
}

impl Run {
    /// A ledger whose clock takes `reading` to be read.
    fn new(reading: fn()) -> Self {
        TIME.set(1_000);
        LOST.set(0);
        AT_READING.set(reading);
        Self {
            ledger: Ledger::new(host_time, Detail::Full),
            passed: Passed::default(),
        }
    }

    /// A ledger that times every exit, with a trace or without one.
    fn that_times_every_exit(reading: fn(), is_traced: bool) -> Self {
        let mut run = Self::new(reading);
        run.ledger.sampler.set_every_exit(true);
        if is_traced {
            let (tracer, events) = crate::trace::channel();
            run.ledger.begin_trace(tracer);
            std::thread::spawn(move || while events.next_batch().is_some() {});
        }
        run
    }

    fn wait(&mut self, cycles: u64) {
        LOST.set(LOST.get() + cycles);
        pass(cycles);
        self.passed.waiting += cycles;
    }

    fn guest(&mut self, cycles: u64) {
        pass(cycles);
        self.passed.guest += cycles;
    }

    fn exit(&mut self, kind: ExitKind, cycles: u64) {
        pass(cycles);
        self.passed.exit(kind, cycles);
    }

    /// Leaves guest code, does this work, which takes about `cycles`, and enters guest code.
    fn do_work(&mut self, work: Work, cycles: u64) {
        self.ledger.leave_guest();
        self.work_outside(work, cycles);
        self.ledger.enter_guest();
        self.guest(cycles / 3 + 1);
        match work {
            Work::WaitInGuest => self.wait(LONG + cycles),
            Work::FastPath | Work::WaitInFastPath => {
                let kind = ExitKind::Cr3Load;
                let call = self.ledger.begin_fast_path_call(kind);
                // Calls of this length are all timed.
                let cycles = 3_000 + cycles % 3_000;
                pass(cycles);
                if work == Work::WaitInFastPath {
                    self.wait(LONG + cycles);
                }
                self.ledger.end_fast_path_call(call, kind, kind);
                add(&mut self.passed.fast_path_calls, kind, cycles);
            }
            _ => {}
        }
    }

    fn work_outside(&mut self, work: Work, cycles: u64) {
        let kind = match work {
            Work::Signal => {
                pass(cycles);
                self.passed.signals += cycles;
                return;
            }
            Work::Device => ExitKind::PortIn,
            Work::Translation | Work::WaitInTranslation => ExitKind::LinkMiss,
            Work::Aside => ExitKind::Cpuid,
            Work::Sleep => ExitKind::Halt,
            _ => ExitKind::Cli,
        };
        self.ledger.count(kind, Place::default());
        self.exit(kind, cycles / 4 + 1);
        match work {
            Work::Device => {
                if self.ledger.is_sampling() {
                    self.ledger.at_device(DeviceAddress::Port(0x3f8));
                    let begin = self.ledger.now();
                    pass(cycles);
                    let taken = self.ledger.now() - begin;
                    self.ledger.in_devices(taken);
                } else {
                    pass(cycles);
                }
                self.passed.devices += cycles;
            }
            Work::Translation => {
                self.ledger.translate(|| pass(cycles));
                self.passed.translating += cycles;
            }
            Work::WaitInTranslation => {
                self.ledger.translate(|| {
                    LOST.set(LOST.get() + LONG);
                    pass(LONG + cycles);
                });
                self.passed.translating += cycles;
                self.passed.waiting += LONG;
            }
            Work::Aside => {
                let cycles = cycles % LONGEST_ENTRY;
                self.ledger.aside(|| pass(cycles));
                self.passed.own_cost += cycles;
            }
            Work::Delivery => {
                self.ledger
                    .count(ExitKind::InterruptDelivered, Place::default());
                self.exit(ExitKind::InterruptDelivered, cycles);
            }
            Work::Sleep => {
                self.ledger.sleep(|| {
                    LOST.set(LOST.get() + cycles);
                    pass(cycles);
                });
                self.passed.halted += cycles;
                let taken = TIME.get();
                let request = Request {
                    taken,
                    ..Request::default()
                };
                self.ledger.request_taken(request, 0);
            }
            Work::WaitInExit => self.wait(LONG + cycles),
            _ => {}
        }
        self.exit_after(kind, work, cycles);
    }

    /// The rest of an exit, after the work in it.
    fn exit_after(&mut self, kind: ExitKind, work: Work, cycles: u64) {
        let kind = match work {
            Work::Delivery => ExitKind::InterruptDelivered,
            _ => kind,
        };
        self.exit(kind, cycles / 5);
    }

    /// Ends the run and returns what the ledger says.
    fn stop(&mut self) -> TimeShares {
        self.ledger.leave_guest();
        self.ledger.stop();
        self.ledger.end_trace();
        AT_READING.set(|| ());
        self.ledger.shares()
    }
}

/// Pseudo-random numbers, the same in each run.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(2 * seed + 1);
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 11
    }
}

/// Does random work of all kinds, short and long.
fn do_random_work(run: &mut Run, seed: u64, rounds: u64) {
    let mut random = random(seed);
    run.ledger.start();
    run.ledger.enter_guest();
    for _ in 0..rounds {
        let work = WORK[(random() % WORK.len() as u64) as usize];
        let longest = [300, 3_000, 30_000, 300_000][(random() % 4) as usize];
        run.do_work(work, 1 + random() % longest);
    }
}

#[test]
fn where_every_exit_is_timed_every_account_is_exact() {
    for (seed, is_traced) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut run = Run::that_times_every_exit(|| (), is_traced);
        do_random_work(&mut run, seed, 5_000);
        let shares = run.stop();
        assert_eq!(Passed::of(&shares), run.passed, "{seed} {is_traced}");
        assert_eq!(shares.remainder(), 0, "{seed} {is_traced}: {shares:?}");
    }
}

#[test]
fn the_time_of_the_clock_itself_is_booked_too() {
    for (seed, is_traced) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut run = Run::that_times_every_exit(reading_takes_time, is_traced);
        do_random_work(&mut run, seed, 5_000);
        let shares = run.stop();
        // The reading with which the end of the run begins, and two at the start of a trace.
        let unbooked = if is_traced { 3 * READING } else { READING };
        let remainder = shares.remainder();
        assert_eq!(remainder, unbooked as i64, "{seed} {is_traced}: {shares:?}");
    }
}

#[test]
fn readings_around_exits_that_may_be_long_are_booked() {
    // Exits this far apart are all timed. They are alike, so samples are exact, and a reading takes
    // long, so that it shows.
    const CYCLES: u64 = 9_000;
    const LONG_READING: u64 = 200;
    thread_local! {
        static READINGS: Cell<u64> = const { Cell::new(0) };
    }
    let mut run = Run::new(|| {
        READINGS.set(READINGS.get() + 1);
        pass(LONG_READING);
    });
    READINGS.set(0);
    run.ledger.start();
    run.ledger.enter_guest();
    for _ in 0..100_000 {
        run.do_work(Work::Exit, CYCLES);
    }
    let shares = run.stop();
    let part = |cycles: u64| cycles as f64 / shares.wall as f64;
    let readings = READINGS.get() * LONG_READING;
    assert!(part(readings) > 0.04, "{readings}: {shares:?}");
    let off = part(shares.own_cost.abs_diff(readings));
    assert!(off < 0.001, "{readings}: {shares:?}");
    let off = part(shares.remainder().unsigned_abs());
    assert!(off < 0.001, "{off}: {shares:?}");
}

#[test]
fn where_exits_are_sampled_no_account_is_far_off() {
    // Samples stand for others, so an account may be off by a twelfth of the whole. An account
    // that gets nothing, or what belongs to another one, is off by more: each has a larger part in
    // one of the runs.
    const PART: f64 = 1.0 / 12.0;
    let mut largest: BTreeMap<String, f64> = BTreeMap::new();
    for work in WORK {
        for (often, cycles) in [(4, 600), (4, 9_000), (100, 60_000)] {
            let mut random = random(often);
            let mut run = Run::new(|| ());
            run.ledger.start();
            run.ledger.enter_guest();
            for _ in 0..200_000 {
                match random() % often {
                    0 => run.do_work(work, cycles),
                    _ => run.do_work(Work::Exit, 200 + random() % 50),
                }
            }
            let shares = run.stop();
            let part = |cycles: u64| cycles as f64 / shares.wall as f64;
            let said = Passed::of(&shares).accounts().into_iter();
            for ((name, said), (_, passed)) in said.zip(run.passed.accounts()) {
                let off = part(said.abs_diff(passed));
                let what = format!("{work:?} {often} {cycles}: {name}: {said} of {passed}");
                assert!(off < PART, "{what}");
                let most = largest.entry(name).or_default();
                *most = most.max(part(passed));
            }
            let off = shares.remainder() as f64 / shares.wall as f64;
            assert!(off.abs() < PART, "{work:?} {often} {cycles}: {off}");
        }
    }
    largest.retain(|_, most| *most > 0.0);
    assert!(
        largest.values().all(|most| *most > 1.5 * PART),
        "{largest:?}"
    );
}
