//! The way into emitted code and out of it, and the store test that it calls: all that is
//! written in assembly by hand.

pub mod code_store;
pub mod entry;
