//! The policy by which an address space's programs access memory: by look-ups, or directly through
//! shadow windows.
//!
//! A window costs the host some microseconds for each run of pages, so windows pay off only for a
//! space that runs for long. A space *earns* windows by running. From then on their cost is
//! compared with the time that the space has run with them; if the cost is out of proportion, the
//! space returns to accesses by look-up, and must run longer than before to earn windows again. So
//! no program loses more than a limited share of its time.

mod native_programs;

use self::native_programs::NotNative;
use crate::memory::native_account::NativeAccount;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use tollgate_engine::policy::access::Access;
use tollgate_tlb::shadow_windows::anchors;

/// How guest code accesses guest memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum MemoryAccess {
    /// Each access is looked up in the software TLB.
    #[default]
    Checked,
    /// Each space accesses memory in the way that it has earned.
    Adaptive,
    /// All accesses are direct.
    Direct,
}

/// How 64-bit programs of 64-bit systems run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum UserCode {
    /// By copy-translation, as all other code.
    #[default]
    Translated,
    /// As they are, in processes of the host, where that is possible.
    Native,
    /// In the way that each space has earned, with [`MemoryAccess::Adaptive`]; translated without.
    Adaptive,
}

/// The regions for which this process has room in addition to other mappings.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// Room for [shadow windows](tollgate_tlb::shadow_windows). Without it all accesses are looked
    /// up.
    pub windows: bool,
    /// Room for the [`anchors`] of the windows.
    pub anchors: bool,
}

impl Places {
    /// Looks at the mappings of this process.
    pub fn of_process() -> Self {
        Self {
            windows: tollgate_tlb::shadow_windows::have_place(),
            anchors: anchors::have_place(),
        }
    }
}

/// Nanoseconds that a space must run to earn windows the first time.
const EARNED_AFTER: u64 = 6_000_000;
/// Nanoseconds that a space must run for each entry of the software TLB that it has filled. Mapping
/// such a page and the faults on the way cost some 20 us, and with windows code takes half of the
/// time or somewhat more. So by then the space has lost as much time to look-ups as windows would
/// have cost.
const EARNED_AFTER_FOR_ENTRY: u64 = 50_000;
/// Upper limit, in nanoseconds, for the entries together: most of many pages will not be used
/// again.
const EARNED_AFTER_FOR_ENTRIES_AT_MOST: u64 = 1_000_000_000;
/// The factor by which the time to earn windows grows each time that a space has lost them.
const LONGER: u64 = 4;
/// Upper limit for the time to earn windows, in nanoseconds.
const EARNED_AFTER_AT_MOST: u64 = 20_000_000_000;
/// The divisor of a space's running time that gives the time its windows may cost.
const SHARE: u64 = 4;
/// Nanoseconds that windows may cost in addition, from the start.
const ADVANCE: u64 = 5_000_000;
/// Maximum number of spaces that have accounts.
const MOST_SPACES: usize = 256;

/// The account of an address space.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// Nanoseconds that the space has run since it last got or lost windows.
    ran: u64,
    /// Nanoseconds spent on the windows of the space.
    spent: u64,
    /// Entries of the software TLB that the space has filled in that time.
    filled: u64,
    /// Nanoseconds that the space must run to earn windows.
    earned_after: u64,
    is_direct: bool,
    /// Whether its programs run natively.
    native: NativeAccount,
    /// Whether the programs of the space use only parts that an anchor leads to, and not the first
    /// part.
    is_common: bool,
}

impl Account {
    const NEW: Self = Self {
        ran: 0,
        spent: 0,
        filled: 0,
        earned_after: EARNED_AFTER,
        is_direct: false,
        native: NativeAccount::NEW,
        is_common: true,
    };

    /// Gives the space windows if it has earned them now. Returns whether it did.
    fn earns(&mut self) -> bool {
        let for_entries = self.filled.saturating_mul(EARNED_AFTER_FOR_ENTRY);
        let earned_after = for_entries
            .min(EARNED_AFTER_FOR_ENTRIES_AT_MOST)
            .max(self.earned_after);
        let earns = !self.is_direct && self.ran >= earned_after;
        if earns {
            (self.ran, self.spent, self.filled) = (0, 0, 0);
            self.is_direct = true;
        }
        earns
    }

