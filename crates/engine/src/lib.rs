//! Copy-translation: guest code in, host code out, and the cache that holds it.
//!
//! Start with [`translate`] (one block's life), then [`register_map`] (where guest
//! registers live), [`engine`] (all blocks), [`context`] and [`entry`] (how generated
//! code is entered and left).

pub mod allow_list;
pub mod assembler;
pub mod block;
pub mod code_cache;
pub mod code_store;
pub mod context;
pub mod descriptors;
pub mod engine;
pub mod entry;
pub mod far_pointer;
pub mod links;
pub mod mode;
pub mod register_map;
pub mod signals;
pub mod translate;
pub mod vector_registers;
pub mod verify;
pub mod virtual_interrupts;

pub use context::Context;
pub use engine::Engine;
