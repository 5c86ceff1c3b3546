//! What the decoder leaves open: how long an instruction is that is not one, whether one
//! that does not decode is only cut off, and what bytes mean to which maker's processors.

pub(crate) mod length;
pub mod maker;
pub(crate) mod undefined;
