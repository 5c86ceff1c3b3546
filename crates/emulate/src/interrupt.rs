//! Delivery of interrupts and exceptions (SDM volume 3, chapter 6 and 21.3; volume 2, INT n).
//!
//! A delivery is first planned, then made. [`plan`] reads the tables and makes all checks; its
//! result, a [`Plan`], says which frame is pushed where, and what CS, RIP, SS and the flags become.
//! [`deliver`] applies the plan and returns it. The monitor keeps plans, to repeat deliveries whose
//! tables have not changed.
//!
//! Delivery is atomic: every step that can fault precedes the first change of a register.
//! [`crate::virtual_8086`] decides who handles INT n of V86 code. A task gate leads to another
//! task, and the faults of that task are raised after it has become the current one.

use crate::Outcome;
use crate::descriptor_table::TableEntry;
use crate::operand::next_rip;
use crate::task_switch::{Cause, switch_task};
use iced_x86::{Code, Instruction};
use tollgate_platform::Environment;
use tollgate_x86::state::Activity;
use tollgate_x86::{CpuState, Exception, Flags, Vector};

mod long_mode;
mod plan;
mod protected_mode;
mod reads;
mod vector_table;

pub use crate::exception_delivery::{TripleFault, deliver_exception};
pub use plan::{Frame, FrameForm, FrameStack, Plan};
use reads::Reader;
pub use reads::Reads;

/// What causes a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventSource {
    /// An interrupt from outside the processor (maskable or NMI).
    External,
    /// The instruction INT n.
    Software,
    /// The instruction INT3 or INTO.
    Int3OrInto,
    /// A fault, trap or abort that the processor detected, or INT1.
    Exception,
}

impl EventSource {
    /// The EXT bit: set if the event was not caused by the running program's own instruction.
    const fn external_bit(self) -> u32 {
        match self {
            EventSource::External | EventSource::Exception => 1,
            EventSource::Software | EventSource::Int3OrInto => 0,
        }
    }

    /// Whether the gate's DPL is compared with the CPL.
    const fn is_checked_for_privilege(self) -> bool {
        self.external_bit() == 0
    }
}

/// An interrupt or exception that is delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The number of the vector.
    pub vector: u8,
    /// What caused the event.
    pub source: EventSource,
    /// The error code, which is pushed only in protected and V86 mode.
    pub error_code: Option<u32>,
    /// RIP in the frame: that of the faulting instruction for faults, of the next one for traps,
    /// interrupts and software interrupts.
    pub return_rip: u64,
}

impl Event {
    /// An exception of the instruction at `rip` or, for a trap, of the one before it.
    pub fn of_exception(exception: Exception, rip: u64) -> Self {
        let has_code = exception.vector.has_error_code();
        Self {
            vector: exception.vector as u8,
            source: EventSource::Exception,
            error_code: has_code.then_some(exception.error_code),
            return_rip: rip,
        }
    }

    /// An external interrupt before the instruction at `rip`.
    pub const fn external(vector: u8, rip: u64) -> Self {
        Self {
            vector,
            source: EventSource::External,
            error_code: None,
            return_rip: rip,
        }
    }

    /// Whether the event is a fault, whose frame has RF set (SDM volume 3, 17.3.1.1). #DB counts as
    /// a trap: neither single steps nor instruction breakpoints set RF.
    pub fn is_fault(&self) -> bool {
        self.source == EventSource::Exception
            && !matches!(self.vector, 1 | 2 | 3 | 4 | 8 | 18)
            && self.vector < 32
    }

    /// EFLAGS in the frame.
    fn flags_image(&self, state: &CpuState) -> u64 {
        let resume_flag = match self.is_fault() {
            true => Flags::RF,
            false => Flags::empty(),
        };
        state.flags().image() | resume_flag.bits()
    }

    /// An error code that refers to the event's own gate.
    fn gate_error_code(&self) -> u32 {
        u32::from(self.vector) * 8 + 2 + self.source.external_bit()
    }

    /// The cause of a task switch by this event.
    fn cause(&self) -> Cause {
        Cause::Event {
            error_code: self.error_code,
            external: self.source.external_bit(),
        }
    }
}

