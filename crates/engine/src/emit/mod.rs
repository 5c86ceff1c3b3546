//! Emission of host code: no other folder touches state maps, sites and stubs.

mod anchor_operands;
pub mod assembler;
mod branch_islands;
mod direct;
pub(crate) mod effective_address;
pub(crate) mod emitter;
pub(crate) mod exits;
pub(crate) mod guest_operand_form;
pub(crate) mod held_registers;
pub(crate) mod host_code_count_patches;
#[cfg(test)]
mod island_tests;
mod jrcxz_branches;
pub(crate) mod look_up;
pub(crate) mod named_operands;
mod operand_access;
pub(crate) mod operands;
mod placement;
mod register_slots;
pub(crate) mod shared_look_up;
#[cfg(test)]
mod short_branches_tests;
mod state_map;
mod stub;
pub mod tables;