    /// Adds `cost` nanoseconds to the cost of the space's windows. Returns whether the space loses
    /// them.
    fn spend(&mut self, cost: u64) -> bool {
        self.spent += cost;
        let loses = self.is_direct && self.spent > ADVANCE + self.ran / SHARE;
        if loses {
            self.lose();
        }
        loses
    }

    fn lose(&mut self) {
        let earned_after = (self.earned_after * LONGER).min(EARNED_AFTER_AT_MOST);
        *self = Self {
            earned_after,
            native: self.native,
            ..Self::NEW
        };
    }
}

/// A moment by the counters that accounts are kept in, all counted since the start.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Moment {
    /// Nanoseconds of guest time.
    pub(crate) time: u64,
    /// The number of entries of the software TLBs that were filled.
    pub(crate) fills: u64,
    /// The number of system calls and reads of the clock.
    pub(crate) progress: u64,
}

/// The accounts of all spaces, by the address of the root of their page tables.
#[derive(Debug)]
pub(crate) struct Accounts {
    choice: MemoryAccess,
    /// How programs run.
    user_code: UserCode,
    /// Programs that did not gain by running natively.
    not_native: NotNative,
    /// Whether a program is to run in the other way since that was last asked.
    turns: bool,
    /// The form of direct access for programs that use common parts.
    anchored: Access,
    accounts: FxHashMap<u64, Account>,
    /// Whether the guest has begun to run programs.
    runs_programs: bool,
    /// The root of the page tables of the loaded space.
    root: u64,
    /// The moment up to which the account of the loaded space is complete.
    since: Moment,
    /// The account of all code at levels 0 to 2 without paging, which has no address spaces: above
    /// all real-mode code.
    without_paging: Account,
    /// When such code was last seen running, in nanoseconds of guest time.
    without_paging_met: Option<u64>,
}

impl Accounts {
    /// Empty accounts. With `are_anchors`, direct accesses of programs may use anchors.
    pub(crate) fn new(choice: MemoryAccess, are_anchors: bool) -> Self {
        Self {
            choice,
            user_code: UserCode::Translated,
            not_native: NotNative::default(),
            turns: false,
            anchored: match are_anchors {
                true => Access::Anchored,
                false => Access::Direct,
            },
            accounts: FxHashMap::default(),
            runs_programs: false,
            root: 0,
            since: Moment::default(),
            without_paging: Account::NEW,
            without_paging_met: None,
        }
    }

    /// These accounts, with programs that run in this way.
    pub(crate) fn with_user_code(self, user_code: UserCode) -> Self {
        Self { user_code, ..self }
    }

    pub(crate) fn choice(&self) -> MemoryAccess {
        self.choice
    }

    fn account(&mut self) -> &mut Account {
        let root = self.root;
        if self.accounts.len() >= MOST_SPACES && !self.accounts.contains_key(&root) {
            self.accounts.clear();
        }
        self.accounts.entry(root).or_insert(Account::NEW)
    }

    fn add(&mut self, now: Moment) {
        let ran = now.time.saturating_sub(self.since.time);
        let filled = now.fills.saturating_sub(self.since.fills);
        let progress = now.progress.saturating_sub(self.since.progress);
        self.since = now;
        let account = self.account();
        let was_native = account.native.is_native();
        account.ran += ran;
        account.filled += filled;
        let has_lost = account.native.ran(ran, progress);
        let (is_native, program) = (account.native.is_native(), account.native.program());
        self.turns |= is_native != was_native;
        if has_lost {
            self.not_native.note(program, false);
        }
    }

    /// Leaves time in which the guest slept out of all accounts.
    pub(crate) fn slept(&mut self, nanoseconds: u64) {
        self.since.time = self.since.time.saturating_add(nanoseconds);
    }

    /// Follows a load of the space whose tables begin at `root`. Without `keeps`, the data derived
    /// from its tables is void, most often because the space is new and has got the page of one
    /// that no longer exists.
    pub(crate) fn load(&mut self, root: u64, keeps: bool, now: Moment) {
        if self.choice != MemoryAccess::Adaptive {
            return;
        }
        self.add(now);
        self.root = root;
        let account = self.account();
        if !keeps && !account.is_direct && !account.native.is_native() {
            *account = Account::NEW;
        }
    }

