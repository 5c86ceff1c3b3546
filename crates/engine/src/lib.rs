//! The engine: it translates guest code into host code by copying, and keeps that code in a cache.
//!
//! Start with [`translate`] (how one block is made), then [`abi::register_map`] (where guest
//! registers live), [`engine`] (all blocks), [`abi::context`] and [`gate::entry`] (how emitted code
//! is entered and left).

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
pub mod stored;
pub mod translate;
pub mod verify;

pub use abi::context::Context;
pub use engine::Engine;
