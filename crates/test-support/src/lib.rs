//! Code that the tests of several crates share with the tools that run random guests.
//!
//! Crates of the product use it only under `[dev-dependencies]`. The parts that need a vCPU require
//! the feature `vcpu`, so that tests of the crates below the monitor can do without it.

#[cfg(feature = "vcpu")]
mod computer;
mod flat;
mod random;
#[cfg(feature = "vcpu")]
mod restored;
pub mod skip;
mod transcript;
mod user_code;
mod vectors;

#[cfg(feature = "vcpu")]
pub use computer::{Computer, memory_access};
pub use flat::flat_state;
pub use random::Random;
#[cfg(feature = "vcpu")]
pub use restored::restored;
pub use transcript::Transcript;
pub use user_code::user_code;
pub use vectors::visible_vectors;