    /// Whether the accounts decide how memory is accessed.
    pub(crate) fn adapts(&self) -> bool {
        self.choice == MemoryAccess::Adaptive
    }

    /// The root of the page tables of the loaded space.
    pub(crate) fn root(&self) -> u64 {
        self.root
    }

    /// How programs of the loaded space access memory.
    pub(crate) fn access(&self) -> Access {
        self.access_of(self.root)
    }

    /// How programs access memory in the space whose tables begin at `root`.
    pub(crate) fn access_of(&self, root: u64) -> Access {
        if self.user_code == UserCode::Native {
            return Access::PartlyNative;
        }
        match self.choice {
            MemoryAccess::Checked => Access::Checked,
            MemoryAccess::Adaptive => match self.accounts.get(&root) {
                Some(account) if account.native.is_native() => Access::PartlyNative,
                Some(account) if account.is_direct && account.is_common => self.anchored,
                Some(account) if account.is_direct => Access::Direct,
                _ => Access::Checked,
            },
            MemoryAccess::Direct => self.anchored,
        }
    }

    /// Notes whether the programs of the loaded space, which gets windows, use common parts only.
    pub(crate) fn note_parts(&mut self, are_common: bool) {
        if self.adapts() {
            self.account().is_common = are_common;
        }
    }

    /// How code at level 0 accesses memory.
    pub(crate) fn access_of_kernels(&self) -> Access {
        match self.choice {
            MemoryAccess::Direct => Access::Direct,
            MemoryAccess::Adaptive if self.runs_programs => Access::Direct,
            MemoryAccess::Adaptive | MemoryAccess::Checked => Access::Checked,
        }
    }

    /// How code at levels 0 to 2 without paging accesses memory.
    pub(crate) fn access_without_paging(&self) -> Access {
        match self.choice {
            MemoryAccess::Direct => Access::Direct,
            MemoryAccess::Adaptive if self.without_paging.is_direct => Access::Direct,
            MemoryAccess::Adaptive | MemoryAccess::Checked => Access::Checked,
        }
    }

    /// Records that code without paging was interrupted at time `now`, and counts the time since it
    /// was last seen as its own, up to a limit. Returns whether such code gets windows now.
    pub(crate) fn earns_without_paging(&mut self, now: u64) -> bool {
        if self.choice != MemoryAccess::Adaptive {
            return false;
        }
        let met = self.without_paging_met.replace(now).unwrap_or(now);
        let account = &mut self.without_paging;
        account.ran += now.saturating_sub(met).min(EARNED_AFTER);
        account.earns()
    }

    /// Adds `cost` nanoseconds to the cost of the windows of code without paging. Returns whether
    /// it loses them.
    pub(crate) fn spends_without_paging(&mut self, cost: u64) -> bool {
        self.choice == MemoryAccess::Adaptive && self.without_paging.spend(cost)
    }

    /// Records that a program runs. Returns true the first time, when the kernel's page tables have
    /// their final form.
    pub(crate) fn meet_program(&mut self) -> bool {
        !std::mem::replace(&mut self.runs_programs, true)
    }

    /// Records that the loaded space's program is running. Returns whether the space gets windows
    /// now.
    pub(crate) fn earns(&mut self, now: Moment) -> bool {
        if self.choice != MemoryAccess::Adaptive {
            return false;
        }
        self.add(now);
        // While they run natively it has no use for windows, but may need them at once when that ends.
        !self.account().native.is_native() && self.account().earns()
    }

    /// Adds `cost` nanoseconds, spent until `now`, to the cost of the loaded space's windows.
    /// Returns whether the space loses them.
    pub(crate) fn spend(&mut self, cost: u64, now: Moment) -> bool {
        if self.choice != MemoryAccess::Adaptive {
            return false;
        }
        self.add(now);
        self.account().spend(cost)
    }

