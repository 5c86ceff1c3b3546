//! Which pages of code may run natively: those without an instruction that would tell a program
//! about the host, or change what only translated code follows, without a fault.

use super::judgement::{Judgement, Page, Starts, judge, starts_after};
use rustc_hash::FxHashMap;
use tollgate_memory::GuestMemory;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// What is known of pages of code, by physical page.
#[derive(Default)]
pub(in crate::translated) struct CodePages {
    pages: FxHashMap<u64, Judgement>,
    /// Where the first instruction of the second page may begin if the first page precedes it.
    starts: FxHashMap<(u64, u64), Starts>,
    /// What the host refuses to programs.
    pub(in crate::translated) refused: Refused,
    /// Pages whose code was written since it was judged. Programs may still have them mapped.
    written: Vec<u64>,
}

/// What the host refuses to programs, so that they may have it in their code.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::translated) struct Refused {
    /// SGDT, SIDT, SLDT, SMSW and STR, by user-mode instruction prevention (SDM volume 3, 2.5).
    /// Linux answers some of them with values of its own, the same for each process.
    pub(in crate::translated) descriptor_tables: bool,
    /// RDTSC and RDTSCP.
    pub(in crate::translated) time_stamp: bool,
    /// CPUID.
    pub(in crate::translated) cpuid: bool,
}

/// The lines of a whole page.
const ALL_LINES: u64 = u64::MAX;

/// The bytes of a page, if it is there.
fn bytes_of(page: u64, memory: &GuestMemory) -> Option<Page> {
    let mut bytes = [0; PAGE_SIZE as usize];
    let is_there = memory.read(PhysicalAddress(page * PAGE_SIZE), &mut bytes);
    is_there.then_some(bytes)
}

impl CodePages {
    /// Judges a page. Its lines are held from then on, so that [`Self::written`] learns of each
    /// write to the page; the caller must ensure that stores to it are tested.
    pub(super) fn judged(&mut self, page: u64, memory: &GuestMemory) -> Judgement {
        let refused = self.refused;
        *self.pages.entry(page).or_insert_with(|| {
            memory.code().hold(page, ALL_LINES);
            match bytes_of(page, memory) {
                Some(bytes) => judge(&bytes, refused),
                None => Judgement::UNFIT,
            }
        })
    }

    /// Whether a page was judged and was not written since.
    pub(super) fn is_known(&self, page: u64) -> bool {
        self.pages.contains_key(&page)
    }

    /// Where the first instruction of a page may begin if `before` precedes it. Both were judged.
    pub(super) fn starts(&mut self, before: u64, page: u64, memory: &GuestMemory) -> Starts {
        *(self.starts.entry((before, page))).or_insert_with(|| {
            match (bytes_of(before, memory), bytes_of(page, memory)) {
                (Some(before), Some(page)) => starts_after(&before, &page),
                _ => Starts::ALL,
            }
        })
    }

    /// Says what the host refuses to programs. The pages that are known were judged without it.
    pub(in crate::translated) fn set_refused(&mut self, refused: Refused) {
        if refused != self.refused {
            self.refused = refused;
            self.pages.retain(|_, judgement| judgement.is_always_fit());
        }
    }

    /// Follows a write to a page that may hold code. Returns whether the page was known.
    pub(in crate::translated) fn written(&mut self, page: u64, memory: &GuestMemory) -> bool {
        if self.pages.remove(&page).is_none() {
            return false;
        }
        self.starts
            .retain(|&(before, after), _| before != page && after != page);
        memory.code().release(page, ALL_LINES);
        self.written.push(page);
        true
    }

    /// The pages that must be unmapped before a program runs again.
    pub(super) fn take_written(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.written)
    }
}
