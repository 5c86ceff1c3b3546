//! Which address spaces' programs reach their memory directly, through shadow windows.
//!
//! A window costs the host some microseconds for each run of pages, so only a space that runs
//! for long is worth windows. It *earns* them by running; what they cost from then on is held
//! against the time that it has run with them, and where that is out of proportion the space goes
//! back to looked-up accesses and must earn them anew, for longer. So no program loses more than
//! a part of its time.

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use tollgate_engine::policy::access::Access;
use tollgate_tlb::shadow_windows::anchors;

/// How code of real mode and of 32 and 64 bits reaches guest memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum MemoryAccess {
    /// Each access is looked up in the software TLB.
    #[default]
    Checked,
    /// Each space as it has earned.
    Adaptive,
    /// All directly.
    Direct,
}

/// What this process has a place for, beside other mappings.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// [Shadow windows](tollgate_tlb::shadow_windows); without them all accesses are looked up.
    pub windows: bool,
    /// Their [anchors](tollgate_tlb::shadow_windows::anchors).
    pub anchors: bool,
}

impl Places {
    /// Looks at this process.
    pub fn of_process() -> Self {
        Self {
            windows: tollgate_tlb::shadow_windows::have_place(),
            anchors: anchors::have_place(),
        }
    }
}

/// Nanoseconds that a space must have run for windows, the first time.
const EARNED_AFTER: u64 = 6_000_000;
/// The same for each entry of the software TLB that it has filled: mapping such a page, and the faults
/// on the way, cost some 20 us, and what runs with windows takes half of the time or somewhat more. So
/// a space has then lost as much by looking up as windows would have cost.
const EARNED_AFTER_FOR_ENTRY: u64 = 50_000;
/// However many they are it need not run longer for them: most will not be used again.
const EARNED_AFTER_FOR_ENTRIES_AT_MOST: u64 = 1_000_000_000;
/// By how much longer each time that it has lost them.
const LONGER: u64 = 4;
/// It must never run longer than this for them.
const EARNED_AFTER_AT_MOST: u64 = 20_000_000_000;
/// One part in so many of a space's time may be spent on its windows.
const SHARE: u64 = 4;
/// What may be spent on them from the start.
const ADVANCE: u64 = 5_000_000;
/// Spaces that are known of at most.
const MOST_SPACES: usize = 256;

/// What is known of an address space.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// Nanoseconds that it has run, as it is now: with windows or without.
    ran: u64,
    /// Nanoseconds spent on its windows.
    spent: u64,
    /// Entries of the software TLB that it has filled meanwhile.
    filled: u64,
    /// What it must have run to get windows.
    earned_after: u64,
    is_direct: bool,
    /// Its programs use the parts that an anchor leads to, and not the first one.
    is_common: bool,
}

impl Account {
    const NEW: Self = Self {
        ran: 0,
        spent: 0,
        filled: 0,
        earned_after: EARNED_AFTER,
        is_direct: false,
        is_common: true,
    };

    /// Whether it gets windows now.
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

    /// Its windows have cost so many nanoseconds more: whether it loses them.
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
            ..Self::NEW
        };
    }
}

/// What an account is kept in, counted since the start.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Moment {
    /// Nanoseconds of guest time.
    pub(crate) time: u64,
    /// Entries of the software TLBs that were filled.
    pub(crate) fills: u64,
}

/// The accounts of all spaces, by the address of their page tables.
#[derive(Debug)]
pub(crate) struct Accounts {
    choice: MemoryAccess,
    /// What direct access of programs comes to if they use common parts.
    anchored: Access,
    accounts: FxHashMap<u64, Account>,
    /// The system has begun to run programs.
    runs_programs: bool,
    /// Where the tables of the loaded space begin.
    root: u64,
    /// Since when nothing has been added to its account.
    since: Moment,
    /// That of all code of real mode, which has no spaces.
    real_mode: Account,
    /// When real mode was met last.
    real_mode_met: Option<u64>,
}

impl Accounts {
    /// Direct accesses of programs may be by anchors if there `are_anchors`.
    pub(crate) fn new(choice: MemoryAccess, are_anchors: bool) -> Self {
        Self {
            choice,
            anchored: match are_anchors {
                true => Access::Anchored,
                false => Access::Direct,
            },
            accounts: FxHashMap::default(),
            runs_programs: false,
            root: 0,
            since: Moment::default(),
            real_mode: Account::NEW,
            real_mode_met: None,
        }
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
        self.since = now;
        let account = self.account();
        account.ran += ran;
        account.filled += filled;
    }

    /// The space whose tables begin at `root` is loaded now. Unless `keeps`, what was
    /// derived from its tables is void: most often because it is a new one, which may have got
    /// the page of one that is gone.
    pub(crate) fn load(&mut self, root: u64, keeps: bool, now: Moment) {
        if self.choice != MemoryAccess::Adaptive {
            return;
        }
        self.add(now);
        self.root = root;
        let account = self.account();
        if !keeps && !account.is_direct {
            *account = Account::NEW;
        }
    }

    /// Whether the accounts decide anything.
    pub(crate) fn adapts(&self) -> bool {
        self.choice == MemoryAccess::Adaptive
    }

