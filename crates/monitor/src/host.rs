//! What a virtual processor needs from the host: a timer, the signal that interrupts guest code,
//! and clocks.

pub(crate) mod alarm;
pub(crate) mod facts;
pub mod kick;
pub(crate) mod timer;
