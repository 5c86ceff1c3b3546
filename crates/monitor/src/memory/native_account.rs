//! The account by which an address space earns that its programs run natively, and loses it.
//!
//! Natively a program saves about half as much time as it runs; programs whose code translates badly save
//! several times that, and loops that translate well a tenth. It pays for each entry, with the exit that
//! follows it, and for each page that its process is given; what these cost depends on the host, and is
//! measured ([`NativePrices`]). What it has saved and has not paid yet is its *balance*. A trial begins with
//! an advance, and ends when the balance is used up, or earlier if the program leaves all the time although
//! it has its pages. So a program that does not gain loses no more than the advances, which become rarer with
//! each failure. While a program causes page faults in quick succession, as most do when they start, no trial
//! begins: a page fault costs several times as much natively. And a program that leaves often is
//! [compared](super::native_comparison) with itself, because what it saves is only an estimate.

use super::native_comparison::Comparison;
use super::native_prices::{NativePrices, NativeWork};

/// Nanoseconds that a space must run translated before its first trial.
const FIRST_AFTER: u64 = 6_000_000;
/// Nanoseconds that it must run translated before its second trial.
const SECOND_AFTER: u64 = 40_000_000;
/// By how much longer it must run before each trial after that: numerator and denominator.
const LONGER: (u64, u64) = (3, 2);
/// Upper limit for that time, in nanoseconds.
const AFTER_AT_MOST: u64 = 2_000_000_000;
/// Nanoseconds that the first trial may cost. The process must be started and given all pages that
/// the program uses.
const FIRST_ADVANCE: i64 = 1_200_000;
/// Nanoseconds that a later trial may cost.
const LATER_ADVANCE: i64 = 400_000;
/// Nanoseconds that must lie between two of its page faults before a trial begins, on average.
const FAULTS_APART: u64 = 70_000;
/// Nanoseconds after which that is judged.
const JUDGED_AFTER: u64 = 1_000_000;
/// Looks in succession, at each of which a program had left more often than it gained by, and seldom for a
/// page, after which a trial ends.
const MOST_STRIKES: u32 = 3;
/// The same for a program that had saved time before.
const MOST_STRIKES_IF_SAVED: u32 = 8;
/// The balance, in nanoseconds, of a trial that has succeeded.
const SUCCESS: i64 = 3_000_000;
/// Upper limit for the balance, in nanoseconds: what a program has saved long ago does not pay for
/// what it does now.
const BALANCE_AT_MOST: i64 = 20_000_000;
/// Entries of a program between two looks at its balance.
pub(super) const ENTRIES_BETWEEN_LOOKS: u32 = 32;

/// The account of an address space's programs.
#[derive(Clone, Copy, Debug)]
pub(super) struct NativeAccount {
    /// Nanoseconds that the space has run translated since its last trial.
    translated: u64,
    /// Nanoseconds that it must run translated before the next one.
    after: u64,
    advance: i64,
    /// What happened since it was last judged whether page faults are rare enough.
    recent: Recent,
    /// The program that was tried last, by a number of the caller's.
    program: Option<u64>,
    trial: Option<Trial>,
}

/// What a space's programs have done translated for a while.
#[derive(Clone, Copy, Default, Debug)]
struct Recent {
    nanoseconds: u64,
    page_faults: u64,
}

/// A time in which a space's programs run natively.
#[derive(Clone, Copy, Debug)]
struct Trial {
    balance: i64,
    /// What was done when the balance was last looked at.
    before: Option<NativeWork>,
    /// Entries since then.
    entries: u32,
    /// Looks in succession at which it had left too often.
    strikes: u32,
    comparison: Comparison,
}

impl NativeAccount {
    pub(super) const NEW: Self = Self {
        translated: 0,
        after: FIRST_AFTER,
        advance: FIRST_ADVANCE,
        recent: Recent {
            nanoseconds: 0,
            page_faults: 0,
        },
        program: None,
        trial: None,
    };

    /// Whether the space's programs run natively.
    pub(super) fn is_native(&self) -> bool {
        self.trial.is_some_and(|it| !it.comparison.translates())
    }

