//! Programs that run natively: the processor runs them as they are, at their own addresses, in a
//! process of the host that has guest RAM mapped where the guest's page tables lead. The guest's
//! kernel is translated as always.
//!
//! The choice is made for a space ([`UserCode`](crate::memory::access_policy::UserCode)). Code of
//! its programs then has a mode of its own, [`Access::PartlyNative`], so each return to a program
//! leaves translated code, and [`enter`] hands the registers to the process. They come back at the
//! next system call, exception, or request to leave. Whatever the processor has refused to do, the
//! monitor does as for translated code: it maps the page, delivers the guest's exception, or runs
//! the one instruction translated. So it matters only that the processor refuses everything that it
//! would do differently. What it would do without refusing, but with the host's state, is kept away
//! from it by [`code_pages`]: a page of code with such an instruction is translated.
//!
//! [`Access::PartlyNative`]: tollgate_engine::policy::access::Access::PartlyNative

pub(in crate::translated) mod code_pages;
pub(in crate::translated) mod enter;
pub(in crate::translated) mod faults;
pub(in crate::translated) mod judgement;
pub(in crate::translated) mod left_for_pages;
pub(in crate::translated) mod processes;
pub(in crate::translated) mod registers;

use self::code_pages::CodePages;
use self::left_for_pages::{Awaited, LeftAt};
use self::processes::Processes;
use crate::memory::native_prices::NativePrices;

/// What a processor knows of programs that run natively.
#[derive(Default)]
pub(crate) struct Native {
    /// The processes that run programs, by space.
    pub(in crate::translated) processes: Processes,
    /// Which pages of code run natively.
    pub(in crate::translated) code: CodePages,
    /// Where programs leave for pages.
    pub(in crate::translated) left_at: LeftAt,
    /// The page that a guest's kernel was last asked for by a page fault of a program.
    pub(in crate::translated) awaited: Option<Awaited>,
    /// What entries of programs cost on this host.
    pub(in crate::translated) prices: NativePrices,
    /// Counts since the start.
    pub(crate) counts: NativeCounts,
}

impl Native {
    /// Ends the processes of all programs.
    pub(crate) fn end_all(&mut self) {
        self.processes.end_all();
    }
}

/// Counts of programs that run natively.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NativeCounts {
    /// How often a program was entered.
    pub entries: u64,
    /// Exits for a page that was not mapped, or not with these rights.
    pub page_faults: u64,
    /// Exits for system calls.
    pub system_calls: u64,
    /// Exits for other exceptions of the processor.
    pub exceptions: u64,
    /// Instructions that were run translated after such an exit.
    pub steps: u64,
    /// Exits because the monitor had work to do.
    pub kicks: u64,
    /// Returns to a program that were left to translated code, because the page has an instruction
    /// that must not run natively or the registers are of another system than Linux.
    pub translated: u64,
    /// Processes that were started.
    pub processes: u64,
    /// Processes that ended while they ran a program.
    pub deaths: u64,
}

impl NativeCounts {
    /// The counts with their names in statistics.
    pub(crate) fn named(&self) -> [(&'static str, u64); 9] {
        [
            ("native-entries", self.entries),
            ("native-page-faults", self.page_faults),
            ("native-system-calls", self.system_calls),
            ("native-exceptions", self.exceptions),
            ("native-steps", self.steps),
            ("native-kicks", self.kicks),
            ("native-translated", self.translated),
            ("native-processes", self.processes),
            ("native-deaths", self.deaths),
        ]
    }
}
