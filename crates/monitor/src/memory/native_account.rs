//! The account by which an address space earns that its programs run natively, and loses it.
//!
//! Natively a program saves about half as much time as it runs; programs whose code translates badly save
//! several times that, and loops that translate well a tenth. It pays for each entry, with the exit that
//! follows it, and for each page that its process is given; what these cost depends on the host, and is
//! measured ([`NativePrices`]). What it has saved and has not paid yet is its *balance*. A trial begins with
//! an advance, and ends when the balance is used up. So a program that does not gain loses no more
//! than the advances, which become rarer with each failure.

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
/// Upper limit for the balance, in nanoseconds: what a program has saved long ago does not pay for
/// what it does now.
const BALANCE_AT_MOST: i64 = 20_000_000;
/// The part of its running time that a program saves is 1 by this.
const SAVED_PART: i64 = 2;
/// Entries of a program between two looks at its balance.
pub(super) const ENTRIES_BETWEEN_LOOKS: u32 = 32;

/// What programs of a space have done natively since some moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct NativeWork {
    /// Nanoseconds that their process has run.
    pub(crate) ran: u64,
    /// How often they were entered.
    pub(crate) entries: u64,
    /// How often a page was missing.
    pub(crate) pages: u64,
}

impl NativeWork {
    /// What was done between an earlier moment and this one.
    fn since(self, earlier: Self) -> Self {
        Self {
            ran: self.ran.saturating_sub(earlier.ran),
            entries: self.entries.saturating_sub(earlier.entries),
            pages: self.pages.saturating_sub(earlier.pages),
        }
    }

    /// Nanoseconds that were saved, less those that were paid.
    fn gain(self, prices: NativePrices) -> i64 {
        let entries = signed(self.entries);
        let ran = signed(self.ran).saturating_sub(entries.saturating_mul(prices.in_process()));
        let paid = entries.saturating_mul(prices.entry());
        let paid = paid.saturating_add(signed(self.pages).saturating_mul(prices.page()));
        (ran.max(0) / SAVED_PART).saturating_sub(paid)
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What native code costs on this host, from the shortest time for which a program was seen to be in its
/// process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NativePrices {
    /// Nanoseconds of the way into a process and back, with a few instructions there.
    shortest: u64,
}

impl Default for NativePrices {
    fn default() -> Self {
        Self {
            shortest: Self::MOST,
        }
    }
}

impl NativePrices {
    /// Nanoseconds of the way into a process and back before it was measured, as on a processor of 2022 in a
    /// virtual machine. Longer ones are times of programs.
    const MOST: u64 = 7_300;
    /// Nanoseconds that the monitor adds to an entry: registers in and out, what the program has left for.
    const MONITOR: i64 = 2_000;

    /// Notes that the way into a process, what ran there, and the way back took this many nanoseconds.
    pub(crate) fn note(&mut self, nanoseconds: u64) {
        self.shortest = self.shortest.min(nanoseconds);
    }

    /// Nanoseconds that it costs to enter a program, to leave it, and to do what it has left for.
    fn entry(self) -> i64 {
        signed(self.shortest) + Self::MONITOR
    }

    /// Nanoseconds of that which the host books as the running time of the program's process: about a third
    /// of the way.
    fn in_process(self) -> i64 {
        signed(self.shortest) / 3
    }

    /// Nanoseconds that it costs, in addition, to give the process a page that it lacks: changes of mappings
    /// are a third dearer than entries.
    fn page(self) -> i64 {
        self.entry() * 4 / 3
    }
}

/// The account of an address space's programs.
#[derive(Clone, Copy, Debug)]
pub(super) struct NativeAccount {
    /// Nanoseconds that the space has run translated since its last trial.
    translated: u64,
    /// Nanoseconds that it must run translated before the next one.
    after: u64,
    advance: i64,
    trial: Option<Trial>,
}

/// A time in which a space's programs run natively.
#[derive(Clone, Copy, Debug)]
struct Trial {
    balance: i64,
    /// What was done when the balance was last looked at.
    before: Option<NativeWork>,
    /// Entries since then.
    entries: u32,
}

impl NativeAccount {
    pub(super) const NEW: Self = Self {
        translated: 0,
        after: FIRST_AFTER,
        advance: FIRST_ADVANCE,
        trial: None,
    };

    /// Whether the space's programs run natively.
    pub(super) const fn is_native(&self) -> bool {
        self.trial.is_some()
    }

    /// Adds nanoseconds that the space has run translated.
    pub(super) fn ran_translated(&mut self, nanoseconds: u64) {
        if self.trial.is_none() {
            self.translated = self.translated.saturating_add(nanoseconds);
        }
    }

    /// Begins a trial if the space has earned one. Returns whether it did.
    pub(super) fn earns(&mut self) -> bool {
        let earns = self.trial.is_none() && self.translated >= self.after;
        if earns {
            self.trial = Some(Trial {
                balance: self.advance,
                before: None,
                entries: 0,
            });
        }
        earns
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
        let gain = work
            .since(trial.before.replace(work).unwrap_or(work))
            .gain(prices);
        trial.balance = trial.balance.saturating_add(gain).min(BALANCE_AT_MOST);
        if trial.balance >= 0 {
            return false;
        }
        self.fail();
        true
    }

    fn fail(&mut self) {
        let after = match self.advance == FIRST_ADVANCE {
            true => SECOND_AFTER,
            false => (self.after * LONGER.0 / LONGER.1).min(AFTER_AT_MOST),
        };
        *self = Self {
            translated: 0,
            after,
            advance: LATER_ADVANCE,
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
        account.ran_translated(5 * MS);
        assert!(!account.earns());
        account.ran_translated(MS);
        assert!(account.earns());
        assert!(account.is_native());
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
        let lost = left * (9_300 - 283);
        assert!(
            (1_200_000..1_200_000 + 32 * 9_017).contains(&lost),
            "{lost}"
        );
        assert!(!account.is_native());
        account.ran_translated(39 * MS);
        assert!(!account.earns(), "the second trial is dearer");
        account.ran_translated(MS);
        assert!(account.earns());
        let left = enter(&mut account, &mut work, 100_000, 3_000).expect("too many entries");
        assert!(left * 9_017 < 800_000, "{left}");
        account.ran_translated(59 * MS);
        assert!(!account.earns());
        account.ran_translated(MS);
        assert!(account.earns());
    }

    #[test]
    fn what_was_saved_long_ago_does_not_pay_for_long() {
        let mut account = on_trial();
        let mut work = NativeWork::default();
        assert_eq!(enter(&mut account, &mut work, 10_000, MS), None);
        let left = enter(&mut account, &mut work, 100_000, 3_000).expect("too many entries");
        assert!(left * 9_017 < 21 * MS, "{left}");
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
