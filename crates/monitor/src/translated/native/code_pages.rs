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
    /// How often code of a page was written after it was found fit.
    rewritten: FxHashMap<u64, u8>,
    /// How many pages are trusted.
    trusted: usize,
}

/// How often code of a page must be found fit and be written before the page is trusted: before some
/// pages are, and then.
const TRUSTED_AFTER: [u8; 2] = [3, 1];
/// How many pages must be trusted until the others are sooner.
const SOME_PAGES: usize = 4;
/// The most pages whose rewriting is counted.
const MOST_REWRITTEN: usize = 1 << 14;

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
        if self.is_trusted(page) {
            return Judgement::FIT;
        }
        let refused = self.refused;
        *self.pages.entry(page).or_insert_with(|| {
            memory.code().hold(page, ALL_LINES);
            match bytes_of(page, memory) {
                Some(bytes) => judge(&bytes, refused),
                None => Judgement::UNFIT,
            }
        })
    }

    /// Whether a page was judged and was not written since, or need not be judged.
    pub(super) fn is_known(&self, page: u64) -> bool {
        self.pages.contains_key(&page) || self.is_trusted(page)
    }

    /// Whether a page is trusted to hold code that may run natively, whatever is written there: a
    /// compiler writes its code there, and was seen to write nothing else.
    pub(super) fn is_trusted(&self, page: u64) -> bool {
        let after = TRUSTED_AFTER[usize::from(self.trusted >= SOME_PAGES)];
        self.rewritten
            .get(&page)
            .is_some_and(|&times| times >= after)
    }

    /// Counts that fit code of a page was written.
    fn count_rewritten(&mut self, page: u64) {
        if self.rewritten.len() >= MOST_REWRITTEN {
            self.rewritten.clear();
            self.trusted = 0;
        }
        let was_trusted = self.is_trusted(page);
        let times = self.rewritten.entry(page).or_default();
        *times = times.saturating_add(1);
        self.trusted += usize::from(!was_trusted && self.is_trusted(page));
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
        let Some(judgement) = self.pages.remove(&page) else {
            return false;
        };
        match judgement.is_always_fit() {
            true => self.count_rewritten(page),
            false => {
                self.rewritten.remove(&page);
            }
        }
        self.starts
            .retain(|&(before, after), _| before != page && after != page);
        memory.code().release(page, ALL_LINES);
        self.written.push(page);
        true
    }

    /// Whether there are pages that must be unmapped before a program runs again.
    pub(super) fn has_written(&self) -> bool {
        !self.written.is_empty()
    }

    /// The pages that must be unmapped before a program runs again.
    pub(super) fn take_written(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: [u8; 2] = [0x90, 0xc3];
    const CPUID: [u8; 2] = [0x0f, 0xa2];

    /// Writes code to a page and has it judged. Returns whether it may run natively.
    fn write(pages: &mut CodePages, memory: &mut GuestMemory, page: u64, code: [u8; 2]) -> bool {
        memory.write(PhysicalAddress(page * PAGE_SIZE), &code);
        pages.written(page, memory);
        pages.judged(page, memory).is_always_fit()
    }

    #[test]
    fn a_page_that_only_fit_code_is_written_to_becomes_trusted() {
        let mut memory = GuestMemory::new(1 << 20).expect("memory");
        let mut pages = CodePages::default();
        for _ in 0..3 {
            assert!(write(&mut pages, &mut memory, 1, USUAL));
            assert!(!pages.is_trusted(1));
        }
        assert!(write(&mut pages, &mut memory, 1, USUAL));
        assert!(pages.is_trusted(1));
        // Code that reveals something ends the count.
        for _ in 0..10 {
            write(&mut pages, &mut memory, 2, USUAL);
            assert!(!write(&mut pages, &mut memory, 2, CPUID));
        }
        assert!(!pages.is_trusted(2));
    }

    #[test]
    fn after_some_pages_the_others_are_trusted_sooner() {
        let mut memory = GuestMemory::new(1 << 20).expect("memory");
        let mut pages = CodePages::default();
        for page in 1..=4 {
            for _ in 0..4 {
                write(&mut pages, &mut memory, page, USUAL);
            }
        }
        write(&mut pages, &mut memory, 5, USUAL);
        assert!(!pages.is_trusted(5));
        write(&mut pages, &mut memory, 5, USUAL);
        assert!(pages.is_trusted(5));
    }
}
