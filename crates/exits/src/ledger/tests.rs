pub(super) mod exact;

use super::*;
use crate::counter::{AT_READING, LOST, TIME, pass};
use crate::sampler::GROUP;
use std::cell::Cell;

fn host_time() -> HostTime {
    AT_READING.get()();
    HostTime {
        passed: TIME.get() / 2,
        on_processor: (TIME.get() - LOST.get()) / 2,
    }
}

/// Time passes while the thread is not scheduled.
fn wait(cycles: u64) {
    LOST.set(LOST.get() + cycles);
    pass(cycles);
}

/// The request, taken now.
fn taken(request: Request) -> Request {
    Request {
        taken: TIME.get(),
        ..request
    }
}

fn ledger() -> Ledger {
    TIME.set(1000);
    LOST.set(0);
    Ledger::new(host_time, Detail::Full)
}

#[test]
fn a_purge_is_part_of_the_exit_that_was_counted_last() {
    let mut ledger = ledger();
    ledger.start();
    ledger.leave_guest();
    ledger.count(ExitKind::Cr3Load, Place::default());
    ledger.purged(700);
    let before = ledger.accounts().clone();
    ledger.count(ExitKind::Invlpg, Place::default());
    ledger.purged(300);
    // No purge takes that long by itself.
    ledger.purged(INTERRUPTED_BY_HOST);
    ledger.enter_guest();
    ledger.stop();
    let purging = ledger.shares().purging;
    let parts = [(ExitKind::Cr3Load, 700), (ExitKind::Invlpg, 300)];
    assert!(purging.len() == 2 && parts.iter().all(|part| purging.contains(part)));
    let since = ledger.accounts().since(&before);
    assert_eq!(since.shares().purging, [(ExitKind::Invlpg, 300)]);
}

#[test]
fn time_is_told_apart_and_adds_up() {
    let mut ledger = ledger();
    ledger.start();
    for _ in 0..100 {
        ledger.leave_guest();
        ledger.count(ExitKind::Cli, Place::default());
        pass(300);
        ledger.count(ExitKind::InterruptDelivered, Place::default());
        pass(700);
        ledger.translate(|| pass(5000));
        ledger.enter_guest();
        pass(100_000);
    }
    ledger.leave_guest();
    ledger.stop();
    let shares = ledger.shares();
    assert_eq!(shares.guest, 100 * 100_000);
    assert_eq!(shares.translating, 100 * 5000);
    assert_eq!(
        shares.exits,
        vec![
            (ExitKind::Cli, 30_000),
            (ExitKind::InterruptDelivered, 70_000)
        ]
    );
    assert_eq!(shares.remainder(), 0);
    assert_eq!(ledger.cost(ExitKind::Cli).unwrap().samples, 100);
}

#[test]
fn frequent_exits_are_sampled_and_scaled() {
    let mut ledger = ledger();
    ledger.start();
    for _ in 0..1_000_000 {
        ledger.leave_guest();
        ledger.count(ExitKind::Cli, Place::default());
        pass(100);
        ledger.enter_guest();
        pass(50);
    }
    ledger.leave_guest();
    ledger.stop();
    let shares = ledger.shares();
    let samples = ledger.cost(ExitKind::Cli).unwrap().samples;
    assert!(samples < 20_000, "{samples}");
    assert_eq!(ledger.counts().get(ExitKind::Cli), 1_000_000);
    let off = shares.remainder().unsigned_abs() as f64 / shares.wall as f64;
    assert!(off < 0.02, "{off}");
}

thread_local! {
    static READ_LAST: Cell<u64> = const { Cell::new(0) };
}

/// A reading of the clock that takes longer if the processor has done other work since the last
/// one.
fn reading_that_disturbs() {
    let has_worked = TIME.get() != READ_LAST.get();
    pass(if has_worked { 20 + 12 } else { 20 });
    READ_LAST.set(TIME.get());
}

