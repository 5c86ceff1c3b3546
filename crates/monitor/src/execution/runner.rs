//! The interface between the monitor and the engine that runs guest code.
//!
//! A [`Runner`] has the processor's registers and runs guest code on them until something needs the
//! monitor. The monitor does the rest: it asks the machine for interrupts, delivers events through
//! the guest's tables, executes the instructions that the runner does not, sleeps in HLT, and keeps
//! the ledger. [`Running`] is the monitor's side, generic over the runner. One turn of its loop
//! (`run_loop.rs`) has these steps:
//!
//! ```text
//!   changes since the last turn: code_written, translations_changed, control_changed ...
//!   entry   where guest code resumes, found with the monitor's help: page faults, links
//!   run     guest code, from the entry to an exit; no other part of the monitor is called
//!   settle  the exit, if it is one that only this runner knows
//! ```
//!
//! [`Translated`](crate::translated::Translated), copy-translation, is the runner of the product.
//! Its entries are places in blocks, its own exits are sites and signals, and it derives links from
//! page tables.
//!
//! A runner on hardware virtualization would implement the same trait. Its entry would be "whole"
//! or "one instruction", and nothing would have to be found. `run` would be the system call that
//! enters the guest, which a kick interrupts. `control_changed` would hand over control registers
//! and the like, and `interrupt_waits` would open the interrupt window. Such a runner derives
//! nothing from the guest's page tables and translates no code, so it would ignore those changes.
//! An instruction for which the hardware exits is [`Exit::Instruction`]; device accesses that the
//! hardware has decoded would be exits of their own. `runner_tests.rs` implements the trait with a
//! small interpreter.

use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use crate::memory::guest_view::GuestView;
use iced_x86::Instruction;
use std::collections::BTreeSet;
use tollgate_emulate::interrupt::{Planned, TripleFault};
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
    /// Until the runner needs the monitor. The run resumes where the last exit left off, if that
    /// place is still valid.
    Free,
    /// Until the instruction at CS:RIP has completed, from its beginning.
    One,
    /// Until the instruction at CS:RIP has completed, from where its last exit left off.
    RestOfOne,
}

/// Why guest code has stopped running. The registers are exact, except that an exit of the runner's
/// own makes them exact when it is settled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit<Own> {
    /// There was a request to leave. CS:RIP is between two instructions.
    Interrupted,
    /// The instruction before CS:RIP has completed, and the next has not begun.
    Completed,
    /// The monitor must execute the instruction at CS:RIP, which has had no effect.
    Instruction,
    /// The instruction at CS:RIP raises this exception and has had no effect.
    Fault(Exception),
    /// An exit that only this runner knows, for [`Runner::settle`].
    Own(Own),
}

/// An engine that runs a processor's code.
///
/// All calls come from the thread that runs the vCPU. A runner is made with the word that other
/// threads and signals set to request an exit ([`Vcpu::with_runner`](crate::Vcpu::with_runner)):
/// while the word is not 0, no further instruction begins. The thread that sets it also sends a
/// signal to the vCPU's thread ([`Kick`](crate::Kick)).
pub trait Runner: Sized {
    /// The place where guest code resumes.
    type Entry;
    /// The runner's own type of an exit.
    type Exit;
    /// The data that the runner derives from the guest's page tables.
    type Derived: Derived;

    /// The processor's registers.
    fn state(&self) -> &CpuState;

    /// The registers, for changes. A runner that keeps copies of them elsewhere treats each call as
    /// a change; the methods below that end in `changed` report some changes in more detail.
    fn state_mut(&mut self) -> &mut CpuState;

    /// The registers, and the runner's derived data, from which the monitor drops a range of pages,
    /// a space or everything when translations change ([`tollgate_x86::TranslationChange`]). When a
    /// page is dropped together with others of its large page, the runner is notified of it if the
    /// runner may have fetched code there through [`GuestView::place`].
    fn state_and_derived(&mut self) -> (&mut CpuState, &mut Self::Derived);

    /// Notifies the runner that general registers or EFLAGS were changed.
    fn registers_changed(&mut self);

    /// Notifies the runner that `CpuState::vector` was changed: the x87, SSE and AVX registers.
    fn vectors_changed(&mut self);

    /// Notifies the runner that the whole state may have been replaced.
    fn state_replaced(&mut self);

    /// Whether code must run in another mode than before, after a data segment was loaded.
    fn has_left_mode(&self) -> bool;

    /// Notifies the runner that segments, control registers, the privilege level or the memory map
    /// may have changed since the last run.
    fn control_changed(&mut self, view: &mut GuestView);