    /// Adds nanoseconds that the space has run, and what its programs have done in that time. Returns whether
    /// a trial has ended because they are faster translated.
    pub(super) fn ran(&mut self, nanoseconds: u64, progress: u64) -> bool {
        match &mut self.trial {
            Some(trial) => {
                let has_lost = trial.comparison.ran(nanoseconds, progress);
                if has_lost {
                    self.fail();
                }
                has_lost
            }
            None => {
                self.translated = self.translated.saturating_add(nanoseconds);
                self.recent.nanoseconds = self.recent.nanoseconds.saturating_add(nanoseconds);
                false
            }
        }
    }

    /// Notes a page fault of the space's programs, which the guest's kernel handles.
    pub(super) fn page_faulted(&mut self) {
        self.recent.page_faults += 1;
    }

    /// Whether the space may earn a trial soon.
    pub(super) const fn earns_soon(&self) -> bool {
        self.trial.is_none() && self.translated >= self.after / 2
    }

    /// Whether the space has earned a trial.
    pub(super) fn earns(&mut self) -> bool {
        let is_due = self.trial.is_none() && self.translated >= self.after;
        if !is_due || self.recent.nanoseconds < JUDGED_AFTER {
            return false;
        }
        let recent = std::mem::take(&mut self.recent);
        recent.page_faults.saturating_mul(FAULTS_APART) <= recent.nanoseconds
    }

    /// Whether no trial has failed yet.
    pub(super) const fn is_first(&self) -> bool {
        self.advance == FIRST_ADVANCE
    }

    /// The program of the last trial.
    pub(super) const fn program(&self) -> Option<u64> {
        self.program
    }

    /// Begins a trial of a program.
    pub(super) fn begin(&mut self, program: Option<u64>) {
        self.program = program;
        self.trial = Some(Trial {
            balance: self.advance,
            before: None,
            entries: 0,
            strikes: 0,
            comparison: Comparison::NEW,
        });
    }

    /// Whether the space's programs gain by running natively, as far as this trial has shown.
    pub(super) fn gains(&self) -> bool {
        self.trial.is_some_and(|trial| trial.balance > SUCCESS)
    }

    /// Follows an entry of the space's programs, which have done `work` since their process began, on
    /// a host with these prices. Returns whether they are translated from now on.
    pub(super) fn enters(
        &mut self,
        work: impl FnOnce() -> NativeWork,
        prices: NativePrices,
    ) -> bool {
        let Some(trial) = &mut self.trial else {
            return false;
        };
        let is_due = trial.entries.is_multiple_of(ENTRIES_BETWEEN_LOOKS);
        trial.entries = trial.entries.wrapping_add(1);
        if !is_due {
            return false;
        }
        let work = work();
        let since = work.since(trial.before.replace(work).unwrap_or(work));
        let gain = since.gain(prices);
        trial.balance = trial.balance.saturating_add(gain).min(BALANCE_AT_MOST);
        let is_strike = gain < 0 && since.pages * 4 < since.entries;
        trial.strikes = if is_strike { trial.strikes + 1 } else { 0 };
        // What was saved before pays for such times too, but not for long: where the process does not stay
        // on the monitor's processor, entries are several times as dear as the shortest one.
        let has_failed = trial.strikes >= MOST_STRIKES && trial.balance <= self.advance
            || trial.strikes >= MOST_STRIKES_IF_SAVED;
        let pays = trial.balance >= 0 && !has_failed;
        if !pays {
            self.fail();
        }
        !pays
    }

    /// Has the space run translated for longer before its next trial.
    pub(super) fn fail(&mut self) {
        let after = match self.is_first() {
            true => SECOND_AFTER,
            false => (self.after * LONGER.0 / LONGER.1).min(AFTER_AT_MOST),
        };
        *self = Self {
            translated: 0,
            after,
            advance: LATER_ADVANCE,
            recent: Recent::default(),
            program: self.program,
            trial: None,
        };
    }