#[test]
fn exits_are_told_as_long_as_those_that_nobody_times() {
    let mut ledger = ledger();
    AT_READING.set(reading_that_disturbs);
    ledger.clock_cost = 20;
    ledger.start();
    for round in 0_u64..2_000_000 {
        ledger.leave_guest();
        ledger.count(ExitKind::Cli, Place::default());
        // Some exits differ from the others, and some need a translation.
        pass(if round % 97 == 0 { 1_000 } else { 200 });
        if round % 1_000 == 0 {
            ledger.translate(|| pass(60_000));
        }
        ledger.enter_guest();
        pass(100);
    }
    ledger.leave_guest();
    ledger.stop();
    AT_READING.set(|| ());
    let shares = ledger.shares();
    let off = shares.remainder() as f64 / shares.wall as f64;
    assert!(off.abs() < 0.01, "{off}: {shares:?}");
    let cost = ledger.cost(ExitKind::Cli).unwrap();
    assert!((198..=202).contains(&cost.p50), "{cost:?}");
}

#[test]
fn time_that_the_host_gave_to_others_spoils_no_sample() {
    let mut ledger = ledger();
    ledger.start();
    for round in 0..200_000 {
        ledger.leave_guest();
        ledger.count(ExitKind::Cli, Place::default());
        pass(100);
        if round % 64 == 0 {
            ledger.translate(|| pass(300));
        }
        // Both samples and other intervals are interrupted, in exits and in guest code.
        if round % 501 == 0 {
            wait(300_000);
        }
        if round % 5000 == 0 {
            ledger.request_taken(taken(Request::default()), 0);
        }
        ledger.enter_guest();
        pass(50);
        if round % 507 == 0 {
            wait(200_000);
        }
    }
    ledger.leave_guest();
    ledger.stop();
    let shares = ledger.shares();
    assert!(shares.waiting.abs_diff(LOST.get()) < 10);
    let exits = shares.exits[0].1 as f64;
    assert!((exits / 20e6 - 1.0).abs() < 0.02, "{exits}");
    let guest = shares.guest as f64;
    assert!((guest / 10e6 - 1.0).abs() < 0.02, "{guest}");
}

#[test]
fn guest_code_in_other_processes_is_guest_code_and_no_waiting() {
    thread_local! {
        static USED: Cell<[u64; 2]> = const { Cell::new([0; 2]) };
    }
    fn used(number: i32) -> u64 {
        USED.get()[number as usize] / 2
    }
    let mut ledger = ledger();
    ledger.start();
    for round in 0..100_000 {
        ledger.leave_guest();
        ledger.count(ExitKind::NativeFault, Place::default());
        pass(100);
        let number = round / 1000 % 2;
        ledger.guest_runs_in(OtherProcess {
            number,
            processor_time: used,
        });
        ledger.enter_guest();
        // The thread sleeps while the other process runs, and the host gives some time to neither.
        let ran = if round % 10 == 0 { 90_000 } else { 500 };
        wait(ran);
        let mut all = USED.get();
        all[number as usize] += ran;
        USED.set(all);
        if round % 507 == 0 {
            wait(200_000);
        }
    }
    ledger.leave_guest();
    ledger.stop();
    let shares = ledger.shares();
    let ran: u64 = USED.get().iter().sum();
    let waiting = (LOST.get() - ran) as f64;
    assert!(
        (shares.waiting as f64 / waiting - 1.0).abs() < 0.001,
        "{shares:?}"
    );
    assert!(
        (shares.guest as f64 / ran as f64 - 1.0).abs() < 0.02,
        "{shares:?}"
    );
    assert!(
        (shares.exits[0].1 as f64 / 1e7 - 1.0).abs() < 0.02,
        "{shares:?}"
    );
}

#[test]
fn sleep_is_not_waiting() {
    let mut ledger = ledger();
    ledger.start();
    ledger.leave_guest();
    ledger.count(ExitKind::Halt, Place::default());
    ledger.sleep(|| {
        pass(200);
        wait(70_000);
    });
    ledger.request_taken(taken(Request::default()), 0);
    pass(100);
    ledger.enter_guest();
    pass(900);
    ledger.leave_guest();
    ledger.stop();
    let shares = ledger.shares();
    assert_eq!((shares.halted, shares.waiting), (70_000, 0));
    assert_eq!(shares.exits, vec![(ExitKind::Halt, 300)]);
    assert_eq!(shares.remainder(), 0);
}

