//! Records when a section of the monitor's interruptible work begins and when it ends.

use tollgate_engine::requests::Requests;
use tollgate_exits::latency::Section;
use tollgate_exits::ledger::Ledger;
use tollgate_x86::{CpuState, Flags};

/// Records that a section begins while the processor has these registers. Returns the time.
#[inline]
pub(crate) fn begin(ledger: &Ledger, cpu: &CpuState, requests: &Requests) -> u64 {
    let begin = ledger.now();
    let lets_in = cpu.flags().contains(Flags::IF) && cpu.shadow_rip != cpu.rip;
    requests.points().begin(begin, lets_in);
    begin
}

/// Records that the section that began at time `begin` has ended.
#[inline]
pub(crate) fn end(ledger: &mut Ledger, requests: &Requests, section: Section, begin: u64) {
    let work = requests.points().end();
    ledger.section(section, begin, work.longest, work.lets_in);
}
