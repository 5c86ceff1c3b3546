//! What several tests share: guest code with its mode, the translator's output for it, that output
//! as text, and what the output must not do.

pub mod emitted;
pub mod harm;
pub mod mode;
pub mod text;