thread_local! {
    static READINGS: Cell<u64> = const { Cell::new(0) };
    static STOLEN: Cell<u64> = const { Cell::new(0) };
}

/// A clock that takes time itself, on a host that is a virtual machine and loses `STOLEN` cycles now
/// and then without reporting them: in an exit or a stretch of guest code that is timed, where it
/// spoils most.
fn host_that_loses_time() {
    pass(20);
    READINGS.set(READINGS.get() + 1);
    if READINGS.get().is_multiple_of(5_000) {
        pass(STOLEN.get());
    }
}

/// Runs 400 million cycles of exits, with stretches of guest code of this length between them, on a
/// host that loses `stolen` cycles each time. Returns the remainder and what was lost, as parts of
/// the wall time.
fn run_that_loses(stolen: u64, stretch: u64) -> (f64, f64) {
    const EXIT: u64 = 300;
    let mut ledger = ledger();
    READINGS.set(0);
    STOLEN.set(stolen);
    AT_READING.set(host_that_loses_time);
    ledger.start();
    for _ in 0..400_000_000 / (EXIT + stretch) {
        ledger.leave_guest();
        ledger.count(ExitKind::PortIn, Place::default());
        pass(EXIT);
        ledger.enter_guest();
        pass(stretch);
    }
    ledger.leave_guest();
    ledger.stop();
    AT_READING.set(|| ());
    let shares = ledger.shares();
    let lost = stolen * (READINGS.get() / 5_000);
    let part = |cycles: f64| cycles / shares.wall as f64;
    (part(shares.remainder() as f64), part(lost as f64))
}

/// The lengths of the stretches of guest code with which that is tried.
const STRETCHES: [u64; 3] = [100, 4_000, 30_000];

#[test]
fn a_host_that_loses_no_time_leaves_no_remainder() {
    for stretch in STRETCHES {
        let (remainder, _) = run_that_loses(0, stretch);
        assert!(remainder.abs() < 0.005, "{stretch}: {remainder}");
    }
}

#[test]
fn long_times_that_the_host_loses_unreported_are_missing_and_count_for_no_exit() {
    for stolen in [INTERRUPTED_BY_HOST + 1_000, 3_000_000, 20_000_000] {
        for stretch in STRETCHES {
            let (remainder, lost) = run_that_loses(stolen, stretch);
            assert!(
                (-0.005..lost + 0.005).contains(&remainder),
                "{stolen} {stretch}: {remainder} of {lost}"
            );
        }
    }
}

/// A loss that is shorter than an exit can be cannot be distinguished from the exit: it counts for all
/// exits that the timed one stands for. So the sum of the accounts may exceed the wall time, by at
/// most the sampling's factor.
#[test]
fn short_times_that_the_host_loses_unreported_count_as_exits() {
    for stretch in STRETCHES {
        let (remainder, lost) = run_that_loses(300_000, stretch);
        assert!(
            (-12.0 * lost..lost + 0.005).contains(&remainder),
            "{stretch}: {remainder} of {lost}"
        );
    }
    let (remainder, _) = run_that_loses(300_000, STRETCHES[0]);
    assert!(remainder < -0.02, "{remainder}");
}

/// A clock that takes time itself, on a host that takes the processor away anywhere: between two
/// readings and in the ledger's own work too, about half of the time.
fn loaded_host() {
    thread_local! {
        static RANDOM: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) };
    }
    let mut random = RANDOM.get();
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    RANDOM.set(random);
    pass(20);
    // One reading in 3000 is interrupted, for a millisecond and more.
    if random.is_multiple_of(3000) {
        wait(2_500_000 + random % 8_000_000);
    }
}

