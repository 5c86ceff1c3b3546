//! The conventions that emitted code and the monitor share: the context, where the guest's
//! registers live, and the tables that lead from host code to guest state.

pub mod changed;
pub mod context;
pub mod context_displacements;
pub mod descriptors;
pub mod far_pointer;
pub mod fast_paths;
pub mod flags;
pub mod host;
pub mod immediate;
pub mod link_layout;
pub mod memos;
pub mod packed_sites;
pub mod packed_state_map;
pub mod register_map;
pub mod relocation;
pub mod signal_completion;
pub mod sites;
pub mod state_map;
pub mod strings;
pub(crate) mod varint;
pub mod vector_registers;
pub mod x87_pointers;
