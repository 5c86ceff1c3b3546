//! Copy-translation: guest code in, host code out, and the cache that holds it.
//!
//! Start with [`translate`] (one block's life), then [`abi::register_map`] (where guest
//! registers live), [`engine`] (all blocks), [`abi::context`] and [`gate::entry`] (how
//! generated code is entered and left).

pub mod abi;
pub mod blocks;
pub mod decode;
pub mod emit;
pub mod engine;
pub mod gate;
pub mod policy;
pub mod position;
pub mod preemption;
pub mod requests;
pub mod signals;
pub mod translate;
pub mod verify;

pub use abi::context::Context;
pub use engine::Engine;