#[test]
fn the_ledger_of_a_loaded_host_balance() {
    let mut ledger = ledger();
    AT_READING.set(loaded_host);
    ledger.start();
    pass(50_000);
    for round in 0_u64..2_000_000 {
        ledger.enter_guest();
        pass(if round.is_multiple_of(100) {
            300_000
        } else {
            900
        });
        if round.is_multiple_of(5_000) {
            wait(4_000_000);
        }
        ledger.leave_guest();
        match round % 50 {
            0 => pass(3_000),
            // Long enough for the ledger to ask the host, in an exit that may have lost its
            // processor before.
            1 => {
                ledger.count(ExitKind::LinkMiss, Place::default());
                if round % 1_000 == 1 {
                    wait(5_000_000);
                }
                ledger.translate(|| pass(60_000));
            }
            2 => {
                ledger.count(ExitKind::InterruptDelivered, Place::default());
                if round % 1_000 == 2 {
                    wait(5_000_000);
                }
                ledger.request_taken(taken(Request::default()), 0);
            }
            _ => {
                ledger.count(ExitKind::Cli, Place::default());
                pass(400);
            }
        }
        if round % 2_000 == 1999 {
            ledger.count(ExitKind::Halt, Place::default());
            ledger.sleep(|| wait(1_000_000));
            ledger.request_taken(taken(Request::default()), 0);
        }
    }
    ledger.stop();
    AT_READING.set(|| ());
    let shares = ledger.shares();
    let waiting = shares.waiting as f64 / shares.wall as f64;
    assert!((0.2..0.8).contains(&waiting), "{waiting}");
    let off = shares.remainder() as f64 / shares.wall as f64;
    assert!(off.abs() < 0.01, "{off}: {shares:?}");
    // The remainder is small compared with the time that is not waiting, too.
    let busy = off / (1.0 - waiting);
    assert!(busy.abs() < 0.02, "{busy}: {shares:?}");
}

#[test]
fn what_is_no_exit_has_accounts_of_its_own() {
    let mut ledger = ledger();
    ledger.start();
    pass(4_000);
    ledger.enter_guest();
    for _ in 0..200_000 {
        pass(900);
        ledger.leave_guest();
        // Guest code is left for a signal: no exit is counted.
        pass(100);
        ledger.enter_guest();
    }
    pass(900);
    ledger.leave_guest();
    pass(30);
    ledger.stop();
    let shares = ledger.shares();
    assert_eq!(shares.start_end, 4_000);
    let signals = shares.signals as f64 / 20e6;
    assert!((signals - 1.0).abs() < 0.02, "{signals}");
    let off = shares.remainder().unsigned_abs() as f64 / shares.wall as f64;
    assert!(off < 0.005, "{off}");
}

#[test]
fn what_was_lost_before_a_burst_of_samples_is_not_taken_from_them() {
    let mut ledger = ledger();
    ledger.start();
    // The runs of guest code are long enough for the ledger to ask the host; those that are not
    // timed lose a lot of time.
    for round in 0..1_000_000 {
        ledger.leave_guest();
        ledger.count(ExitKind::Cli, Place::default());
        pass(100);
        ledger.enter_guest();
        let is_timed = ledger.timing_guest;
        pass(if round % 40 == 0 { 60_000 } else { 500 });
        if !is_timed && round % 100 == 0 {
            wait(3_000_000);
        }
    }
    ledger.leave_guest();
    ledger.stop();
    let shares = ledger.shares();
    let guest = shares.guest as f64 / (25_000.0 * 60_000.0 + 975_000.0 * 500.0);
    assert!((guest - 1.0).abs() < 0.02, "{guest}");
}