/// Where a delivery leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// There is no delivery, or it raises an exception.
    Nothing,
    /// To a handler in the same task.
    Handler(Plan),
    /// Through a task gate to another task, by its TSS descriptor.
    Task(TableEntry),
}

/// What is known of a delivery after [`plan`].
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// Where the delivery leads.
    pub target: Target,
    /// The words of memory that [`Planned::target`] follows from.
    pub reads: Reads,
}

impl Planned {
    /// The value before a delivery is planned.
    pub const fn nothing() -> Self {
        Self {
            target: Target::Nothing,
            reads: Reads::NONE,
        }
    }
}

/// Finds out what the delivery of an event does. `planned` becomes the result, with a list of what
/// was read from memory even if the result is an exception. It is filled in place, because a plan is
/// large, and copies of it take as long as the rest of a delivery. Planning changes nothing except
/// the accessed bits of descriptors, after which [`Reads::is_complete`] is false.
///
/// # Errors
///
/// The exception that the delivery raises before it pushes the frame, with the EXT bit in its error
/// code where the manual sets it.
pub fn plan(
    state: &CpuState,
    environment: &mut dyn Environment,
    event: &Event,
    planned: &mut Planned,
) -> Result<(), Exception> {
    let Planned { target, reads } = planned;
    *target = Target::Nothing;
    let mut tables = Reader::new(environment, reads);
    if state.is_long_mode() {
        event.plan_long(state, &mut tables, target)
    } else if state.is_protected() {
        event.plan_protected(state, &mut tables, target)
    } else {
        event.plan_real(state, &mut tables, target)
    }
}

/// Delivers an event through the IVT or IDT and makes the processor run its handler. `planned`
/// becomes the plan that was applied.
///
/// INT n in V86 mode may go to the V86 program itself, without leaving the mode. A halted processor
/// runs again. `shadow_rip` is left to the caller.
///
/// # Errors
///
/// The exception that the delivery raised (with the EXT bit in its error code where the manual sets
/// it); nothing has changed then except accessed bits of descriptors. Only the faults of a task
/// that a task gate led to belong to that task, and leave its registers.
pub fn deliver(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    event: &Event,
    planned: &mut Planned,
) -> Result<(), Exception> {
    plan(state, environment, event, planned)?;
    match &planned.target {
        Target::Nothing => {}
        Target::Handler(plan) => plan.apply(state, environment, event)?,
        Target::Task(task) => {
            let (rip, flags) = (event.return_rip, event.flags_image(state));
            switch_task(state, environment, *task, event.cause(), rip, flags)?;
        }
    }
    state.activity = Activity::Running;
    Ok(())
}

/// Executes INT n, INT3, INTO or INT1. `planned` becomes the plan of the delivery.
///
/// # Errors
///
/// Those of [`deliver`].
pub fn software_interrupt(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
    planned: &mut Planned,
) -> Result<Outcome, Exception> {
    // RF is cleared first: the frame of a software interrupt has RF clear (SDM volume 3, 17.3.1.1).
    state.flags &= !Flags::RF.bits();
    let Some(event) = event_of(state, instruction)? else {
        state.rip = next_rip(state, instruction);
        return Ok(Outcome::Next);
    };
    deliver(state, environment, &event, planned)?;
    Ok(Outcome::Jumped)
}

/// The event of INT n, INT3, INTO and INT1. `None` for an INTO that does nothing.
fn event_of(state: &CpuState, instruction: &Instruction) -> Result<Option<Event>, Exception> {
    let (vector, source) = match instruction.code() {
        Code::Int_imm8 => (instruction.immediate8(), EventSource::Software),
        Code::Int3 => (Vector::Breakpoint as u8, EventSource::Int3OrInto),
        Code::Into if !state.flags().contains(Flags::OF) => return Ok(None),
        Code::Into => (Vector::Overflow as u8, EventSource::Int3OrInto),
        Code::Int1 => (Vector::Debug as u8, EventSource::Exception),
        _ => return Err(Exception::invalid_opcode()),
    };
    Ok(Some(Event {
        vector,
        source,
        error_code: None,
        return_rip: next_rip(state, instruction),
    }))
}

#[cfg(test)]
mod tests;
