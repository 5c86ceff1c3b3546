//! Emission of host code: no other folder touches state maps, sites and stubs.

mod anchored;
pub mod assembler;
mod direct;
pub(crate) mod effective_address;
pub(crate) mod emitter;
pub(crate) mod exits;
pub(crate) mod held;
pub(crate) mod host_code_counts;
#[cfg(test)]
mod island_tests;
mod islands;
pub(crate) mod look_up;
mod operand_access;
pub(crate) mod operands;
mod placement;
mod skips;
#[cfg(test)]
mod skips_tests;
mod slot;
mod state_map;
mod stub;
pub mod tables;
pub(crate) mod window;
