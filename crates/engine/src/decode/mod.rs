//! What the decoder leaves open: how long an instruction is that is not one, and whether one
//! that does not decode is only cut off.

pub(crate) mod length;
pub(crate) mod undefined;
