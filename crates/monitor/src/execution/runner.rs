//! The seam between a vCPU's life and what runs its code.
//!
//! A [`Runner`] has the processor's registers and runs guest code on them until something needs
//! the monitor. The monitor does the rest: it asks the machine for interrupts, delivers events
//! through the guest's tables, executes the instructions that the runner does not, sleeps in
//! HLT, keeps the books. [`Running`] is that side, written for any runner and bound to one when it is
//! compiled. A turn of its loop (`run_loop.rs`) is:
//!
//! ```text
//!   what changed since: code_written, translations_changed, control_changed ...
//!   entry   where guest code goes on, found with the monitor's help: page faults, links
//!   run     guest code, from the entry to an exit; nothing else of the monitor is reached
//!   settle  the exit, if it is one that only this runner knows
//! ```
//!
//! [`Translated`](crate::translated::Translated), copy-translation, is the runner of the
//! product. Its entries are places in blocks, its own exits are sites and signals, and it
//! derives links from page tables.
//!
//! One on hardware virtualization would implement the same: its entry is "whole" or "one
//! instruction", and nothing needs to be found; `run` is the system call that enters the
//! guest, which a kick interrupts; control registers and the like are handed over in
//! `control_changed`; `interrupt_waits` opens the interrupt window; it derives nothing from the
//! guest's page tables and translates no code, so it ignores those changes. What hardware
//! exits for is [`Exit::Instruction`]; device accesses that it has decoded itself would be
//! exits of its own. A small interpreter implements it in `runner_tests.rs`.

use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use crate::memory::guest_view::GuestView;
use tollgate_emulate::interrupt::{EventSource, TripleFault};
use tollgate_engine::policy::instruction_kind::Helper;
use tollgate_exits::Ledger;
use tollgate_memory::GuestMemory;
use tollgate_memory::gate::CodeWrite;
use tollgate_platform::Platform;
use tollgate_tlb::Derived;
use tollgate_x86::{CpuState, Exception};

/// How far a run may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// Until something needs the monitor. Goes on where the last exit left off, if that holds.
    Free,
    /// Until the instruction at CS:RIP has completed, and from its begin.
    One,
    /// Until that instruction has completed, from where its last exit left off.
    RestOfOne,
}

/// Why guest code does not run any more. The registers are exact, except that an exit of the
/// runner's own makes them so when it is settled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit<Own> {
    /// There was a request to leave. CS:RIP is between two instructions.
    Interrupted,
    /// The instruction before CS:RIP has completed, and nothing of the next has begun.
    Completed,
    /// The instruction at CS:RIP is one that the monitor executes; nothing of it is done.
    Instruction,
    /// The instruction at CS:RIP raises this exception; nothing of it is done.
    Fault(Exception),
    /// Something that only this runner knows, for [`Runner::settle`].
    Own(Own),
}

/// What runs a processor's code.
///
/// All calls come from the thread that runs the vCPU. A runner is made with the word that other
/// threads and signals set to request an exit ([`Vcpu::with_runner`](crate::Vcpu::with_runner)):
/// while it is not 0 no further instruction begins. Setting it comes with a signal to the
/// thread ([`Kick`](crate::Kick)).
pub trait Runner: Sized {
    /// Where guest code goes on.
    type Entry;
    /// An exit in this runner's own terms.
    type Exit;
    /// What the runner derives from the guest's page tables.
    type Derived: Derived;

    /// The registers.
    fn state(&self) -> &CpuState;

    /// The registers, to be changed. A runner that keeps copies of them elsewhere takes each call
    /// for a change; those below that end in `changed` say more of some.
    fn state_mut(&mut self) -> &mut CpuState;

    /// The registers, and what must be dropped when translations change: a range of pages, a
    /// space, or all ([`tollgate_x86::TranslationChange`]). Of pages that are dropped with others
    /// it is told if it may have fetched code there, through [`GuestView::place`].
    fn state_and_derived(&mut self) -> (&mut CpuState, &mut Self::Derived);

    /// General registers or EFLAGS were changed.
    fn registers_changed(&mut self);

    /// `CpuState::vector` was changed: the x87, SSE and AVX registers.
    fn vectors_changed(&mut self);

    /// All of the state may have been replaced.
    fn state_replaced(&mut self);

    /// Whether code must run in another way than before, now that a data segment was loaded.
    fn has_left_mode(&self) -> bool;

    /// Segments, control registers, the privilege level or the memory map may have changed since
    /// the last run.
    fn control_changed(&mut self, view: &mut GuestView);

    /// What the guest's RDTSC adds to the host's counter, modulo 2^64.
    fn set_time_stamp_offset(&mut self, offset: u64);

    /// The guest stands at an instruction boundary, with nothing to be delivered there. Work that
    /// was stopped for an interrupt goes on if it was for this instruction. True: it did.
    fn goes_on_with_work<P: Platform>(_vcpu: &mut Running<'_, Self, P>) -> bool {
        false
    }

    /// Whether a maskable interrupt waits: then the guest is left when it lets interrupts in.
    fn interrupt_waits(&mut self, waits: bool);

    /// Bytes of physical memory that held code were written.
    fn code_written(&mut self, write: CodeWrite, memory: &mut GuestMemory);

    /// Something was dropped because translations changed: the page of CS:RIP may lie
    /// elsewhere now.
    fn translations_changed(&mut self);

    /// The next run begins at CS:RIP, wherever the last one left off.
    fn start_anew(&mut self);

    /// The monitor has executed an instruction for the guest; `jumped`: it did not fall through
    /// to the next.
    fn executed<P: Platform>(vcpu: &mut Running<'_, Self, P>, helper: &Helper, jumped: bool);

    /// Finds where guest code goes on. `None`: an exception was raised instead, or something is
    /// to be looked at again first.
    ///
    /// # Errors
    /// The vCPU cannot go on.
    fn entry<P: Platform>(
        vcpu: &mut Running<'_, Self, P>,
        extent: Extent,
    ) -> Result<Option<Self::Entry>, VcpuStop>;

    /// Runs guest code until something needs the monitor, in this view of memory. Meanwhile it may
    /// make accesses that are [near](Platform::near) in the machine. What it calls of the monitor is
    /// entered in the ledger as a [fast-path call](Ledger::begin_fast_path_call).
    fn run<P: Platform>(
        &mut self,
        entry: Self::Entry,
        view: &mut GuestView,
        machine: &mut P,
        ledger: &mut Ledger,
    ) -> Exit<Self::Exit>;

    /// Delivers an exception of the instruction at CS:RIP, or of the one before it, through the
    /// guest's tables, and whatever its delivery raises.
    ///
    /// # Errors
    /// The processor shuts down.
    fn deliver<P: Platform>(
        vcpu: &mut Running<'_, Self, P>,
        exception: Exception,
    ) -> Result<(), TripleFault> {
        vcpu.deliver_by_tables(exception)
    }

    /// Delivers an interrupt from outside that was acknowledged, at an instruction boundary.
    ///
    /// # Errors
    /// The processor shuts down.
    fn deliver_interrupt<P: Platform>(
        vcpu: &mut Running<'_, Self, P>,
        vector: u8,
    ) -> Result<(), VcpuStop> {
        vcpu.deliver_event(vector, EventSource::External)
    }

    /// Does what an exit of the runner's own asks for.
    ///
    /// # Errors
    /// The vCPU cannot go on.
    fn settle<P: Platform>(
        vcpu: &mut Running<'_, Self, P>,
        exit: Self::Exit,
    ) -> Result<(), VcpuStop>;
}

#[cfg(test)]
#[path = "runner_tests.rs"]
mod tests;
