//! Repeated string instructions that guest code executes without an exit: the numbers of the
//! routines of [`crate::gate::string`]. `policy/string_routine.rs` says which instruction has one.

/// Operations of each way to reach memory: MOVS and STOS of four widths, then CMPS and SCAS
/// of four widths, each while equal and while not equal.
pub const OPERATIONS: usize = 24;
/// Routines: those of each way to reach memory behind each other.
pub const ROUTINES: usize = 3 * OPERATIONS;

/// A routine, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StringRoutine(pub usize);
