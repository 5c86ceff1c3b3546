//! What several tests share: guest code by its mode, what the translator makes of it, that as text,
//! and what it must not do.

pub mod emitted;
pub mod harm;
pub mod mode;
pub mod text;