    /// Where the tables of the loaded space begin.
    pub(crate) fn root(&self) -> u64 {
        self.root
    }

    /// How code of programs reaches memory in the loaded space.
    pub(crate) fn access(&self) -> Access {
        self.access_of(self.root)
    }

    /// The same in the space whose tables begin at `root`.
    pub(crate) fn access_of(&self, root: u64) -> Access {
        match self.choice {
            MemoryAccess::Checked => Access::Checked,
            MemoryAccess::Adaptive => match self.accounts.get(&root) {
                Some(account) if account.is_direct && account.is_common => self.anchored,
                Some(account) if account.is_direct => Access::Direct,
                _ => Access::Checked,
            },
            MemoryAccess::Direct => self.anchored,
        }
    }

    /// Programs of the loaded space, which gets windows, use common parts, or others besides.
    pub(crate) fn note_parts(&mut self, are_common: bool) {
        if self.adapts() {
            self.account().is_common = are_common;
        }
    }

    /// How code at level 0 reaches memory.
    pub(crate) fn access_of_kernels(&self) -> Access {
        match self.choice {
            MemoryAccess::Direct => Access::Direct,
            MemoryAccess::Adaptive if self.runs_programs => Access::Direct,
            MemoryAccess::Adaptive | MemoryAccess::Checked => Access::Checked,
        }
    }

    /// How code of real mode reaches memory.
    pub(crate) fn access_of_real_mode(&self) -> Access {
        match self.choice {
            MemoryAccess::Direct => Access::Direct,
            MemoryAccess::Adaptive if self.real_mode.is_direct => Access::Direct,
            MemoryAccess::Adaptive | MemoryAccess::Checked => Access::Checked,
        }
    }

    /// Code of real mode was interrupted at this time: whether it gets windows now. What passed since
    /// the last time counts as its own, within limits.
    pub(crate) fn real_mode_earns(&mut self, now: u64) -> bool {
        if self.choice != MemoryAccess::Adaptive {
            return false;
        }
        let met = self.real_mode_met.replace(now).unwrap_or(now);
        let account = &mut self.real_mode;
        account.ran += now.saturating_sub(met).min(EARNED_AFTER);
        account.earns()
    }

    /// The windows of real mode have cost so many nanoseconds more: whether it loses them.
    pub(crate) fn real_mode_spends(&mut self, cost: u64) -> bool {
        self.choice == MemoryAccess::Adaptive && self.real_mode.spend(cost)
    }

    /// A program runs. True the first time: the system has its page tables as they will stay.
    pub(crate) fn meet_program(&mut self) -> bool {
        !std::mem::replace(&mut self.runs_programs, true)
    }

    /// The loaded space's program is running now: whether it gets windows.
    pub(crate) fn earns(&mut self, now: Moment) -> bool {
        if self.choice != MemoryAccess::Adaptive {
            return false;
        }
        self.add(now);
        self.account().earns()
    }

    /// The loaded space's windows have cost so many nanoseconds more, until `now`: whether it
    /// loses them.
    pub(crate) fn spend(&mut self, cost: u64, now: Moment) -> bool {
        if self.choice != MemoryAccess::Adaptive {
            return false;
        }
        self.add(now);
        self.account().spend(cost)
    }

    /// The loaded space turns out to be another one than that which had earned its windows.
    pub(crate) fn is_another(&mut self) {
        *self.account() = Account::NEW;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(time: u64) -> Moment {
        Moment { time, fills: 0 }
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
        assert!(!accounts.earns(at(30 * MS)), "it has them already");
        accounts.load(2, true, at(30 * MS));
        assert_eq!(accounts.access(), Access::Checked);
    }

    #[test]
    fn a_space_that_reaches_more_pages_earns_windows_later_but_not_much_later() {
        let mut accounts = adaptive();
        accounts.load(1, true, at(0));
        let filled = |time, fills| Moment { time, fills };
        assert!(!accounts.earns(filled(40 * MS, 1_000)));
        assert!(!accounts.earns(filled(49 * MS, 1_000)));
        accounts.load(2, true, filled(49 * MS, 1_000));
        assert!(accounts.earns(filled(56 * MS, 1_010)), "its own entries");
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
        // Much time pays for much.
        assert!(!accounts.spend(200 * MS, at(1040 * MS)));
    }

    #[test]
    fn real_mode_earns_windows_by_being_met_at_work() {
        let mut accounts = adaptive();
        assert!(!accounts.real_mode_earns(1000 * MS), "met once");
        assert!(!accounts.real_mode_earns(1001 * MS));
        assert_eq!(accounts.access_of_real_mode(), Access::Checked);
        assert!(accounts.real_mode_earns(1060 * MS));
        assert_eq!(accounts.access_of_real_mode(), Access::Direct);
        assert!(!accounts.real_mode_spends(5 * MS), "the advance covers it");
        assert!(accounts.real_mode_spends(MS));
        assert_eq!(accounts.access_of_real_mode(), Access::Checked);
        assert!(!accounts.real_mode_earns(2000 * MS), "dearer the next time");
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
