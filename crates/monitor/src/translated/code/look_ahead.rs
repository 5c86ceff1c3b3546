//! Looks up code pages in the guest's page tables before control reaches them.
//!
//! When a code page becomes active, the known code pages near it are looked up in the guest's page
//! tables as well: a processor, too, may translate addresses ahead of time, as long as that changes
//! nothing in memory. So a page counts only if the accessed bits on the way to it are set.
//!
//! Correctness does not depend on this work. If an interrupt waits, the remaining pages are looked
//! up when control reaches them, or when this page is met again. In the second case all of them are
//! looked up without stopping: otherwise a handler that makes the page inactive could keep the
//! guest here.

use crate::translated::processor::Processor;
use tollgate_engine::abi::sites::BlockId;
use tollgate_exits::latency::InterruptibleWork;
use tollgate_x86::LinearAddress;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::Privilege;

impl Processor<'_> {
    /// Looks up the pages near the page of block `met`, to which control has come and which has
    /// just become active.
    pub(in crate::translated) fn foresee(&mut self, met: BlockId) {
        let pages = self.runner.engine.expected_near(met);
        if pages.is_empty() {
            return;
        }
        let begin = self.begin_work();
        let may_stop = !self.runner.half_foreseen;
        let mut stopped = false;
        let cpu = &self.runner.context.cpu;
        let privilege = Privilege::of_cpl(cpu.cpl());
        for expected in pages {
            let linear = LinearAddress(expected.linear_page * PAGE_SIZE);
            let physical_page = expected.physical_page;
            if (self.view).foresee_fetch(cpu, linear, privilege, physical_page) {
                self.runner.engine.foresee(&expected);
            }
            stopped = may_stop && self.runner.requests.stops(InterruptibleWork::Link);
            if stopped {
                break;
            }
        }
        if self.runner.requests.checkpoints().may_stop() {
            self.runner.half_foreseen = stopped;
        }
        self.end_work(InterruptibleWork::Link, begin);
    }
}
