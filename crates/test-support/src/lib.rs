//! What the tests of several crates share, and the tools that run random guests.
//!
//! Crates of the product name it under `[dev-dependencies]` only. What needs a vCPU is behind
//! the feature `vcpu`, so that tests of the crates below the monitor do without it.

#[cfg(feature = "vcpu")]
mod computer;
mod flat;
mod random;
mod transcript;
mod vectors;

#[cfg(feature = "vcpu")]
pub use computer::{Computer, memory_access};
pub use flat::flat_state;
pub use random::Random;
pub use transcript::Transcript;
pub use vectors::visible_vectors;