#[test]
fn a_trace_has_every_exit_with_its_time() {
    let mut ledger = ledger();
    let (tracer, events) = crate::trace::channel();
    ledger.begin_trace(tracer);
    ledger.start();
    ledger.count(ExitKind::InterruptDelivered, Place::default());
    pass(7);
    ledger.enter_guest();
    for _ in 0..1000 {
        pass(50);
        ledger.leave_guest();
        ledger.count(ExitKind::Cli, Place::default());
        pass(100);
        ledger.count(ExitKind::Halt, Place::default());
        ledger.sleep(|| wait(20));
        ledger.request_taken(taken(Request::default()), 0);
        ledger.enter_guest();
    }
    ledger.stop();
    ledger.end_trace();
    let mut traced = Vec::new();
    while let Some(batch) = events.next_batch() {
        traced.extend(
            batch
                .into_iter()
                .map(|e| (e.span, e.start - 1000, e.cycles)),
        );
    }
    assert_eq!(traced.len(), 3001);
    let expected = [
        (Span::Exit(ExitKind::InterruptDelivered), 0, 7),
        (Span::Exit(ExitKind::Cli), 57, 100),
        (Span::Exit(ExitKind::Halt), 157, 20),
        (Span::Asleep, 157, 20),
        (Span::Exit(ExitKind::Cli), 227, 100),
    ];
    assert_eq!(traced[..5], expected);
}

#[test]
fn a_trace_that_nobody_wants_ends() {
    let mut ledger = ledger();
    let (tracer, events) = crate::trace::channel();
    ledger.begin_trace(tracer);
    ledger.start();
    events.stop();
    for _ in 0..100_000 {
        ledger.enter_guest();
        pass(10);
        ledger.leave_guest();
        ledger.count(ExitKind::Cli, Place::default());
        pass(10);
    }
    ledger.stop();
    assert!(ledger.cost(ExitKind::Cli).unwrap().samples < 10_000);
}

#[test]
fn counts_only_reads_no_clock() {
    let mut ledger = Ledger::new(host_time, Detail::CountsOnly);
    ledger.start();
    for _ in 0..10 {
        ledger.leave_guest();
        ledger.count(ExitKind::Sti, Place::default());
        ledger.enter_guest();
    }
    assert_eq!(ledger.counts().get(ExitKind::Sti), 10);
    assert!(ledger.cost(ExitKind::Sti).is_none());
}

fn row(rows: &[crate::latency::Durations], name: &str) -> (u64, u64) {
    let row = rows.iter().find(|row| row.name == name);
    row.map_or((0, 0), |row| (row.count, row.cycles))
}

/// An interrupt whose request is noticed, taken and delivered.
#[test]
fn who_kept_an_interrupt_waiting_is_told() {
    let mut ledger = ledger();
    ledger.start();
    ledger.leave_guest();
    ledger.count(ExitKind::Cpuid, Place::default());
    pass(10_000);
    let heard = TIME.get();
    let on_processor = host_time().on_processor;
    pass(50_000);
    wait(400_000);
    let request = Request {
        asked: 0,
        heard,
        on_processor,
        taken: 0,
    };
    // Two cycles are a nanosecond here: the deadline passed 550,000 cycles ago.
    ledger.request_taken(taken(request), 275_000);
    ledger.interrupts_wait(true);
    pass(3_000);
    ledger.interrupt_delivered();
    let waits = ledger.latency().waits();
    assert_eq!(row(&waits, "host"), (1, 500_000));
    assert_eq!(row(&waits, "monitor"), (1, 50_000));
    assert_eq!(row(&waits, "guest"), (1, 3_000));
    assert_eq!(row(&waits, "to-handler"), (1, 553_000));
    assert_eq!(row(&ledger.latency().maskers(), "cpuid"), (1, 50_000));
}

#[test]
fn another_threads_request_is_heard_at_once_unless_the_host_was_busy() {
    let mut ledger = ledger();
    ledger.start();
    ledger.request_taken(taken(Request::default()), 0);
    for lost in [0, 100_000] {
        let asked = TIME.get();
        pass(60_000);
        wait(lost);
        ledger.interruptible_work(InterruptibleWork::Translate, asked, u64::MAX, true);
        let request = Request {
            asked,
            ..Request::default()
        };
        ledger.request_taken(taken(request), 0);
        ledger.interrupts_wait(true);
        ledger.interrupt_delivered();
    }
    let latency = ledger.latency();
    assert_eq!(row(&latency.maskers(), "translate"), (2, 120_000));
    assert_eq!(row(&latency.durations(), "translate"), (2, 120_000));
    assert_eq!(row(&latency.waits(), "host"), (2, 100_000));
}

