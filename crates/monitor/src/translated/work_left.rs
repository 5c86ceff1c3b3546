//! What is remembered of work that stopped for an interrupt: the work, and where the guest was.

use crate::memory::windows::PageAccess;
use tollgate_exits::latency::InterruptibleWork;
use tollgate_x86::paging::Privilege;
use tollgate_x86::{CpuState, LinearAddress, Selector};

/// The place where the guest is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    rip: u64,
    rsp: u64,
    code: Selector,
    stack: Selector,
    space: u64,
}

impl Place {
    pub(super) fn of(cpu: &CpuState) -> Self {
        Self {
            rip: cpu.rip,
            rsp: cpu.gpr[4],
            code: cpu.cs().selector,
            stack: cpu.ss().selector,
            space: cpu.cr3,
        }
    }
}

/// The work that was interrupted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Translating: the last block ends before this RIP, or no block has been made yet.
    Translate { next: u64 },
    /// Mapping the neighbours of a page that was accessed, from number `next` on.
    MapWindow { access: PageAccess, next: u64 },
    /// Comparing the window of an address. [`Translated::comparing`](super::Translated::comparing) has the progress.
    CompareWindow {
        linear: LinearAddress,
        privilege: Privilege,
    },
    /// Mapping all known pages of the loaded space.
    FillWindows,
}

impl Work {
    pub(super) fn kind(&self) -> InterruptibleWork {
        match self {
            Self::Translate { .. } => InterruptibleWork::Translate,
            Self::MapWindow { .. } => InterruptibleWork::MapWindow,
            Self::CompareWindow { .. } => InterruptibleWork::CompareWindow,
            Self::FillWindows => InterruptibleWork::FillWindows,
        }
    }
}

/// Interruptible work that stopped for an interrupt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkLeft {
    pub(super) place: Place,
    pub(super) work: Work,
    /// The number of boundaries at which the guest had not come back.
    pub(super) boundaries: u32,
}