    /// Ends a trial that cannot be made.
    pub(super) fn refuse(&mut self) {
        self.trial = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn on_trial() -> NativeAccount {
        let mut account = NativeAccount::NEW;
        account.ran(5 * MS, 0);
        assert!(!account.earns());
        account.ran(MS, 0);
        assert!(account.earns());
        account.begin(None);
        assert!(account.is_native() && account.is_first() && !account.gains());
        account
    }

    /// Enters up to `entries` times, `apart` nanoseconds apart. Returns after how many of them the
    /// space was translated.
    fn enter(
        account: &mut NativeAccount,
        work: &mut NativeWork,
        entries: u64,
        apart: u64,
    ) -> Option<u64> {
        (1..=entries).find(|_| {
            work.entries += 1;
            work.ran += apart;
            account.enters(|| *work, NativePrices::default())
        })
    }

    #[test]
    fn programs_that_seldom_leave_stay() {
        let mut account = on_trial();
        let mut work = NativeWork::default();
        assert_eq!(enter(&mut account, &mut work, 100_000, 25_000), None);
    }

    #[test]
    fn programs_that_leave_often_lose_the_advance_and_little_more() {
        let mut account = on_trial();
        let mut work = NativeWork::default();
        let left = enter(&mut account, &mut work, 100_000, 3_000).expect("too many entries");
        assert_eq!(left, 3 * 32 + 1);
        assert!(left * 9_017 < 1_200_000, "the advance");
        assert!(!account.is_native());
        account.ran(39 * MS, 0);
        assert!(!account.earns(), "the second trial is dearer");
        account.ran(MS, 0);
        assert!(account.earns());
        account.begin(None);
        let left = enter(&mut account, &mut work, 100_000, 3_000).expect("too many entries");
        assert!(left * 9_017 < 800_000, "{left}");
        account.ran(59 * MS, 0);
        assert!(!account.earns());
        account.ran(MS, 0);
        assert!(account.earns());
    }

    #[test]
    fn no_trial_begins_while_page_faults_are_dense() {
        let mut account = NativeAccount::NEW;
        let mut run = |page_faults| {
            for _ in 0..page_faults {
                account.page_faulted();
            }
            account.ran(4 * MS, 0);
            account.earns()
        };
        // The first is too early.
        assert!(!run(0) && !run(200) && !run(60));
        assert!(run(50));
    }

    #[test]
    fn a_trial_that_gives_pages_has_all_of_its_advance() {
        let mut account = on_trial();
        let mut work = NativeWork::default();
        let left = (1..1000).find(|_| {
            work.entries += 1;
            work.pages += 1;
            work.ran += 3_000;
            account.enters(|| work, NativePrices::default())
        });
        let lost = left.expect("too many pages") * (9_017 + 12_400);
        assert!(
            (1_200_000..1_200_000 + 33 * 21_417).contains(&lost),
            "{lost}"
        );
    }

    #[test]
    fn what_was_saved_long_ago_does_not_pay_for_long() {
        let mut account = on_trial();
        let mut work = NativeWork::default();
        assert_eq!(enter(&mut account, &mut work, 10_000, MS), None);
        assert!(account.gains());
        let left = enter(&mut account, &mut work, 100_000, 3_000).expect("too many entries");
        assert!(left <= 9 * 32, "{left}");
    }

    #[test]
    fn where_entries_are_cheap_programs_may_leave_more_often() {
        let mut prices = NativePrices::default();
        let enter = |prices| {
            let mut account = on_trial();
            let mut work = NativeWork::default();
            (1..=10_000).any(|_| {
                work.entries += 1;
                work.ran += 15_000;
                account.enters(|| work, prices)
            })
        };
        assert!(enter(prices), "9.3 us to save 6.3");
        prices.note(2_900);
        prices.note(60_000);
        assert!(!enter(prices), "4.9 us to save 7");
    }

    #[test]
    fn pages_cost_too() {
        let mut account = on_trial();
        let mut work = NativeWork::default();
        let left = (1..1000).find(|_| {
            work.entries += 1;
            work.pages += 1;
            work.ran += 15_000;
            account.enters(|| work, NativePrices::default())
        });
        assert!(left.is_some());
    }
}
