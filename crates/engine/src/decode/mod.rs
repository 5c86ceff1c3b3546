//! Facts about instructions that the decoder does not give: how long an undefined instruction is,
//! whether bytes that do not decode are only cut off, and which bytes mean different instructions
//! to different makers' processors.

pub(crate) mod length;
pub mod maker;
pub(crate) mod undefined;
