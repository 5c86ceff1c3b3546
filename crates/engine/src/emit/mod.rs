//! Emission of host code: no other folder touches state maps, sites and stubs.

mod anchor_operands;
pub mod assembler;
mod direct;
pub(crate) mod effective_address;
pub(crate) mod emitter;
pub(crate) mod exits;
pub(crate) mod held_registers;
pub(crate) mod host_code_counts;
#[cfg(test)]
mod island_tests;
mod islands;
pub(crate) mod look_up;
pub(crate) mod named_operands;
mod operand_access;
pub(crate) mod operands;
mod placement;
pub(crate) mod reach;
pub(crate) mod shared_look_up;
mod short_branches;
#[cfg(test)]
mod short_branches_tests;
mod slot_operands;
mod state_map;
mod stub;
pub mod tables;
