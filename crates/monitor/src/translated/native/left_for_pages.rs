//! Where programs have left native code for pages, and for which page a guest's kernel was asked.

use tollgate_tlb::SpaceNumber;
use tollgate_x86::LinearAddress;
use tollgate_x86::paging::AccessKind;

/// A page that a program has asked its kernel for by a page fault.
#[derive(Clone, Copy, Debug)]
pub(in crate::translated) struct Awaited {
    /// The space of the program.
    pub(in crate::translated) space: SpaceNumber,
    /// The address of the instruction.
    pub(in crate::translated) rip: u64,
    /// What it accesses.
    pub(in crate::translated) linear: LinearAddress,
    pub(in crate::translated) kind: AccessKind,
}

/// How often programs have left at the same instruction for a page, in succession. If no mapping
/// lets the instruction complete, because it needs more pages than can be mapped or the same page in
/// two ways, it must be translated.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::translated) struct LeftAt {
    rip: u64,
    times: u32,
    is_translated: bool,
}

impl LeftAt {
    /// The most pages that one instruction accesses, and its own two, twice.
    const OFTEN: u32 = 16;

    /// Notes that a program has left at `rip`. Returns whether it must be translated from there: it
    /// has left there too often, or `never` completes.
    pub(super) fn again(&mut self, rip: u64, never: bool) -> bool {
        if rip != self.rip {
            *self = Self {
                rip,
                ..Self::default()
            };
        }
        self.times += 1;
        self.is_translated = never || self.times > Self::OFTEN;
        self.is_translated
    }

    /// Whether the program is about to run at `rip` and must be translated there, this time.
    pub(super) fn is_translated(&mut self, rip: u64) -> bool {
        let is_it = self.is_translated && rip == self.rip;
        if is_it {
            *self = Self::default();
        }
        is_it
    }
}