#[test]
fn nothing_is_timed_if_only_counts_are_wanted() {
    let mut ledger = Ledger::new(host_time, Detail::CountsOnly);
    ledger.start();
    ledger.request_taken(taken(Request::default()), 5);
    ledger.interrupts_wait(true);
    ledger.interrupt_delivered();
    assert!(ledger.latency().waits().is_empty());
}

/// A host that takes the processor away whenever it is asked for the time, where this happens most
/// often.
fn host_time_that_is_waited_for() -> HostTime {
    wait(5_000_000);
    host_time()
}

#[test]
fn what_is_lost_while_the_host_is_asked_is_no_exits() {
    let mut ledger = ledger();
    ledger.host = host_time_that_is_waited_for;
    ledger.start();
    for _ in 0..2_000 {
        ledger.leave_guest();
        ledger.count(ExitKind::LinkMiss, Place::default());
        ledger.translate(|| {
            pass(60_000);
            wait(1_000_000);
        });
        pass(700);
        ledger.enter_guest();
        pass(90_000);
    }
    ledger.leave_guest();
    ledger.stop();
    let shares = ledger.shares();
    assert_eq!(shares.exits, vec![(ExitKind::LinkMiss, 2_000 * 700)]);
    let off = shares.remainder() as f64 / (shares.wall - shares.waiting) as f64;
    assert!(off.abs() < 0.01, "{off}: {shares:?}");
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

/// A run of a third of a second: mostly quick exits, some stretches of guest code, the longest of
/// milliseconds, and some long exits. Returns what guest code and exits really took.
fn run_with_long_stretches(ledger: &mut Ledger, seed: u64) -> (u64, u64) {
    let mut random = random(seed);
    let (mut guest, mut exits) = (0_u64, 0_u64);
    let spend = |account: &mut u64, cycles| {
        *account += cycles;
        pass(cycles);
    };
    ledger.start();
    for _ in 0..100_000 {
        ledger.leave_guest();
        ledger.count(ExitKind::LinkMiss, Place::default());
        let exit = match random() % 3_000 {
            0 => 50_000 + random() % 400_000,
            _ => 500 + random() % 1_000,
        };
        spend(&mut exits, exit);
        ledger.enter_guest();
        let stretch = match random() % 4_000 {
            0 => 5_000_000 + random() % 20_000_000,
            1..40 => 50_000 + random() % 300_000,
            _ => 100 + random() % 1_000,
        };
        spend(&mut guest, stretch);
    }
    ledger.leave_guest();
    ledger.stop();
    (guest, exits)
}

#[test]
fn the_ledger_of_short_runs_with_few_long_stretches_balance() {
    for seed in 1..=40 {
        let mut ledger = ledger();
        let (guest, exits) = run_with_long_stretches(&mut ledger, seed);
        let shares = ledger.shares();
        let missing = shares.remainder() as f64 / shares.wall as f64;
        assert!(missing.abs() < 0.02, "{seed}: {missing}: {shares:?}");
        let off = |told: u64, took: u64| (told as f64 / took as f64 - 1.0).abs();
        assert!(
            off(shares.guest, guest) < 0.03,
            "{seed}: {guest}: {shares:?}"
        );
        let exit = shares.exits[0].1;
        assert!(off(exit, exits) < 0.08, "{seed}: {exits}: {shares:?}");
    }
}

#[test]
fn quick_exits_are_left_alone_until_one_stretch_is_long() {
    let mut ledger = ledger();
    ledger.start();
    let mut timed = 0;
    for round in 0..1_000_000 {
        ledger.leave_guest();
        ledger.count(ExitKind::Cli, Place::default());
        pass(300);
        ledger.enter_guest();
        timed += u64::from(ledger.timing_guest && round >= 100_000);
        pass(100);
    }
    assert!(timed < 20_000, "{timed}");
    pass(1_000_000);
    for round in 0..100 {
        ledger.leave_guest();
        ledger.enter_guest();
        assert!(
            ledger.timing_guest || !(GROUP..2 * GROUP).contains(&round),
            "{round}"
        );
        pass(5_000);
    }
}
