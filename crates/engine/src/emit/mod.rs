//! How host code is made.

pub mod assembler;
