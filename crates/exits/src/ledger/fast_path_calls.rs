//! Time in functions of the monitor that translated code calls without an exit: *fast-path calls*.
//!
//! Such a call is part of a stretch of guest code, which the ledger measures as a whole. The call's
//! time is measured separately here, and the report subtracts it from guest code. Reading the clock
//! twice takes about as long as the shortest of these functions, so calls are sampled. Each sort of
//! call has its own countdown:
//!
//! ```text
//! calls     . . . . . . . . . . . . . . . . . . . . . . . . . .
//! timed     ^             ^       ^                   ^
//! stands for 1            7       4                   10
//! ```
//!
//! A timed call stands for all calls since the previous timed one, so these numbers add up to the
//! number of calls. The distance is random, so that it does not fall in step with the guest's
//! loops, and on average so long that reading the clock takes about a fiftieth of the calls' time.
//! Where some calls are long, such as loads of CR3 that rewrite tables, every call is timed.

use super::{Detail, INTERRUPTED_BY_HOST, LONGEST_ENTRY, Ledger, SUSPICIOUSLY_LONG};
use crate::ExitKind;
use crate::counter::counter;

/// A fast-path call that has started. It holds the time if the call is timed.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct FastPathCall(Option<u64>);

impl Ledger {
    /// Translated code has called a function of the monitor. `sort` selects the countdown: calls of
    /// similar duration should share one.
    #[inline]
    pub fn begin_fast_path_call(&mut self, sort: ExitKind) -> FastPathCall {
        let left = &mut self.fast_path_sampler.countdowns[sort as usize].left;
        *left = left.wrapping_sub(1);
        match *left {
            0 => FastPathCall(Some(counter())),
            _ => FastPathCall(None),
        }
    }

    /// The function is about to return. Its time counts as that of fast-path calls instead of exits
    /// of this `kind`.
    #[inline]
    pub fn end_fast_path_call(&mut self, call: FastPathCall, sort: ExitKind, kind: ExitKind) {
        if let FastPathCall(Some(begun)) = call {
            self.enter_fast_path_call(begun, sort, kind);
        }
    }

