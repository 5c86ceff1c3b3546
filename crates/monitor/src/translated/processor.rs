//! A translated processor with the guest's memory, but without the machine: enough to find and
//! link code, to store memos, and to map shadow windows.
//!
//! [`Running`] lends these parts ([`Running::processor`]). Its own methods are those that ask the
//! machine something, count an exit, or raise an exception.

use crate::execution::due_work::Due;
use crate::execution::interruptible_work;
use crate::execution::running::Running;
use crate::memory::guest_view::GuestView;
use crate::translated::Translated;
use tollgate_engine::policy::out_of_line::OutOfLine;
use tollgate_exits::Ledger;
use tollgate_exits::latency::InterruptibleWork;
use tollgate_platform::Platform;
use tollgate_x86::Exception;

/// The parts of a [`Running`] that are not the machine and do not belong to one instruction.
pub(crate) struct Processor<'a> {
    pub(crate) runner: &'a mut Translated,
    pub(crate) view: &'a mut GuestView,
    /// The ledger in which interruptible work is counted.
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) due: &'a mut Due,
}

impl Processor<'_> {
    /// Fetches and decodes the instruction at CS:EIP.
    pub(crate) fn decode_current(&mut self) -> Result<OutOfLine, Exception> {
        let features = self.runner.engine.features();
        self.view.decode(&self.runner.context.cpu, features)
    }

    /// Records that a piece of the monitor's interruptible work begins.
    #[inline]
    pub(crate) fn begin_work(&mut self) -> u64 {
        interruptible_work::begin(self.ledger, &self.runner.context.cpu, &self.runner.requests)
    }

    /// Records that the piece of work has ended.
    #[inline]
    pub(crate) fn end_work(&mut self, work: InterruptibleWork, begin: u64) {
        interruptible_work::end(self.ledger, &self.runner.requests, work, begin);
    }
}

impl<P: Platform> Running<'_, Translated, P> {
    /// Borrows the parts that work on translated code needs.
    #[inline]
    pub(crate) fn processor(&mut self) -> Processor<'_> {
        Processor {
            runner: self.runner,
            view: self.view,
            ledger: self.ledger,
            due: self.due,
        }
    }
}
