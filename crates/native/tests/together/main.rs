//! All integration tests of this crate in one program: little programs, given as bytes, that run in
//! processes of their own.

mod exits;
mod hostile;
mod mappings;
mod support;
mod vectors;