    #[cold]
    fn enter_fast_path_call(&mut self, begun: u64, sort: ExitKind, kind: ExitKind) {
        if self.detail != Detail::Full {
            // The next call is timed after four billion calls.
            return;
        }
        let now = counter();
        let whole = now.wrapping_sub(begun).saturating_sub(self.clock_cost);
        let mut cycles = whole.saturating_sub(self.disturbance.of_each());
        let stands_for = self.fast_path_sampler.timed(sort, cycles);
        if cycles >= SUSPICIOUSLY_LONG {
            cycles = self.without_waiting_slow(cycles);
            let asking = counter().wrapping_sub(now);
            if asking < LONGEST_ENTRY {
                self.accounts.own_cost += asking;
            }
            if self.timing_guest {
                // The time of the call must not count for the stretch of guest code around it.
                self.excluded += whole.saturating_sub(cycles) + asking;
            }
        }
        // No call takes that long by itself: what happened to it did not happen to the others.
        let times = match cycles < INTERRUPTED_BY_HOST {
            true => stands_for,
            false => 1,
        };
        let record = &mut self.accounts.fast_path_calls[kind as usize];
        record.samples += 1;
        record.cycles += cycles * times;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::exact::host_time;
    use super::*;
    use crate::blame::Place;
    use crate::counter::{LOST, TIME, pass};

    fn ledger(detail: Detail) -> Ledger {
        TIME.set(1_000);
        LOST.set(0);
        let mut ledger = Ledger::new(host_time, detail);
        ledger.start();
        ledger
    }

    fn call(ledger: &mut Ledger, kind: ExitKind, work: impl FnOnce()) {
        let call = ledger.begin_fast_path_call(kind);
        work();
        ledger.end_fast_path_call(call, kind, kind);
    }

    fn exit(ledger: &mut Ledger) {
        ledger.leave_guest();
        ledger.count(ExitKind::Cli, Place::default());
        pass(300);
        ledger.enter_guest();
    }

    #[test]
    fn long_calls_are_all_timed_and_are_no_guest_code() {
        let mut ledger = ledger(Detail::Full);
        for _ in 0..100 {
            exit(&mut ledger);
            pass(20_000);
            call(&mut ledger, ExitKind::Cr3Load, || pass(30_000));
        }
        ledger.leave_guest();
        ledger.stop();
        let shares = ledger.shares();
        assert_eq!(shares.fast_path_calls, [(ExitKind::Cr3Load, 100 * 30_000)]);
        assert_eq!(shares.guest, 100 * 20_000);
        assert_eq!(shares.remainder(), 0);
    }

    #[test]
    fn short_calls_are_sampled_and_what_they_stand_for_adds_up() {
        let mut ledger = ledger(Detail::Full);
        for round in 0..1_000_000_u64 {
            if round % 100 == 0 {
                exit(&mut ledger);
            }
            pass(100);
            // Some calls are much longer, and occur in a row.
            let cycles = if round % 5_000 < 20 { 9_000 } else { 60 };
            call(&mut ledger, ExitKind::TlbMissRead, || pass(cycles));
        }
        ledger.leave_guest();
        ledger.stop();
        let record = ledger.accounts().fast_path_calls(ExitKind::TlbMissRead);
        assert!(record.samples < 50_000, "{record:?}");
        let expected = 200 * 20 * 9_000 + (1_000_000 - 4_000) * 60;
        let off = record.cycles.abs_diff(expected) as f64 / f64::from(expected as u32);
        assert!(off < 0.1, "{record:?} instead of {expected}");
        let shares = ledger.shares();
        let wall = shares.wall as f64;
        assert!(
            (shares.remainder() as f64 / wall).abs() < 0.02,
            "{shares:?}"
        );
        let guest = 1_000_000.0 * 100.0;
        assert!(
            (shares.guest as f64 - guest).abs() / guest < 0.1,
            "{shares:?}"
        );
    }

    #[test]
    fn what_the_host_gave_to_others_in_a_call_is_neither_its_nor_guest_code() {
        for exits_between in [1, 50] {
            let mut ledger = ledger(Detail::Full);
            for _ in 0..200 {
                for _ in 0..exits_between {
                    exit(&mut ledger);
                    pass(20_000);
                }
                call(&mut ledger, ExitKind::Cr3Load, || {
                    pass(10_000);
                    LOST.set(LOST.get() + 900_000);
                    pass(900_000);
                });
            }
            ledger.leave_guest();
            ledger.stop();
            let shares = ledger.shares();
            assert_eq!(shares.waiting, 200 * 900_000);
            assert_eq!(shares.fast_path_calls, [(ExitKind::Cr3Load, 200 * 10_000)]);
            assert_eq!(shares.guest, 200 * exits_between * 20_000);
            assert_eq!(shares.remainder(), 0);
        }
    }

    #[test]
    fn fast_path_calls_that_seem_longer_than_all_guest_code_take_all_of_it_and_no_more() {
        let mut ledger = ledger(Detail::Full);
        exit(&mut ledger);
        pass(1_000);
        ledger.leave_guest();
        ledger.stop();
        ledger.accounts.fast_path_calls[ExitKind::Msr as usize].cycles = 3_000;
        ledger.accounts.fast_path_calls[ExitKind::Invlpg as usize].cycles = 1_000;
        let shares = ledger.shares();
        assert_eq!(shares.fast_path_calls.len(), 2);
        assert_eq!((shares.all_fast_path_calls(), shares.guest), (1_000, 0));
        assert_eq!(shares.fast_path_calls[1], (ExitKind::Msr, 750));
        assert_eq!(shares.remainder(), 0);
    }

    #[test]
    fn ledgers_that_only_count_time_no_call() {
        let mut ledger = ledger(Detail::CountsOnly);
        exit(&mut ledger);
        for _ in 0..1_000 {
            call(&mut ledger, ExitKind::Msr, || pass(1_000));
        }
        ledger.leave_guest();
        ledger.stop();
        assert_eq!(ledger.accounts().fast_path_calls(ExitKind::Msr).samples, 0);
    }

    #[test]
    fn calls_after_a_mark_are_those_since_the_mark() {
        let mut ledger = ledger(Detail::Full);
        exit(&mut ledger);
        call(&mut ledger, ExitKind::Msr, || pass(5_000));
        let before = ledger.accounts().clone();
        call(&mut ledger, ExitKind::Msr, || pass(7_000));
        let since = ledger.accounts().since(&before);
        let record = since.fast_path_calls(ExitKind::Msr);
        assert_eq!((record.samples, record.cycles), (1, 7_000));
    }
}
