//! What the tests of several crates share, and the tools that run random guests.
//!
//! Crates of the product name it under `[dev-dependencies]` only.

mod random;

pub use random::Random;
