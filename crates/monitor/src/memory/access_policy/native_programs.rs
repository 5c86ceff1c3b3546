//! Which spaces' programs run natively, by their accounts and by what other spaces have shown of the
//! same program.

use super::{Accounts, UserCode};
use crate::memory::native_prices::{NativePrices, NativeWork};
use rustc_hash::FxHashSet;

/// The most programs of which it is known that they do not gain.
const MOST_PROGRAMS: usize = 1024;

/// The programs that did not gain when they were last tried natively, by the physical page of their first
/// code. If the page holds another program in the meantime, that one is tried later than it could be.
#[derive(Default, Debug)]
pub(super) struct NotNative(FxHashSet<u64>);

impl NotNative {
    pub(super) fn note(&mut self, program: Option<u64>, gains: bool) {
        let Some(program) = program else {
            return;
        };
        if gains {
            self.0.remove(&program);
            return;
        }
        if self.0.len() >= MOST_PROGRAMS {
            self.0.clear();
        }
        self.0.insert(program);
    }

    fn has(&self, program: Option<u64>) -> bool {
        program.is_some_and(|program| self.0.contains(&program))
    }
}

impl Accounts {
    /// Whether the accounts decide how programs run.
    fn tries_native(&self) -> bool {
        self.user_code == UserCode::Adaptive && self.adapts()
    }

    /// Records that the loaded space's program is running translated. `program` finds the physical page
    /// of its first code. Returns whether it runs natively from now on. [`Self::earns`] has counted the
    /// time.
    pub(crate) fn earns_native(&mut self, program: impl FnOnce() -> Option<u64>) -> bool {
        if !self.tries_native() || !self.account().native.earns() {
            return false;
        }
        let program = program();
        if self.account().native.is_first() && self.not_native.has(program) {
            // A short run of a program that did not gain does not pay for another trial.
            self.account().native.fail();
            return false;
        }
        self.account().native.begin(program);
        true
    }

    /// Whether the loaded space's program may run natively soon.
    pub(crate) fn earns_native_soon(&mut self) -> bool {
        self.tries_native() && self.account().native.earns_soon()
    }

    /// Whether a program is to run natively or translated from now on, other than before.
    pub(crate) fn turns(&mut self) -> bool {
        std::mem::take(&mut self.turns)
    }

    /// Records a page fault of the loaded space's program.
    pub(crate) fn page_faulted(&mut self) {
        if self.tries_native() {
            self.account().native.page_faulted();
        }
    }

    /// Records that the loaded space's program is entered natively. `work` is what its process has
    /// done since it began, and `prices` those of this host. Returns whether the program is translated
    /// from now on.
    pub(crate) fn enters_native(
        &mut self,
        work: impl FnOnce() -> NativeWork,
        prices: NativePrices,
    ) -> bool {
        if !self.tries_native() {
            return false;
        }
        let account = &mut self.account().native;
        let has_failed = account.enters(work, prices);
        let (program, gains) = (account.program(), account.gains());
        if has_failed || gains {
            self.not_native.note(program, gains);
        }
        has_failed
    }

    /// Notes that programs cannot run natively after all.
    pub(crate) fn refuse_native(&mut self) {
        self.user_code = UserCode::Translated;
        for account in self.accounts.values_mut() {
            account.native.refuse();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::access_policy::{MemoryAccess, Moment};
    use tollgate_engine::policy::access::Access;

    const MS: u64 = 1_000_000;

    fn at(time: u64) -> Moment {
        Moment {
            time,
            ..Moment::default()
        }
    }

    fn adaptive() -> Accounts {
        Accounts::new(MemoryAccess::Adaptive, false).with_user_code(UserCode::Adaptive)
    }

    /// Enters the loaded space's program often, which does nothing between. Returns whether it is
    /// translated again.
    fn fails(accounts: &mut Accounts) -> bool {
        let mut work = NativeWork::default();
        (0..1000).any(|_| {
            work.entries += 1;
            accounts.enters_native(|| work, NativePrices::default())
        })
    }

    #[test]
    fn a_space_runs_natively_once_it_has_run_translated() {
        let mut accounts = adaptive();
        accounts.load(1, true, at(0));
        accounts.earns(at(5 * MS));
        assert!(!accounts.earns_native(|| None));
        accounts.earns(at(6 * MS));
        assert!(accounts.earns_native(|| None));
        assert_eq!(accounts.access(), Access::PartlyNative);
        accounts.load(2, true, at(7 * MS));
        assert_ne!(accounts.access(), Access::PartlyNative);
        accounts.load(1, true, at(8 * MS));
        assert!(fails(&mut accounts));
        assert_ne!(accounts.access(), Access::PartlyNative);
    }

    #[test]
    fn a_space_that_ran_natively_for_long_has_earned_windows() {
        let mut accounts = adaptive();
        accounts.load(1, true, at(0));
        let filled = |time| Moment {
            time,
            fills: 400,
            ..Moment::default()
        };
        assert!(!accounts.earns(filled(6 * MS)), "20 ms for 400 entries");
        assert!(accounts.earns_native(|| None));
        assert!(!accounts.earns(filled(19 * MS)));
        assert!(!accounts.earns(filled(29 * MS)), "natively");
        assert!(fails(&mut accounts));
        assert!(accounts.earns(filled(30 * MS)));
    }

    #[test]
    fn a_program_that_did_not_gain_is_tried_later_in_its_next_space() {
        let mut accounts = adaptive();
        accounts.load(1, true, at(0));
        accounts.earns(at(10 * MS));
        assert!(accounts.earns_native(|| Some(7)));
        assert!(fails(&mut accounts));
        accounts.load(2, true, at(20 * MS));
        accounts.earns(at(30 * MS));
        assert!(!accounts.earns_native(|| Some(7)));
        accounts.load(3, true, at(40 * MS));
        accounts.earns(at(50 * MS));
        assert!(accounts.earns_native(|| Some(8)), "another program");
        // After a longer time it is tried in that space too, and gains.
        accounts.load(2, true, at(60 * MS));
        accounts.earns(at(110 * MS));
        assert!(accounts.earns_native(|| Some(7)));
        let mut work = NativeWork::default();
        for _ in 0..100 {
            work.entries += 1;
            work.ran += MS;
            assert!(!accounts.enters_native(|| work, NativePrices::default()));
        }
        accounts.load(4, true, at(120 * MS));
        accounts.earns(at(130 * MS));
        assert!(accounts.earns_native(|| Some(7)));
    }
}
