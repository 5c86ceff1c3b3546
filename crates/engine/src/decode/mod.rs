//! Facts about instructions that the decoder does not give: how long an undefined instruction is,
//! whether bytes that do not decode are only cut off, and which bytes mean different instructions
//! to different makers' processors.

pub mod intel_amd_differences;
pub(crate) mod length;
pub(crate) mod undefined;