    /// Sets what the guest's RDTSC adds to the host's counter, modulo 2^64.
    fn set_time_stamp_offset(&mut self, offset: u64);

    /// Resumes interrupted work that belongs to this instruction. The guest is at an instruction
    /// boundary where no event is due. Returns whether work was resumed.
    fn goes_on_with_work<P: Platform>(_vcpu: &mut Running<'_, Self, P>) -> bool {
        false
    }

    /// Notes that the guest has slept for this many nanoseconds, which are not its programs' time.
    fn slept(&mut self, _nanoseconds: u64) {}

    /// Reports whether a maskable interrupt waits. While one waits, guest code is left when it lets
    /// interrupts in.
    fn interrupt_waits(&mut self, waits: bool);

    /// Notifies the runner that bytes of physical memory that held code were written.
    fn code_written(&mut self, write: CodeWrite, memory: &mut GuestMemory);

    /// Makes the runner leave guest code before the instructions at these linear addresses, unless a
    /// run begins there. It may do so at others.
    fn set_breakpoints(&mut self, addresses: &BTreeSet<u64>, memory: &mut GuestMemory);

    /// Whether the runner would leave guest code before the instruction at CS:RIP, as if it had a
    /// breakpoint. The monitor then runs this instruction alone.
    fn may_have_breakpoint(&self) -> bool {
        false
    }

    /// Notifies the runner that derived data was dropped because translations changed: the page of
    /// CS:RIP may lead elsewhere now.
    fn translations_changed(&mut self);

    /// Makes the next run begin at CS:RIP, wherever the last one left off.
    fn start_anew(&mut self);

    /// Notifies the runner that the monitor has executed an instruction for the guest. `jumped`
    /// means that control did not fall through to the next instruction.
    fn executed<P: Platform>(vcpu: &mut Running<'_, Self, P>, helper: &Helper, jumped: bool);

    /// Notifies the runner that the monitor has delivered INT n, INT1, INT3 or INTO by this plan.
    fn delivered<P: Platform>(
        _vcpu: &mut Running<'_, Self, P>,
        _instruction: &Instruction,
        _planned: &Planned,
    ) {
    }

    /// Runs guest code in a way that needs no entry, until it needs the monitor. Returns false if
    /// the code at CS:RIP does not run in such a way.
    ///
    /// # Errors
    /// The vCPU cannot continue.
    #[inline]
    fn runs_otherwise<P: Platform>(_vcpu: &mut Running<'_, Self, P>) -> Result<bool, VcpuStop> {
        Ok(false)
    }

    /// Finds the place where guest code resumes. `None` means that an exception was raised instead,
    /// or that the monitor must look for events first.
    ///
    /// # Errors
    /// The vCPU cannot continue.
    fn entry<P: Platform>(
        vcpu: &mut Running<'_, Self, P>,
        extent: Extent,
    ) -> Result<Option<Self::Entry>, VcpuStop>;

    /// Runs guest code until it needs the monitor, in this view of memory. While it runs, the code
    /// may make accesses that are [near](Platform::near) in the machine. The functions of the
    /// monitor that it calls are counted in the ledger as [fast-path
    /// calls](Ledger::begin_fast_path_call).
    fn run<P: Platform>(
        &mut self,
        entry: Self::Entry,
        view: &mut GuestView,
        machine: &mut P,
        ledger: &mut Ledger,
    ) -> Exit<Self::Exit>;

    /// Delivers an exception of the instruction at CS:RIP, or of the one before it, through the
    /// guest's tables, as well as any exception that the delivery raises.
    ///
    /// # Errors
    /// The processor shuts down.
    fn deliver<P: Platform>(
        vcpu: &mut Running<'_, Self, P>,
        exception: Exception,
    ) -> Result<(), TripleFault> {
        vcpu.deliver_by_tables(exception, &mut Planned::nothing())
    }

    /// Delivers an external interrupt that was acknowledged, at an instruction boundary.
    ///
    /// # Errors
    /// The processor shuts down.
    fn deliver_interrupt<P: Platform>(
        vcpu: &mut Running<'_, Self, P>,
        vector: u8,
    ) -> Result<(), VcpuStop> {
        vcpu.deliver_event(vector, &mut Planned::nothing())
    }

    /// Handles an exit of the runner's own.
    ///
    /// # Errors
    /// The vCPU cannot continue.
    fn settle<P: Platform>(
        vcpu: &mut Running<'_, Self, P>,
        exit: Self::Exit,
    ) -> Result<(), VcpuStop>;
}

#[cfg(test)]
#[path = "runner_tests.rs"]
mod tests;
