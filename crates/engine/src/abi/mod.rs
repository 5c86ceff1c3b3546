//! What emitted code and the monitor agree on: the context that emitted code reaches, where
//! the guest's registers live, and the tables that lead from host code to guest state.

pub mod block;
pub mod context;
pub mod descriptors;
pub mod far_pointer;
pub mod level_change;
pub mod register_map;
pub mod vector_registers;
