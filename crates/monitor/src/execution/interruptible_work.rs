//! Records when a piece of the monitor's interruptible work begins and when it ends.

use tollgate_engine::requests::Requests;
use tollgate_exits::latency::InterruptibleWork;
use tollgate_exits::ledger::Ledger;
use tollgate_x86::{CpuState, Flags};

/// Records that a piece of work begins while the processor has these registers. Returns the time.
#[inline]
pub(crate) fn begin(ledger: &Ledger, cpu: &CpuState, requests: &Requests) -> u64 {
    let begin = ledger.now();
    let lets_in = cpu.flags().contains(Flags::IF) && cpu.shadow_rip != cpu.rip;
    requests.checkpoints().begin(begin, lets_in);
    begin
}

/// Records that the piece of work that began at time `begin` has ended.
#[inline]
pub(crate) fn end(ledger: &mut Ledger, requests: &Requests, work: InterruptibleWork, begin: u64) {
    let ended = requests.checkpoints().end();
    ledger.interruptible_work(work, begin, ended.longest, ended.lets_in);
}
