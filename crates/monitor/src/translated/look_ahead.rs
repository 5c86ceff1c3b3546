//! Looks code up before control comes to it.
//!
//! When a code page comes in force, those near it that are known are looked up in the guest's page
//! tables at once: a processor may translate addresses ahead of time as well, as long as that
//! changes nothing in memory. So a page counts only if the accessed bits on the way to it are set.
//!
//! Nothing depends on it. If an interrupt waits, the other pages are met when control comes there, or
//! they are looked up when this page is met again: then all of them, or a handler that puts the page
//! out of force could keep the guest here.

use crate::execution::running::Running;
use crate::translated::Translated;
use tollgate_engine::abi::sites::BlockId;
use tollgate_exits::latency::Section;
use tollgate_platform::Platform;
use tollgate_x86::LinearAddress;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::Privilege;

impl<P: Platform> Running<'_, Translated, P> {
    /// The page of a block that control has come to has come in force.
    pub(super) fn foresee(&mut self, met: BlockId) {
        let pages = self.runner.engine.expected_near(met);
        if pages.is_empty() {
            return;
        }
        let begin = self.begin_section();
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
            stopped = may_stop && self.runner.requests.stops(Section::Link);
            if stopped {
                break;
            }
        }
        if self.pending.points().may_stop() {
            self.runner.half_foreseen = stopped;
        }
        self.end_section(Section::Link, begin);
    }
}