    /// Resets the account of the loaded space, which turned out to be a different space from the
    /// one that had earned the windows.
    pub(crate) fn is_another(&mut self) {
        *self.account() = Account::NEW;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(time: u64) -> Moment {
        Moment {
            time,
            ..Moment::default()
        }
    }

    fn adaptive() -> Accounts {
        Accounts::new(MemoryAccess::Adaptive, false)
    }

    #[test]
    fn a_space_earns_windows_by_its_own_time_alone() {
        let mut accounts = adaptive();
        accounts.load(1, true, at(0));
        assert!(!accounts.earns(at(5 * MS)));
        accounts.load(2, true, at(5 * MS));
        assert!(!accounts.earns(at(9 * MS)));
        accounts.load(1, true, at(9 * MS));
        assert_eq!(accounts.access(), Access::Checked);
        assert!(accounts.earns(at(10 * MS + 1)));
        assert_eq!(accounts.access(), Access::Direct);
        assert!(
            !accounts.earns(at(30 * MS)),
            "the space already has windows"
        );
        accounts.load(2, true, at(30 * MS));
        assert_eq!(accounts.access(), Access::Checked);
    }

    #[test]
    fn a_space_that_reaches_more_pages_earns_windows_later_but_not_much_later() {
        let mut accounts = adaptive();
        accounts.load(1, true, at(0));
        let filled = |time, fills| Moment {
            time,
            fills,
            ..Moment::default()
        };
        assert!(!accounts.earns(filled(40 * MS, 1_000)));
        assert!(!accounts.earns(filled(49 * MS, 1_000)));
        accounts.load(2, true, filled(49 * MS, 1_000));
        assert!(
            accounts.earns(filled(56 * MS, 1_010)),
            "only the entries of space 2 count"
        );
        accounts.load(1, true, filled(90 * MS, 1_010));
        assert!(accounts.earns(filled(91 * MS, 1_010)));
        accounts.load(3, true, filled(100 * MS, 1_010));
        assert!(!accounts.earns(filled(1000 * MS, 1_000_000)));
        assert!(accounts.earns(filled(1100 * MS, 2_000_000)));
    }

    #[test]
    fn a_new_space_with_the_page_of_an_old_one_begins_anew() {
        let mut accounts = adaptive();
        accounts.load(1, false, at(0));
        accounts.load(2, false, at(5 * MS));
        accounts.load(1, false, at(6 * MS));
        assert!(!accounts.earns(at(8 * MS)));
        assert!(accounts.earns(at(13 * MS)));
    }

    #[test]
    fn windows_that_cost_too_much_are_lost_and_dearer_the_next_time() {
        let mut accounts = adaptive();
        accounts.load(1, true, at(0));
        assert!(accounts.earns(at(6 * MS)));
        assert!(
            !accounts.spend(5 * MS, at(10 * MS)),
            "the advance covers it"
        );
        assert!(accounts.spend(3 * MS, at(14 * MS)));
        assert_eq!(accounts.access(), Access::Checked);
        assert!(!accounts.earns(at(30 * MS)));
        assert!(accounts.earns(at(40 * MS)));
        // A long running time pays for a high cost.
        assert!(!accounts.spend(200 * MS, at(1040 * MS)));
    }

    #[test]
    fn code_without_paging_earns_windows_by_being_met_at_work() {
        let mut accounts = adaptive();
        assert!(
            !accounts.earns_without_paging(1000 * MS),
            "such code was seen only once"
        );
        assert!(!accounts.earns_without_paging(1001 * MS));
        assert_eq!(accounts.access_without_paging(), Access::Checked);
        assert!(accounts.earns_without_paging(1060 * MS));
        assert_eq!(accounts.access_without_paging(), Access::Direct);
        assert!(
            !accounts.spends_without_paging(5 * MS),
            "the advance covers it"
        );
        assert!(accounts.spends_without_paging(MS));
        assert_eq!(accounts.access_without_paging(), Access::Checked);
        assert!(
            !accounts.earns_without_paging(2000 * MS),
            "windows take longer to earn the second time"
        );
    }

    #[test]
    fn the_choice_decides_where_there_is_one() {
        for (choice, access) in [
            (MemoryAccess::Checked, Access::Checked),
            (MemoryAccess::Direct, Access::Direct),
        ] {
            let mut accounts = Accounts::new(choice, false);
            accounts.load(1, true, at(0));
            assert!(!accounts.earns(at(1000 * MS)) && !accounts.spend(1000 * MS, at(2000 * MS)));
            assert_eq!(accounts.access(), access);
        }
    }
}
