//! Delivery of exceptions, including exceptions raised by the delivery itself: double and triple
//! faults (SDM volume 3, 6.15, "Double Fault Exception").

use crate::interrupt::{Event, Planned, Target, deliver};
use tollgate_platform::Environment;
use tollgate_x86::{CpuState, Exception, Vector};

/// The processor cannot continue after an exception: the delivery of a double fault has faulted.
/// The registers are those before the first exception, except CR2, or those of a task that a task
/// gate led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TripleFault;

/// Classes of exceptions for double faults (SDM volume 3, table 6-4).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Benign,
    Contributory,
    PageFault,
    DoubleFault,
}

const fn class(vector: Vector) -> Class {
    match vector {
        Vector::DivideError
        | Vector::InvalidTss
        | Vector::SegmentNotPresent
        | Vector::StackFault
        | Vector::GeneralProtection => Class::Contributory,
        Vector::PageFault => Class::PageFault,
        Vector::DoubleFault => Class::DoubleFault,
        _ => Class::Benign,
    }
}

/// The effect of `second` raised while `first` is delivered (SDM volume 3, table 6-5). `None` means
/// shutdown.
fn combine(first: Exception, second: Exception) -> Option<Exception> {
    let is_double = match (class(first.vector), class(second.vector)) {
        (Class::DoubleFault, Class::Contributory | Class::PageFault | Class::DoubleFault) => {
            return None;
        }
        (Class::Contributory, Class::Contributory) => true,
        (Class::PageFault, Class::Contributory | Class::PageFault) => true,
        _ => false,
    };
    Some(if is_double {
        Exception::new(Vector::DoubleFault)
    } else {
        second
    })
}

/// Delivers an exception that the instruction at `state.rip` raised (or, for a trap, the one before
/// it), and any exceptions raised by the delivery, including double faults. `planned` becomes
/// the plan of the delivery, unless the delivery raised an exception. CR2 is set for page faults, even if they become a double
/// or a triple fault (SDM volume 3, 6.15, a note on interrupt 14).
///
/// # Errors
///
/// [`TripleFault`] if the processor shuts down.
pub fn deliver_exception(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    exception: Exception,
    planned: &mut Planned,
) -> Result<(), TripleFault> {
    let mut current = exception;
    let mut is_first = true;
    // Each round either ends or advances in the table; only benign exceptions that keep failing in
    // the same way could repeat forever without this limit.
    for _ in 0..8 {
        note_address(state, current);
        let event = Event::of_exception(current, state.rip);
        match deliver(state, environment, &event, planned) {
            Ok(()) => {
                if !is_first {
                    planned.target = Target::Nothing;
                }
                return Ok(());
            }
            Err(second) => {
                note_address(state, second);
                is_first = false;
                current = combine(current, second).ok_or(TripleFault)?;
            }
        }
    }
    Err(TripleFault)
}

/// Sets CR2 if this is a page fault.
fn note_address(state: &mut CpuState, exception: Exception) {
    if let Some(address) = exception.address {
        state.cr2 = address.0;
    }
}
